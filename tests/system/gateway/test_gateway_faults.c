/* A verifier that misbehaves, dies or sends a hostile template affects only its own requests. The
 * verifier is a fake (lib/fakes/fake_verifier.h). */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/rigs/stage.h"

static void statuses_of_the_verifier_become_http_statuses(void **state)
{
    (void)state;
    static const struct {
        unsigned code;
        int status;
        const char *type;
    } v[] = {
        {1, 503, "server_error"},           {2, 500, "server_error"},
        {3, 400, "invalid_request_error"},  {4, 504, "server_error"},
        {5, 404, "invalid_request_error"},  {6, 409, "invalid_request_error"},
        {7, 403, "invalid_request_error"},  {8, 429, "rate_limit_error"},
        {9, 400, "invalid_request_error"},  {10, 409, "invalid_request_error"},
        {11, 400, "invalid_request_error"}, {12, 501, "server_error"},
        {13, 500, "server_error"},          {15, 500, "server_error"},
        {16, 401, "invalid_request_error"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char what[32], type[48];
        snprintf(what, sizeof(what), "status %u", v[i].code);
        snprintf(type, sizeof(type), "\"type\":\"%s\"", v[i].type);
        http_answer_is(stage_chat(what, ""), v[i].status, "", type);
        is_error(stage_chat(what, ""), v[i].status, NULL, "as you asked");
        is_error(stage_chat(what, ",\"stream\":true"), v[i].status, NULL, "as you asked");
    }
    struct http_answer a = stage_chat("status 8", "");
    assert_non_null(strstr(a.head, "Retry-After: "));
    http_answer_done(&a);
}

static void details_of_a_lost_verifier_are_in_the_log_only(void **state)
{
    (void)state;
    is_error(stage_chat("status 14", ""), 503, NULL,
             "the verifier cannot be reached; it may be restarting");
    is_error(http_call(stage.port, "POST", "/tokenize", "{\"prompt\":\"lost\"}"), 503, NULL,
             "the verifier cannot be reached; it may be restarting");
    AUTO(mem_free) char *generation = child_wait_log(&stage.gateway, "request lost id=");
    assert_non_null(strstr(generation, ".sock: as you asked"));
}

static void a_malformed_answer_ends_only_its_request(void **state)
{
    (void)state;
    static const char *const whats[] = {"garbage", "choice", "short 3"};
    for (size_t i = 0; i < 3; i++) {
        is_error(stage_chat(whats[i], ""), 502, NULL, "verifier");
        struct http_client c = stage_open_stream(whats[i]);
        char *event, *error = NULL;
        while ((event = http_client_event(&c, 10000, NULL)) && strcmp(event, "[DONE]") != 0) {
            free(error);
            error = event;
        }
        assert_non_null(event); // an error does not replace [DONE]
        assert_non_null(error);
        assert_non_null(strstr(error, "\"error\":{\"message\":\"the verifier"));
        assert_non_null(event); // the stream did not just end
        free(event);
        free(error);
        http_client_close(&c);
    }
    stage_still_serves();
}

static void a_response_that_fails_ends_with_its_own_event(void **state)
{
    (void)state;
    struct http_client c = http_client_open(stage.port);
    http_client_ask(&c, "POST /v1/responses", "", "{\"input\":\"short 2\",\"stream\":true}");
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    char *event, *last = NULL;
    while ((event = http_client_event(&c, 10000, NULL))) {
        free(last);
        last = event;
    }
    assert_non_null(strstr(last, "\"type\":\"response.failed\""));
    assert_non_null(strstr(last, "\"status\":\"failed\",\"error\":{\"code\":\"server_error\","
                                 "\"message\":\"the verifier ended the answer too early\"}"));
    assert_non_null(strstr(last, "\"usage\":null"));
    free(last);
    http_client_close(&c);
}

static void an_event_of_a_newer_verifier_is_ignored(void **state)
{
    (void)state;
    http_answer_is(stage_chat("newer 2", ""), 200, "", "\"content\":\"w0 w1 \"");
}

static bool draining_is_seen(unsigned want)
{
    struct http_answer a = http_call(stage.port, "GET", "/health", NULL);
    bool seen = (strstr(a.body, "\"state\":\"draining\"") != NULL) == want;
    http_answer_done(&a);
    return seen;
}

static void a_verifier_that_drains_gets_no_requests(void **state)
{
    (void)state;
    const char *why = "the verifier is shutting down";
    fake_verifier_state(stage.verifier, TANDEM__V1__MODEL_INFO__STATE__DRAINING, 1);
    assert_true(stage_becomes(draining_is_seen, true));
    is_error(stage_chat("say 1", ""), 503, NULL, why);
    is_error(http_call(stage.port, "POST", "/tokenize", "{\"prompt\":\"x\"}"), 503, NULL, why);
    is_error(http_call(stage.port, "POST", "/detokenize", "{\"tokens\":[1]}"), 503, NULL, why);
    fake_verifier_state(stage.verifier, TANDEM__V1__MODEL_INFO__STATE__READY, 1);
    assert_true(stage_becomes(draining_is_seen, false));
    stage_still_serves();
}

static bool is_down(unsigned want)
{
    struct http_answer a = http_call(stage.port, "GET", "/health", NULL);
    bool seen = (strstr(a.body, "\"state\":\"down\"") != NULL) == want;
    http_answer_done(&a);
    return seen;
}

/* Waits for n more calls of GetModel. All but the last have ended at the gateway. */
static void await_queries(unsigned n)
{
    unsigned seen = fake_verifier_queries(stage.verifier) + n;
    while (fake_verifier_queries(stage.verifier) < seen)
        poll(NULL, 0, 5);
}

static void a_verifier_that_is_busy_is_not_down(void **state)
{
    (void)state;
    fake_verifier_get_model(stage.verifier, RPC_RESOURCE_EXHAUSTED);
    await_queries(3);
    assert_true(is_down(false));
    stage_still_serves();
    fake_verifier_get_model(stage.verifier, RPC_INTERNAL);
    assert_true(stage_becomes(is_down, true));
    fake_verifier_get_model(stage.verifier, RPC_OK);
    assert_true(stage_becomes(is_down, false));
    stage_still_serves();
}

/* Time limits of this file hold in one of this many tries: a busy machine may need longer once. */
#define TRIES 5

static int64_t refusals_us(unsigned at)
{
    int64_t begun_us = clock_us();
    is_error(http_call(at, "POST", "/v1/completions", "{\"prompt\":\"x\"}"), 503, NULL, "reached");
    struct http_answer a = http_call(at, "GET", "/health", NULL);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "\"status\":\"unavailable\""));
    http_answer_done(&a);
    return clock_us() - begun_us;
}

