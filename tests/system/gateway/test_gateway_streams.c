/* Streams: their events, and slow readers. The verifier is a fake (lib/fakes/fake_verifier.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/stage.h"

/* ---- events ---- */

static void every_committed_token_is_an_event_in_order(void **state)
{
    (void)state;
    for (unsigned at_once = 0; at_once < 2; at_once++) {
        struct http_client c = stage_open_stream(at_once ? "run 200" : "say 200");
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
    struct http_client c = stage_open_stream("bytes");
    for (unsigned i = 0; i < 5; i++) {
        char *text = content_of(http_client_event(&c, 20000, NULL));
        assert_non_null(text);
        assert_string_equal(text, want[i]);
        free(text);
    }
    http_client_close(&c);
}

static void held_back_text_arrives_with_the_end(void **state)
{
    (void)state;
    struct http_client c = stage_open_stream("held");
    char all[64] = "";
    for (char *text; (text = content_of(http_client_event(&c, 20000, NULL))); free(text))
        strcat(all, text);
    assert_string_equal(all, "kept back");
    http_client_close(&c);
    struct http_answer a = stage_chat("held", "");
    assert_non_null(strstr(a.body, "\"kept back\""));
    http_answer_done(&a);
}

static void requested_usage_comes_last(void **state)
{
    (void)state;
    AUTO(mem_free)
    char *body = chat_body("say 1", ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    struct http_answer a = http_call(stage.port, "POST", "/v1/chat/completions", body);
    assert_int_equal(a.status, 200);
    const char *usage = strstr(a.body, "\"choices\":[],\"usage\":{\"prompt_tokens\":7");
    assert_non_null(usage);
    assert_non_null(strstr(usage, "\"draft_acceptance_rate\":0.75"));
    assert_non_null(strstr(usage, "\n\ndata: [DONE]\n\n"));
    http_answer_done(&a);
}

/* The tokens of the fake are an accepted draft, except for the last, its bonus token. */
static void a_stream_describes_each_token_on_request(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "\"tandem\":{\"tokens\":[{\"id\":0,\"origin\":\"accepted\",\"round\":1,\"drafted\":2,"
        "\"proposer\":\"fake\"}]}}\n\n",
        "{\"id\":1,\"origin\":\"bonus\",\"round\":1,\"drafted\":2,\"proposer\":\"fake\"}"};
    for (unsigned asked = 0; asked < 2; asked++) {
        struct http_answer a = stage_chat(
            "run 2", asked ? ",\"stream\":true,\"stream_options\":{\"include_tokens\":true}"
                           : ",\"stream\":true");
        assert_int_equal(a.status, 200);
        for (unsigned i = 0; i < ARRAY_LEN(parts); i++)
            assert_int_equal(strstr(a.body, parts[i]) != NULL, asked);
        assert_int_equal(strstr(a.body, "\"tandem\"") != NULL, asked);
        http_answer_done(&a);
    }
}

static void sixty_four_streams_run_concurrently(void **state)
{
    (void)state;
    struct http_client c[64];
    for (unsigned i = 0; i < 64; i++)
        begin_stream(&c[i], stage.port, "pace 20 10");
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

/* ---- time ---- */

static void a_silent_stream_gets_comments(void **state)
{
    (void)state;
    struct http_client c = stage_open_stream("stall");
    unsigned n = 0;
    free(http_client_event(&c, 5000, NULL)); // the role
    for (unsigned i = 0; i < 40 && n < 2; i++)
        assert_null(http_client_event(&c, 500, &n));
    assert_true(n >= 2);
    http_client_close(&c);
    gateway_await_running(stage.verifier, 0);
}

static void a_stream_may_be_silent_longer_than_a_connection_may_be_idle(void **state)
{
    (void)state;
    unsigned at;
    const char *more[] = {"--idle-timeout", "1", "--request-timeout", "1.5", NULL};
    struct child s = gateway_start(stage.address, more, &at);
    struct http_client c;
    begin_stream(&c, at, "pace 2 2600");
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

/* ---- readers ---- */

static bool cancelled(unsigned n)
{
    return fake_verifier_cancelled(stage.verifier) >= n;
}

static void a_disconnect_cancels_the_request(void **state)
{
    (void)state;
    static const char *const whats[] = {"stall", "silent", "pace 1000000 5"};
    for (size_t i = 0; i < 3; i++) {
        for (unsigned stream = 0; stream < 2; stream++) {
            unsigned before = fake_verifier_cancelled(stage.verifier);
            struct http_client c;
            begin_chat(&c, stage.port, whats[i], stream ? ",\"stream\":true" : "");
            gateway_await_running(stage.verifier, 1);
            http_client_close(&c);
            assert_true(stage_becomes(cancelled, before + 1));
            gateway_await_running(stage.verifier, 0);
        }
    }
}

static void a_stalled_reader_is_dropped_within_a_limit(void **state)
{
    (void)state;
    unsigned before = fake_verifier_cancelled(stage.verifier);
    struct http_client c;
    begin_stream(&c, stage.port, "flood 100000"); // 100 MB without a reader
    assert_true(stage_becomes(cancelled, before + 1));
    gateway_await_running(stage.verifier, 0);
    assert_true(http_client_wait_close(&c, 10000));
    assert_true(c.len < 20 << 20);
    http_client_close(&c);
    stage_still_serves();
}

static void a_fast_reader_gets_a_large_stream_in_full(void **state)
{
    (void)state;
    struct http_client c = stage_open_stream("flood 2000");
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

static void a_fast_reader_gets_an_event_over_the_unread_limit(void **state)
{
    (void)state;
    size_t n = 1 << 20; // the limit is 64 KiB of unread bytes
    AUTO(mem_free) char *body = malloc(n + 100);
    size_t at = (size_t)sprintf(body, "{\"stream\":true,\"echo\":true,\"prompt\":\"say 300 ");
    memset(body + at, 'x', n);
    strcpy(body + at + n, "\"}");
    struct http_client c = http_client_open(stage.port);
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

static int open_stage(void **state)
{
    (void)state;
    const char *more[] = {
        "--keepalive-interval", "0.2", "--max-unread-kib", "64", "--reader-timeout", "1", NULL};
    return stage_open(more);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_committed_token_is_an_event_in_order),
        cmocka_unit_test(a_token_that_ends_inside_a_character_has_an_event_without_text),
        cmocka_unit_test(held_back_text_arrives_with_the_end),
        cmocka_unit_test(requested_usage_comes_last),
        cmocka_unit_test(a_stream_describes_each_token_on_request),
        cmocka_unit_test(sixty_four_streams_run_concurrently),
        cmocka_unit_test(a_silent_stream_gets_comments),
        cmocka_unit_test(a_stream_may_be_silent_longer_than_a_connection_may_be_idle),
        cmocka_unit_test(a_disconnect_cancels_the_request),
        cmocka_unit_test(a_stalled_reader_is_dropped_within_a_limit),
        cmocka_unit_test(a_fast_reader_gets_a_large_stream_in_full),
        cmocka_unit_test(a_fast_reader_gets_an_event_over_the_unread_limit),
    };
    return cmocka_run_group_tests(tests, open_stage, stage_close);
}
