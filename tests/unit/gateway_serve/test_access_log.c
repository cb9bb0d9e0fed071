/* test_access_log.c - each event of a request is counted once, and has a line in the log. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "gateway/http/http_request.h"
#include "gateway/serve/access_log.h"
#include "gateway/serve/refusal_lines.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"

#define TRACE "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static struct http_server server;
static struct http_request r;
static const char *traceparent;
static int64_t now_us;

const char *__wrap_http_field(const struct http_request *q, const char *name);
int64_t __wrap_clock_us(void);

const char *__wrap_http_field(const struct http_request *q, const char *name)
{
    assert_ptr_equal(q, &r);
    assert_string_equal(name, "traceparent");
    return traceparent;
}

int64_t __wrap_clock_us(void)
{
    return now_us;
}

/* So the addresses of the test are apart in the table. */
uint64_t __wrap_rng_secret(void);
uint64_t __wrap_rng_secret(void)
{
    return 7;
}

/* The value of a series that begins with this text; 0: it is absent. */
static double value_of(const char *series)
{
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 1 << 20);
    metrics_render(&text);
    const char *at = strstr(text.data, series);
    return at ? strtod(at + strlen(series), NULL) : 0;
}

/* All counters of this file, in one order. */
enum {
    CHAT,
    COMPLETION,
    RESPONSES,
    KEY,
    BACKOFF,
    LIMIT,
    FAILED,
    CANCELLED,
    MOVED,
    RESUMED,
    LOST,
    FIRST,
    PER_TOKEN,
    TOTAL,
    N
};
static const char *const series[N] = {
    "\ntandem_gateway_requests_total{endpoint=\"chat_completions\"} ",
    "\ntandem_gateway_requests_total{endpoint=\"completions\"} ",
    "\ntandem_gateway_requests_total{endpoint=\"responses\"} ",
    "\ntandem_gateway_requests_refused_total{reason=\"key\"} ",
    "\ntandem_gateway_requests_refused_total{reason=\"backoff\"} ",
    "\ntandem_gateway_requests_refused_total{reason=\"limit\"} ",
    "\ntandem_gateway_requests_failed_total ",
    "\ntandem_gateway_requests_cancelled_total ",
    "\ntandem_gateway_requests_moved_total ",
    "\ntandem_gateway_resumed_total ",
    "\ntandem_gateway_not_resumable_total ",
    "\ntandem_gateway_time_to_first_token_seconds_count ",
    "\ntandem_gateway_inter_token_latency_seconds_count ",
    "\ntandem_gateway_e2e_request_latency_seconds_count ",
};
static double before[N];

/* Since the last call exactly these counters (-1: none) have grown, by one each. */
static void counted(int first, int second)
{
    for (int i = 0; i < N; i++) {
        double v = value_of(series[i]);
        if (v - before[i] != (i == first || i == second))
            fail_msg("%s%g more", series[i], v - before[i]);
        before[i] = v;
    }
}

static int start(void **state)
{
    (void)state;
    access_log_init();
    r = (struct http_request){.s = &server, .id = "id-1", .begun_us = 1000000};
    log_init("test", LOG_LEVEL_INFO);
    return 0;
}

static void refusals_of_a_client_have_few_lines(void **state)
{
    (void)state;
    struct http_request of = {.s = &server, .id = "id-1"};
    struct address a[2];
    assert_true(address_parse("192.0.2.1", 9, &a[0]) && address_parse("192.0.2.2", 9, &a[1]));
    now_us = 100000000;
    double limited = value_of(series[LIMIT]);
    for (unsigned turn = 0; turn < 2; turn++) {
        logged_begin();
        for (unsigned i = 0; i < 2; i++)
            for (unsigned k = 0; k < REFUSAL_LINES_MAX + (i ? 0 : 7); k++) {
                of.client = a[i];
                access_log_denied(&of, 429, "too many");
            }
        const char *text = logged_end();
        assert_int_equal(logged_count(text, "request refused id=id-1"), 2 * REFUSAL_LINES_MAX);
        assert_int_equal(strstr(text, "without a line client=192.0.2.1 n=7") != NULL, turn == 1);
        assert_null(strstr(text, "without a line client=192.0.2.2"));
        now_us += LOG_BURST_US;
    }
    assert_true(value_of(series[LIMIT]) - limited == 2 * (2 * REFUSAL_LINES_MAX + 7));
    for (int i = 0; i < N; i++)
        before[i] = value_of(series[i]);
}