static void no_verifier_is_503_immediately(void **state)
{
    (void)state;
    unsigned at;
    struct child s = gateway_listen("unix:/tmp/tandem-test-there-is-none.sock", NULL, &at);
    int64_t took_us = refusals_us(at);
    for (unsigned i = 1; i < TRIES && took_us >= 900000; i++)
        took_us = refusals_us(at);
    assert_true(took_us < 900000);
    const char *why = "no verifier can be reached";
    is_error(http_call(at, "GET", "/v1/models", NULL), 503, NULL, why);
    is_error(http_call(at, "GET", "/v1/models/default", NULL), 404, "model", "'default'");
    is_error(http_call(at, "GET", "/v1/spec_decode/metrics", NULL), 503, NULL, why);
    child_stop(&s);
}

static bool healthy(unsigned at)
{
    struct http_answer a = http_call(at, "GET", "/health", NULL);
    bool ok = a.status == 200;
    http_answer_done(&a);
    return ok;
}

/* Kills the verifier under three streams. Returns the time until all have ended, with an error. */
static int64_t kill_under_streams(struct child *mortal, unsigned at)
{
    struct http_client c[3];
    for (unsigned i = 0; i < 3; i++) {
        begin_stream(&c[i], at, "pace 1000000 10");
        assert_int_equal(http_client_read_head(&c[i], 20000), 200);
        free(http_client_event(&c[i], 10000, NULL));
    }
    child_signal(mortal, SIGKILL);
    int64_t killed_us = clock_us();
    for (unsigned i = 0; i < 3; i++) {
        char *event;
        while ((event = http_client_event(&c[i], 5000, NULL)) && !strstr(event, "\"error\""))
            free(event);
        assert_non_null(event);
        assert_non_null(strstr(event, "\"service_unavailable\""));
        assert_non_null(strstr(event, "\"the verifier stopped before the answer was complete\""));
        free(event);
        http_client_close(&c[i]);
    }
    int64_t took_us = clock_us() - killed_us;
    assert_int_equal(child_wait(mortal), -SIGKILL);
    refusals_us(at);
    return took_us;
}

/* Every open stream ends within a second, and a new verifier is found again. */
static void a_killed_verifier_ends_streams_and_comes_back(void **state)
{
    (void)state;
    char target[128];
    snprintf(target, sizeof(target), "unix:%s/mortal.sock", service_dir());
    const char *args[] = {"--play-verifier", target, NULL};
    struct child mortal = child_start("/proc/self/exe", args);
    free(child_wait_log(&mortal, "playing"));
    unsigned at;
    struct child s = gateway_start(target, NULL, &at);
    int64_t took_us = INT64_MAX;
    for (unsigned i = 0; i < TRIES && took_us >= 1000000; i++) {
        took_us = kill_under_streams(&mortal, at);
        mortal = child_start("/proc/self/exe", args);
        assert_true(stage_becomes(healthy, at));
    }
    assert_true(took_us < 1000000);
    struct http_answer a = http_call(at, "POST", "/v1/completions", "{\"prompt\":\"say 1\"}");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    child_signal(&mortal, SIGKILL);
    child_wait(&mortal);
    child_stop(&s);
}

static bool is_refused(unsigned want)
{
    struct http_answer a = http_call(stage.port, "GET", "/health", NULL);
    bool seen = (strstr(a.body, "\"state\":\"refused\"") != NULL) == want;
    http_answer_done(&a);
    return seen;
}

