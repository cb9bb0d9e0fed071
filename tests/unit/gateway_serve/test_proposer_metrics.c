/* test_proposer_metrics.c - what a proposer reports cannot spoil the metrics of others. */
#include "gateway/serve/proposer_metrics.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/mem.h"
#include "lib/lib.h"

/* The cleaned text has `part`, or lacks it. */
static void cleaned(const char *text, const char *part, bool has)
{
    struct buf to;
    buf_init(&to, 1 << 20);
    proposer_metrics_clean(text, strlen(text), &to);
    assert_int_equal(to.error, 0);
    buf_add(&to, "", 1);
    if ((strstr(to.data, part) != NULL) != has)
        fail_msg("%s %s %s", to.data, has ? "lacks" : "has", part);
    buf_done(&to);
}

static void its_own_series_pass(void **state)
{
    (void)state;
    static const char text[] = "# HELP tandem_drafter_rounds_total x\n"
                               "# TYPE tandem_drafter_rounds_total histogram\n"
                               "tandem_drafter_rounds_total 7\n"
                               "tandem_drafter_round_seconds_bucket{le=\"0.001\"} 2\n"
                               "tandem_drafter_round_seconds_bucket{le=\"+Inf\"} 3\n"
                               "tandem_drafter_round_seconds_sum 0.5\n"
                               "tandem_drafter_round_seconds_count 3\n"
                               "process_open_fds 12\n";
    cleaned(text, "# TYPE tandem_drafter_rounds_total counter\ntandem_drafter_rounds_total 7\n",
            true);
    cleaned(text,
            "tandem_drafter_round_seconds_bucket{le=\"0.001\"} 2\n"
            "tandem_drafter_round_seconds_bucket{le=\"+Inf\"} 3\n"
            "tandem_drafter_round_seconds_sum 0.5\ntandem_drafter_round_seconds_count 3\n",
            true);
    cleaned(text, "process_open_fds 12\n", true);
}

static void other_series_and_malformed_lines_do_not(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "tandem_generation_tokens_total 1\n",
        "tandem_drafter_rounds_total{instance=\"gateway\"} 1\n",
        "tandem_drafter_rounds_total{le=\"1\"} 1\n",
        "tandem_drafter_rounds_total_total 1\n",
        "tandem_drafter_rounds_total 1 2\n",
        "tandem_drafter_rounds_total one\n",
        "tandem_drafter_rounds_total NaN\n",
        "tandem_drafter_rounds_total\n",
        "tandem_drafter_streams{ 1\n",
        "tandem_drafter_round_seconds_sum 1\n", // without the rest
        "tandem_drafter_round_seconds_bucket{le=\"+Inf\"} 1\n",
        "tandem_drafter_round_seconds_bucket{le=\"x\"} 1\n",
        "tandem_drafter_round_seconds_bucket{le=\"1\",x=\"\"} 1\n",
        "# TYPE process_open_fds histogram\n",
        "up 1",
        "\n\n{} 1\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct buf to;
        buf_init(&to, 1 << 20);
        proposer_metrics_clean(bad[i], strlen(bad[i]), &to);
        if (to.len)
            fail_msg("%s gives %.*s", bad[i], (int)to.len, to.data);
        buf_done(&to);
    }
}

/* A histogram of the rounds' seconds: buckets, then sum and count. */
#define BUCKET(le) "tandem_drafter_round_seconds_bucket{le=\"" le "\"} 1\n"
#define SUMS "tandem_drafter_round_seconds_sum 0.1\ntandem_drafter_round_seconds_count 1\n"

