/* One gateway with several verifiers: the choice of the verifier for a request, and the death of a
 * verifier. The verifiers are fakes (lib/fakes/fake_verifier.h). */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/rigs/child.h"
#include "lib/fakes/fake_verifier.h"
#include "lib/clients/http_client.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "rpc/rpc.h"

#define N 2

static struct fake_verifier *verifiers[N];
static struct child gateway;
static unsigned port;

/* ---- helpers ---- */

static void target_of(unsigned i, char target[128])
{
    snprintf(target, 128, "unix:%s/many-%u.sock", service_dir(), i);
}

static bool answers(const char *path, const char *part)
{
    struct http_answer a = http_call(port, "GET", path, NULL);
    bool has = strstr(a.body, part) != NULL;
    http_answer_done(&a);
    return has;
}

static void until_answers(const char *path, const char *part)
{
    for (unsigned i = 0; i < 12000 && !answers(path, part); i++)
        poll(NULL, 0, 5);
    assert_true(answers(path, part));
}

static void until_up(const char *target)
{
    AUTO(mem_free) char *said = NULL;
    assert_true(asprintf(&said, "verifier ready target=%s", target) > 0);
    free(child_wait_log(&gateway, said));
}

/* Waits until each verifier runs this many requests. */
static void until_run(unsigned a, unsigned b)
{
    for (unsigned i = 0; i < 12000; i++) {
        if (fake_verifier_running(verifiers[0]) == a && fake_verifier_running(verifiers[1]) == b)
            return;
        poll(NULL, 0, 5);
    }
    fail_msg("%u and %u run, not %u and %u", fake_verifier_running(verifiers[0]),
             fake_verifier_running(verifiers[1]), a, b);
}

/* A chat with a system prompt (1 KiB of one letter; 0: none) and the message `what`. */
static struct http_client begin(char letter, const char *model, const char *what)
{
    static char system[1025];
    AUTO(mem_free) char *body = NULL;
    memset(system, letter, sizeof(system) - 1);
    assert_true(asprintf(&body,
                         "{\"messages\":[{\"role\":\"system\",\"content\":\"%s\"},"
                         "{\"role\":\"user\",\"content\":\"%s\"}],\"model\":\"%s\","
                         "\"stream\":true}",
                         letter ? system : "", what, model) > 0);
    struct http_client c = http_client_open(port);
    http_client_print(
        &c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
        strlen(body), body);
    return c;
}

static struct http_client stall(char letter)
{
    struct http_client c = begin(letter, "default", "stall");
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    return c;
}

static void close_all(struct http_client *c, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        http_client_close(&c[i]);
    until_run(0, 0);
}

/* The whole answer to `what` has the word w0. */
static void is_answered(struct http_client *c)
{
    struct http_answer a = http_client_read(c, 10000);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "w0 "));
    http_answer_done(&a);
    http_client_close(c);
}

static void start_gateway(const char *first, const char *second, const char *resume_wait)
{
    char targets[500];
    snprintf(targets, sizeof(targets), "%s,%s", first, second);
    const char *args[] = {
        "--listen",        "127.0.0.1:0",   "--verifiers", targets,         "--instance",
        "gateway",         "--tool-format", "hermes",      "--resume-wait", resume_wait,
        "--stall-timeout", "0.5",           NULL};
    gateway = child_start(BINARY_DIR "/gateway", args);
    char *rest = child_wait_log(&gateway, "listening on 127.0.0.1:");
    port = (unsigned)atoi(rest);
    free(rest);
}

static int start_all(void **state)
{
    char targets[N][128];
    (void)state;
    for (unsigned i = 0; i < N; i++) {
        target_of(i, targets[i]);
        verifiers[i] = fake_verifier_start(targets[i]);
    }
    start_gateway(targets[0], targets[1], "0");
    for (unsigned i = 0; i < N; i++)
        until_up(targets[i]);
    return 0;
}

static int stop_all(void **state)
{
    (void)state;
    child_stop(&gateway);
    for (unsigned i = 0; i < N; i++)
        fake_verifier_stop(verifiers[i]);
    return 0;
}

/* ---- tests ---- */

static void requests_go_to_the_least_loaded_verifier(void **state)
{
    (void)state;
    struct http_client c[6];
    for (unsigned i = 0; i < 6; i++)
        c[i] = stall(0);
    until_run(3, 3);
    http_client_close(&c[0]);
    http_client_close(&c[2]);
    until_run(1, 3);
    c[0] = stall(0);
    c[2] = stall(0);
    until_run(3, 3);
    close_all(c, 6);
}

static void a_prompt_goes_to_the_verifier_with_its_prefix(void **state)
{
    (void)state;
    struct http_client c[2] = {stall(0), stall('a')};
    until_run(1, 1);
    close_all(c, 2);
    c[0] = stall('a'); // both are idle: without a prefix it would go to the first
    until_run(0, 1);
    c[1] = stall('b');
    until_run(1, 1);
    close_all(c, 2);
}

