/* test_kernel_math.c - rows of floats: norms, exp, f16, softmax sums, argmax. Every tier gives the
 * bits of the C tier, and the C tier agrees with float64. TANDEM_TEST_LONG=1: every float. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/exact_math.h"
#include "base/rng.h"
#include "kernel/kernel_impl.h"
#include "lib/rigs/guard.h"
#include "lib/lib.h"
#include "lib/rigs/kernel_tiers.h"
#include "lib/models/weights.h"

/* Lengths around the size of vectors, and lengths of real models. */
static const uint32_t lengths[] = {1,  2,  7,  8,  15, 16,  17,  31,  32,  33,
                                   47, 48, 63, 64, 65, 100, 288, 576, 997, 2048};

static void f16_of_every_half_is_that_half(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = kernel_f16_to((uint16_t)h);
        if (f != f)
            assert_int_equal(kernel_f16_of(f), h | 0x200); // quiet
        else
            assert_int_equal(kernel_f16_of(f), h);
    }
}

/* Between neighbours a < b the halfway float goes to the even one, its neighbours to the nearer. */
static void f16_rounds_to_nearest_and_ties_to_even(void **state)
{
    (void)state;
    for (uint16_t h = 0; h < 0x7bff; h++) {
        float a = kernel_f16_to(h), b = kernel_f16_to((uint16_t)(h + 1)), half = a + (b - a) / 2;
        assert_int_equal(kernel_f16_of(half), h % 2 ? h + 1 : h);
        assert_int_equal(kernel_f16_of(nextafterf(half, 0)), h);
        assert_int_equal(kernel_f16_of(nextafterf(half, 1e9f)), h + 1);
        assert_int_equal(kernel_f16_of(-half), 0x8000 | (h % 2 ? h + 1 : h));
    }
    assert_int_equal(kernel_f16_of(65519.99f), 0x7bff);
    assert_int_equal(kernel_f16_of(65520.0f), 0x7c00);
    assert_int_equal(kernel_f16_of(INFINITY), 0x7c00);
    assert_int_equal(kernel_f16_of(1e-30f), 0);
}

/* Every 1021st float (a prime), or every one. */
static void f16_of_tiers_is_that_of_c(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n = kernel_tiers_here(k);
    uint64_t step = getenv("TANDEM_TEST_LONG") ? 1 : 1021;
    for (uint64_t bits = 0; bits < 1ull << 32;) {
        float x[64];
        uint16_t y[KERNEL_TIERS_MAX][64];
        for (unsigned i = 0; i < 64; i++, bits += step)
            x[i] = kernel_float((uint32_t)bits);
        for (unsigned t = 0; t < n; t++)
            k[t]->to_f16(x, 64, y[t]);
        for (unsigned i = 0; i < 64; i++)
            assert_int_equal(y[0][i], kernel_f16_of(x[i]));
        for (unsigned t = 1; t < n; t++)
            assert_memory_equal(y[0], y[t], sizeof(y[0]));
    }
}

/* Below 2^-22 where the result is a normal number; below the smallest one it is 0 or near it. */
static void exp_is_within_2_to_the_minus_22(void **state)
{
    (void)state;
    uint64_t step = getenv("TANDEM_TEST_LONG") ? 1 : 509;
    double worst = 0;
    for (uint64_t bits = 0; bits < 1ull << 32; bits += step) {
        float x = kernel_float((uint32_t)bits), got = kernel_expf(x);
        double want = exp((double)x);
        if (x != x) {
            assert_true(got != got);
        } else if (want > 3.4028235e38) {
            assert_true(isinf(got) || fabs(got / want - 1) < 0x1p-22);
        } else if (want < 0x1p-126) {
            assert_true(got >= 0 && got < 0x1.0002p-126);
        } else {
            double off = fabs(got / want - 1);
            worst = off > worst ? off : worst;
        }
    }
    printf("exp: worst relative error 2^%.2f\n", log2(worst));
    assert_true(worst < 0x1p-22);
    assert_true(kernel_expf(-INFINITY) == 0 && isinf(kernel_expf(INFINITY)) && kernel_expf(0) == 1);
}

static void norms_agree_with_float64(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        uint32_t n = lengths[i];
        float *x = weights_floats(1, n, n, false), *w = weights_floats(1, n, n + 1, false);
        float *y = weights_alloc(n * sizeof(float));
        kernel_tier("c")->rmsnorm(x, w, n, 1e-5f, y);
        double sum = 0;
        for (uint32_t k = 0; k < n; k++)
            sum += (double)x[k] * x[k];
        for (uint32_t k = 0; k < n; k++)
            assert_true(fabs(y[k] - x[k] / sqrt(sum / n + 1e-5) * w[k]) <= 5e-7 * fabs(y[k]));
        free(x);
        free(w);
        free(y);
    }
}

