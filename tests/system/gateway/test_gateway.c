/* The answers of the gateway over real sockets to well-behaved clients, with a fake verifier
 * (lib/fakes/fake_verifier.h). */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/stage.h"

static void a_chat_answers_with_text_usage_and_reason(void **state)
{
    (void)state;
    struct http_answer a = stage_chat("say 3", "");
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
        struct http_answer a = http_call(stage.port, "POST", "/v1/completions", bodies[i]);
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body, "\"object\":\"text_completion\""));
        assert_non_null(strstr(a.body, "\"text\":\"w0 w1 w2 \""));
        http_answer_done(&a);
    }
}

static void every_parameter_reaches_the_verifier(void **state)
{
    (void)state;
    struct http_answer a = stage_chat(
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
    Tandem__V1__GenerateRequest *q = fake_verifier_request(stage.verifier);
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

static void absent_parameters_are_left_to_the_verifier(void **state)
{
    (void)state;
    struct http_answer a = http_call(stage.port, "POST", "/v1/completions",
                                     "{\"prompt\":\"say 1\",\"temperature\":null,\"stop\":null}");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    Tandem__V1__GenerateRequest *q = fake_verifier_request(stage.verifier);
    assert_int_equal(q->sampling->has_temperature_case, 0);
    assert_int_equal(q->sampling->has_seed_case, 0);
    assert_int_equal(q->n, 1);
    assert_int_equal(q->max_tokens, 16); // OpenAI's default for completions
    assert_true(q->add_bos);
    tandem__v1__generate_request__free_unpacked(q, NULL);
}

/* Whether a chat with tools asks the verifier to show n special tokens. */
static bool shows(unsigned n)
{
    http_answer_is(
        stage_chat("say 1", ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"),
        200, "", "w0 ");
    Tandem__V1__GenerateRequest *q = fake_verifier_request(stage.verifier);
    bool is = q->n_shown_special == n;
    for (size_t i = 0; i < 2 && is && n; i++) // those of reasoning are the first
        is = memmem(q->shown_special[i].data, q->shown_special[i].len, "think>", 6) != NULL;
    tandem__v1__generate_request__free_unpacked(q, NULL);
    return is;
}

static void marks_of_reasoning_and_calls_are_shown_if_the_template_has_them(void **state)
{
    (void)state;
    assert_true(shows(0));
    fake_verifier_template(stage.verifier, "{# </think> <tool_call> #}" FAKE_TEMPLATE);
    assert_true(stage_becomes(shows, 4));
    fake_verifier_template(stage.verifier, FAKE_TEMPLATE);
    assert_true(stage_becomes(shows, 0));
}

static void logprobs_come_in_both_shapes(void **state)
{
    (void)state;
    struct http_answer a = stage_chat("say 2", ",\"logprobs\":true,\"top_logprobs\":1");
    assert_non_null(strstr(a.body, "{\"token\":\"w0 \",\"logprob\":-0.5,\"bytes\":[119,48,32],"
                                   "\"top_logprobs\":[{\"token\":\"\xEF\xBF\xBD\xEF\xBF\xBD\","
                                   "\"logprob\":-0.25,\"bytes\":[226,130]}]}"));
    http_answer_done(&a);
    a = http_call(stage.port, "POST", "/v1/completions", "{\"prompt\":\"say 2\",\"logprobs\":1}");
    assert_non_null(strstr(a.body, "\"logprobs\":{\"tokens\":[\"w0 \",\"w1 \"],"
                                   "\"token_logprobs\":[-0.5,-0.5],\"top_logprobs\":["
                                   "{\"bytes:\\\\xe2\\\\x82\":-0.25},"
                                   "{\"bytes:\\\\xe2\\\\x82\":-0.25}],\"text_offset\":[0,3]}"));
    http_answer_done(&a);
}

static void a_prompt_of_a_megabyte_is_accepted(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    char *text = malloc(n + 100);
    size_t at = (size_t)sprintf(text, "{\"prompt\":\"say 1 ");
    memset(text + at, 'x', n);
    strcpy(text + at + n, "\"}");
    struct http_answer a = http_call(stage.port, "POST", "/v1/completions", text);
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    Tandem__V1__GenerateRequest *q = fake_verifier_request(stage.verifier);
    assert_true(q->text.len > n);
    tandem__v1__generate_request__free_unpacked(q, NULL);
    free(text);
}

static void an_unknown_model_is_404(void **state)
{
    (void)state;
    is_error(stage_chat("say 1", ",\"model\":\"gpt-99\""), 404, "model", "gpt-99");
}

/* ---- other endpoints ---- */

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
        {"POST", "/tokenize", "{}", 400, "prompt is missing"},
        {"POST", "/tokenize", "{\"prompt\":1}", 400, "prompt must be a string, not an integer"},
        {"POST", "/tokenize", "{\"prompt\":\"a\",\"model\":\"other\"}", 404, "model_not_found"},
        {"POST", "/detokenize", "{\"tokens\":[]}", 400, "tokens must be an array of token ids"},
        {"POST", "/detokenize", "{\"tokens\":[1],\"model\":\"other\"}", 404, "model_not_found"},
        {"GET", "/v1/responses/resp_1", NULL, 404, "responses are not stored"},
        {"POST", "/v1/responses", "{\"input\":\"say 1\"}", 200, "\"text\":\"w0 \""},
        {"GET", "/ui/app.js", NULL, 200, "import "},
        {"GET", "/ui/nowhere.js", NULL, 404, "no such file"},
        {"GET", "/nowhere", NULL, 404, "no such path"},
        {"GET", "/v1/chat/completions", NULL, 405, "method"},
        {"DELETE", "/health", NULL, 405, "method"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct http_answer a = http_call(stage.port, v[i].method, v[i].path, v[i].body);
        if (a.status != v[i].status || !strstr(a.body, v[i].part))
            fail_msg("%s %s: %d %s", v[i].method, v[i].path, a.status, a.body);
        http_answer_done(&a);
    }
}

/* Only the paths of the page, of a model and of a response have further parts. */
static void paths_are_whole(void **state)
{
    (void)state;
    static const char *const paths[] = {"/v1/chat/completions",
                                        "/v1/completions",
                                        "/v1/responses",
                                        "/v1/models",
                                        "/v1/spec_decode/metrics",
                                        "/health",
                                        "/ready",
                                        "/metrics",
                                        "/version",
                                        "/tokenize",
                                        "/detokenize"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        char path[64];
        snprintf(path, sizeof(path), "%sx", paths[i]);
        http_answer_is(http_call(stage.port, "GET", path, NULL), 404, "", "no such path");
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

static void speculation_metrics_have_exactly_the_documented_keys(void **state)
{
    (void)state;
    struct http_answer a = http_call(stage.port, "GET", "/v1/spec_decode/metrics", NULL);
    json_t *j = json_loads(a.body, 0, NULL);
    are_speculation_figures(j);
    json_decref(j);
    http_answer_done(&a);
}

static void health_shows_cache_and_speculation(void **state)
{
    (void)state;
    struct http_answer a = http_call(stage.port, "GET", "/health", NULL);
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

/* The value of a series of the gateway that begins so; 0: it is absent. */
static double value_of(const char *series)
{
    char line[200];
    struct http_answer a = http_call(stage.port, "GET", "/metrics", NULL);
    snprintf(line, sizeof(line), "\n%s", series);
    const char *at = strstr(a.body, line), *value = at ? strstr(at, "} ") : NULL;
    double v = value ? strtod(value + 2, NULL) : 0;
    http_answer_done(&a);
    return v;
}

enum { STARTED, FAILED, CANCELLED, TOTAL, N_SERIES };
static double before[N_SERIES];

static void read_series(double ret[N_SERIES])
{
    static const char *const series[N_SERIES] = {
        "tandem_gateway_requests_total{instance=\"gateway\",endpoint=\"completions\"",
        "tandem_gateway_requests_failed_total{", "tandem_gateway_requests_cancelled_total{",
        "tandem_gateway_e2e_request_latency_seconds_count{"};
    for (int i = 0; i < N_SERIES; i++)
        ret[i] = value_of(series[i]);
}

/* Since the last such growth these counters have grown by these numbers. */
static bool grew(unsigned started, unsigned failed, unsigned cancelled, unsigned total)
{
    const unsigned want[N_SERIES] = {started, failed, cancelled, total};
    double now[N_SERIES];
    bool as_wanted = true;
    read_series(now);
    for (int i = 0; i < N_SERIES; i++)
        as_wanted = as_wanted && now[i] - before[i] == want[i];
    if (as_wanted)
        memcpy(before, now, sizeof(before));
    return as_wanted;
}

static bool one_was_cancelled(unsigned unused)
{
    (void)unused;
    return grew(1, 0, 1, 0);
}

static void each_request_is_counted_once(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        int status;
    } failures[] = {{"{", 400},
                    {"{\"prompt\":\"x\",\"n\":0}", 400},
                    {"{\"prompt\":\"x\",\"model\":\"other\"}", 404},
                    {"{\"prompt\":\"status 3\"}", 400},
                    {"{\"prompt\":\"short 2\"}", 502},
                    {"{\"prompt\":\"choice\"}", 502}};
    read_series(before);
    http_answer_is(http_call(stage.port, "POST", "/v1/completions", "{\"prompt\":\"say 2\"}"), 200,
                   "", "w1");
    assert_true(grew(1, 0, 0, 1));
    for (size_t i = 0; i < ARRAY_LEN(failures); i++) {
        http_answer_is(http_call(stage.port, "POST", "/v1/completions", failures[i].body),
                       failures[i].status, "", "error");
        assert_true(grew(1, 1, 0, 0));
    }
    struct http_client c = http_client_open(stage.port);
    http_client_ask(&c, "POST /v1/completions", "", "{\"prompt\":\"stall\",\"stream\":true}");
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    http_client_close(&c);
    assert_true(stage_becomes(one_was_cancelled, 0));
}

/* ---- HTTP ---- */

static void request_ids_are_used_or_created(void **state)
{
    (void)state;
    struct http_answer a =
        stage_raw("GET /version HTTP/1.1\r\nHost: x\r\nX-Request-Id: my-id.7\r\n\r\n");
    assert_non_null(strstr(a.head, "X-Request-Id: my-id.7\r\n"));
    http_answer_done(&a);
    a = stage_raw("GET /version HTTP/1.1\r\nHost: x\r\nX-Request-Id: <script>\r\n\r\n");
    assert_non_null(strstr(a.head, "X-Request-Id: "));
    assert_null(strstr(a.head, "script"));
    http_answer_done(&a);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    AUTO(mem_free) char *body = chat_body("say 1", "");
    struct http_client c = http_client_open(stage.port);
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

static void old_and_head_requests_are_answered(void **state)
{
    (void)state;
    struct http_answer a =
        stage_raw("HEAD /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_int_equal(a.status, 200);
    assert_int_equal(a.len, 0);
    http_answer_done(&a);
    a = stage_raw("GET /version HTTP/1.0\r\n\r\n");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "version"));
    http_answer_done(&a);
    AUTO(mem_free) char *body = chat_body("say 2", ",\"stream\":true");
    struct http_client c = http_client_open(stage.port);
    http_client_print(&c, "POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s",
                      strlen(body), body);
    assert_true(http_client_wait_close(&c, 5000)); // no chunks: the close marks the end
    assert_non_null(strstr(c.in, "\n\ndata: [DONE]\n\n"));
    http_client_close(&c);
}

static int open_stage(void **state)
{
    (void)state;
    return stage_open(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_answers_with_text_usage_and_reason),
        cmocka_unit_test(a_completion_takes_text_or_tokens),
        cmocka_unit_test(every_parameter_reaches_the_verifier),
        cmocka_unit_test(absent_parameters_are_left_to_the_verifier),
        cmocka_unit_test(marks_of_reasoning_and_calls_are_shown_if_the_template_has_them),
        cmocka_unit_test(logprobs_come_in_both_shapes),
        cmocka_unit_test(a_prompt_of_a_megabyte_is_accepted),
        cmocka_unit_test(an_unknown_model_is_404),
        cmocka_unit_test(small_endpoints_answer),
        cmocka_unit_test(paths_are_whole),
        cmocka_unit_test(speculation_metrics_have_exactly_the_documented_keys),
        cmocka_unit_test(health_shows_cache_and_speculation),
        cmocka_unit_test(each_request_is_counted_once),
        cmocka_unit_test(request_ids_are_used_or_created),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(old_and_head_requests_are_answered),
    };
    return cmocka_run_group_tests(tests, open_stage, stage_close);
}
