/* The gateway over real sockets: what it answers, and what misuse costs whom. The verifier is
 * played (lib/fake_verifier.h), since most of this is about what a real one does not do on request.
 */
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/chats.h"
#include "lib/child.h"
#include "lib/fake_verifier.h"
#include "lib/http_client.h"
#include "lib/lib.h"
#include "lib/services.h"

static char address[128];
static struct fake_verifier *verifier;
static struct child gateway;
static unsigned port;

/* ---- helpers ---- */

static struct child start_gateway(const char *target, unsigned *ret_port)
{
    const char *args[] = {"--listen",
                          "127.0.0.1:0",
                          "--verifiers",
                          target,
                          "--request-timeout",
                          "1.5",
                          "--idle-timeout",
                          "3",
                          "--keepalive-interval",
                          "0.2",
                          "--max-unread-kib",
                          "64",
                          "--max-body-kib",
                          "2048",
                          "--max-header-bytes",
                          "4096",
                          "--load-wait",
                          "1",
                          "--drain-timeout",
                          "1",
                          "--template-timeout",
                          "1",
                          "--reader-timeout",
                          "1",
                          NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    char *rest = child_wait_log(&s, "listening on 127.0.0.1:");
    *ret_port = (unsigned)atoi(rest);
    free(rest);
    return s;
}

static bool soon(bool (*is)(unsigned x), unsigned x)
{
    int64_t until_us = clock_us() + 10000000;
    while (clock_us() < until_us) {
        if (is(x))
            return true;
        poll(NULL, 0, 5);
    }
    return false;
}

static bool runs(unsigned n)
{
    return fake_verifier_running(verifier) == n;
}

static bool cancelled(unsigned n)
{
    return fake_verifier_cancelled(verifier) >= n;
}

static bool healthy(unsigned at)
{
    struct http_answer a = http_call(at, "GET", "/health", NULL);
    bool ok = a.status == 200;
    http_answer_done(&a);
    return ok;
}

static struct http_answer chat(const char *what, const char *more)
{
    AUTO(mem_free) char *body = chat_body(what, more);
    return http_call(port, "POST", "/v1/chat/completions", body);
}

static struct http_client open_stream(const char *what)
{
    struct http_client c;
    begin_stream(&c, port, what);
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    return c;
}

static void still_serves(void)
{
    struct http_answer a = chat("say 2", "");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
}

static struct http_answer raw(const char *text)
{
    struct http_client c = http_client_open(port);
    http_client_send(&c, text, strlen(text));
    struct http_answer a = http_client_read(&c, 10000);
    http_client_close(&c);
    return a;
}

/* ---- answers ---- */

static void a_chat_answers_with_text_usage_and_reason(void **state)
{
    (void)state;
    struct http_answer a = chat("say 3", "");
    assert_int_equal(a.status, 200);
    json_t *j = json_loads(a.body, 0, NULL);
    const char *object, *role, *content, *reason, *model, *print;
    int prompt, completion, total, cached;
    json_error_t e;
    int rc =
        json_unpack_ex(j, &e, 0, "{s:s,s:s,s:s,s:[{s:{s:s,s:s},s:s}],s:{s:i,s:i,s:i,s:{s:i}}}",
                       "object", &object, "model", &model, "system_fingerprint", &print, "choices",
                       "message", "role", &role, "content", &content, "finish_reason", &reason,
                       "usage", "prompt_tokens", &prompt, "completion_tokens", &completion,
                       "total_tokens", &total, "prompt_tokens_details", "cached_tokens", &cached);
    if (rc < 0)
        fail_msg("%s in %s", e.text, a.body);
    assert_string_equal(object, "chat.completion");
    assert_string_equal(model, "fake/model");
    assert_string_equal(print, "fp_fake");
    assert_string_equal(role, "assistant");
    assert_string_equal(content, "w0 w1 w2 ");
    assert_string_equal(reason, "length");
    assert_int_equal(prompt, 7);
    assert_int_equal(completion, 3);
    assert_int_equal(total, 10);
    assert_int_equal(cached, 3);
    json_decref(j);
    http_answer_done(&a);
}

static void every_committed_token_is_an_event_in_order(void **state)
{
    (void)state;
    for (unsigned at_once = 0; at_once < 2; at_once++) {
        struct http_client c = open_stream(at_once ? "run 200" : "say 200");
        free(http_client_event(&c, 20000, NULL)); // the role
        for (unsigned i = 0; i < 200; i++) {
            char want[16], *text = content_of(http_client_event(&c, 20000, NULL));
            snprintf(want, sizeof(want), "w%u ", i);
            assert_non_null(text);
            assert_string_equal(text, want);
            free(text);
        }
        char *last = http_client_event(&c, 20000, NULL), *done = http_client_event(&c, 20000, NULL);
        assert_non_null(strstr(last, "\"finish_reason\":\"length\""));
        assert_string_equal(done, "[DONE]");
        free(last);
        free(done);
        assert_null(http_client_event(&c, 20000, NULL));
        http_client_close(&c);
    }
}

static void a_token_that_ends_inside_a_character_has_an_event_without_text(void **state)
{
    (void)state;
    static const char *const want[] = {"", "", "\xE2\x82\xAC", "\xEF\xBF\xBD", ""};
    struct http_client c = open_stream("bytes");
    for (unsigned i = 0; i < 5; i++) {
        char *text = content_of(http_client_event(&c, 20000, NULL));
        assert_non_null(text);
        assert_string_equal(text, want[i]);
        free(text);
    }
    http_client_close(&c);
}

static void text_held_back_arrives_with_the_end(void **state)
{
    (void)state;
    struct http_client c = open_stream("held");
    char all[64] = "";
    for (char *text; (text = content_of(http_client_event(&c, 20000, NULL))); free(text))
        strcat(all, text);
    assert_string_equal(all, "kept back");
    http_client_close(&c);
    struct http_answer a = chat("held", "");
    assert_non_null(strstr(a.body, "\"kept back\""));
    http_answer_done(&a);
}

static void usage_comes_last_when_asked_for(void **state)
{
    (void)state;
    AUTO(mem_free)
    char *body = chat_body("say 1", ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    struct http_answer a = http_call(port, "POST", "/v1/chat/completions", body);
    assert_int_equal(a.status, 200);
    const char *usage = strstr(a.body, "\"choices\":[],\"usage\":{\"prompt_tokens\":7");
    assert_non_null(usage);
    assert_non_null(strstr(usage, "\"draft_acceptance_rate\":0.75"));
    assert_non_null(strstr(usage, "\n\ndata: [DONE]\n\n"));
    http_answer_done(&a);
}

/* The fake's tokens are a draft that was kept, but for the last, its bonus. */
static void a_stream_tells_of_each_token_if_asked(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "\"tandem\":{\"tokens\":[{\"id\":0,\"origin\":\"accepted\",\"round\":1,\"drafted\":2,"
        "\"proposer\":\"fake\"}]}}\n\n",
        "{\"id\":1,\"origin\":\"bonus\",\"round\":1,\"drafted\":2,\"proposer\":\"fake\"}"};
    for (unsigned asked = 0; asked < 2; asked++) {
        struct http_answer a =
            chat("run 2", asked ? ",\"stream\":true,\"stream_options\":{\"include_tokens\":true}"
                                : ",\"stream\":true");
        assert_int_equal(a.status, 200);
        for (unsigned i = 0; i < ARRAY_LEN(parts); i++)
            assert_int_equal(strstr(a.body, parts[i]) != NULL, asked);
        assert_int_equal(strstr(a.body, "\"tandem\"") != NULL, asked);
        http_answer_done(&a);
    }
}

static void a_completion_takes_text_or_tokens(void **state)
{
    (void)state;
    static const char *const bodies[] = {"{\"prompt\":\"say 3\"}",
                                         "{\"prompt\":[\"say 3\"]}",
                                         "{\"prompt\":[1,2,3]}",
                                         "{\"prompt\":[[1,2,3]]}",
                                         "{\"prompt\":\"say 3\",\"model\":\"default\"}",
                                         "{\"prompt\":\"say 3\",\"model\":\"fake/model\"}"};
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        struct http_answer a = http_call(port, "POST", "/v1/completions", bodies[i]);
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body, "\"object\":\"text_completion\""));
        assert_non_null(strstr(a.body, "\"text\":\"w0 w1 w2 \""));
        http_answer_done(&a);
    }
}

