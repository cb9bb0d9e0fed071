/* The limits of requests: bodies, headers, framing, and the time to send them. The verifier is a
 * fake (lib/fakes/fake_verifier.h). */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/stage.h"

static void bad_bodies_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        const char *param;
    } v[] = {
        {",\"temperature\":\"hot\"", "temperature"},
        {",\"temperature\":-1", "temperature"},
        {",\"temperature\":1e300", "temperature"},
        {",\"temperature\":NaN", ""},
        {",\"temperature\":1e999", ""},
        {",\"top_p\":1.5", "top_p"},
        {",\"max_tokens\":0", "max_tokens"},
        {",\"max_tokens\":-5", "max_tokens"},
        {",\"max_tokens\":1.5", "max_tokens"},
        {",\"max_tokens\":99999999999999999999", ""},
        {",\"n\":100000", "n"},
        {",\"seed\":1.5", "seed"},
        {",\"stop\":5", "stop"},
        {",\"stop\":[\"\"]", "stop[0]"},
        {",\"stop\":[\"a\",7]", "stop[1]"},
        {",\"logit_bias\":{\"x\":1}", "logit_bias"},
        {",\"logit_bias\":{\"1\":1000}", "logit_bias"},
        {",\"logprobs\":3", "logprobs"},
        {",\"top_logprobs\":3", "top_logprobs"},
        {",\"stream\":\"yes\"", "stream"},
        {",\"stream_options\":{}", "stream_options"},
        {",\"stream\":true,\"stream_options\":{\"include_tokens\":1}",
         "stream_options.include_tokens"},
        {",\"speculative\":{\"n_max\":-1}", "speculative.n_max"},
        {",\"speculative\":{\"p_min\":1.5}", "speculative.p_min"},
        {",\"speculative\":{\"fixed\":3}", "speculative.fixed"},
        {",\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {",\"tool_choice\":\"required\"", "tool_choice"},
        {",\"model\":7", "model"},
        {",\"messages\":[]", ""}, // the key twice
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        is_error(stage_chat("say 1", v[i].more), 400, *v[i].param ? v[i].param : NULL, "");
    stage_still_serves();
}

static void bad_messages_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *body, *part;
    } v[] = {
        {"", "not valid JSON"},
        {"{", "not valid JSON"},
        {"[]", "must be a JSON object"},
        {"{}", "messages is missing"},
        {"{\"messages\":null}", "messages is missing"},
        {"{\"messages\":\"hi\"}", "must be an array"},
        {"{\"messages\":[]}", "1 to 4096"},
        {"{\"messages\":[7]}", "messages[0] must be an object"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "role must be a string"},
        {"{\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]}", "wizard"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "content is missing"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "string or an array"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "image_url"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xFF\"}]}", "not valid JSON"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}", "not valid JSON"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}", "not valid JSON"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        is_error(http_call(stage.port, "POST", "/v1/chat/completions", v[i].body), 400, NULL,
                 v[i].part);
    is_error(http_call(stage.port, "POST", "/v1/completions", "{}"), 400, "prompt", "missing");
    is_error(http_call(stage.port, "POST", "/v1/completions", "{\"prompt\":[]}"), 400, "prompt",
             "empty");
    is_error(http_call(stage.port, "POST", "/v1/completions", "{\"prompt\":[1,-2]}"), 400,
             "prompt[1]", "");
    stage_still_serves();
}

static void deep_and_huge_json_is_refused(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    char *deep = malloc(n + 1);
    memset(deep, '[', n);
    deep[n] = 0;
    is_error(http_call(stage.port, "POST", "/v1/chat/completions", deep), 400, NULL, "nested");
    free(deep);
    stage_still_serves();
}

