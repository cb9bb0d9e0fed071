/* test_rng.c - counter-based random numbers against published vectors and long double libm. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include "base/mem.h"
#include "base/rng.h"
#include "lib/lib.h"

/* The vectors of Random123's file kat_vectors for philox4x32 with 10 rounds. */
static void philox_matches_the_published_vectors(void **state)
{
    (void)state;
    static const struct {
        uint64_t key;
        uint32_t counter[4], out[4];
    } cases[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX,
         {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t out[4];
        rng_philox(cases[i].key, cases[i].counter, out);
        assert_memory_equal(out, cases[i].out, sizeof(out));
    }
}

static void a_draw_depends_on_each_of_its_arguments(void **state)
{
    (void)state;
    uint64_t key = rng_key(42, 0);
    uint64_t w = rng_u64(key, RNG_TARGET_DRAW, 7, 0, 3);
    assert_int_equal(w, rng_u64(key, RNG_TARGET_DRAW, 7, 0, 3));
    assert_int_not_equal(w, rng_u64(rng_key(42, 1), RNG_TARGET_DRAW, 7, 0, 3));
    assert_int_not_equal(w, rng_u64(rng_key(43, 0), RNG_TARGET_DRAW, 7, 0, 3));
    assert_int_not_equal(w, rng_u64(key, RNG_ACCEPT, 7, 0, 3));
    assert_int_not_equal(w, rng_u64(key, RNG_TARGET_DRAW, 8, 0, 3));
    assert_int_not_equal(w, rng_u64(key, RNG_TARGET_DRAW, 7, 1, 3));
    assert_int_not_equal(w, rng_u64(key, RNG_TARGET_DRAW, 7, 0, 4));
}

/* The tables of docs/protocol.md. */
static void keys_and_draws_are_those_of_the_protocol(void **state)
{
    (void)state;
    assert_int_equal(rng_key(0, 0), 0xa706dd2f4d197e6fu);
    assert_int_equal(rng_key(42, 0), 0x57e1faba65107204u);
    assert_int_equal(rng_key(42, 1), 0xfa4f945599f9054au);
    assert_int_equal(rng_key(-1, 0), 0x5dc20aa7b2a27137u);
    static const struct {
        uint64_t w;
        double log_exp;
    } draws[] = {
        {0xa83da1de03edb227u, 0.068200732984028012},
        {0xbca00d4ae317da81u, 0.28886119627739271},
        {0x0c87e3a8e4e29180u, -2.9919978393229028},
        {0x2313be77e69ef207u, -1.9148510141345585},
    };
    for (uint32_t t = 0; t < ARRAY_LEN(draws); t++) {
        uint64_t w = rng_u64(rng_key(42, 0), RNG_TARGET_DRAW, 7, 0, t);
        assert_int_equal(w, draws[t].w);
        assert_true(rng_log_exp(w) == draws[t].log_exp); // same bits
    }
}

static void uniform_numbers_stay_inside_0_and_1(void **state)
{
    (void)state;
    assert_true(rng_uniform(0) == 0x1p-65);
    assert_true(rng_uniform(UINT64_MAX) < 1.0);
    assert_true(rng_uniform(UINT64_C(1) << 63) == 0.5);
}

/* |ours - libm's| over max(1, |libm's|). */
static double log_exp_error(uint64_t w)
{
    long double u = ((long double)w + 0.5L) * 0x1p-64L;
    long double rest = ((long double)~w + 0.5L) * 0x1p-64L; // 1 - u, exact
    long double e = w >> 63 ? -logl(rest) : -log1pl(-u);
    long double want = logl(e), got = rng_log_exp(w);
    return (double)(fabsl(got - want) / fmaxl(1.0L, fabsl(want)));
}

static void log_exp_has_full_precision_at_both_ends(void **state)
{
    (void)state;
    static const uint64_t ends[] = {0,
                                    1,
                                    2,
                                    3,
                                    UINT64_C(1) << 53,
                                    (UINT64_C(1) << 54) - 1,
                                    UINT64_C(1) << 54,
                                    (UINT64_C(1) << 54) + 1,
                                    UINT64_C(1) << 63,
                                    UINT64_MAX,
                                    UINT64_MAX - 1,
                                    UINT64_MAX - 2};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        assert_true(log_exp_error(ends[i]) < 1e-15);
    uint64_t x = 1;
    double worst = 0;
    for (unsigned i = 0; i < 200000; i++) {
        x = rng_splitmix64(x);
        uint64_t small = x >> (i / 3 % 64);
        double error = log_exp_error(i % 3 == 0 ? x : i % 3 == 1 ? small : ~small);
        worst = error > worst ? error : worst;
    }
    printf("worst error of log E: %.2g\n", worst);
    assert_true(worst < 1e-15);
}

static void log_exp_rises_with_w(void **state)
{
    (void)state;
    double last = -INFINITY;
    for (int shift = 63; shift >= 0; shift--) {
        double e = rng_log_exp(UINT64_MAX >> shift);
        assert_true(e > last);
        last = e;
    }
}

/* The mean of the exponential distribution is 1, its median log 2. */
static void log_exp_has_the_mean_and_median_of_an_exponential(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum = 0;
    int below = 0;
    for (uint32_t i = 0; i < N; i++) {
        double e = exp(rng_log_exp(rng_u64(7, RNG_TARGET_DRAW, i, 0, 0)));
        sum += e;
        below += e < log(2);
    }
    assert_true(fabs(sum / N - 1) < 5 / sqrt(N));
    assert_true(fabs((double)below / N - 0.5) < 2.5 / sqrt(N));
}

static void secrets_differ(void **state)
{
    (void)state;
    assert_int_not_equal(rng_secret(), rng_secret());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_matches_the_published_vectors),
        cmocka_unit_test(a_draw_depends_on_each_of_its_arguments),
        cmocka_unit_test(keys_and_draws_are_those_of_the_protocol),
        cmocka_unit_test(uniform_numbers_stay_inside_0_and_1),
        cmocka_unit_test(log_exp_has_full_precision_at_both_ends),
        cmocka_unit_test(log_exp_rises_with_w),
        cmocka_unit_test(secrets_differ),
        cmocka_unit_test(log_exp_has_the_mean_and_median_of_an_exponential),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
