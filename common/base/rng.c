/* rng.c - counter-based random numbers. */
#include <sys/random.h>
#include "base/clock.h"
#include "base/exact_math.h"
#include "base/rng.h"

uint64_t rng_splitmix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t rng_secret(void)
{
    uint64_t secret;
    if (getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
        secret = rng_splitmix64((uint64_t)clock_us() ^ (uintptr_t)&secret);
    return secret;
}

uint64_t rng_key(int64_t seed, uint32_t choice)
{
    return rng_splitmix64(rng_splitmix64((uint64_t)seed) + choice);
}

void rng_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)RNG_PHILOX_M0 * c0, b = (uint64_t)RNG_PHILOX_M1 * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += RNG_PHILOX_W0;
        k1 += RNG_PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t rng_u64(uint64_t key, enum rng_stream stream, uint32_t position, uint32_t row,
                 uint32_t token)
{
    uint32_t counter[4] = {stream, position, row, token}, out[4];
    rng_philox(key, counter, out);
    return out[0] | (uint64_t)out[1] << 32;
}

/* (x + 1/2) 2^-64. A double has 53 bits, so the half is lost only if it is below the last one. */
static double scaled(uint64_t x)
{
    return ((double)x + 0.5) * 0x1p-64;
}

double rng_uniform(uint64_t w)
{
    double u = scaled(w);
    return u < 1.0 ? u : 0x1.fffffffffffffp-1;
}

/* -log1p(-u) is u + u^2/2 + u^3/3 + ... for small u, otherwise the log of the exact complement. */
double rng_log_exp(uint64_t w)
{
    double u = scaled(w);
    if (u < 0x1p-10) {
        double sum = 0;
        for (int k = 7; k >= 2; k--) // u^7/8 < 2^-73
            sum = (sum + 1.0 / k) * u;
        return exact_math_log(u * (1.0 + sum));
    }
    /* 1 - u = (~w + 1/2) 2^-64 = (x + rest) 2^-64. Near 1 the rounding error of x matters in E. */
    double high = (double)~w, low = (double)(int64_t)(~w - (uint64_t)high) + 0.5;
    double x = high + low, rest = low - (x - high);
    return exact_math_log(-(exact_math_log(x * 0x1p-64) + rest / x));
}
