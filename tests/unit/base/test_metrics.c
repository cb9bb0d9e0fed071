/* test_metrics.c - time series and their Prometheus text. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/metrics.h"
#include "lib/lib.h"

static char *rendered(void)
{
    struct buf b;
    buf_init(&b, 4 << 20);
    metrics_render(&b);
    assert_int_equal(buf_error(&b), 0);
    return buf_take(&b);
}

#define HAS(part)                                                                                  \
    do {                                                                                           \
        AUTO(mem_free) char *text_ = rendered();                                                   \
        if (!strstr(text_, part))                                                                  \
            fail_msg("no \"%s\" in:\n%s", part, text_);                                            \
    } while (0)

static void counters_and_gauges_are_rendered(void **state)
{
    (void)state;
    struct metric *c = metrics_counter("tandem_a_total", "what it\ncounts \\", NULL);
    struct metric *g = metrics_gauge("tandem_b", "now", NULL);
    metrics_add(c, 2);
    metrics_add(c, 0.5);
    metrics_set(g, -1e300);
    HAS("# HELP tandem_a_total what it\\ncounts \\\\\n# TYPE tandem_a_total counter\n"
        "tandem_a_total 2.5\n");
    HAS("# TYPE tandem_b gauge\ntandem_b -1e+300\n");
    metrics_add(g, 1e300);
    assert_true(metrics_value(g) == 0);
}

static void numbers_read_back_unchanged(void **state)
{
    (void)state;
    struct metric *g = metrics_gauge("tandem_number", "", NULL);
    static const double numbers[] = {0.1, 1.0 / 3, 123456789012345678.0, 4e-320,
                                     9007199254740992.0};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        metrics_set(g, numbers[i]);
        AUTO(mem_free) char *text = rendered();
        char *at = strstr(text, "\ntandem_number ");
        assert_non_null(at);
        assert_true(strtod(at + 15, NULL) == numbers[i]);
    }
    metrics_set(g, NAN);
    HAS("\ntandem_number NaN\n");
    metrics_set(g, -INFINITY);
    HAS("\ntandem_number -Inf\n");
}

static void series_of_a_name_are_adjacent(void **state)
{
    (void)state;
    metrics_counter("tandem_c_total", "per proposer", "proposer=\"x\"");
    metrics_counter("tandem_between", "", NULL);
    struct metric *y = metrics_counter("tandem_c_total", "per proposer", "proposer=\"y\"");
    metrics_add(y, 1);
    HAS("# TYPE tandem_c_total counter\ntandem_c_total{proposer=\"x\"} 0\n"
        "tandem_c_total{proposer=\"y\"} 1\n");
    assert_ptr_equal(metrics_counter("tandem_c_total", "", "proposer=\"y\""), y);
}

static void the_buckets_of_a_histogram_are_cumulative(void **state)
{
    (void)state;
    static const double bounds[] = {0.001, 0.5, 2};
    struct metric *h =
        metrics_histogram("tandem_h_seconds", "times", "a=\"b\"", bounds, ARRAY_LEN(bounds));
    static const double values[] = {0.0001, 0.001, 0.1, 1,
                                    2,      3,     100}; // a bound belongs to its bucket
    for (size_t i = 0; i < ARRAY_LEN(values); i++)
        metrics_observe(h, values[i]);
    HAS("# TYPE tandem_h_seconds histogram\n"
        "tandem_h_seconds_bucket{a=\"b\",le=\"0.001\"} 2\n"
        "tandem_h_seconds_bucket{a=\"b\",le=\"0.5\"} 3\n"
        "tandem_h_seconds_bucket{a=\"b\",le=\"2\"} 5\n"
        "tandem_h_seconds_bucket{a=\"b\",le=\"+Inf\"} 7\n"
        "tandem_h_seconds_sum{a=\"b\"} 106.1011\n"
        "tandem_h_seconds_count{a=\"b\"} 7\n");
}

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"

static void a_traced_value_is_the_exemplar_of_its_bucket_on_request(void **state)
{
    (void)state;
    static const double bounds[] = {1, 2};
    struct metric *h = metrics_histogram("tandem_e_seconds", "", NULL, bounds, ARRAY_LEN(bounds));
    metrics_observe(h, 0.5);
    metrics_observe_traced(h, 1.75, "00000000000000000000000000000001");
    metrics_observe_traced(h, 1.5, TRACE);
    HAS("tandem_e_seconds_bucket{le=\"1\"} 1\ntandem_e_seconds_bucket{le=\"2\"} 3\n"
        "tandem_e_seconds_bucket{le=\"+Inf\"} 3\ntandem_e_seconds_sum 3.75\n");
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 4 << 20);
    metrics_render_examples(&b);
    assert_non_null(strstr(b.data, "tandem_e_seconds_bucket{le=\"1\"} 1\n"));
    const char *at =
        strstr(b.data, "tandem_e_seconds_bucket{le=\"2\"} 3 # {trace_id=\"" TRACE "\"} 1.5 ");
    assert_non_null(at);
    assert_in_range((long)strtod(strrchr(strndupa(at, strcspn(at, "\n")), ' '), NULL),
                    time(NULL) - 60, time(NULL) + 1); // time() is late by up to a clock tick
}

static double process_value(const char *name)
{
    AUTO(mem_free) char *text = rendered();
    char *at = strstr(text, name);
    if (!at)
        fail_msg("no %s in:\n%s", name, text);
    return strtod(at + strlen(name), NULL);
}

static void the_resources_of_the_process_are_rendered(void **state)
{
    (void)state;
    double cpu_s = process_value("\nprocess_cpu_seconds_total ");
    while (process_value("\nprocess_cpu_seconds_total ") <= cpu_s)
        ;
    assert_in_range((long)process_value("\nprocess_resident_memory_bytes "), 100L << 10, 4L << 30);
    double fds = process_value("\nprocess_open_fds ");
    int one = dup(0);
    assert_true(process_value("\nprocess_open_fds ") == fds + 1);
    close(one);
    assert_in_range((long)process_value("\nprocess_start_time_seconds "), time(NULL) - 600,
                    time(NULL) + 1);
}

static void label_values_are_escaped(void **state)
{
    (void)state;
    char out[40];
    assert_string_equal(metrics_label(out, sizeof(out), "p", "a\"b\\c\nd\x01\xc3\xa4", 10),
                        "p=\"a\\\"b\\\\c\\nd___\"");
    char big[100];
    memset(big, '"', sizeof(big));
    metrics_label(out, sizeof(out), "p", big, sizeof(big));
    size_t n = strlen(out);
    assert_in_range(n, 30, sizeof(out) - 1);
    assert_int_equal(out[n - 1], '"');
    assert_int_equal((n - 4) % 2, 0); // no escape sequence is cut
}

#define TIMES 20000

static void *count_up(void *arg)
{
    for (int i = 0; i < TIMES; i++)
        metrics_add(arg, 1);
    return NULL;
}

static void concurrent_updates_are_not_lost(void **state)
{
    (void)state;
    struct metric *c = metrics_counter("tandem_threads_total", "", NULL);
    pthread_t t[3];
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        pthread_create(&t[i], NULL, count_up, c);
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        pthread_join(t[i], NULL);
    assert_true(metrics_value(c) == 3 * TIMES);
}

static void series_beyond_the_maximum_are_usable(void **state)
{
    (void)state;
    struct metric *last = NULL;
    for (int i = 0; i < METRICS_MAX + 2; i++) {
        char label[32];
        snprintf(label, sizeof(label), "i=\"%d\"", i);
        last = metrics_counter("tandem_many_total", "", label);
        assert_non_null(last);
        metrics_add(last, 1);
    }
    AUTO(mem_free) char *text = rendered();
    assert_null(strstr(text, "i=\"513\""));
    assert_non_null(strstr(text, "i=\"400\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_and_gauges_are_rendered),
        cmocka_unit_test(numbers_read_back_unchanged),
        cmocka_unit_test(series_of_a_name_are_adjacent),
        cmocka_unit_test(the_buckets_of_a_histogram_are_cumulative),
        cmocka_unit_test(a_traced_value_is_the_exemplar_of_its_bucket_on_request),
        cmocka_unit_test(the_resources_of_the_process_are_rendered),
        cmocka_unit_test(label_values_are_escaped),
        cmocka_unit_test(concurrent_updates_are_not_lost),
        cmocka_unit_test(series_beyond_the_maximum_are_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
