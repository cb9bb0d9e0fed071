/* Several prompts in one completion. The verifier is a fake (lib/fakes/fake_verifier.h). */
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/rigs/stage.h"

static void asks_from(struct http_client *c, unsigned host, unsigned at, const char *prompts,
                      const char *more)
{
    AUTO(mem_free) char *body = NULL;
    assert_true(asprintf(&body, "{\"prompt\":[%s]%s}", prompts, more) > 0);
    *c = http_client_open_from(host, at);
    http_client_print(
        c,
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-API-Key: sk-alice-0123456789\r\n"
        "Content-Length: %zu\r\n\r\n%s",
        strlen(body), body);
}

static void asks(struct http_client *c, unsigned at, const char *prompts, const char *more)
{
    asks_from(c, 1, at, prompts, more);
}

static struct http_answer answer(const char *prompts, const char *more)
{
    struct http_client c;
    asks(&c, stage.port, prompts, more);
    struct http_answer a = http_client_read(&c, 120000);
    http_client_close(&c);
    return a;
}

/* n prompts with the same text. */
static char *prompts_of(const char *text, unsigned n)
{
    char *all = calloc(n, strlen(text) + 3), *at = all;
    for (unsigned i = 0; i < n; i++)
        at += sprintf(at, "%s\"%s\"", i ? "," : "", text);
    return all;
}

static void is(struct http_answer a, int status, const char *body)
{
    if (a.status != status || !strstr(a.body, body))
        fail_msg("not %d '%s', but %d %s", status, body, a.status, a.body);
    http_answer_done(&a);
}

static void choices_are_in_the_order_of_their_prompts(void **state)
{
    (void)state;
    struct http_answer a = answer("\"pace 3 30\",\"say 1\",[1,2,3],\"say 2\"", ",\"echo\":true");
    json_t *j = json_loads(a.body, 0, NULL), *choices = json_object_get(j, "choices");
    static const char *const texts[] = {"pace 3 30w0 w1 w2 ", "say 1w0 ", "w0 w1 w2 ",
                                        "say 2w0 w1 "};
    int prompt, completion, cached;
    assert_int_equal(json_array_size(choices), ARRAY_LEN(texts));
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        const json_t *c = json_array_get(choices, i);
        assert_int_equal(json_integer_value(json_object_get(c, "index")), i);
        assert_string_equal(json_string_value(json_object_get(c, "text")), texts[i]);
    }
    assert_int_equal(json_unpack(j, "{s:{s:i,s:i,s:{s:i}}}", "usage", "prompt_tokens", &prompt,
                                 "completion_tokens", &completion, "prompt_tokens_details",
                                 "cached_tokens", &cached),
                     0);
    assert_int_equal(prompt, 4 * 7); // 7 per prompt of the fake
    assert_int_equal(cached, 4 * 3);
    assert_int_equal(completion, 3 + 1 + 3 + 2);
    assert_non_null(strstr(a.body, "\"seed\":11,")); // of all choices
    json_decref(j);
    http_answer_done(&a);
}

