/* test_draft_latency.c - what a proposer is expected to take. */
#include <math.h>
#include "lib/lib.h"
#include "verifier-svc/control/draft_latency.h"

static double true_us(uint32_t k, uint32_t n)
{
    return 800 + k * (700 + (n - 1.0) * 200);
}

static void see(struct draft_latency *a, uint32_t k, uint32_t n, double times)
{
    draft_latency_seen(a, k, n, times * true_us(k, n));
}

static void about(const struct draft_latency *a, uint32_t k, uint32_t n, double within)
{
    double off = draft_latency_us(a, k, n) / true_us(k, n) - 1;
    assert_true(off > -within && off < within);
}

static void nothing_is_known_before_the_first(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    assert_true(draft_latency_us(&a, 4, 1) == 0);
    see(&a, 4, 1, 1);
    about(&a, 4, 1, 1e-9);
    assert_true(draft_latency_us(&a, 8, 1) > draft_latency_us(&a, 4, 1));
}

static void lengths_and_numbers_that_were_seen_are_known(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    for (unsigned i = 0; i < 300; i++)
        see(&a, 1 + i % 8, i % 3 ? 1 : 16, 1);
    for (uint32_t k = 1; k <= 8; k++) {
        about(&a, k, 1, 0.02);
        about(&a, k, 16, 0.02);
        about(&a, k, 4, 0.05); // between them
    }
}

/* What answers of one length leave open, one of another tells. */
static void one_of_another_length_tells_much(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    for (unsigned i = 0; i < 200; i++)
        see(&a, 2, 1, 1);
    double before = fabs(draft_latency_us(&a, 16, 1) - true_us(16, 1));
    assert_true(before > 0.1 * true_us(16, 1));
    see(&a, 16, 1, 1);
    assert_true(fabs(draft_latency_us(&a, 16, 1) - true_us(16, 1)) < before / 4);
    about(&a, 2, 1, 0.1);
}

static void one_that_was_held_up_changes_little(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    for (unsigned i = 0; i < 100; i++)
        see(&a, 1 + i % 8, 1, 1);
    see(&a, 4, 1, 1000);
    about(&a, 4, 1, 0.15);
}

static void a_machine_that_slows_down_is_followed(void **state)
{
    (void)state;
    struct draft_latency a = {0};
    for (unsigned i = 0; i < 100; i++)
        see(&a, 1 + i % 8, 1, 1);
    for (unsigned i = 0; i < 30; i++)
        see(&a, 4, 1, 1.5);
    assert_true(fabs(draft_latency_us(&a, 4, 1) / true_us(4, 1) - 1.5) < 0.05);
}

static void no_time_is_below_zero(void **state)
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
    about(&a, 4, 1, 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_before_the_first),
        cmocka_unit_test(lengths_and_numbers_that_were_seen_are_known),
        cmocka_unit_test(one_of_another_length_tells_much),
        cmocka_unit_test(one_that_was_held_up_changes_little),
        cmocka_unit_test(a_machine_that_slows_down_is_followed),
        cmocka_unit_test(no_time_is_below_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