/* An error without a token costs a client as little as a refusal. */
static void answers_without_a_token_share_these_lines(void **state)
{
    (void)state;
    struct http_request of = {.s = &server, .id = "id-1"};
    struct access_log c = {.kind = OPENAI_CHAT};
    struct openai_reply none = {0}, some = {.completion_tokens = 1};
    assert_true(address_parse("192.0.2.3", 9, &of.client));
    logged_begin();
    for (unsigned k = 0; k < REFUSAL_LINES_MAX; k++)
        access_log_end(&c, &of, (struct openai_text){"m", 1}, &none, k % 2 ? 404 : 499);
    access_log_end(&c, &of, (struct openai_text){"m", 1}, &none, 400);
    access_log_denied(&of, 429, "too many");
    access_log_end(&c, &of, (struct openai_text){"m", 1}, &some, 499);
    access_log_end(&c, &of, (struct openai_text){"m", 1}, &none, 200);
    const char *text = logged_end();
    assert_int_equal(logged_count(text, "request done id=id-1"), REFUSAL_LINES_MAX + 2);
    assert_int_equal(logged_count(text, "request refused"), 0);
    for (int i = 0; i < N; i++)
        before[i] = value_of(series[i]);
}

static void each_event_is_counted_once(void **state)
{
    (void)state;
    static const struct {
        enum openai_kind kind;
        int counter;
    } kinds[] = {
        {OPENAI_CHAT, CHAT}, {OPENAI_COMPLETION, COMPLETION}, {OPENAI_RESPONSES, RESPONSES}};
    static const struct {
        int status, first, second;
    } refusals[] = {{400, FAILED, -1}, {429, FAILED, LIMIT}, {503, FAILED, -1}},
      ends[] = {{200, TOTAL, -1}, {499, CANCELLED, -1}, {400, FAILED, -1}, {500, FAILED, -1}};
    struct access_log c = {0};
    counted(-1, -1);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct access_log of = {0};
        access_log_begin(&of, &r, kinds[i].kind);
        assert_int_equal(of.kind, kinds[i].kind);
        counted(kinds[i].counter, -1);
    }
    c.kind = OPENAI_CHAT;
    access_log_bad_key(&r, 401);
    counted(KEY, -1);
    access_log_bad_key(&r, 429);
    counted(BACKOFF, -1);
    access_log_denied(&r, 429, "too many");
    counted(LIMIT, -1);
    access_log_denied(&r, 500, "no memory");
    counted(-1, -1);
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        access_log_refused(&c, &r, &(struct openai_fault){.status = refusals[i].status});
        counted(refusals[i].first, refusals[i].second);
    }
    access_log_retried(&c, &r, "a", "b", "why");
    counted(MOVED, -1);
    access_log_resumed(&c, &r, "a", "b", "why");
    counted(RESUMED, -1);
    access_log_lost_ids();
    counted(LOST, -1);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        struct openai_reply reply = {0};
        access_log_end(&c, &r, (struct openai_text){"m", 1}, &reply, ends[i].status);
        counted(ends[i].first, ends[i].second);
    }
}

static double sum_of(const char *name)
{
    char text[100];
    snprintf(text, sizeof(text), "\n%s_sum ", name);
    return value_of(text);
}