static void a_body_over_the_limit_is_413(void **state)
{
    (void)state;
    size_t n = 3 << 20;
    char *big = malloc(n + 1);
    memset(big, ' ', n);
    big[n] = 0;
    is_error(http_call(stage.port, "POST", "/v1/completions", big), 413, NULL, "at most 2048 KiB");
    free(big);
    is_error(stage_raw("POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                       "Content-Length: 99999999999\r\n\r\n"),
             413, NULL, "at most 2048 KiB");
    struct http_client c = http_client_open(stage.port); // chunked: no announced length
    http_client_print(&c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                          "Transfer-Encoding: chunked\r\n\r\n");
    char chunk[65536 + 16];
    int head = sprintf(chunk, "10000\r\n");
    memset(chunk + head, ' ', 65536);
    memcpy(chunk + head + 65536, "\r\n", 2);
    for (unsigned i = 0; i < 40; i++)
        http_client_send(&c, chunk, (size_t)head + 65536 + 2);
    http_client_print(&c, "0\r\n\r\n");
    is_error(http_client_read(&c, 10000), 413, NULL, "at most 2048 KiB");
    http_client_close(&c);
    stage_still_serves();
}

/* The bytes of bodies in memory, from the gateway's metrics. */
static double body_bytes(unsigned at)
{
    static const char name[] = "\ntandem_gateway_body_bytes";
    struct http_answer a = http_call(at, "GET", "/metrics", NULL);
    const char *line = strstr(a.body, name), *value = line ? strchr(line, ' ') : NULL;
    assert_non_null(value);
    double bytes = strtod(value, NULL);
    http_answer_done(&a);
    return bytes;
}

static bool holds_much(unsigned at)
{
    return body_bytes(at) >= 700000;
}

static bool holds_nothing(unsigned at)
{
    return body_bytes(at) == 0;
}

/* A gateway with 2 MiB of memory for bodies. */
static struct child start_small(unsigned *ret_port)
{
    const char *more[] = {"--max-body-kib",
                          "1024",
                          "--max-bodies-mib",
                          "2",
                          "--load-wait",
                          "600",
                          "--drain-timeout",
                          "0",
                          NULL};
    return gateway_listen(stage.address, more, ret_port);
}

/* A completion of n bytes; the last ones are not sent yet. */
static struct http_client open_completion(unsigned host, unsigned at, const char *what, size_t n,
                                          size_t unsent)
{
    AUTO(mem_free) char *body = malloc(n + 1);
    memset(body, ' ', n);
    memcpy(body, what, strlen(what));
    struct http_client c = http_client_open_from(host, at);
    http_client_print(&c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                      n);
    http_client_send(&c, body, n - unsent);
    return c;
}

static struct http_answer read_and_close(struct http_client *c)
{
    struct http_answer a = http_client_read(c, 20000);
    http_client_close(c);
    return a;
}

static void bodies_over_the_common_limit_are_503(void **state)
{
    (void)state;
    unsigned at;
    struct child s = start_small(&at);
    struct http_client first = open_completion(1, at, "{\"prompt\":\"say 1\"}", 700001, 1);
    assert_true(stage_becomes(holds_much, at));
    struct http_client second = open_completion(2, at, "{\"prompt\":\"say 1\"}", 700000, 0);
    struct http_answer a = read_and_close(&second);
    assert_non_null(strstr(a.head, "Retry-After: 1"));
    is_error(a, 503, NULL, "of 2048 KiB of memory (max_bodies_mib); try again");
    http_client_send(&first, " ", 1);
    a = read_and_close(&first);
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    assert_true(stage_becomes(holds_nothing, at));
    second = open_completion(2, at, "{\"prompt\":\"say 1\"}", 700000, 0);
    a = read_and_close(&second);
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    child_stop(&s);
}

/* Another verifier may have to continue the answer, so its prompts stay. */
static void a_request_counts_until_its_answer_ends(void **state)
{
    (void)state;
    enum { N = 300000 }; // the body and what it is parsed into take less than half of it
    unsigned at;
    struct child s = start_small(&at);
    AUTO(mem_free) char *body = malloc(N + 1);
    memset(body, 'x', N);
    body[N] = 0;
    memcpy(body, "{\"prompt\":\"stall ", 17);
    memcpy(body + N - 2, "\"}", 2);
    struct http_client c = http_client_open(at);
    http_client_print(&c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n",
                      N);
    http_client_send(&c, body, N);
    gateway_await_running(stage.verifier, 1);
    assert_true(body_bytes(at) >= N - 100);
    http_client_close(&c);
    assert_true(stage_becomes(holds_nothing, at));
    gateway_await_running(stage.verifier, 0);
    child_stop(&s);
}

static void a_header_over_the_limit_is_431(void **state)
{
    (void)state;
    static const size_t sizes[] = {5000, 40000};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        char *big = calloc(1, sizes[i] + 1);
        memset(big, 'a', sizes[i]);
        struct http_client c = http_client_open(stage.port);
        http_client_print(&c, "GET /version HTTP/1.1\r\nHost: x\r\nX-Big: %s\r\n\r\n", big);
        is_error(http_client_read(&c, 10000), 431, NULL, " bytes, at most 4096");
        http_client_close(&c);
        free(big);
    }
    stage_still_serves();
}