static void every_parameter_reaches_the_verifier(void **state)
{
    (void)state;
    struct http_answer a = chat(
        "say 1", ",\"temperature\":0.5,\"top_p\":0.9,\"top_k\":40,\"min_p\":0.05,"
                 "\"presence_penalty\":-1,\"frequency_penalty\":1.5,\"repetition_penalty\":1.1,"
                 "\"seed\":-9007199254740993,\"max_completion_tokens\":9,\"min_tokens\":2,"
                 "\"stop\":[\"a\",\"b\"],\"stop_token_ids\":[5],\"ignore_eos\":true,"
                 "\"logit_bias\":{\"17\":-3.5},\"logprobs\":true,\"top_logprobs\":4,\"n\":1,"
                 "\"speculative\":{\"proposer\":\"none\",\"n_max\":0,\"n_min\":2,\"p_min\":0.5,"
                 "\"fixed\":true,\"rule\":\"lenience\",\"rule_parameter\":0.75,"
                 "\"dense_q\":true},\"user\":\"u\","
                 "\"prediction\":{\"type\":\"content\",\"content\":\"guess\"},"
                 "\"cache_salt\":\"pepper\"");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    Tandem__V1__GenerateRequest *q = fake_verifier_request(verifier);
    assert_float_equal(q->sampling->temperature, 0.5f, 0);
    assert_float_equal(q->sampling->top_p, 0.9f, 0);
    assert_int_equal(q->sampling->top_k, 40);
    assert_float_equal(q->sampling->min_p, 0.05f, 0);
    assert_float_equal(q->sampling->presence_penalty, -1.0f, 0);
    assert_float_equal(q->sampling->frequency_penalty, 1.5f, 0);
    assert_float_equal(q->sampling->repetition_penalty, 1.1f, 0);
    assert_true(q->sampling->seed == -9007199254740993);
    assert_int_equal(q->max_tokens, 9);
    assert_int_equal(q->min_tokens, 2);
    assert_int_equal(q->n_stop, 2);
    assert_int_equal(q->stop_token_ids[0], 5);
    assert_true(q->ignore_eos && q->logprobs && q->parse_special && !q->add_bos);
    assert_int_equal(q->top_logprobs, 4);
    assert_int_equal(q->sampling->logit_bias[0]->token, 17);
    assert_float_equal(q->sampling->logit_bias[0]->bias, -3.5f, 0);
    assert_memory_equal(q->speculative->proposer.data, "none", 4);
    assert_int_equal(q->speculative->has_n_max_case, TANDEM__V1__SPECULATIVE__HAS_N_MAX_N_MAX);
    assert_int_equal(q->speculative->has_p_min_case, TANDEM__V1__SPECULATIVE__HAS_P_MIN_P_MIN);
    assert_true(q->speculative->p_min == 0.5f && q->speculative->n_min == 2);
    assert_true(q->speculative->fixed && q->speculative->dense_q);
    assert_int_equal(q->speculative->rule.len, 8);
    assert_memory_equal(q->speculative->rule.data, "lenience", 8);
    assert_int_equal(q->speculative->has_rule_parameter_case,
                     TANDEM__V1__SPECULATIVE__HAS_RULE_PARAMETER_RULE_PARAMETER);
    assert_true(q->speculative->rule_parameter == 0.75f);
    assert_memory_equal(q->prediction.data, "guess", 5);
    assert_int_equal(q->tenant.len, 6);
    assert_memory_equal(q->tenant.data, "pepper", 6);
    tandem__v1__generate_request__free_unpacked(q, NULL);
}

