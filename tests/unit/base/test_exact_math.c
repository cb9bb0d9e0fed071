/* test_exact_math.c - elementary functions against long double libm, and their bits. */
#include "base/exact_math.h"
#include "base/mem.h"
#include "base/rng.h"
#include "lib/lib.h"
#include <math.h>

static void log_is_within_two_roundings(void **state)
{
    (void)state;
    for (double x = 1; x < 1e300; x *= 1.0137)
        assert_true(fabsl(exact_math_log(x) - logl(x)) <= 4e-16L * fmaxl(1, fabsl(logl(x))));
    for (double x = 1; x > 1e-300; x /= 1.0137)
        assert_true(fabsl(exact_math_log(x) - logl(x)) <= 4e-16L * fmaxl(1, fabsl(logl(x))));
    assert_true(exact_math_log(1) == 0);
}

static void exp_is_within_two_units_in_the_last_place(void **state)
{
    (void)state;
    for (double x = -708; x < -1e-300; x *= 0.9991)
        assert_true(fabsl(exact_math_exp(x) / expl(x) - 1) <= 0x1p-51L);
    assert_true(exact_math_exp(0) == 1 && exact_math_exp(-0.0) == 1);
    assert_true(exact_math_exp(-708.1) == 0 && exact_math_exp(-INFINITY) == 0);
}

static void assert_sin_cos(double x)
{
    double s, c;
    exact_math_sin_cos(x, &s, &c);
    if (fabsl(s - sinl(x)) > 0x1p-52L || fabsl(c - cosl(x)) > 0x1p-52L)
        fail_msg("sine and cosine of %a: %a, %a", x, s, c);
}

static void sine_and_cosine_are_within_2_to_the_minus_52(void **state)
{
    (void)state;
    for (int i = -1000; i <= 1000; i++) // around the multiples of pi/4
        for (double off = -0x1p-10; off <= 0x1p-10; off += 0x1p-15)
            assert_sin_cos(i * M_PI_4 + off);
    uint64_t x = 1;
    for (int i = 0; i < 100000; i++) {
        x = rng_splitmix64(x);
        assert_sin_cos((double)(int64_t)x * 0x1p-43); // up to 2^20
        assert_sin_cos((double)(int64_t)x * 0x1p-63);
    }
    double s, c;
    exact_math_sin_cos(0, &s, &c);
    assert_true(s == 0 && c == 1);
}

/* The results on every machine and with every compiler. */
static void bits_are_the_same_everywhere(void **state)
{
    (void)state;
    uint64_t x = 2, log_bits = 0, exp_bits = 0, sin_cos_bits = 0;
    for (int i = 0; i < 100000; i++) {
        double s, c;
        x = rng_splitmix64(x);
        double unit = ((double)(x >> 12) + 0.5) * 0x1p-52;
        exact_math_sin_cos(unit * 0x1p20, &s, &c);
        log_bits = rng_splitmix64(log_bits ^ exact_math_bits(exact_math_log(unit)));
        exp_bits = rng_splitmix64(exp_bits ^ exact_math_bits(exact_math_exp(unit * -50)));
        sin_cos_bits = rng_splitmix64(sin_cos_bits ^ exact_math_bits(s));
        sin_cos_bits = rng_splitmix64(sin_cos_bits ^ exact_math_bits(c));
    }
    if (log_bits != 0x7985b2fd36bf0326 || exp_bits != 0x0d0b48ba28e482de ||
        sin_cos_bits != 0x057f58ec4af9025e)
        fail_msg("log 0x%016llx, exp 0x%016llx, sine and cosine 0x%016llx",
                 (unsigned long long)log_bits, (unsigned long long)exp_bits,
                 (unsigned long long)sin_cos_bits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_is_within_two_roundings),
        cmocka_unit_test(exp_is_within_two_units_in_the_last_place),
        cmocka_unit_test(sine_and_cosine_are_within_2_to_the_minus_52),
        cmocka_unit_test(bits_are_the_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