static void ambiguous_framing_is_refused(void **state)
{
    (void)state;
    static const char *const v[] = {
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"
        "hello",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"
        "hello",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/completions HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /version HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        "GET /version HTTP/1.1\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello",
        "GET /version HTTP/1.1\r\nHost: x\r\nA(b): c\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct http_client c = http_client_open(stage.port);
        http_client_send(&c, v[i], strlen(v[i]));
        struct http_answer a = http_client_read(&c, 10000);
        if (a.status != 400 && a.status != 413)
            fail_msg("case %zu: status %d", i, a.status);
        http_answer_done(&a);
        assert_true(http_client_wait_close(&c, 5000)); // later bytes are not read as a request
        http_client_close(&c);
    }
    stage_still_serves();
}

static void half_a_request_times_out(void **state)
{
    (void)state;
    static const char *const halves[] = {
        "", "GET /ver", "GET /version HTTP/1.1\r\nHost: x\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{\"prompt\""};
    struct http_client c[4];
    for (size_t i = 0; i < 4; i++) {
        c[i] = http_client_open(stage.port);
        http_client_send(&c[i], halves[i], strlen(halves[i]));
    }
    for (size_t i = 0; i < 4; i++) {
        struct http_answer a = http_client_read(&c[i], 8000);
        is_error(a, 408, NULL, "within 1.5 s");
        assert_true(http_client_wait_close(&c[i], 5000));
        http_client_close(&c[i]);
    }
}

static void a_slow_sender_times_out(void **state)
{
    (void)state;
    struct http_client c = http_client_open(stage.port);
    http_client_print(&c,
                      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n");
    int64_t begun_us = clock_us();
    /* The whole body would take 500 x 50 ms. */
    while (!http_client_wait_close(&c, 50) && clock_us() - begun_us < 20000000)
        http_client_send(&c, " ", 1);
    assert_true(c.closed);
    http_client_close(&c);
    stage_still_serves();
}

/* libmicrohttpd answers these itself. */
static void lines_that_cannot_be_read_are_refused(void **state)
{
    (void)state;
    http_answer_is(stage_raw("GET /version HTTP/3.7\r\nHost: x\r\n\r\n"), 505, "close", "");
    http_answer_is(stage_raw("GET /version foo\r\nHost: x\r\n\r\n"), 400, "close", "");
    http_answer_is(stage_raw("GET /version HTTP/1.1\r\nHost x\r\n\r\n"), 400, "close", "");
    stage_still_serves();
}

static void limits_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    const char *args[] = {"--max-body-kib", "2048", "--max-bodies-mib", "1", NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    free(child_wait_log(&s, "max_bodies_mib must be at least twice max_body_kib"));
    assert_int_equal(child_wait(&s), 1);
}

static int open_stage(void **state)
{
    (void)state;
    const char *more[] = {
        "--request-timeout", "1.5", "--max-body-kib", "2048", "--max-header-bytes", "4096", NULL};
    return stage_open(more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_bodies_are_refused_by_name),
        cmocka_unit_test(lines_that_cannot_be_read_are_refused),
        cmocka_unit_test(bad_messages_are_refused),
        cmocka_unit_test(deep_and_huge_json_is_refused),
        cmocka_unit_test(a_body_over_the_limit_is_413),
        cmocka_unit_test(bodies_over_the_common_limit_are_503),
        cmocka_unit_test(a_request_counts_until_its_answer_ends),
        cmocka_unit_test(a_header_over_the_limit_is_431),
        cmocka_unit_test(ambiguous_framing_is_refused),
        cmocka_unit_test(half_a_request_times_out),
        cmocka_unit_test(a_slow_sender_times_out),
        cmocka_unit_test(limits_that_contradict_each_other_are_refused),
    };
    return cmocka_run_group_tests(tests, open_stage, stage_close);
}
