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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_answer_sets_the_estimate),
        cmocka_unit_test(lengths_and_batches_that_were_seen_are_estimated_well),
        cmocka_unit_test(an_answer_of_another_length_corrects_the_estimate),
        cmocka_unit_test(a_delayed_answer_changes_little),
        cmocka_unit_test(the_estimate_follows_a_machine_that_slows_down),
        cmocka_unit_test(no_time_is_negative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