static void a_common_prefix_does_not_overload_one_verifier(void **state)
{
    (void)state;
    struct http_client c[12];
    for (unsigned i = 0; i < 12; i++)
        c[i] = stall('c');
    unsigned first = fake_verifier_running(verifiers[0]);
    assert_in_range(first, 3, 9);
    until_run(first, 12 - first);
    close_all(c, 12);
}

static void a_request_to_a_full_verifier_is_retried(void **state)
{
    (void)state;
    /* Both are full: each gets the request once, and the client gets the verifier's error. */
    struct http_client c = begin(0, "default", "status 8");
    struct http_answer a = http_client_read(&c, 10000);
    assert_int_equal(a.status, 429);
    assert_non_null(strstr(a.body, "as you asked"));
    http_answer_done(&a);
    http_client_close(&c);
    until_answers("/metrics", "tandem_gateway_requests_moved_total{instance=\"gateway\"} 1");
}

static void the_name_of_the_model_selects_the_verifier(void **state)
{
    (void)state;
    fake_verifier_model(verifiers[1], "fake/other", "fp_other");
    until_answers("/v1/models", "fake/other");
    assert_true(answers("/v1/models", "fake/model"));
    struct http_client c[3];
    for (unsigned i = 0; i < 3; i++) {
        c[i] = begin(0, "fake/other", "stall");
        assert_int_equal(http_client_read_head(&c[i], 20000), 200);
    }
    until_run(0, 3);
    close_all(c, 3);
    /* A verifier that is gone is not replaced by one with another model. */
    c[0] = begin(0, "fake/other", "status 14");
    struct http_answer a = http_client_read(&c[0], 10000);
    assert_int_equal(a.status, 503);
    http_answer_done(&a);
    http_client_close(&c[0]);
    fake_verifier_model(verifiers[1], "fake/model", "fp_fake");
    for (unsigned i = 0; i < 12000 && answers("/v1/models", "fake/other"); i++)
        poll(NULL, 0, 5);
}

/* ---- a verifier that dies ---- */

static struct child start_mortal(const char *target)
{
    const char *args[] = {"--play-verifier", target, NULL};
    struct child s = child_start("/proc/self/exe", args);
    free(child_wait_log(&s, "playing"));
    return s;
}

/* Requests that it had begun end with an error event. Requests that it had not begun, and later
 * ones, are answered by the other verifier. */
/* ---- fingerprints ---- */

static void all_are_answered(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct http_client c = begin(0, "fake/model", "say 1");
        is_answered(&c);
    }
}

/* A rolling upgrade of a model: the second verifier comes back with a new file, then the first. */
static void one_name_has_one_fingerprint(void **state)
{
    (void)state;
    AUTO(mem_free) char *line = NULL;
    fake_verifier_model(verifiers[1], "fake/model", "fp_next");
    until_answers("/health", "\"problem\":\"its model \\\"fake/model\\\" has the fingerprint "
                             "\\\"fp_next\\\", but unix:");
    line = child_wait_log(&gateway, "verifier refused target=");
    assert_non_null(strstr(line, "many-0.sock serves that name with \"fp_fake\""));
    struct http_client held[4];
    for (unsigned i = 0; i < ARRAY_LEN(held); i++)
        held[i] = stall(0);
    until_run(4, 0);
    close_all(held, ARRAY_LEN(held));

    /* The only verifier with the old fingerprint drains: it keeps the name for a while, then the
     * new one takes over. A request waits for that. */
    fake_verifier_state(verifiers[0], TANDEM__V1__MODEL_INFO__STATE__DRAINING, 0);
    until_answers("/health", "\"draining\"");
    until_answers("/health", "many-0.sock still keeps that name with \\\"fp_fake\\\"");
    struct http_client next = stall(0);
    until_run(0, 1);
    assert_false(answers("/health", "\"refused\""));
    close_all(&next, 1);

    /* Back with the old file it is the newcomer; with the new file it serves again. */
    fake_verifier_state(verifiers[0], TANDEM__V1__MODEL_INFO__STATE__READY, 1);
    until_answers("/health", "\"refused\"");
    all_are_answered(4);
    fake_verifier_model(verifiers[0], "fake/model", "fp_next");
    for (unsigned i = 0; i < 12000 && answers("/health", "\"refused\""); i++)
        poll(NULL, 0, 5);
    assert_false(answers("/health", "\"refused\""));
    held[0] = stall(0);
    held[1] = stall(0);
    until_run(1, 1);
    close_all(held, 2);
    fake_verifier_model(verifiers[1], "fake/other", "fp_fake");
    until_answers("/v1/models", "fake/other");
    fake_verifier_model(verifiers[0], "fake/model", "fp_fake");
    fake_verifier_model(verifiers[1], "fake/model", "fp_fake");
    for (unsigned i = 0;
         i < 12000 && (answers("/health", "\"refused\"") || answers("/v1/models", "fake/other"));
         i++)
        poll(NULL, 0, 5);
}

