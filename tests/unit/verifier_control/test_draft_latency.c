/* test_draft_latency.c - the estimate of a proposer's latency. */
#include <math.h>
#include "lib/lib.h"
#include "verifier-svc/control/draft_latency.h"

static double true_us(uint32_t k, uint32_t n)
{
    return 800 + k * (700 + (n - 1.0) * 200);
}

static void see(struct draft_latency *a, uint32_t k, uint32_t n, double factor)
{
    draft_latency_seen(a, k, n, factor * true_us(k, n));
}

static void must_be_within(const struct draft_latency *a, uint32_t k, uint32_t n, double within)
{
    double off = draft_latency_us(a, k, n) / true_us(k, n) - 1;
    assert_true(off > -within && off < within);
}

static void the_first_answer_sets_the_estimate(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    assert_true(draft_latency_us(&a, 4, 1) == 0);
    see(&a, 4, 1, 1);
    must_be_within(&a, 4, 1, 1e-9);
    assert_true(draft_latency_us(&a, 8, 1) > draft_latency_us(&a, 4, 1));
}

static void lengths_and_batches_that_were_seen_are_estimated_well(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    for (unsigned i = 0; i < 300; i++)
        see(&a, 1 + i % 8, i % 3 ? 1 : 16, 1);
    for (uint32_t k = 1; k <= 8; k++) {
        must_be_within(&a, k, 1, 0.02);
        must_be_within(&a, k, 16, 0.02);
        must_be_within(&a, k, 4, 0.05); // between the two
    }
}

/* Answers of one length cannot separate the three times; one of another length does. */
static void an_answer_of_another_length_corrects_the_estimate(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    for (unsigned i = 0; i < 200; i++)
        see(&a, 2, 1, 1);
    double before = fabs(draft_latency_us(&a, 16, 1) - true_us(16, 1));
    assert_true(before > 0.1 * true_us(16, 1));
    see(&a, 16, 1, 1);
    assert_true(fabs(draft_latency_us(&a, 16, 1) - true_us(16, 1)) < before / 4);
    must_be_within(&a, 2, 1, 0.1);
}

static void a_delayed_answer_changes_little(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    for (unsigned i = 0; i < 100; i++)
        see(&a, 1 + i % 8, 1, 1);
    see(&a, 4, 1, 1000);
    must_be_within(&a, 4, 1, 0.15);
}

static void the_estimate_follows_a_machine_that_slows_down(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    for (unsigned i = 0; i < 100; i++)
        see(&a, 1 + i % 8, 1, 1);
    for (unsigned i = 0; i < 30; i++)
        see(&a, 4, 1, 1.5);
    assert_true(fabs(draft_latency_us(&a, 4, 1) / true_us(4, 1) - 1.5) < 0.05);
}

static void no_time_is_negative(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    for (unsigned i = 0; i < 300; i++) {
        uint32_t k = 1 + i % 16;
        draft_latency_seen(&a, k, 1 + i % 5, k == 1 ? 1e5 : 1);
        for (uint32_t n = 1; n <= 64; n *= 8)
            assert_true(draft_latency_us(&a, 1, n) >= 0 && isfinite(draft_latency_us(&a, 20, n)));
    }
    draft_latency_seen(&a, 4, 1, 1e18);
    for (unsigned i = 0; i < 1000; i++) {
        see(&a, 1 + i % 8, 1, 1);
        assert_true(draft_latency_us(&a, 4, 1) >= 0);
    }
    must_be_within(&a, 4, 1, 0.02);
}

/* Step 3 of docs/controller.md, "Latency", with all products written out. */
static void plain_seen(struct draft_latency *a, uint32_t k, uint32_t n, double us)
{
    const double f[3] = {1, k, k * (n - 1.0)}, typical[3] = {1, 4, 16};
    double t = a->us[0] + k * (a->us[1] + (n - 1.0) * a->us[2]), v = 0.15 * t * 0.15 * t, pf[3];
    for (unsigned i = 0; i < 3; i++)
        a->covariance[i][i] += pow(0.03 * t / typical[i], 2);
    for (unsigned i = 0; i < 3; i++) {
        const double *row = a->covariance[i];
        pf[i] = row[0] * f[0] + row[1] * f[1] + row[2] * f[2];
        v += f[i] * pf[i];
    }
    double e = fmin(us - t, 2 * sqrt(v));
    for (unsigned i = 0; i < 3; i++) {
        a->us[i] = fmax(0, a->us[i] + pf[i] * e / v);
        for (unsigned j = 0; j < 3; j++)
            a->covariance[i][j] -= pf[i] * pf[j] / v;
    }
}

static void must_be(double got, double expected)
{
    assert_true(fabs(got - expected) <= 1e-6 * fabs(expected) + 1e-12);
}

static void the_first_answer_is_half_base_and_half_tokens(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    draft_latency_seen(&a, 4, 6, 1600);
    const double expected[3] = {800, 100, 20}; // 800 / 4 / (1 + 0.2 * 5)
    for (unsigned i = 0; i < 3; i++) {
        must_be(a.us[i], expected[i]);
        for (unsigned j = 0; j < 3; j++)
            must_be(a.covariance[i][j], i == j ? expected[i] * expected[i] : 0);
    }
    must_be(draft_latency_us(&a, 3, 2), 800 + 3 * (100 + 20));
}

/* Every seventh answer is late, and every fifth immediate, so that times reach 0. */
static void follow_answers(double unit_us)
{
    struct draft_latency a = {0};
    bool had_zero = false;
    draft_latency_seen(&a, 2, 1, 1500 * unit_us);
    struct draft_latency plain = a;
    for (unsigned i = 1; i < 100; i++) {
        uint32_t k = 1 + i * 7 % 8, n = 1 + i * 5 % 6;
        double us = unit_us * (i % 7 == 0 ? 1e6 : i % 5 == 0 ? 1 : true_us(k, n));
        draft_latency_seen(&a, k, n, us);
        plain_seen(&plain, k, n, us);
        for (unsigned x = 0; x < 3; x++) {
            must_be(a.us[x], plain.us[x]);
            had_zero |= a.us[x] == 0;
            for (unsigned y = 0; y < 3; y++)
                must_be(a.covariance[x][y], plain.covariance[x][y]);
        }
    }
    assert_true(had_zero);
}

static void each_later_answer_moves_the_times_by_the_formulas(void **state)
{
    (void)state;
    follow_answers(1);
    follow_answers(1e-4); // less than a microsecond
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_answer_sets_the_estimate),
        cmocka_unit_test(lengths_and_batches_that_were_seen_are_estimated_well),
        cmocka_unit_test(an_answer_of_another_length_corrects_the_estimate),
        cmocka_unit_test(a_delayed_answer_changes_little),
        cmocka_unit_test(the_estimate_follows_a_machine_that_slows_down),
        cmocka_unit_test(no_time_is_negative),
        cmocka_unit_test(the_first_answer_is_half_base_and_half_tokens),
        cmocka_unit_test(each_later_answer_moves_the_times_by_the_formulas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
