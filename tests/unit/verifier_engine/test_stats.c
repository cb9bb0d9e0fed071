/* test_stats.c - the metrics of the engine, and the rate of tokens. */
#include <stdio.h>
#include <string.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "verifier-svc/engine/stats.h"

#define SECOND INT64_C(1000000)

static struct stats s;

static int init(void **state)
{
    (void)state;
    stats_init(&s);
    return 0;
}

/* Seconds 100, 101 and 102 are the last full ones at any time within second 103. */
static void the_rate_is_the_mean_of_the_last_three_full_seconds(void **state)
{
    (void)state;
    double before = metrics_value(s.generated_tokens);
    stats_committed(&s, 1000, 100 * SECOND - 1);
    stats_committed(&s, 3, 100 * SECOND);
    stats_committed(&s, 4, 101 * SECOND - 1);
    stats_committed(&s, 5, 101 * SECOND);
    stats_committed(&s, 9, 103 * SECOND - 1);
    stats_committed(&s, 2000, 103 * SECOND);
    assert_true(stats_tokens_per_s(&s, 103 * SECOND) == 7);
    assert_true(stats_tokens_per_s(&s, 104 * SECOND - 1) == 7);
    assert_true(stats_tokens_per_s(&s, 104 * SECOND) == 2014 / 3.);
    assert_true(metrics_value(s.generated_tokens) - before == 3021);
    assert_true(stats_tokens_per_s(&s, 200 * SECOND) == 0);
}

static void an_old_second_in_the_same_slot_does_not_count(void **state)
{
    (void)state;
    stats_committed(&s, 50, 300 * SECOND);
    stats_committed(&s, 6, 308 * SECOND); // eight slots
    assert_true(stats_tokens_per_s(&s, 309 * SECOND) == 2);
    assert_true(stats_tokens_per_s(&s, 301 * SECOND) == 0);
    assert_true(stats_tokens_per_s(&s, 2 * SECOND) == 0); // there was no time before
}

static void a_proposer_has_its_own_counters(void **state)
{
    (void)state;
    struct stats_drafts a, b;
    stats_drafts_init(&a, "one");
    stats_drafts_init(&b, "two");
    assert_string_equal(a.name, "one");
    for (unsigned i = 0; i < STATS_MAX_POSITIONS; i++)
        metrics_add(a.accepted_at[i], i + 1);
    metrics_add(a.drafts, 100);
    for (unsigned i = 0; i < STATS_MAX_POSITIONS; i++) {
        assert_true(metrics_value(a.accepted_at[i]) == i + 1);
        assert_true(metrics_value(b.accepted_at[i]) == 0);
    }
    assert_true(metrics_value(b.drafts) == 0);
}

/* The bounds of a histogram, joined by spaces. */
static void bounds_of(const char *name, char *to, size_t size)
{
    AUTO(buf_done) struct buf text = {0};
    char start[120];
    buf_init(&text, 1 << 20);
    metrics_render(&text);
    AUTO(mem_free) char *all = buf_take(&text);
    snprintf(start, sizeof(start), "\n%s_bucket{le=\"", name);
    *to = 0;
    for (const char *at = all; (at = strstr(at, start)); at++) {
        const char *bound = at + strlen(start);
        size_t len = strlen(to);
        snprintf(to + len, size - len, "%s%.*s", len ? " " : "", (int)strcspn(bound, "\""), bound);
    }
}

static void histograms_have_these_bounds(void **state)
{
    (void)state;
    static const char *const seconds =
        "0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10 20 50 "
        "100 200 +Inf";
    static const char *const lengths =
        "1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 100000 +Inf";
    char bounds[300];
    bounds_of("tandem_time_to_first_token_seconds", bounds, sizeof(bounds));
    assert_string_equal(bounds, seconds);
    bounds_of("tandem_request_prompt_tokens", bounds, sizeof(bounds));
    assert_string_equal(bounds, lengths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rate_is_the_mean_of_the_last_three_full_seconds),
        cmocka_unit_test(an_old_second_in_the_same_slot_does_not_count),
        cmocka_unit_test(a_proposer_has_its_own_counters),
        cmocka_unit_test(histograms_have_these_bounds),
    };
    return cmocka_run_group_tests(tests, init, NULL);
}
