/* The start of the gateway, the wait for the verifier's model, and the end. The verifier is a fake
 * (lib/fakes/fake_verifier.h). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/manager.h"
#include "lib/rigs/services.h"
#include "lib/rigs/stage.h"

/* ---- start ---- */

static void an_address_in_use_is_an_error_of_one_sentence(void **state)
{
    (void)state;
    char listen[32];
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", stage.port);
    const char *args[] = {"--listen", listen, "--verifiers", stage.address, NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    free(child_wait_log(&s, "is in use"));
    int rc = child_wait(&s);
    assert_int_equal(rc, 1);
}

static void a_file_that_is_not_a_socket_stays(void **state)
{
    (void)state;
    char listen[200];
    snprintf(listen, sizeof(listen), "unix:%s/notes.txt", service_dir());
    FILE *f = fopen(listen + 5, "w");
    assert_non_null(f);
    fclose(f);
    const char *args[] = {"--listen", listen, "--verifiers", stage.address, NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    free(child_wait_log(&s, "notes.txt: it exists and is not a socket"));
    assert_int_equal(child_wait(&s), 1);
    assert_int_equal(access(listen + 5, F_OK), 0);
    unlink(listen + 5);
}

static void an_unusable_proxy_stops_the_start(void **state)
{
    (void)state;
    const char *args[] = {"--listen", "127.0.0.1:0", "--trusted-proxies", "::1,10.0.0.0/33", NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    free(child_wait_log(&s, "trusted_proxies: "));
    assert_int_equal(child_wait(&s), 1);
}

/* ---- reload ---- */

static void a_reload_without_keys_and_certificates_is_ignored(void **state)
{
    (void)state;
    unsigned at;
    struct child s = gateway_start(stage.address, NULL, &at);
    child_signal(&s, SIGHUP);
    free(child_wait_log(&s, "SIGHUP ignored: no API keys or certificates to reload"));
    http_answer_is(http_call(at, "GET", "/ready", NULL), 200, "", "true");
    child_stop(&s);
}

/* Its program is gone, as after a failed update. */
static void a_process_that_cannot_start_another_keeps_serving(void **state)
{
    (void)state;
    char program[300];
    const char *args[] = {"--listen", "127.0.0.1:0", "--verifiers", stage.address, NULL};
    snprintf(program, sizeof(program), "%s/gateway", service_dir());
    assert_int_equal(symlink(BINARY_DIR "/gateway", program), 0);
    struct child s = child_start(program, args);
    AUTO(mem_free) char *address = child_wait_log(&s, "listening on 127.0.0.1:");
    free(child_wait_log(&s, "verifier ready"));
    assert_int_equal(unlink(program), 0);
    child_signal(&s, SIGHUP);
    AUTO(mem_free) char *why = child_wait_log(&s, "cannot start a new process to take over: ");
    assert_int_equal(strncmp(why, "cannot start /", 14), 0);
    assert_non_null(strstr(why, "No such file or directory"));
    http_answer_is(http_call((unsigned)atoi(address), "GET", "/ready", NULL), 200, "", "true");
    child_stop(&s);
}

static bool loading_is_seen(unsigned want)
{
    struct http_answer a = http_call(stage.port, "GET", "/health", NULL);
    bool seen = (strstr(a.body, "\"status\":\"loading\"") != NULL) == want;
    http_answer_done(&a);
    return seen;
}

static void while_a_model_loads_requests_wait_up_to_a_limit(void **state)
{
    (void)state;
    fake_verifier_state(stage.verifier, TANDEM__V1__MODEL_INFO__STATE__LOADING, 0.5f);
    assert_true(stage_becomes(loading_is_seen, true));
    struct http_answer a = http_call(stage.port, "GET", "/health", NULL);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(a.body, "\"progress\":0.5"));
    http_answer_done(&a);
    a = http_call(stage.port, "GET", "/ready", NULL);
    assert_int_equal(a.status, 503);
    http_answer_done(&a);

    int64_t begun_us = clock_us();
    is_error(stage_chat("say 1", ""), 503, NULL, "loading (50 %)");
    assert_true(clock_us() - begun_us > 1900000);

    struct http_client c;
    begin_chat(&c, stage.port, "say 1", "");
    assert_false(http_client_wait_close(&c, 200));
    fake_verifier_state(stage.verifier, TANDEM__V1__MODEL_INFO__STATE__READY, 1);
    a = http_client_read(&c, 10000);
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    http_client_close(&c);
    assert_true(stage_becomes(loading_is_seen, false));
}

static bool one_was_cancelled(unsigned unused)
{
    (void)unused;
    struct http_answer a = http_call(stage.port, "GET", "/metrics", NULL);
    bool is = strstr(a.body, "tandem_gateway_requests_cancelled_total{instance=\"gateway\"} 1\n");
    http_answer_done(&a);
    return is;
}

/* The request ends with the wait: it is counted, and has its line in the log. */
static void a_client_that_leaves_while_a_model_loads_is_counted(void **state)
{
    (void)state;
    fake_verifier_state(stage.verifier, TANDEM__V1__MODEL_INFO__STATE__LOADING, 0.5f);
    assert_true(stage_becomes(loading_is_seen, true));
    struct http_client c;
    begin_chat(&c, stage.port, "say 1", "");
    assert_false(http_client_wait_close(&c, 200));
    http_client_close(&c);
    assert_true(stage_becomes(one_was_cancelled, 0));
    free(child_wait_log(&stage.gateway, "status=499"));
    fake_verifier_state(stage.verifier, TANDEM__V1__MODEL_INFO__STATE__READY, 1);
    assert_true(stage_becomes(loading_is_seen, false));
}

/* ---- end ---- */

static void a_drain_finishes_accepted_requests(void **state)
{
    (void)state;
    unsigned at;
    const char *more[] = {"--drain-timeout", "2", NULL};
    struct child s = gateway_start(stage.address, more, &at);
    struct http_client fast, slow;
    begin_stream(&fast, at, "pace 20 10");
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
    gateway_await_running(stage.verifier, 0);
}

/* The drain, and 5 s for the last answers. */
static void the_manager_is_told_how_long_a_drain_may_take(void **state)
{
    (void)state;
    unsigned at;
    bool ready = false, stopping = false;
    const char *more[] = {"--drain-timeout", "2", NULL};
    struct child s = gateway_start(stage.address, more, &at);
    child_stop(&s);
    for (const char *text; *(text = manager_message());) {
        ready |= strstr(text, "READY=1") != NULL;
        stopping |= strstr(text, "STOPPING=1\nEXTEND_TIMEOUT_USEC=7000000") != NULL;
    }
    assert_true(ready && stopping);
}

static void a_drain_ends_requests_that_wait_for_a_model(void **state)
{
    (void)state;
    fake_verifier_state(stage.verifier, TANDEM__V1__MODEL_INFO__STATE__LOADING, 0);
    assert_true(stage_becomes(loading_is_seen, true));
    unsigned at;
    const char *more[] = {"--load-wait", "600", "--drain-timeout", "0.1", NULL};
    struct child patient = gateway_listen(stage.address, more, &at);
    free(child_wait_log(&patient, "verifier loading"));
    struct http_client c;
    begin_stream(&c, at, "say 1");
    assert_false(http_client_wait_close(&c, 200));
    child_signal(&patient, SIGTERM);
    is_error(http_client_read(&c, 5000), 503, NULL, "shutting down");
    http_client_close(&c);
    assert_int_equal(child_wait(&patient), 0);
    fake_verifier_state(stage.verifier, TANDEM__V1__MODEL_INFO__STATE__READY, 1);
    assert_true(stage_becomes(loading_is_seen, false));
}

static void a_drain_ends_calls_that_do_not_return(void **state)
{
    (void)state;
    unsigned at;
    const char *more[] = {"--drain-timeout", "0.1", NULL};
    struct child s = gateway_start(stage.address, more, &at);
    struct http_client c = http_client_open(at);
    http_client_print(&c, "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n"
                          "{\"prompt\":\"stall\"}");
    gateway_await_running(stage.verifier, 1);
    child_signal(&s, SIGTERM);
    is_error(http_client_read(&c, 8000), 503, NULL, "shutting down");
    http_client_close(&c);
    assert_int_equal(child_wait(&s), 0);
    gateway_await_running(stage.verifier, 0);
}

/* The answer has lost its verifier, and waits for one that continues it. */
static void a_lost_answer_of_a_closed_client_ends_with_the_gateway(void **state)
{
    (void)state;
    unsigned at;
    struct http_client c;
    const char *more[] = {"--resume-wait", "600", "--drain-timeout", "600", NULL};
    char text[65536];
    fake_verifier_continues(stage.verifier, true);
    struct child s = gateway_start(stage.address, more, &at);
    begin_stream(&c, at, "lose 14 1000000000");
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    gateway_await_running(stage.verifier, 0);
    child_signal(&s, SIGTERM);
    free(child_wait_log(&s, "stopping on signal"));
    FILE *log = fopen(s.log, "r");
    assert_non_null(log);
    http_client_close(&c);
    assert_int_equal(child_wait(&s), 0);
    text[fread(text, 1, sizeof(text) - 1, log)] = 0;
    fclose(log);
    assert_non_null(strstr(text, "status=499"));
    fake_verifier_continues(stage.verifier, false);
}

static int open_stage(void **state)
{
    (void)state;
    const char *more[] = {"--load-wait", "2", NULL};
    return stage_open(more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_in_use_is_an_error_of_one_sentence),
        cmocka_unit_test(a_file_that_is_not_a_socket_stays),
        cmocka_unit_test(an_unusable_proxy_stops_the_start),
        cmocka_unit_test(a_reload_without_keys_and_certificates_is_ignored),
        cmocka_unit_test_setup_teardown(a_process_that_cannot_start_another_keeps_serving,
                                        manager_open, manager_close),
        cmocka_unit_test(while_a_model_loads_requests_wait_up_to_a_limit),
        cmocka_unit_test(a_client_that_leaves_while_a_model_loads_is_counted),
        cmocka_unit_test(a_drain_finishes_accepted_requests),
        cmocka_unit_test_setup_teardown(the_manager_is_told_how_long_a_drain_may_take, manager_open,
                                        manager_close),
        cmocka_unit_test(a_drain_ends_requests_that_wait_for_a_model),
        cmocka_unit_test(a_drain_ends_calls_that_do_not_return),
        cmocka_unit_test(a_lost_answer_of_a_closed_client_ends_with_the_gateway),
    };
    return cmocka_run_group_tests(tests, open_stage, stage_close);
}