static void what_is_not_said_is_left_to_the_verifier(void **state)
{
    (void)state;
    struct http_answer a = http_call(port, "POST", "/v1/completions",
                                     "{\"prompt\":\"say 1\",\"temperature\":null,\"stop\":null}");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    Tandem__V1__GenerateRequest *q = fake_verifier_request(verifier);
    assert_int_equal(q->sampling->has_temperature_case, 0);
    assert_int_equal(q->sampling->has_seed_case, 0);
    assert_int_equal(q->n, 1);
    assert_int_equal(q->max_tokens, 16); // OpenAI's default for completions
    assert_true(q->add_bos);
    tandem__v1__generate_request__free_unpacked(q, NULL);
}

static void logprobs_come_in_both_shapes(void **state)
{
    (void)state;
    struct http_answer a = chat("say 2", ",\"logprobs\":true,\"top_logprobs\":1");
    assert_non_null(strstr(a.body, "{\"token\":\"w0 \",\"logprob\":-0.5,\"bytes\":[119,48,32],"
                                   "\"top_logprobs\":[{\"token\":\"\xEF\xBF\xBD\xEF\xBF\xBD\","
                                   "\"logprob\":-0.25,\"bytes\":[226,130]}]}"));
    http_answer_done(&a);
    a = http_call(port, "POST", "/v1/completions", "{\"prompt\":\"say 2\",\"logprobs\":1}");
    assert_non_null(strstr(a.body, "\"logprobs\":{\"tokens\":[\"w0 \",\"w1 \"],"
                                   "\"token_logprobs\":[-0.5,-0.5],\"top_logprobs\":["
                                   "{\"bytes:\\\\xe2\\\\x82\":-0.25},"
                                   "{\"bytes:\\\\xe2\\\\x82\":-0.25}],\"text_offset\":[0,3]}"));
    http_answer_done(&a);
}

static void request_ids_are_taken_over_or_made(void **state)
{
    (void)state;
    struct http_answer a = raw("GET /version HTTP/1.1\r\nHost: x\r\nX-Request-Id: my-id.7\r\n\r\n");
    assert_non_null(strstr(a.head, "X-Request-Id: my-id.7\r\n"));
    http_answer_done(&a);
    a = raw("GET /version HTTP/1.1\r\nHost: x\r\nX-Request-Id: <script>\r\n\r\n");
    assert_non_null(strstr(a.head, "X-Request-Id: "));
    assert_null(strstr(a.head, "script"));
    http_answer_done(&a);
}

static void small_endpoints_answer(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *body;
        int status;
        const char *part;
    } v[] = {
        {"GET", "/", NULL, 200, "/v1/chat/completions"},
        {"GET", "/version", NULL, 200, "\"version\""},
        {"GET", "/v1/models", NULL, 200, "\"id\":\"fake/model\",\"object\":\"model\""},
        {"GET", "/v1/models/fake/model", NULL, 200, "\"max_model_len\":1024"},
        {"GET", "/v1/models/other", NULL, 404, "model_not_found"},
        {"GET", "/health", NULL, 200, "\"status\":\"ok\""},
        {"GET", "/ready", NULL, 200, "{\"ready\":true}"},
        {"GET", "/metrics", NULL, 200, "tandem_generation_tokens_total{instance=\"fake-0\"} 42\n"},
        {"GET", "/metrics", NULL, 200, "tandem_gateway_requests_total{instance=\"gateway\""},
        {"GET", "/v1/spec_decode/metrics", NULL, 200, "\"acceptance_rate_overall\":0.75"},
        {"POST", "/tokenize", "{\"prompt\":\"ab\"}", 200, "{\"count\":2,\"tokens\":[97,98]}"},
        {"POST", "/detokenize", "{\"tokens\":[97,98]}", 200, "{\"prompt\":\"ab\"}"},
        {"GET", "/ui/app.js", NULL, 200, "import "},
        {"GET", "/ui/nowhere.js", NULL, 404, "no such file"},
        {"GET", "/nowhere", NULL, 404, "no such path"},
        {"GET", "/v1/chat/completions", NULL, 405, "method"},
        {"DELETE", "/health", NULL, 405, "method"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct http_answer a = http_call(port, v[i].method, v[i].path, v[i].body);
        if (a.status != v[i].status || !strstr(a.body, v[i].part))
            fail_msg("%s %s: %d %s", v[i].method, v[i].path, a.status, a.body);
        http_answer_done(&a);
    }
}