static void swiglu_agrees_with_float64(void **state)
{
    (void)state;
    float gate[] = {0, -0.0f, 1, -1, 20, -20, 80, -80, 200, -200, 1e30f, -1e30f, 0.001f}, y[13];
    float up[] = {1, 1, 2, 3, -1, 1e6f, 2, 2, 1, 1, 1e-20f, 1, 7};
    kernel_tier("c")->swiglu(gate, up, 13, y);
    for (int i = 0; i < 13; i++) {
        double want = (double)gate[i] / (1 + exp(-(double)gate[i])) * up[i];
        assert_true(fabs(y[i] - want) <= 1e-6 * fabs(want) + 1e-30);
    }
}

static void swiglu_clamped_agrees_with_float64(void **state)
{
    (void)state;
    float gate[] = {0, -0.0f, 1, -1, 6.5f, 7.5f, 80, -80, 1e30f, -1e30f, 0.001f}, y[11];
    float up[] = {1, -1, 2, 3, -8, 6.9f, 1e6f, 2, -1e20f, 1, 7};
    kernel_tier("c")->swiglu_clamped(gate, up, 11, y);
    for (int i = 0; i < 11; i++) {
        double g = fmin(gate[i], 7), u = fmin(fmax(up[i], -7), 7);
        double want = g / (1 + exp(-(double)1.702f * g)) * (u + 1);
        assert_true(fabs(y[i] - want) <= 1e-6 * fabs(want) + 1e-30);
    }
}

static void add_scaled_rounds_once(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned t = 0; t < n_tiers; t++) {
        float x[37], y[37], want[37];
        for (int i = 0; i < 37; i++) {
            x[i] = 1 + (float)i / 7;
            y[i] = want[i] = 3 - (float)i / 3;
            want[i] = fmaf(0.3f, x[i], want[i]);
        }
        k[t]->add_scaled(y, 0.3f, x, 37);
        assert_memory_equal(y, want, sizeof(y));
    }
}

/* Results of a row operation of one tier. The operands end at guard pages, so an access past an end
 * is a fault. */
static void row_operations(const struct kernel *k, uint32_t n, const float *x, const float *w,
                           float *norm, float *glu, float *sum, uint16_t *half, float *wide)
{
    k->rmsnorm(x, w, n, 1e-6f, norm);
    k->swiglu(x, w, n, glu);
    memcpy(sum, w, n * sizeof(float));
    k->swiglu_clamped(sum, x, n, sum);
    k->add(sum, x, n);
    k->add_scaled(sum, 0.37f, x, n);
    k->to_f16(x, n, half);
    k->from_f16(half, n, wide);
}

static void row_operations_of_tiers_are_those_of_c(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned i = 0; i < 2 * sizeof(lengths) / sizeof(*lengths); i++) {
        uint32_t n = lengths[i / 2];
        float *fx = weights_floats(1, n, n, i % 2), *fw = weights_floats(1, n, n + 1, i % 2);
        float *x = guard_copy(fx, n * sizeof(float)), *w = guard_copy(fw, n * sizeof(float));
        float *norm[KERNEL_TIERS_MAX], *glu[KERNEL_TIERS_MAX], *sum[KERNEL_TIERS_MAX],
            *wide[KERNEL_TIERS_MAX];
        uint16_t *half[KERNEL_TIERS_MAX];
        for (unsigned t = 0; t < n_tiers; t++) {
            norm[t] = guard_alloc(n * sizeof(float));
            glu[t] = guard_alloc(n * sizeof(float));
            sum[t] = guard_alloc(n * sizeof(float));
            half[t] = guard_alloc(n * sizeof(uint16_t));
            wide[t] = guard_alloc(n * sizeof(float));
            row_operations(k[t], n, x, w, norm[t], glu[t], sum[t], half[t], wide[t]);
            assert_memory_equal(norm[t], norm[0], n * sizeof(float));
            assert_memory_equal(glu[t], glu[0], n * sizeof(float));
            assert_memory_equal(sum[t], sum[0], n * sizeof(float));
            assert_memory_equal(half[t], half[0], n * sizeof(uint16_t));
            assert_memory_equal(wide[t], wide[0], n * sizeof(float));
        }
        guard_free_all();
        free(fx);
        free(fw);
    }
}

static void operands_may_be_the_result(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned t = 0; t < n_tiers; t++) {
        float x[37], w[37], y[37];
        for (int i = 0; i < 37; i++)
            w[i] = 1 + (x[i] = (float)i / 7 - 2);
        k[t]->rmsnorm(x, w, 37, 1e-6f, y);
        float same[37];
        memcpy(same, x, sizeof(x));
        k[t]->rmsnorm(same, w, 37, 1e-6f, same);
        assert_memory_equal(same, y, sizeof(y));
        k[t]->swiglu(x, w, 37, y);
        k[t]->swiglu(x, w, 37, x);
        assert_memory_equal(x, y, sizeof(y));
    }
}