static void numbers_keep_all_their_digits(void **state)
{
    (void)state;
    static const char *const same[] = {
        BUCKET("0.1") BUCKET("0.1000000001") BUCKET("+Inf") SUMS,
        BUCKET("0.10000000000000002") BUCKET("0.10000000000000003") BUCKET("+Inf") SUMS,
        BUCKET("-Inf") BUCKET("1e+300") BUCKET("+Inf") SUMS,
        "process_cpu_seconds_total 12345678901.25\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(same); i++)
        cleaned(same[i], same[i], true);
    cleaned(BUCKET("-Inf") SUMS, "_bucket", false); // without +Inf it is no histogram
}

static void repeated_series_come_once(void **state)
{
    (void)state;
    AUTO(mem_free) char *text = calloc(1, 400000);
    size_t len = 0;
    for (unsigned i = 0; i < 5000; i++)
        len += (size_t)sprintf(text + len,
                               "tandem_drafter_streams %u\n"
                               "tandem_drafter_round_seconds_bucket{le=\"%u\"} 1\n",
                               i, i % 100);
    strcat(text, "tandem_drafter_round_seconds_sum 1\ntandem_drafter_round_seconds_count 1\n");
    struct buf to;
    buf_init(&to, 1 << 20);
    proposer_metrics_clean(text, strlen(text), &to);
    buf_add(&to, "", 1);
    const char *first = strstr(to.data, "\ntandem_drafter_streams ");
    assert_non_null(first);
    assert_null(strstr(first + 1, "\ntandem_drafter_streams "));
    assert_null(strstr(to.data, "_bucket")); // without +Inf it is no histogram
    assert_true(to.len < 4096);
    buf_done(&to);
}

/* 32 buckets, +Inf among them; lines of 127 bytes. */
static void buckets_and_lines_are_limited(void **state)
{
    (void)state;
    for (unsigned n = PROPOSER_METRICS_BUCKETS - 1; n <= PROPOSER_METRICS_BUCKETS; n++) {
        struct buf text;
        buf_init(&text, 1 << 16);
        for (unsigned i = 0; i < n; i++)
            buf_printf(&text, "tandem_drafter_round_seconds_bucket{le=\"%u\"} 1\n", i);
        buf_puts(&text, BUCKET("+Inf") SUMS);
        cleaned(text.data, "_sum", n < PROPOSER_METRICS_BUCKETS);
        buf_done(&text);
    }
    static const char begin[] = "tandem_drafter_streams ";
    for (size_t len = 127; len <= 128; len++) {
        char line[160];
        memset(line, '0', len);
        memcpy(line, begin, strlen(begin));
        strcpy(line + len - 1, "7\n");
        cleaned(line, "tandem_drafter_streams 7\n", len == 127);
    }
}

static void the_text_is_limited(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 1 << 20);
    while (text.len < PROPOSER_METRICS_MAX_TEXT - 1)
        buf_puts(&text, "#");
    buf_puts(&text, "\nprocess_open_fds 12\n");
    cleaned(text.data, "process_open_fds 12\n", false);
    cleaned(text.data + 1, "process_open_fds 12\n", true);
}

static void of_equal_bounds_the_first_counts(void **state)
{
    (void)state;
    static const char once[] = BUCKET("1") BUCKET("2") BUCKET("+Inf") SUMS;
    cleaned(BUCKET("1") BUCKET("1") BUCKET("2") BUCKET("2") BUCKET("1") BUCKET("+Inf")
                BUCKET("+Inf") SUMS,
            once, true);
}

static void a_histogram_needs_all_of_its_parts(void **state)
{
    (void)state;
#define SUM "tandem_drafter_round_seconds_sum 0.1\n"
#define COUNT "tandem_drafter_round_seconds_count 1\n"
    static const struct {
        const char *text;
        bool whole;
    } v[] = {{BUCKET("+Inf") SUM COUNT, true},
             {BUCKET("+Inf") SUM, false},
             {BUCKET("+Inf") COUNT, false},
             {SUM COUNT, false},
             {BUCKET("1") SUM COUNT, false},
             {BUCKET("+Inf") "tandem_drafter_round_seconds_sum{le=\"1\"} 1\n" COUNT, false},
             {BUCKET("+Inf") SUM "tandem_drafter_round_seconds_count{le=\"1\"} 1\n", false},
             {"tandem_drafter_round_seconds 1\n", false},
             {"tandem_drafter_round_seconds_bucket{le=\"\"} 1\n" SUM COUNT, false},
             {"tandem_drafter_round_seconds_bucket 1\n" SUM COUNT, false}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct buf to;
        buf_init(&to, 1 << 16);
        proposer_metrics_clean(v[i].text, strlen(v[i].text), &to);
        if ((to.len > 0) != v[i].whole)
            fail_msg("%s gives %.*s", v[i].text, (int)to.len, to.data);
        buf_done(&to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_own_series_pass),
        cmocka_unit_test(other_series_and_malformed_lines_do_not),
        cmocka_unit_test(numbers_keep_all_their_digits),
        cmocka_unit_test(repeated_series_come_once),
        cmocka_unit_test(buckets_and_lines_are_limited),
        cmocka_unit_test(the_text_is_limited),
        cmocka_unit_test(of_equal_bounds_the_first_counts),
        cmocka_unit_test(a_histogram_needs_all_of_its_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