static void are_speculation_figures(const json_t *j)
{
    static const char *const keys[] = {
        "spec_decode_enabled",     "spec_decode_mode",    "acceptance_rate_ema",
        "acceptance_rate_overall", "avg_tokens_per_step", "total_steps",
        "total_fallback_steps",    "total_proposed",      "total_accepted",
        "total_bonus_tokens",      "current_k",           "adaptive_k_current"};
    assert_int_equal(json_object_size(j), ARRAY_LEN(keys));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        assert_non_null(json_object_get(j, keys[i]));
    assert_int_equal(json_integer_value(json_object_get(j, "total_proposed")), 20);
}

static void speculation_figures_have_exactly_the_promised_keys(void **state)
{
    (void)state;
    struct http_answer a = http_call(port, "GET", "/v1/spec_decode/metrics", NULL);
    json_t *j = json_loads(a.body, 0, NULL);
    are_speculation_figures(j);
    json_decref(j);
    http_answer_done(&a);
}

static void health_shows_cache_and_speculation(void **state)
{
    (void)state;
    struct http_answer a = http_call(port, "GET", "/health", NULL);
    json_t *j = json_loads(a.body, 0, NULL), *speculation, *holder;
    int total, used, evictable, hits, bytes;
    assert_int_equal(json_unpack(j, "{s:[{s:{s:i,s:i,s:i,s:i,s:i,s:[oo]}}],s:o}", "verifiers",
                                 "cache", "blocks_total", &total, "blocks_used", &used,
                                 "blocks_evictable", &evictable, "hit_tokens", &hits, "bytes",
                                 &bytes, "holders", &holder, &holder, "spec_decode", &speculation),
                     0);
    assert_int_equal(evictable, 7);
    assert_int_equal(hits, 32);
    assert_string_equal(json_string_value(json_object_get(holder, "id")), "r\"1");
    assert_int_equal(json_integer_value(json_object_get(holder, "blocks")), 3);
    assert_int_equal(total, 64);
    assert_int_equal(used, 5);
    assert_int_equal(bytes, 1 << 20);
    are_speculation_figures(speculation);
    json_decref(j);
    http_answer_done(&a);
}

/* ---- bad input ---- */

static void a_prompt_of_a_megabyte_goes_through(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    char *text = malloc(n + 100);
    size_t at = (size_t)sprintf(text, "{\"prompt\":\"say 1 ");
    memset(text + at, 'x', n);
    strcpy(text + at + n, "\"}");
    struct http_answer a = http_call(port, "POST", "/v1/completions", text);
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    Tandem__V1__GenerateRequest *q = fake_verifier_request(verifier);
    assert_true(q->text.len > n);
    tandem__v1__generate_request__free_unpacked(q, NULL);
    free(text);
}

static void an_unknown_model_is_404(void **state)
{
    (void)state;
    is_error(chat("say 1", ",\"model\":\"gpt-99\""), 404, "model", "gpt-99");
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    AUTO(mem_free) char *body = chat_body("say 1", "");
    struct http_client c = http_client_open(port);
    http_client_print(
        &c,
        "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s"
        "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
        strlen(body), body);
    static const char *const parts[] = {"\"version\"", "\"w0 \"", "\"list\""};
    for (size_t i = 0; i < 3; i++) {
        struct http_answer a = http_client_read(&c, 10000);
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body, parts[i]));
        http_answer_done(&a);
    }
    http_client_close(&c);
}

/* ---- time ---- */

static void a_silent_stream_gets_comments(void **state)
{
    (void)state;
    struct http_client c = open_stream("stall");
    unsigned n = 0;
    free(http_client_event(&c, 5000, NULL)); // the role
    assert_null(http_client_event(&c, 1000, &n));
    assert_true(n >= 2);
    http_client_close(&c);
    assert_true(soon(runs, 0));
}

/* ---- clients that leave ---- */

static void a_hang_up_cancels_the_generation(void **state)
{
    (void)state;
    static const char *const whats[] = {"stall", "silent", "pace 1000000 5"};
    for (size_t i = 0; i < 3; i++) {
        for (unsigned stream = 0; stream < 2; stream++) {
            unsigned before = fake_verifier_cancelled(verifier);
            AUTO(mem_free) char *body = chat_body(whats[i], stream ? ",\"stream\":true" : "");
            struct http_client c = http_client_open(port);
            http_client_print(&c,
                              "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                              "Content-Length: %zu\r\n\r\n%s",
                              strlen(body), body);
            assert_true(soon(runs, 1));
            http_client_close(&c);
            assert_true(soon(cancelled, before + 1));
            assert_true(soon(runs, 0));
        }
    }
}