static void a_verifier_of_another_version_is_refused_until_it_matches(void **state)
{
    (void)state;
    const char *both = "the verifier speaks protocol version 7, this gateway version 1";
    fake_verifier_protocol(stage.verifier, 7);
    assert_true(stage_becomes(is_refused, true));
    is_error(stage_chat("say 1", ""), 503, NULL, both);
    unsigned at;
    struct child s = gateway_listen(stage.address, NULL, &at);
    AUTO(mem_free) char *line = child_wait_log(&s, "verifier refused");
    assert_non_null(strstr(line, both));
    child_stop(&s);
    fake_verifier_protocol(stage.verifier, 0); // absent
    assert_true(stage_becomes(is_refused, false));
    struct http_answer a = stage_chat("say 1", "");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    fake_verifier_protocol(stage.verifier, 1);
}

static bool template_is(unsigned want_ok)
{
    struct http_answer a = stage_chat("say 1", "");
    bool ok = (a.status == 200) == want_ok;
    http_answer_done(&a);
    return ok;
}

/* The request that needs the template gets a 400 about `param` with `part` in its text. Others are
 * served. */
static void hurts_only_itself(const char *template, const char *param, const char *part)
{
    fake_verifier_template(stage.verifier, template);
    assert_true(stage_becomes(template_is, false));
    struct http_client c;
    begin_stream(&c, stage.port, "say 1");
    for (unsigned i = 0; i < 20; i++) {
        struct http_answer a =
            http_call(stage.port, "POST", "/v1/completions", "{\"prompt\":\"say 1\"}");
        assert_int_equal(a.status, 200);
        http_answer_done(&a);
    }
    is_error(http_client_read(&c, 20000), 400, param, part);
    http_client_close(&c);
    fake_verifier_template(stage.verifier, FAKE_TEMPLATE);
    assert_true(stage_becomes(template_is, true));
}

static void a_hostile_template_fails_only_its_requests_with_400(void **state)
{
    (void)state;
    hurts_only_itself("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
                      "{% endfor %}",
                      "messages", "took longer than 1.0 s");
    hurts_only_itself("{{ 'x' * 10000000000 }}", "messages", "needs more memory than it may have");
    hurts_only_itself("{{ 7 ** (9 ** 7) }}", "messages",
                      "chat template"); // too long, or too many digits
    hurts_only_itself("{{ raise_exception('no ' ~ messages[0].role) }}", "messages",
                      "chat template: no user");
}

/* The second pause of a template takes 2 s. */
static void a_paused_template_says_when_it_is_tried_again(void **state)
{
    (void)state;
    const char *more[] = {"--template-timeout", "0.05", NULL};
    double left_s = 0;
    unsigned at;
    fake_verifier_template(stage.verifier, "{% for a in range(99999) %}{% for b in range(99999) %}"
                                           "{% endfor %}{% endfor %}");
    struct child s = gateway_start(stage.address, more, &at);
    while (left_s <= 1) {
        struct http_answer a =
            http_call(at, "POST", "/v1/chat/completions",
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"say 1\"}]}");
        const char *left = strstr(a.body, "tried again in ");
        left_s = left ? strtod(left + strlen("tried again in "), NULL) : 0;
        assert_int_equal(a.status, left ? 503 : 400);
        if (left) {
            double retry_s =
                strtod(strstr(a.head, "Retry-After: ") + strlen("Retry-After: "), NULL);
            assert_true(retry_s > left_s - 0.06 && retry_s < left_s + 1.06); // text: rounded to 0.1
        }
        http_answer_done(&a);
    }
    child_stop(&s);
    fake_verifier_template(stage.verifier, FAKE_TEMPLATE);
    assert_true(stage_becomes(template_is, true));
}

static void a_chat_with_a_model_without_a_template_is_a_400(void **state)
{
    (void)state;
    hurts_only_itself("", "model", "the model has no chat template");
}

static int open_stage(void **state)
{
    (void)state;
    const char *more[] = {"--template-timeout", "1", NULL};
    return stage_open(more);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--play-verifier") == 0)
        fake_verifier_play(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_of_the_verifier_become_http_statuses),
        cmocka_unit_test(details_of_a_lost_verifier_are_in_the_log_only),
        cmocka_unit_test(a_malformed_answer_ends_only_its_request),
        cmocka_unit_test(a_response_that_fails_ends_with_its_own_event),
        cmocka_unit_test(an_event_of_a_newer_verifier_is_ignored),
        cmocka_unit_test(a_verifier_that_drains_gets_no_requests),
        cmocka_unit_test(a_verifier_that_is_busy_is_not_down),
        cmocka_unit_test(no_verifier_is_503_immediately),
        cmocka_unit_test(a_killed_verifier_ends_streams_and_comes_back),
        cmocka_unit_test(a_verifier_of_another_version_is_refused_until_it_matches),
        cmocka_unit_test(a_hostile_template_fails_only_its_requests_with_400),
        cmocka_unit_test(a_paused_template_says_when_it_is_tried_again),
        cmocka_unit_test(a_chat_with_a_model_without_a_template_is_a_400),
    };
    return cmocka_run_group_tests(tests, open_stage, stage_close);
}