static void tokens_are_timed(void **state)
{
    (void)state;
    struct access_log c = {0};
    double first = sum_of("tandem_gateway_time_to_first_token_seconds"),
           each = sum_of("tandem_gateway_inter_token_latency_seconds"),
           total = sum_of("tandem_gateway_e2e_request_latency_seconds");
    now_us = 3000000;
    access_log_tokens(&c, &r, 0, 0); // no token yet
    counted(-1, -1);
    access_log_tokens(&c, &r, 0, 3);
    counted(FIRST, -1);
    assert_float_equal(sum_of("tandem_gateway_time_to_first_token_seconds") - first, 2, 1e-9);
    access_log_tokens(&c, &r, 1, 1); // the first of another choice
    counted(-1, -1);
    now_us = 5000000;
    access_log_tokens(&c, &r, 0, 4);
    counted(PER_TOKEN, -1);
    assert_float_equal(sum_of("tandem_gateway_inter_token_latency_seconds") - each, 0.5, 1e-9);
    now_us = 6000000;
    struct openai_reply reply = {.prompt_tokens = 11,
                                 .cached_tokens = 12,
                                 .completion_tokens = 13,
                                 .n = 14,
                                 .n_resumed = 15,
                                 .speculation = {.rounds = 16, .drafted = 17, .accepted = 18}};
    c.kind = OPENAI_RESPONSES;
    logged_begin();
    access_log_end(&c, &r, (struct openai_text){"m x", 3}, &reply, 200);
    const char *log = logged_end();
    counted(TOTAL, -1);
    assert_float_equal(sum_of("tandem_gateway_e2e_request_latency_seconds") - total, 5, 1e-9);
    assert_non_null(strstr(log, "request done id=id-1 client=unix endpoint=responses model=\"m x\" "
                                "status=200 prompt=11 cached=12 out=13 choices=14 rounds=16 "
                                "drafted=17 accepted=18 proposer=none rule=none resumed=15 "
                                "first_ms=2000.0 ms=5000.0"));
    strcpy(reply.proposer, "ngram");
    strcpy(reply.rule, "own");
    c.first_us = 0;
    logged_begin();
    access_log_end(&c, &r, (struct openai_text){"m", 1}, &reply, 200);
    log = logged_end();
    assert_non_null(strstr(log, "proposer=ngram rule=own resumed=15 first_ms=0.0"));
    counted(TOTAL, -1);
}

static void lines_name_the_client_the_trace_and_the_key(void **state)
{
    (void)state;
    struct access_log c = {0};
    traceparent = TRACE;
    access_log_begin(&c, &r, OPENAI_COMPLETION);
    assert_string_equal(c.traceparent, TRACE);
    assert_string_equal(c.trace, "0af7651916cd43dd8448eb211c80319c");
    strcpy(c.key, "alice");
    r.client = (struct address){.is_ip = true, .ip = {[10] = 0xFF, [11] = 0xFF, 10, 0, 0, 7}};
#define IDS "id=id-1 client=10.0.0.7 trace=0af7651916cd43dd8448eb211c80319c key=alice"
    logged_begin();
    access_log_retried(&c, &r, "a", "b", "why");
    access_log_resumed(&c, &r, "a", "b", "why");
    access_log_resumed(&c, &r, "b", "b", "why");
    access_log_refused(&c, &r, &(struct openai_fault){.status = 400, .param = "n", .text = "no"});
    access_log_denied(&r, 429, "too many");
    const char *log = logged_end();
    assert_non_null(strstr(log, "retried on another verifier " IDS " from=a to=b: why"));
    assert_non_null(strstr(log, "resumed on another verifier " IDS " from=a to=b: why"));
    assert_non_null(strstr(log, "resumed on the same verifier " IDS " from=b to=b: why"));
    assert_non_null(strstr(log, "request refused " IDS " endpoint=completions status=400 param=n: "
                                "no"));
    assert_non_null(strstr(log, "request refused id=id-1 client=10.0.0.7 status=429: too many"));
    static const char *const bad[] = {NULL, "", "00-00000000000000000000000000000000-0-01", "junk"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct access_log other = {0};
        traceparent = bad[i];
        access_log_begin(&other, &r, OPENAI_CHAT);
        assert_string_equal(other.trace, "");
        assert_string_equal(other.traceparent, "");
    }
    for (int i = 0; i < N; i++)
        before[i] = value_of(series[i]);
    r.client = (struct address){0};
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_event_is_counted_once),
        cmocka_unit_test(refusals_of_a_client_have_few_lines),
        cmocka_unit_test(answers_without_a_token_share_these_lines),
        cmocka_unit_test(tokens_are_timed),
        cmocka_unit_test(lines_name_the_client_the_trace_and_the_key),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