static void a_reader_that_stops_is_dropped_within_a_bound(void **state)
{
    (void)state;
    unsigned before = fake_verifier_cancelled(verifier);
    struct http_client c;
    begin_stream(&c, port, "flood 100000"); // 100 MB, and nobody reads
    assert_true(soon(cancelled, before + 1));
    assert_true(soon(runs, 0));
    assert_true(http_client_wait_close(&c, 10000));
    assert_true(c.len < 20 << 20);
    http_client_close(&c);
    still_serves();
}

static void a_reader_that_reads_gets_all_of_a_flood(void **state)
{
    (void)state;
    struct http_client c = open_stream("flood 2000");
    unsigned n = 0;
    char *event;
    while ((event = http_client_event(&c, 20000, NULL)) && strcmp(event, "[DONE]") != 0) {
        n += strstr(event, "xxxx") != NULL;
        assert_null(strstr(event, "\"error\""));
        free(event);
    }
    assert_non_null(event);
    free(event);
    assert_int_equal(n, 2000);
    http_client_close(&c);
}

static void a_reader_that_reads_gets_an_event_larger_than_may_wait(void **state)
{
    (void)state;
    size_t n = 1 << 20; // of 64 KiB that may wait
    AUTO(mem_free) char *body = malloc(n + 100);
    size_t at = (size_t)sprintf(body, "{\"stream\":true,\"echo\":true,\"prompt\":\"say 300 ");
    memset(body + at, 'x', n);
    strcpy(body + at + n, "\"}");
    struct http_client c = http_client_open(port);
    http_client_print(&c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                      strlen(body));
    http_client_send(&c, body, strlen(body));
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    AUTO(mem_free) char *echo = http_client_event(&c, 20000, NULL);
    assert_non_null(echo);
    assert_true(strlen(echo) > n);
    char *event, *last = NULL;
    for (; (event = http_client_event(&c, 20000, NULL)); last = event)
        free(last);
    assert_non_null(last);
    assert_string_equal(last, "[DONE]");
    free(last);
    http_client_close(&c);
}

static void sixty_four_streams_run_side_by_side(void **state)
{
    (void)state;
    struct http_client c[64];
    for (unsigned i = 0; i < 64; i++)
        begin_stream(&c[i], port, "pace 20 10");
    for (unsigned i = 0; i < 64; i++) {
        char all[256] = "";
        assert_int_equal(http_client_read_head(&c[i], 20000), 200);
        for (char *text; (text = content_of(http_client_event(&c[i], 20000, NULL))); free(text))
            strcat(all, text);
        assert_string_equal(all, "w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 "
                                 "w18 w19 ");
        http_client_close(&c[i]);
    }
}

/* ---- a verifier that misbehaves ---- */

static void statuses_of_the_verifier_become_http_statuses(void **state)
{
    (void)state;
    static const struct {
        unsigned code;
        int status;
    } v[] = {{3, 400}, {4, 504}, {5, 404}, {8, 429}, {12, 501}, {13, 500}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char what[32];
        snprintf(what, sizeof(what), "status %u", v[i].code);
        is_error(chat(what, ""), v[i].status, NULL, "as you asked");
        is_error(chat(what, ",\"stream\":true"), v[i].status, NULL, "as you asked");
    }
    struct http_answer a = chat("status 8", "");
    assert_non_null(strstr(a.head, "Retry-After: "));
    http_answer_done(&a);
}

static void how_a_verifier_is_lost_stands_in_the_log_and_not_in_the_answer(void **state)
{
    (void)state;
    is_error(chat("status 14", ""), 503, NULL,
             "the verifier cannot be reached; it may be starting again");
    is_error(http_call(port, "POST", "/tokenize", "{\"prompt\":\"lost\"}"), 503, NULL,
             "the verifier cannot be reached; it may be starting again");
    AUTO(mem_free) char *generation = child_wait_log(&gateway, "request lost id=");
    assert_non_null(strstr(generation, ".sock: as you asked"));
}

static void malformed_answers_end_the_request_alone(void **state)
{
    (void)state;
    static const char *const whats[] = {"garbage", "choice", "short 3"};
    for (size_t i = 0; i < 3; i++) {
        is_error(chat(whats[i], ""), 502, NULL, "verifier");
        struct http_client c = open_stream(whats[i]);
        char *event, *error = NULL;
        while ((event = http_client_event(&c, 10000, NULL)) && strcmp(event, "[DONE]") != 0) {
            free(error);
            error = event;
        }
        assert_non_null(error);
        assert_non_null(strstr(error, "\"error\":{\"message\":\"the verifier"));
        free(event);
        free(error);
        http_client_close(&c);
    }
    still_serves();
}