static void a_dead_verifier_gets_no_requests(void **state)
{
    char first[128], second[128];
    (void)state;
    child_stop(&gateway);
    snprintf(first, sizeof(first), "unix:%s/mortal.sock", service_dir());
    target_of(1, second);
    struct child mortal = start_mortal(first);
    start_gateway(first, second, "0");
    until_up(first);
    until_up(second);
    struct http_client begun = begin(0, "default", "pace 1000000 10");
    assert_int_equal(http_client_read_head(&begun, 20000), 200);
    until_run(0, 0);
    struct http_client busy = stall(0); // so that the next goes to the first again
    until_run(0, 1);
    child_signal(&mortal, SIGSTOP);
    struct http_client waiting = begin(0, "default", "say 1");
    poll(NULL, 0, 50); // sent before or after the death: both must work
    child_signal(&mortal, SIGKILL);
    is_answered(&waiting);
    char *event, *error = NULL;
    while (!error && (event = http_client_event(&begun, 10000, NULL))) {
        error = strstr(event, "\"error\"") ? event : NULL;
        if (!error)
            free(event);
    }
    assert_non_null(error);
    assert_non_null(strstr(error, "\"service_unavailable\""));
    free(error);
    http_client_close(&begun);
    for (unsigned i = 0; i < 4; i++) {
        struct http_client next = begin(0, "default", "say 1");
        is_answered(&next);
    }
    http_client_close(&busy);
    child_wait(&mortal);
}

/* ---- errors of verifiers that were asked to continue ---- */

/* A gateway that continues answers, and a third verifier. */
static struct fake_verifier *start_continuing(void)
{
    char targets[N][128], last[128], two[300];
    child_stop(&gateway);
    snprintf(last, sizeof(last), "unix:%s/third.sock", service_dir());
    struct fake_verifier *third = fake_verifier_start(last);
    fake_verifier_continues(third, true);
    for (unsigned i = 0; i < N; i++) {
        fake_verifier_continues(verifiers[i], true);
        target_of(i, targets[i]);
    }
    snprintf(two, sizeof(two), "%s,%s", targets[0], targets[1]);
    start_gateway(two, last, "60");
    until_up(targets[0]);
    until_up(targets[1]);
    until_up(last);
    return third;
}

/* The answer to "lose CODE N" has both tokens. */
static bool survives(enum rpc_code code, unsigned n_refused)
{
    char what[32];
    snprintf(what, sizeof(what), "lose %d %u", code, n_refused);
    struct http_client c = begin(0, "default", what);
    struct http_answer a = http_client_read(&c, 60000);
    assert_int_equal(a.status, 200);
    bool whole = strstr(a.body, "w0 ") && strstr(a.body, "w1 ") && !strstr(a.body, "\"error\"");
    http_answer_done(&a);
    http_client_close(&c);
    return whole;
}

/* A tool call whose first half is of another verifier than its second. */
static void a_tool_call_outlives_its_verifier(void)
{
    struct http_answer a = http_call(
        port, "POST", "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"call 13 1\"}],\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\"}}}]}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\"function\":{\"name\":\"look\",\"arguments\":\"{}\"}"));
    http_answer_done(&a);
}

static void an_answer_outlives_errors_of_the_verifiers_that_continue_it(void **state)
{
    static const enum rpc_code theirs[] = {
        RPC_CANCELLED,           RPC_UNKNOWN,        RPC_DEADLINE_EXCEEDED, RPC_PERMISSION_DENIED,
        RPC_RESOURCE_EXHAUSTED,  RPC_ABORTED,        RPC_UNIMPLEMENTED,     RPC_INTERNAL,
        RPC_FAILED_PRECONDITION, RPC_UNAUTHENTICATED};
    (void)state;
    struct fake_verifier *third = start_continuing();
    for (size_t i = 0; i < ARRAY_LEN(theirs); i++)
        assert_true(survives(theirs[i], 1));
    assert_true(survives(RPC_INTERNAL, 5)); // each is asked more than once
    a_tool_call_outlives_its_verifier();
    assert_true(survives(RPC_INVALID_ARGUMENT, 2)); // of the others: their limits are smaller
    assert_true(survives(RPC_OUT_OF_RANGE, 2));
    fake_verifier_stop(third);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--play-verifier") == 0)
        fake_verifier_play(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_go_to_the_least_loaded_verifier),
        cmocka_unit_test(a_prompt_goes_to_the_verifier_with_its_prefix),
        cmocka_unit_test(a_common_prefix_does_not_overload_one_verifier),
        cmocka_unit_test(a_request_to_a_full_verifier_is_retried),
        cmocka_unit_test(the_name_of_the_model_selects_the_verifier),
        cmocka_unit_test(one_name_has_one_fingerprint),
        cmocka_unit_test(a_dead_verifier_gets_no_requests),
        cmocka_unit_test(an_answer_outlives_errors_of_the_verifiers_that_continue_it),
    };
    return cmocka_run_group_tests(tests, start_all, stop_all);
}