static void a_stream_has_the_events_of_all_prompts(void **state)
{
    (void)state;
    struct http_client c;
    asks(&c, stage.port, "\"say 3\",\"pace 4 5\",\"say 2\"",
         ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    char texts[3][64] = {{0}}, *event;
    int prompt = 0, completion = 0;
    while ((event = http_client_event(&c, 20000, NULL)) && strcmp(event, "[DONE]") != 0) {
        json_t *j = json_loads(event, 0, NULL);
        const json_t *one = json_array_get(json_object_get(j, "choices"), 0);
        assert_int_equal(prompt, 0); // the usage is the last
        if (one)
            strcat(texts[json_integer_value(json_object_get(one, "index"))],
                   json_string_value(json_object_get(one, "text")));
        else
            assert_int_equal(json_unpack(j, "{s:{s:i,s:i}}", "usage", "prompt_tokens", &prompt,
                                         "completion_tokens", &completion),
                             0);
        json_decref(j);
        free(event);
    }
    assert_non_null(event);
    free(event);
    assert_string_equal(texts[0], "w0 w1 w2 ");
    assert_string_equal(texts[1], "w0 w1 w2 w3 ");
    assert_string_equal(texts[2], "w0 w1 ");
    assert_int_equal(prompt, 3 * 7);
    assert_int_equal(completion, 3 + 4 + 2);
    http_client_close(&c);
}

static void a_fast_reader_gets_several_large_streams_in_full(void **state)
{
    (void)state;
    AUTO(mem_free) char *floods = prompts_of("flood 150", 20);
    struct http_client c;
    unsigned n = 0;
    asks(&c, stage.port, floods, ",\"max_tokens\":150,\"stream\":true");
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    for (char *event; (event = http_client_event(&c, 20000, NULL)); free(event))
        n += strstr(event, "\"text\":\"xxx") != NULL;
    assert_int_equal(n, 20 * 150);
    http_client_close(&c);
}

static void a_failing_prompt_ends_all_and_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *prompts;
        int status;
        const char *text;
    } v[] = {
        {"\"say 1\",\"stall\",\"status 3\"", 400, "prompt[2]: as you asked"},
        {"\"choice\",\"stall\"", 502, "prompt[0]: the verifier's answer is malformed"},
        {"\"stall\",\"short 1\"", 502, "prompt[1]: the verifier ended the answer too early"},
        {"\"stall\",\"status 14\"", 503, "prompt[1]: the verifier cannot be reached"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        is(answer(v[i].prompts, ""), v[i].status, v[i].text);
        gateway_await_running(stage.verifier, 0);
    }
    is(answer("\"pace 1000000 5\",\"status 13\"", ",\"stream\":true"), 200,
       "\"message\":\"prompt[1]: as you asked\"");
    gateway_await_running(stage.verifier, 0);
}

static void prompts_over_the_limit_run_later(void **state)
{
    (void)state;
    AUTO(mem_free) char *stalled = prompts_of("stall", 20), *many = prompts_of("say 2", 128);
    struct http_client c;
    asks(&c, stage.port, stalled, "");
    gateway_await_running(stage.verifier, 16);
    assert_false(http_client_wait_close(&c, 200));
    assert_int_equal(fake_verifier_running(stage.verifier), 16);
    http_client_close(&c);
    gateway_await_running(stage.verifier, 0);
    is(answer(many, ""), 200, "{\"index\":127,\"text\":\"w0 w1 \"");
}

/* A full queue would refuse it, and then no other is made. */
static void one_prompt_asks_before_the_others(void **state)
{
    (void)state;
    AUTO(mem_free) char *silent = prompts_of("silent", 20);
    struct http_client c;
    asks(&c, stage.port, silent, "");
    gateway_await_running(stage.verifier, 1);
    assert_false(http_client_wait_close(&c, 200));
    assert_int_equal(fake_verifier_running(stage.verifier), 1);
    http_client_close(&c);
    gateway_await_running(stage.verifier, 0);
}

/* Some of the first requests are calls before the first refusal is there. Then one error is sent
 * each 10 ms, apart from two in 0.1 s. Another client waits for none of them. The first client
 * may be refused for seconds, so no other test has its address. */
static void errors_of_a_full_queue_are_sent_one_after_the_other(void **state)
{
    (void)state;
    enum { N = 40, ROUNDS = 3 };
    struct http_client c[N], other;
    int64_t from_us = clock_us();
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < N; i++)
            asks_from(&c[i], 3, stage.port, "\"status 8\"", "");
        asks_from(&other, 2, stage.port, "\"say 1\"", "");
        is(http_client_read(&other, 20000), 200, "w0");
        http_client_close(&other);
        for (unsigned i = 0; i < N; i++) {
            is(http_client_read(&c[i], 20000), 429, "as you asked");
            http_client_close(&c[i]);
        }
    }
    assert_true(clock_us() - from_us > 250000);
}