static void no_verifier_is_503_at_once(void **state)
{
    (void)state;
    unsigned at;
    struct child s = start_gateway("unix:/tmp/tandem-test-there-is-none.sock", &at);
    int64_t begun_us = clock_us();
    is_error(http_call(at, "POST", "/v1/completions", "{\"prompt\":\"x\"}"), 503, NULL, "reached");
    struct http_answer a = http_call(at, "GET", "/health", NULL);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "\"status\":\"unavailable\""));
    http_answer_done(&a);
    assert_true(clock_us() - begun_us < 900000);
    child_stop(&s);
}

/* Every open stream hears of it within a second, and a new verifier is found again. */
static void a_killed_verifier_ends_streams_and_comes_back(void **state)
{
    (void)state;
    char target[128];
    snprintf(target, sizeof(target), "unix:%s/mortal.sock", service_dir());
    const char *args[] = {"--play-verifier", target, NULL};
    struct child mortal = child_start("/proc/self/exe", args);
    free(child_wait_log(&mortal, "playing"));
    unsigned at;
    struct child s = start_gateway(target, &at);
    assert_true(soon(healthy, at));
    struct http_client c[3];
    for (unsigned i = 0; i < 3; i++) {
        begin_stream(&c[i], at, "pace 1000000 10");
        assert_int_equal(http_client_read_head(&c[i], 20000), 200);
        free(http_client_event(&c[i], 10000, NULL));
    }
    child_signal(&mortal, SIGKILL);
    int64_t killed_us = clock_us();
    for (unsigned i = 0; i < 3; i++) {
        char *event;
        while ((event = http_client_event(&c[i], 5000, NULL)) && !strstr(event, "\"error\""))
            free(event);
        assert_non_null(event);
        assert_non_null(strstr(event, "\"service_unavailable\""));
        assert_non_null(strstr(event, "\"the verifier stopped before the answer was whole\""));
        free(event);
        http_client_close(&c[i]);
    }
    assert_true(clock_us() - killed_us < 1000000);
    assert_int_equal(child_wait(&mortal), -SIGKILL);
    struct http_answer a = http_call(at, "GET", "/health", NULL);
    assert_int_equal(a.status, 503);
    http_answer_done(&a);
    is_error(http_call(at, "POST", "/v1/completions", "{\"prompt\":\"x\"}"), 503, NULL, "reached");
    mortal = child_start("/proc/self/exe", args);
    assert_true(soon(healthy, at));
    a = http_call(at, "POST", "/v1/completions", "{\"prompt\":\"say 1\"}");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    child_signal(&mortal, SIGKILL);
    child_wait(&mortal);
    child_stop(&s);
}

static bool loading_is_seen(unsigned want)
{
    struct http_answer a = http_call(port, "GET", "/health", NULL);
    bool seen = (strstr(a.body, "\"status\":\"loading\"") != NULL) == want;
    http_answer_done(&a);
    return seen;
}

static void while_a_model_loads_requests_wait_up_to_a_limit(void **state)
{
    (void)state;
    fake_verifier_state(verifier, TANDEM__V1__MODEL_INFO__STATE__LOADING, 0.5f);
    assert_true(soon(loading_is_seen, true));
    struct http_answer a = http_call(port, "GET", "/health", NULL);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "\"progress\":0.5"));
    http_answer_done(&a);
    a = http_call(port, "GET", "/ready", NULL);
    assert_int_equal(a.status, 503);
    http_answer_done(&a);

    int64_t begun_us = clock_us();
    is_error(chat("say 1", ""), 503, NULL, "loading (50 %)");
    assert_true(clock_us() - begun_us > 900000);

    AUTO(mem_free) char *body = chat_body("say 1", "");
    struct http_client c = http_client_open(port);
    http_client_print(
        &c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
        strlen(body), body);
    assert_false(http_client_wait_close(&c, 200));
    fake_verifier_state(verifier, TANDEM__V1__MODEL_INFO__STATE__READY, 1);
    a = http_client_read(&c, 10000);
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    http_client_close(&c);
    assert_true(soon(loading_is_seen, false));
}

static bool is_refused(unsigned want)
{
    struct http_answer a = http_call(port, "GET", "/health", NULL);
    bool seen = (strstr(a.body, "\"state\":\"refused\"") != NULL) == want;
    http_answer_done(&a);
    return seen;
}

static void a_verifier_of_another_version_is_refused_until_it_fits(void **state)
{
    (void)state;
    const char *both = "the verifier speaks protocol version 7, this gateway version 1";
    fake_verifier_protocol(verifier, 7);
    assert_true(soon(is_refused, true));
    is_error(chat("say 1", ""), 503, NULL, both);
    unsigned at;
    struct child s = start_gateway(address, &at);
    AUTO(mem_free) char *line = child_wait_log(&s, "verifier refused");
    assert_non_null(strstr(line, both));
    child_stop(&s);
    fake_verifier_protocol(verifier, 0); // not told
    assert_true(soon(is_refused, false));
    struct http_answer a = chat("say 1", "");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    fake_verifier_protocol(verifier, 1);
}

static bool template_is(unsigned want_ok)
{
    struct http_answer a = chat("say 1", "");
    bool ok = (a.status == 200) == want_ok;
    http_answer_done(&a);
    return ok;
}

