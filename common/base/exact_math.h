/* exact_math.h - elementary functions that return the same bits on every machine.
 *
 * The last bits of libm's results differ by version and by CPU. These functions use exact or singly
 * rounded operations on doubles in a fixed order. They are inline, so compilers can vectorise loops
 * over them. (The float exp of activations is a kernel, see kernel_body.h.) */
#pragma once
#include <stdint.h>
#include <string.h>

static inline uint64_t exact_math_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline double exact_math_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Natural logarithm of a normal positive number. x = m 2^e with m in [sqrt(1/2), sqrt(2)):
 * log m = 2 atanh(s), s = (m - 1)/(m + 1), by its series to s^23 (|s| < 0.1716: below 2^-60). */
static inline double exact_math_log(double x)
{
    uint64_t bits = exact_math_bits(x);
    int e = (int)(bits >> 52) - 1023;
    double m = exact_math_double((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0;
    for (int k = 23; k >= 3; k -= 2)
        sum = (sum + 1.0 / k) * s2;
    return (double)e * 0x1.62e42fefa39efp-1 + (2.0 * s + 2.0 * s * sum);
}

#define EXACT_MATH_ROUND 0x1.8p52 // adding it rounds to an integer, which is then in the low bits

/* exp(x) for x <= 0 within 2 units in the last place; 0 below -708. x = n log 2 + r, |r| <=
 * log(2)/2, exp(r) by its series to r^13 (next term below 2^-55). */
static inline double exact_math_exp(double x)
{
    double shifted = x * 0x1.71547652b82fep+0 + EXACT_MATH_ROUND, n = shifted - EXACT_MATH_ROUND;
    double r = x - n * 0x1.62e42fefa3800p-1 - n * 0x1.ef35793c76730p-45;
    double sum = 1.0 / 6227020800;
    sum = sum * r + 1.0 / 479001600;
    sum = sum * r + 1.0 / 39916800;
    sum = sum * r + 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    double scale = exact_math_double((exact_math_bits(shifted) + 1023) << 52);
    uint64_t kept = -(uint64_t) !(x < -708.0); // a mask: gcc does not vectorise a branch
    return exact_math_double(exact_math_bits(sum * scale) & kept);
}

/* Sine and cosine within 2^-52 for |x| < 2^20, less exact beyond. x = n pi/2 + r, |r| <= pi/4.
 * pi/2 is split into three parts; the first two have 24 bits, so n times each of them is exact.
 * Series to r^17 and r^18 (next terms below 2^-58). */
static inline void exact_math_sin_cos(double x, double *ret_sin, double *ret_cos)
{
    double shifted = x * 0x1.45f306dc9c883p-1 + EXACT_MATH_ROUND, n = shifted - EXACT_MATH_ROUND;
    double r = x - n * 0x1.921fb60000000p+0 + n * 0x1.777a5c0000000p-25 + n * 0x1.ee59d9cceba40p-50;
    double z = r * r;
    double s = 1.0 / 355687428096000;
    s = s * z - 1.0 / 1307674368000;
    s = s * z + 1.0 / 6227020800;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = s * z * r + r;
    double c = -1.0 / 6402373705728000;
    c = c * z + 1.0 / 20922789888000;
    c = c * z - 1.0 / 87178291200;
    c = c * z + 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z * z - (0.5 * z - 1.0);
    uint64_t quarter = exact_math_bits(shifted);
    double sin_r = quarter & 1 ? c : s, cos_r = quarter & 1 ? s : c;
    *ret_sin = quarter & 2 ? -sin_r : sin_r;
    *ret_cos = (quarter + 1) & 2 ? -cos_r : cos_r;
}