/* The queue of this verifier has fewer places than the request has prompts. */
static void prompts_wait_for_places_in_the_queue(void **state)
{
    (void)state;
    struct service v = {0};
    static const char *const args[] = {"--model",
                                       SOURCE_DIR "/models/tales-1m-q8_0.gguf",
                                       "--max-sequences",
                                       "1",
                                       "--queue-length",
                                       "2",
                                       NULL};
    service_start(&v, "verifier-svc", args);
    unsigned port;
    struct child s = gateway_start(v.target, NULL, &port);
    AUTO(mem_free) char *many = prompts_of("Once upon a time", 12);
    struct http_client c;
    asks(&c, port, many, ",\"max_tokens\":8");
    is(http_client_read(&c, 120000), 200, "{\"index\":11,\"text\":\"");
    http_client_close(&c);
    child_stop(&s);
    service_stop(&v);
}

#define N_BATCHES 8

/* Each of the first client's requests has one call, and PLACES calls more run for all of them. */
static void clients_share_the_places_of_further_prompts(void **state)
{
    (void)state;
    enum { PLACES = 64, RUNNING = 16, N_OTHERS = 3, ALL = N_BATCHES + PLACES + N_OTHERS * RUNNING };
    AUTO(mem_free) char *stalled = prompts_of("stall", 20), *many = prompts_of("say 2", 128);
    struct http_client c[N_BATCHES], others[N_OTHERS];
    for (unsigned i = 0; i < N_BATCHES; i++)
        asks(&c[i], stage.port, stalled, "");
    gateway_await_running(stage.verifier, N_BATCHES + PLACES);
    for (unsigned i = 0; i < N_OTHERS; i++)
        asks_from(&others[i], 2, stage.port, stalled, "");
    gateway_await_running(stage.verifier, ALL);
    is(answer(many, ""), 200, "{\"index\":127,\"text\":\"w0 w1 \"");
    gateway_await_running(stage.verifier, ALL); // the last one may just end
    http_client_close(&c[0]);
    gateway_await_running(stage.verifier, ALL - 1); // the places are those of others now
    for (unsigned i = 1; i < N_BATCHES; i++)
        http_client_close(&c[i]);
    for (unsigned i = 0; i < N_OTHERS; i++)
        http_client_close(&others[i]);
    gateway_await_running(stage.verifier, 0);
}

static void requests_that_share_places_are_all_answered(void **state)
{
    (void)state;
    AUTO(mem_free) char *many = prompts_of("say 2", 128);
    struct http_client c[2 * N_BATCHES];
    for (unsigned i = 0; i < ARRAY_LEN(c); i++)
        asks(&c[i], stage.port, many, "");
    for (unsigned i = 0; i < ARRAY_LEN(c); i++) {
        struct http_answer a = http_client_read(&c[i], 120000);
        json_t *j = json_loads(a.body, 0, NULL), *choices = json_object_get(j, "choices");
        assert_int_equal(json_array_size(choices), 128);
        for (unsigned k = 0; k < 128; k++)
            assert_int_equal(
                json_integer_value(json_object_get(json_array_get(choices, k), "index")), k);
        json_decref(j);
        http_answer_done(&a);
        http_client_close(&c[i]);
    }
}

/* With concurrency=3, three choices are accepted and one more is refused. */
static void has_three_places(unsigned at)
{
    struct http_client c, next;
    asks(&c, at, "\"stall\",\"stall\",\"stall\",\"stall\",\"stall\"", "");
    gateway_await_running(stage.verifier, 3);
    asks(&next, at, "\"say 1\"", "");
    is(http_client_read(&next, 20000), 429, "3 concurrent choices (concurrency)");
    http_client_close(&next);
    assert_int_equal(fake_verifier_running(stage.verifier), 3);
    http_client_close(&c);
    gateway_await_running(stage.verifier, 0);
}

/* The choices of a disconnected client stop counting a moment later. */
static struct http_answer once_let_in(unsigned at, const char *prompts)
{
    for (unsigned tries = 0;; tries++) {
        struct http_client c;
        asks(&c, at, prompts, "");
        struct http_answer a = http_client_read(&c, 20000);
        http_client_close(&c);
        if (a.status != 429 || tries == 1000)
            return a;
        http_answer_done(&a);
        poll(NULL, 0, 5);
    }
}