/* Its own request is refused with `part`, while the neighbours are served. */
static void hurts_only_itself(const char *template, const char *part)
{
    fake_verifier_template(verifier, template);
    assert_true(soon(template_is, false));
    struct http_client c;
    begin_stream(&c, port, "say 1");
    for (unsigned i = 0; i < 20; i++) {
        struct http_answer a = http_call(port, "POST", "/v1/completions", "{\"prompt\":\"say 1\"}");
        assert_int_equal(a.status, 200);
        http_answer_done(&a);
    }
    is_error(http_client_read(&c, 20000), 400, "messages", part);
    http_client_close(&c);
    fake_verifier_template(verifier, FAKE_TEMPLATE);
    assert_true(soon(template_is, true));
}

static void a_hostile_template_costs_its_own_requests_a_400(void **state)
{
    (void)state;
    hurts_only_itself("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
                      "{% endfor %}",
                      "took longer than 1.0 s");
    hurts_only_itself("{{ 'x' * 10000000000 }}", "needs more memory than it may have");
    hurts_only_itself("{{ 7 ** (9 ** 7) }}", "chat template"); // too long, or too many digits
    hurts_only_itself("{{ raise_exception('no ' ~ messages[0].role) }}", "chat template: no user");
}

/* ---- the end ---- */

static void a_drain_finishes_what_was_accepted(void **state)
{
    (void)state;
    unsigned at;
    struct child s = start_gateway(address, &at);
    assert_true(soon(healthy, at));
    struct http_client fast, slow;
    begin_stream(&fast, at, "pace 20 20");
    begin_stream(&slow, at, "pace 1000000 20");
    assert_int_equal(http_client_read_head(&fast, 20000), 200);
    assert_int_equal(http_client_read_head(&slow, 20000), 200);
    child_signal(&s, SIGTERM);
    char *event, *last = NULL;
    while ((event = http_client_event(&fast, 10000, NULL))) {
        assert_null(strstr(event, "\"error\""));
        free(last);
        last = event;
    }
    assert_string_equal(last, "[DONE]");
    free(last);
    while ((event = http_client_event(&slow, 10000, NULL)) && !strstr(event, "\"error\""))
        free(event);
    assert_non_null(event);
    assert_non_null(strstr(event, "shutting down"));
    free(event);
    http_client_close(&fast);
    http_client_close(&slow);
    assert_int_equal(child_wait(&s), 0);
    assert_true(soon(runs, 0));
}

static void a_drain_ends_requests_that_wait_for_a_model(void **state)
{
    (void)state;
    fake_verifier_state(verifier, TANDEM__V1__MODEL_INFO__STATE__LOADING, 0);
    assert_true(soon(loading_is_seen, true));
    const char *args[] = {"--listen", "127.0.0.1:0",     "--verifiers", address, "--load-wait",
                          "600",      "--drain-timeout", "0.1",         NULL};
    struct child patient = child_start(BINARY_DIR "/gateway", args);
    AUTO(mem_free) char *rest = child_wait_log(&patient, "listening on 127.0.0.1:");
    free(child_wait_log(&patient, "verifier loading"));
    struct http_client c;
    begin_stream(&c, (unsigned)atoi(rest), "say 1");
    assert_false(http_client_wait_close(&c, 200));
    child_signal(&patient, SIGTERM);
    is_error(http_client_read(&c, 5000), 503, NULL, "shutting down");
    http_client_close(&c);
    assert_int_equal(child_wait(&patient), 0);
    fake_verifier_state(verifier, TANDEM__V1__MODEL_INFO__STATE__READY, 1);
    assert_true(soon(loading_is_seen, false));
}