static void check_logits(const struct kernel *const k[KERNEL_TIERS_MAX], unsigned n_tiers,
                         const float *x, uint32_t n)
{
    float *g = guard_copy(x, n * sizeof(float));
    double lse = k[0]->logsumexp(g, n);
    uint32_t best = k[0]->argmax(g, n);
    for (unsigned t = 1; t < n_tiers; t++) {
        double other = k[t]->logsumexp(g, n);
        assert_memory_equal(&lse, &other, sizeof(lse));
        assert_int_equal(k[t]->argmax(g, n), best);
    }
    guard_free_all();
}

static void softmax_sums_agree_with_float64(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        uint32_t n = lengths[i];
        float *x = weights_floats(1, n, n, false);
        double sum = 0;
        for (uint32_t j = 0; j < n; j++)
            sum += exp((double)(x[j] *= 5));
        assert_true(fabs(k[0]->logsumexp(x, n) - log(sum)) < 5e-7);
        check_logits(k, n_tiers, x, n);
        free(x);
    }
    float equal[3] = {-1e4f, -1e4f, -1e4f}, low[2] = {-INFINITY, 3},
          none[2] = {-INFINITY, -INFINITY};
    assert_true(fabs(k[0]->logsumexp(equal, 3) - (log(3) - 1e4)) < 1e-9);
    assert_true(k[0]->logsumexp(low, 2) == 3);
    assert_true(k[0]->logsumexp(none, 2) == -INFINITY);
}

static void argmax_takes_the_lowest_of_ties_and_never_a_nan(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    float x[100];
    for (unsigned t = 0; t < n_tiers; t++) {
        for (uint32_t n = 1; n <= 100; n++)
            for (uint32_t at = 0; at < n; at++) {
                for (uint32_t i = 0; i < n; i++)
                    x[i] = i == at || i + 1 == n ? 7 : i % 3 ? -5 : NAN;
                assert_int_equal(k[t]->argmax(x, n), at);
            }
        for (uint32_t i = 0; i < 100; i++)
            x[i] = NAN;
        assert_int_equal(k[t]->argmax(x, 100), 100);
        x[41] = -INFINITY;
        assert_int_equal(k[t]->argmax(x, 100), 41);
        x[17] = -INFINITY;
        x[77] = -3.4e38f;
        assert_int_equal(k[t]->argmax(x, 100), 77);
        x[3] = INFINITY;
        assert_int_equal(k[t]->argmax(x, 100), 3);
        float zeros[3] = {-0.0f, 0.0f, -1};
        assert_int_equal(k[t]->argmax(zeros, 3), 0);
    }
}

static void a_nan_logit_makes_the_sum_a_nan(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned t = 0; t < n_tiers; t++) {
        float x[20] = {[13] = NAN};
        double s = k[t]->logsumexp(x, 20);
        assert_true(s != s);
    }
}

static void weights_and_noise_of_tiers_are_those_of_one_number(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        uint32_t n = lengths[i];
        float *x = weights_floats(1, n, n, false);
        uint32_t *tokens = guard_alloc(n * sizeof(*tokens));
        for (uint32_t j = 0; j < n; j++) {
            x[j] *= 100;
            tokens[j] = j % 5 ? UINT32_MAX - j * j : j;
        }
        x[n / 2] = -INFINITY;
        for (unsigned t = 0; t < n_tiers; t++) {
            double *y = guard_alloc(n * sizeof(*y));
            uint64_t *w = guard_alloc(n * sizeof(*w)), key = rng_key(n, t);
            k[t]->weigh(guard_copy(x, n * sizeof(*x)), n, 0.7, 1000, y);
            k[t]->noise(key, UINT32_MAX - n, tokens, n, w);
            for (uint32_t j = 0; j < n; j++) {
                assert_true(y[j] == exact_math_exp((double)x[j] / 0.7 - 1000));
                assert_true(w[j] == rng_u64(key, RNG_TARGET_DRAW, UINT32_MAX - n, 0, tokens[j]));
            }
        }
        guard_free_all();
        free(x);
    }
}

int main(void)
{
    kernel_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_of_every_half_is_that_half),
        cmocka_unit_test(f16_rounds_to_nearest_and_ties_to_even),
        cmocka_unit_test(f16_of_tiers_is_that_of_c),
        cmocka_unit_test(exp_is_within_2_to_the_minus_22),
        cmocka_unit_test(norms_agree_with_float64),
        cmocka_unit_test(swiglu_agrees_with_float64),
        cmocka_unit_test(swiglu_clamped_agrees_with_float64),
        cmocka_unit_test(add_scaled_rounds_once),
        cmocka_unit_test(row_operations_of_tiers_are_those_of_c),
        cmocka_unit_test(operands_may_be_the_result),
        cmocka_unit_test(softmax_sums_agree_with_float64),
        cmocka_unit_test(argmax_takes_the_lowest_of_ties_and_never_a_nan),
        cmocka_unit_test(a_nan_logit_makes_the_sum_a_nan),
        cmocka_unit_test(weights_and_noise_of_tiers_are_those_of_one_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