/* The peak memory of the gateway, in KiB. */
static unsigned long peak_kib(void)
{
    static const char name[] = "VmHWM:";
    char path[64], line[128];
    unsigned long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)stage.gateway.pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (!kib && fgets(line, sizeof(line), f))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtoul(line + strlen(name), NULL, 10);
    fclose(f);
    assert_true(kib > 0);
    return kib;
}

/* A prediction of 4 MiB: 128 copies would need 512 MiB. */
static void common_fields_of_prompts_are_stored_once(void **state)
{
    (void)state;
    AUTO(mem_free) char *prompts = prompts_of("say 1", 128), *more = NULL;
    AUTO(mem_free) char *guess = calloc(1, (4 << 20) + 1);
    memset(guess, 'x', 4 << 20);
    assert_true(
        asprintf(&more, ",\"prediction\":{\"type\":\"content\",\"content\":\"%s\"}", guess) > 0);
    unsigned long before = peak_kib();
    is(answer(prompts, more), 200, "{\"index\":127,\"text\":\"w0 \"");
    unsigned long more_kib = peak_kib() - before;
    if (more_kib >= 256 << 10)
        fail_msg("the gateway has taken %lu MiB", more_kib >> 10);
    Tandem__V1__GenerateRequest *q = fake_verifier_request(stage.verifier);
    assert_int_equal(q->prediction.len, 4 << 20);
    assert_int_equal(q->text.len, 5);
    tandem__v1__generate_request__free_unpacked(q, NULL);
}

static void a_key_limits_concurrent_prompts(void **state)
{
    (void)state;
    unsigned at;
    char keys[200];
    snprintf(keys, sizeof(keys), "%s/api-keys", service_dir());
    FILE *f = fopen(keys, "w");
    assert_non_null(f);
    fputs("alice sk-alice-0123456789 concurrency=3\n", f);
    fclose(f);
    chmod(keys, 0600);
    const char *more[] = {"--api-keys", keys, NULL};
    struct child s = gateway_start(stage.address, more, &at);
    has_three_places(at);
    is(once_let_in(at, "\"say 1\",\"stall\",\"say 1\",\"status 3\""), 400,
       "prompt[3]: as you asked");
    gateway_await_running(stage.verifier, 0);
    has_three_places(at); // neither the disconnect nor the failure changed the count
    child_stop(&s);
    unlink(keys);
}

static void malformed_prompt_lists_are_refused_by_name(void **state)
{
    (void)state;
    AUTO(mem_free) char *many = prompts_of("x", 129);
    is(answer("\"a\",7", ""), 400, "\"param\":\"prompt[1]\"");
    is(answer("[1],[]", ""), 400, "\"param\":\"prompt[1]\"");
    is(answer("1,\"a\"", ""), 400, "\"param\":\"prompt[1]\"");
    is(answer("null", ""), 400, "\"param\":\"prompt[0]\"");
    is(answer(many, ""), 400, "at most 128 prompts and 256 choices are taken in one request");
    is(answer("\"a\",\"b\",\"c\",\"d\",\"e\"", ",\"n\":64"), 400, "\"param\":\"prompt\"");
}

static int open_stage(void **state)
{
    (void)state;
    const char *more[] = {"--max-unread-kib", "64", NULL};
    return stage_open(more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_in_the_order_of_their_prompts),
        cmocka_unit_test(a_stream_has_the_events_of_all_prompts),
        cmocka_unit_test(a_fast_reader_gets_several_large_streams_in_full),
        cmocka_unit_test(a_failing_prompt_ends_all_and_is_named),
        cmocka_unit_test(prompts_over_the_limit_run_later),
        cmocka_unit_test(one_prompt_asks_before_the_others),
        cmocka_unit_test(prompts_wait_for_places_in_the_queue),
        cmocka_unit_test(errors_of_a_full_queue_are_sent_one_after_the_other),
        cmocka_unit_test(clients_share_the_places_of_further_prompts),
        cmocka_unit_test(requests_that_share_places_are_all_answered),
        cmocka_unit_test(common_fields_of_prompts_are_stored_once),
        cmocka_unit_test(a_key_limits_concurrent_prompts),
        cmocka_unit_test(malformed_prompt_lists_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, open_stage, stage_close);
}