static void a_drain_ends_calls_that_do_not_return(void **state)
{
    (void)state;
    const char *args[] = {"--listen",        "127.0.0.1:0", "--verifiers", address,
                          "--drain-timeout", "0.1",         NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    AUTO(mem_free) char *rest = child_wait_log(&s, "listening on 127.0.0.1:");
    free(child_wait_log(&s, "verifier ready"));
    struct http_client c = http_client_open((unsigned)atoi(rest));
    http_client_print(&c, "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n"
                          "{\"prompt\":\"stall\"}");
    assert_true(soon(runs, 1));
    child_signal(&s, SIGTERM);
    is_error(http_client_read(&c, 8000), 503, NULL, "shutting down");
    http_client_close(&c);
    assert_int_equal(child_wait(&s), 0);
    assert_true(soon(runs, 0));
}

static void a_stream_may_be_silent_longer_than_a_connection_may_be_idle(void **state)
{
    (void)state;
    const char *args[] = {"--listen", "127.0.0.1:0",       "--verifiers", address, "--idle-timeout",
                          "0.2",      "--request-timeout", "0.5",         NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    AUTO(mem_free) char *rest = child_wait_log(&s, "listening on 127.0.0.1:");
    free(child_wait_log(&s, "verifier ready"));
    struct http_client c;
    begin_stream(&c, (unsigned)atoi(rest), "pace 2 2600");
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    char *event, *last = NULL;
    for (; (event = http_client_event(&c, 20000, NULL)); last = event)
        free(last);
    assert_non_null(last);
    assert_string_equal(last, "[DONE]");
    free(last);
    assert_true(http_client_wait_close(&c, 5000)); // and then it is idle
    http_client_close(&c);
    child_stop(&s);
}

static void old_and_head_requests_are_answered(void **state)
{
    (void)state;
    struct http_answer a = raw("HEAD /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_int_equal(a.status, 200);
    assert_int_equal(a.len, 0);
    http_answer_done(&a);
    a = raw("GET /version HTTP/1.0\r\n\r\n");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "version"));
    http_answer_done(&a);
    AUTO(mem_free) char *body = chat_body("say 2", ",\"stream\":true");
    struct http_client c = http_client_open(port);
    http_client_print(&c, "POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s",
                      strlen(body), body);
    assert_true(http_client_wait_close(&c, 5000)); // no chunks: the end is the end
    assert_non_null(strstr(c.in, "\n\ndata: [DONE]\n\n"));
    http_client_close(&c);
}

static void a_taken_address_is_said_in_one_sentence(void **state)
{
    (void)state;
    char listen[32];
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", port);
    const char *args[] = {"--listen", listen, "--verifiers", address, NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    free(child_wait_log(&s, "is taken"));
    int rc = child_wait(&s);
    assert_int_equal(rc, 1);
}

static void a_file_that_is_no_socket_stays(void **state)
{
    (void)state;
    char listen[200];
    snprintf(listen, sizeof(listen), "unix:%s/notes.txt", service_dir());
    FILE *f = fopen(listen + 5, "w");
    assert_non_null(f);
    fclose(f);
    const char *args[] = {"--listen", listen, "--verifiers", address, NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    free(child_wait_log(&s, "notes.txt: it exists and is no socket"));
    assert_int_equal(child_wait(&s), 1);
    assert_int_equal(access(listen + 5, F_OK), 0);
    unlink(listen + 5);
}

static int start_all(void **state)
{
    (void)state;
    snprintf(address, sizeof(address), "unix:%s/verifier.sock", service_dir());
    verifier = fake_verifier_start(address);
    gateway = start_gateway(address, &port);
    assert_true(soon(healthy, port));
    return 0;
}

static int stop_all(void **state)
{
    (void)state;
    child_stop(&gateway);
    fake_verifier_stop(verifier);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--play-verifier") == 0)
        fake_verifier_play(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_answers_with_text_usage_and_reason),
        cmocka_unit_test(every_committed_token_is_an_event_in_order),
        cmocka_unit_test(a_token_that_ends_inside_a_character_has_an_event_without_text),
        cmocka_unit_test(text_held_back_arrives_with_the_end),
        cmocka_unit_test(usage_comes_last_when_asked_for),
        cmocka_unit_test(a_stream_tells_of_each_token_if_asked),
        cmocka_unit_test(a_completion_takes_text_or_tokens),
        cmocka_unit_test(every_parameter_reaches_the_verifier),
        cmocka_unit_test(what_is_not_said_is_left_to_the_verifier),
        cmocka_unit_test(logprobs_come_in_both_shapes),
        cmocka_unit_test(request_ids_are_taken_over_or_made),
        cmocka_unit_test(small_endpoints_answer),
        cmocka_unit_test(speculation_figures_have_exactly_the_promised_keys),
        cmocka_unit_test(health_shows_cache_and_speculation),
        cmocka_unit_test(a_prompt_of_a_megabyte_goes_through),
        cmocka_unit_test(an_unknown_model_is_404),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_silent_stream_gets_comments),
        cmocka_unit_test(a_hang_up_cancels_the_generation),
        cmocka_unit_test(a_reader_that_stops_is_dropped_within_a_bound),
        cmocka_unit_test(a_reader_that_reads_gets_all_of_a_flood),
        cmocka_unit_test(a_reader_that_reads_gets_an_event_larger_than_may_wait),
        cmocka_unit_test(sixty_four_streams_run_side_by_side),
        cmocka_unit_test(statuses_of_the_verifier_become_http_statuses),
        cmocka_unit_test(how_a_verifier_is_lost_stands_in_the_log_and_not_in_the_answer),
        cmocka_unit_test(malformed_answers_end_the_request_alone),
        cmocka_unit_test(no_verifier_is_503_at_once),
        cmocka_unit_test(a_killed_verifier_ends_streams_and_comes_back),
        cmocka_unit_test(while_a_model_loads_requests_wait_up_to_a_limit),
        cmocka_unit_test(a_verifier_of_another_version_is_refused_until_it_fits),
        cmocka_unit_test(a_hostile_template_costs_its_own_requests_a_400),
        cmocka_unit_test(a_drain_finishes_what_was_accepted),
        cmocka_unit_test(a_drain_ends_requests_that_wait_for_a_model),
        cmocka_unit_test(a_drain_ends_calls_that_do_not_return),
        cmocka_unit_test(a_stream_may_be_silent_longer_than_a_connection_may_be_idle),
        cmocka_unit_test(old_and_head_requests_are_answered),
        cmocka_unit_test(a_taken_address_is_said_in_one_sentence),
        cmocka_unit_test(a_file_that_is_no_socket_stays),
    };
    return cmocka_run_group_tests(tests, start_all, stop_all);
}
