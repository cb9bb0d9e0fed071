/* test_rpc.c - calls between a server and a client, over a unix socket and TCP on loopback. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/clock.h"
#include "lib/rigs/rpc_rig.h"
#include "tandem/v1/verifier.pb-c.h"

static void a_unary_call_is_answered_over_unix(void **state)
{
    (void)state;
    struct rpc_rig r;
    rpc_rig_init(&r, NULL);
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_OK);
    rpc_rig_await(&rpc_rig_seen.ends, 1);
    struct stat st;
    assert_int_equal(stat(r.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    rpc_rig_done(&r);
    assert_int_equal(rpc_rig_seen.ends, 1);
}

static void the_socket_gets_the_mode_of_the_options(void **state)
{
    (void)state;
    struct rpc_rig r;
    rpc_rig_init(&r, &(struct rpc_server_options){.socket_mode = 0660});
    struct stat st;
    assert_int_equal(stat(r.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);
    rpc_rig_done(&r);
}

static void a_unary_call_is_answered_over_tcp(void **state)
{
    (void)state;
    AUTO(rpc_health_free) struct rpc_health *h = rpc_health_new();
    struct rpc_server *s = rpc_rig_server(&(struct rpc_server_options){.n_threads = 2}, h);
    int port = rpc_server_listen(s, "127.0.0.1:0");
    assert_true(port > 1);
    assert_int_equal(rpc_server_start(s), 0);
    char target[32];
    snprintf(target, sizeof(target), "127.0.0.1:%d", port);
    setenv("http_proxy", "http://127.0.0.1:1", 1); // must be ignored
    struct rpc_client *c;
    assert_int_equal(rpc_client_new(target, NULL, &c), 0);
    struct rpc_options opt = {.timeout_us = RPC_RIG_WAIT_US, .wait_for_ready = true};
    assert_int_equal(rpc_rig_echo(c, &opt, 8).code, RPC_OK);
    unsetenv("http_proxy");

    struct rpc_server *second = rpc_rig_server(NULL, h);
    assert_int_equal(rpc_server_listen(second, target), -EADDRINUSE);
    assert_non_null(strstr(fail_text(), target));
    rpc_server_stop(second, 0); // works for a server that never started
    rpc_client_free(c);
    rpc_server_stop(s, 1000);
}

static void an_error_carries_its_sentence(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_status st = rpc_rig_echo(r->client, NULL, 99);
    assert_int_equal(st.code, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(st.text, "no space for 99");
}

static void an_unknown_method_is_unimplemented(void **state)
{
    struct rpc_rig *r = *state;
    Tandem__V1__GetModelRequest req = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *m;
    struct rpc_status st = rpc_unary(r->client, "/test/Unknown", NULL, &req.base,
                                     &tandem__v1__model_info__descriptor, &m);
    assert_int_equal(st.code, RPC_UNIMPLEMENTED);
}

static void a_missed_deadline_ends_both_sides(void **state)
{
    struct rpc_rig *r = *state;
    Tandem__V1__GetModelRequest req = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *m;
    struct rpc_options opt = {.timeout_us = 500000};
    assert_int_equal(rpc_rig_echo(r->client, NULL, 7).code, RPC_OK); // now it is connected
    rpc_rig_await(&rpc_rig_seen.ends, 1);
    struct rpc_status st = rpc_unary(r->client, "/test/Keep", &opt, &req.base,
                                     &tandem__v1__model_info__descriptor, &m);
    assert_int_equal(st.code, RPC_DEADLINE_EXCEEDED);
    rpc_rig_await(&rpc_rig_seen.ends, 2);
    assert_int_equal(rpc_rig_seen.cancels, 1);
}

static void an_unused_address_fails_immediately(void **state)
{
    (void)state;
    struct rpc_client *c;
    assert_int_equal(rpc_client_new("unix:/tmp/tandem-nobody.sock", NULL, &c), 0);
    int64_t from = clock_us();
    assert_int_equal(rpc_rig_echo(c, NULL, 1).code, RPC_UNAVAILABLE);
    assert_true(clock_us() - from < RPC_RIG_WAIT_US);
    rpc_client_free(c);
    assert_int_equal(rpc_client_new("", NULL, &c), -EINVAL);
}

static void a_server_streams_all_messages_and_ends(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_call(r, "/test/Count", 10, 500, &t);
    rpc_rig_finish(s, &t, RPC_OK);
    assert_int_equal(t.messages, 500);
    assert_int_equal(t.bytes, 500 * 12);
}

static void both_sides_send_on_one_stream(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(r, "/test/Chat", &t);
    for (int i = 0; i < 100; i++) {
        assert_true(rpc_stream_send(s, rpc_rig_ids(5, 3)) >= 0);
        rpc_rig_await(&t.messages, i + 1); // each message waits for the previous answer
    }
    rpc_stream_close(s);
    rpc_rig_await_end(&t, RPC_OK);
    assert_int_equal(rpc_stream_send(s, rpc_rig_ids(5, 3)), -ECANCELED);
    rpc_stream_free(s);
}

static void a_server_notices_a_client_that_cancels(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_keep(r, &t);
    rpc_stream_cancel(s);
    rpc_rig_finish(s, &t, RPC_CANCELLED);
    rpc_rig_await(&rpc_rig_seen.ends, 1);
    assert_int_equal(rpc_rig_seen.cancels, 1);
}

static void a_server_may_end_a_call_from_any_thread(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_keep(r, &t);
    assert_false(rpc_call_cancelled(rpc_rig_seen.kept));
    rpc_call_finish(rpc_rig_seen.kept, RPC_ABORTED, "enough");
    assert_int_equal(rpc_call_send(rpc_rig_seen.kept, rpc_rig_text(1)), -ECANCELED);
    rpc_call_unref(rpc_rig_seen.kept);
    rpc_rig_finish(s, &t, RPC_ABORTED);
    assert_string_equal(t.status.text, "enough");
    rpc_rig_await(&rpc_rig_seen.ends, 1);
    assert_int_equal(rpc_rig_seen.cancels, 0);
}

static void a_message_over_the_limit_is_refused(void **state)
{
    (void)state;
    struct rpc_rig r;
    rpc_rig_init(&r, &(struct rpc_server_options){.max_message = 1 << 20});
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(&r, "/test/Chat", &t);
    rpc_stream_send(s, rpc_rig_ids(1, 2 << 20));
    rpc_rig_finish(s, &t, RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_OK);
    rpc_rig_done(&r);
}

static void an_answer_over_the_limit_of_the_client_is_refused(void **state)
{
    struct rpc_rig *r = *state;
    rpc_client_free(r->client);
    struct rpc_client_options opt = {.max_message = 1000};
    assert_int_equal(rpc_client_new(r->target, &opt, &r->client), 0);
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_call(r, "/test/Count", 2000, 1, &t);
    rpc_rig_finish(s, &t, RPC_RESOURCE_EXHAUSTED);
}

static void big_messages_pass(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(r, "/test/Chat", &t);
    rpc_stream_send(s, rpc_rig_ids(1, 8 << 20));
    rpc_rig_await(&t.messages, 1);
    assert_in_range(t.bytes, 8 << 20, (8 << 20) + 16);
    rpc_stream_close(s);
    rpc_rig_await(&t.ends, 1);
    rpc_stream_free(s);
}

static void malformed_bytes_are_an_invalid_argument(void **state)
{
    struct rpc_rig *r = *state;
    static const char *const paths[] = {"/test/Echo", "/test/Chat"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct rpc_tally t;
        struct rpc_stream *s = rpc_rig_open(r, paths[i], &t);
        rpc_stream_send(s, rpc_msg_of("\x0a\xff\xff\xff\xff\x0f", 6));
        rpc_rig_await_end(&t, RPC_INVALID_ARGUMENT);
        assert_non_null(strstr(t.status.text, "DetokenizeRequest"));
        rpc_stream_free(s);
    }
}

static void a_unary_call_without_a_request_is_an_invalid_argument(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(r, "/test/Echo", &t);
    rpc_stream_close(s);
    rpc_rig_finish(s, &t, RPC_INVALID_ARGUMENT);
}

static void the_memory_of_an_unpacked_message_is_bounded(void **state)
{
    (void)state;
    size_t n = 32 << 20; // 16 million empty submessages, several GiB when unpacked
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i += 2) {
        bytes[i] = 0x0a;
        bytes[i + 1] = 0;
    }
    struct rpc_msg *m = rpc_msg_of(bytes, n);
    assert_null(rpc_unpack(&tandem__v1__token_run__descriptor, m));
    rpc_msg_free(m);
    m = rpc_msg_of(bytes, 1000); // a small message of them is fine
    ProtobufCMessage *u = rpc_unpack(&tandem__v1__token_ids__descriptor, m);
    assert_non_null(u);
    protobuf_c_message_free_unpacked(u, NULL);
    rpc_msg_free(m);
    free(bytes);
}

static void a_slow_client_pauses_the_server_until_on_drain(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(r, "/test/Flood", &t);
    rpc_stream_pause(s);
    rpc_stream_send(s, rpc_rig_ids(1, 1));
    rpc_stream_close(s);
    rpc_rig_await(&rpc_rig_seen.flooded, 5);
    /* Other calls on the same threads complete; by then the server has sent all that it can. */
    for (int i = 0; i < 50; i++)
        assert_int_equal(rpc_rig_echo(r->client, NULL, 7).code, RPC_OK);
    assert_true(rpc_rig_count(&rpc_rig_seen.flooded) < 40); // of 64; the others wait for the client
    assert_true(rpc_rig_count(&t.messages) <= 1);           // a read that had started
    rpc_stream_unpause(s);
    rpc_rig_finish(s, &t, RPC_OK);
    assert_int_equal(t.messages, 64);
    assert_true(rpc_rig_count(&rpc_rig_seen.drains) >= 1);
}

/* The server sends answers of these sizes. The client reads only the first; the call must still end
 * on the server. */
static void unread_answers_are_dropped(const uint32_t *sizes, size_t n)
{
    struct rpc_rig r;
    rpc_rig_init(&r, &(struct rpc_server_options){.linger_ms = 50});
    struct rpc_tally t;
    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.n_ids = n;
    req.ids = (uint32_t *)(uintptr_t)sizes;
    struct rpc_stream *s = rpc_rig_open(&r, "/test/Count", &t);
    rpc_stream_pause(s);
    rpc_stream_send(s, rpc_pack(&req.base));
    rpc_stream_close(s);
    rpc_rig_await(&rpc_rig_seen.ends, 1);
    assert_int_equal(rpc_rig_seen.cancels, 1);
    assert_true(rpc_rig_count(&t.messages) <= 1);
    rpc_stream_unpause(s);
    rpc_rig_await(&t.ends, 1);
    assert_int_not_equal(t.status.code, RPC_OK);
    rpc_stream_free(s);
    rpc_rig_done(&r);
}

static void a_finished_answer_that_is_not_read_is_dropped(void **state)
{
    (void)state;
    unread_answers_are_dropped((uint32_t[]){10, 1 << 20, 1 << 20}, 3); // status after a message
    unread_answers_are_dropped((uint32_t[]){10, 1 << 20}, 2);          // status with a message
}

static void cancelling_a_paused_stream_ends_it(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(r, "/test/Flood", &t);
    rpc_stream_pause(s);
    rpc_stream_send(s, rpc_rig_ids(1, 1));
    rpc_rig_await(&rpc_rig_seen.flooded, 5);
    rpc_stream_cancel(s);
    rpc_stream_pause(s); // has no effect after a cancel
    rpc_rig_finish(s, &t, RPC_CANCELLED);
    rpc_rig_await(&rpc_rig_seen.ends, 1);
    assert_int_equal(rpc_rig_seen.cancels, 1);
}

static void a_server_that_does_not_read_pauses_the_client(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(r, "/test/Paused", &t);
    rpc_rig_await(&rpc_rig_seen.starts, 1);
    ssize_t n = 0;
    int sent = 0;
    for (; sent < 200 && n < 512 << 10; sent++)
        n = rpc_stream_send(s, rpc_rig_ids(1, 16 << 10));
    assert_true(n >= 512 << 10);
    assert_int_equal(rpc_rig_count(&rpc_rig_seen.messages), 0);
    int drains = rpc_rig_count(&t.drains); // while the connection still accepted bytes
    rpc_call_unpause(rpc_rig_seen.kept);
    rpc_call_unref(rpc_rig_seen.kept);
    rpc_rig_await(&t.drains, drains + 1);
    rpc_stream_close(s);
    rpc_rig_await(&t.ends, 1);
    assert_int_equal(t.messages, sent);
    assert_int_equal(rpc_rig_count(&rpc_rig_seen.messages), sent);
    rpc_stream_free(s);
}

static void too_many_calls_are_refused(void **state)
{
    (void)state;
    struct rpc_rig r;
    rpc_rig_init(&r, &(struct rpc_server_options){.max_calls = 1});
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_keep(&r, &t);
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_RESOURCE_EXHAUSTED);
    rpc_stream_cancel(s);
    rpc_rig_await(&rpc_rig_seen.ends, 1);
    rpc_rig_await(&t.ends, 1);
    rpc_stream_free(s);
    rpc_rig_done(&r);
}

/* Starts a call that must be refused. */
static void must_be_busy(struct rpc_rig *r, const char *path)
{
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_call(r, path, 1, 1, &t);
    rpc_rig_await_end(&t, RPC_RESOURCE_EXHAUSTED);
    rpc_stream_free(s);
}

static void a_limit_of_its_own_leaves_the_slots_of_others_and_needs_none(void **state)
{
    (void)state;
    struct rpc_rig r;
    rpc_rig_init(&r, &(struct rpc_server_options){.max_calls = 1, .own_role = RPC_ROLE_GATEWAY});
    struct rpc_tally t[RPC_RIG_OWN_CALLS + 1];
    struct rpc_stream *s[RPC_RIG_OWN_CALLS + 1];
    s[0] = rpc_rig_keep(&r, &t[0]); // the only slot of the others
    for (int i = 1; i <= RPC_RIG_OWN_CALLS; i++) {
        s[i] = rpc_rig_call(&r, "/test/Own", 1, 1, &t[i]);
        rpc_rig_await(&rpc_rig_seen.starts, 1 + i);
    }
    must_be_busy(&r, "/test/Own");
    must_be_busy(&r, "/test/Echo");
    rpc_stream_cancel(s[0]);
    rpc_rig_await(&rpc_rig_seen.ends, 1);
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_OK); // beside all of Own
    rpc_stream_cancel(s[1]);
    rpc_rig_await(&rpc_rig_seen.ends, 3); // of Keep, Echo and Own
    struct rpc_tally t_again;
    struct rpc_stream *again = rpc_rig_call(&r, "/test/Own", 1, 1, &t_again);
    rpc_rig_await(&rpc_rig_seen.starts, 2 + RPC_RIG_OWN_CALLS);
    rpc_stream_cancel(again);
    rpc_rig_await_end(&t_again, RPC_CANCELLED);
    for (int i = 0; i <= RPC_RIG_OWN_CALLS; i++) {
        rpc_stream_cancel(s[i]);
        rpc_rig_await_end(&t[i], RPC_CANCELLED);
        rpc_stream_free(s[i]);
    }
    rpc_stream_free(again);
    rpc_rig_done(&r);
}

static void a_drain_waits_for_calls_with_a_limit_of_their_own(void **state)
{
    (void)state;
    struct rpc_rig r;
    struct rpc_tally t;
    rpc_rig_init(&r, NULL);
    struct rpc_stream *s = rpc_rig_call(&r, "/test/Own", 1, 1, &t);
    rpc_rig_await(&rpc_rig_seen.starts, 1);
    int64_t from_us = clock_us();
    rpc_server_stop(r.server, 300);
    r.server = NULL;
    assert_true(clock_us() - from_us >= 300000); // the call runs until the time limit
    rpc_rig_await_end(&t, RPC_UNAVAILABLE);
    rpc_stream_free(s);
    rpc_rig_done(&r);
}

/* Waits until one of the calls has ended; returns its index. */
static size_t await_any_end(struct rpc_tally *tallies, size_t n)
{
    for (int64_t until_us = clock_us() + RPC_RIG_WAIT_US; clock_us() < until_us;) {
        for (size_t i = 0; i < n; i++)
            if (rpc_rig_count(&tallies[i].ends))
                return i;
    }
    fail_msg("no call has ended");
    return n;
}

/* There are 16 places, of which a connection has a quarter. */
static void idle_reflection_calls_are_bounded_and_block_no_others(void **state)
{
    (void)state;
    struct rpc_tally tallies[4 + 1];
    struct rpc_stream *streams[4 + 1];
    const char *path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    struct rpc_rig r;
    rpc_rig_init(&r, &(struct rpc_server_options){.max_calls = 1});
    for (size_t i = 0; i < ARRAY_LEN(streams); i++)
        streams[i] = rpc_rig_open(&r, path, &tallies[i]);
    size_t refused = await_any_end(tallies, ARRAY_LEN(tallies)); // one more than allowed
    assert_int_equal(tallies[refused].status.code, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(tallies[refused].status.text, "this connection has too many calls running");
    assert_true(rpc_rig_health(r.client, "") >= 0);
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_OK);
    for (size_t i = 0; i < ARRAY_LEN(streams); i++)
        rpc_stream_cancel(streams[i]);
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        rpc_rig_await(&tallies[i].ends, 1);
        if (i != refused)
            assert_int_equal(tallies[i].status.code, RPC_CANCELLED);
        rpc_stream_free(streams[i]);
    }
    rpc_rig_done(&r);
}

static void a_client_reconnects_to_a_restarted_server(void **state)
{
    struct rpc_rig *r = *state;
    assert_int_equal(rpc_rig_echo(r->client, NULL, 1).code, RPC_OK);
    rpc_server_stop(r->server, 0);
    assert_int_equal(rpc_rig_echo(r->client, NULL, 1).code, RPC_UNAVAILABLE);
    rpc_health_free(r->health);
    r->health = rpc_health_new();
    r->server = rpc_rig_server(NULL, r->health);
    assert_int_equal(rpc_server_listen(r->server, r->target), 1);
    assert_int_equal(rpc_server_start(r->server), 0);
    struct rpc_options opt = {.timeout_us = RPC_RIG_WAIT_US, .wait_for_ready = true};
    assert_int_equal(rpc_rig_echo(r->client, &opt, 1).code, RPC_OK);
}

static void each_errno_has_its_status(void **state)
{
    (void)state;
    static const struct {
        int err;
        enum rpc_code code;
    } v[] = {
        {0, RPC_OK},
        {EINVAL, RPC_INVALID_ARGUMENT},
        {EBADMSG, RPC_INVALID_ARGUMENT},
        {EMSGSIZE, RPC_INVALID_ARGUMENT},
        {ERANGE, RPC_INVALID_ARGUMENT},
        {ENOENT, RPC_NOT_FOUND},
        {ENOMEM, RPC_RESOURCE_EXHAUSTED},
        {ENOSPC, RPC_RESOURCE_EXHAUSTED},
        {EAGAIN, RPC_RESOURCE_EXHAUSTED},
        {ECANCELED, RPC_CANCELLED},
        {ESTALE, RPC_FAILED_PRECONDITION},
        {ETIMEDOUT, RPC_DEADLINE_EXCEEDED},
        {EPIPE, RPC_UNAVAILABLE},
        {ECONNREFUSED, RPC_UNAVAILABLE},
        {ENOSYS, RPC_UNIMPLEMENTED},
        {EOPNOTSUPP, RPC_UNIMPLEMENTED},
        {EACCES, RPC_PERMISSION_DENIED},
        {EPERM, RPC_PERMISSION_DENIED},
        {EIO, RPC_INTERNAL},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        assert_int_equal(rpc_code_of(-v[i].err), v[i].code);
    assert_string_equal(rpc_code_name(RPC_UNAVAILABLE), "UNAVAILABLE");
    assert_string_equal(rpc_code_name((enum rpc_code)77), "UNKNOWN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unary_call_is_answered_over_unix),
        cmocka_unit_test(the_socket_gets_the_mode_of_the_options),
        cmocka_unit_test(a_unary_call_is_answered_over_tcp),
        RPC_RIG_TEST(an_error_carries_its_sentence),
        RPC_RIG_TEST(an_unknown_method_is_unimplemented),
        RPC_RIG_TEST(a_missed_deadline_ends_both_sides),
        cmocka_unit_test(an_unused_address_fails_immediately),
        RPC_RIG_TEST(a_server_streams_all_messages_and_ends),
        RPC_RIG_TEST(both_sides_send_on_one_stream),
        RPC_RIG_TEST(a_server_notices_a_client_that_cancels),
        RPC_RIG_TEST(a_server_may_end_a_call_from_any_thread),
        cmocka_unit_test(a_message_over_the_limit_is_refused),
        RPC_RIG_TEST(an_answer_over_the_limit_of_the_client_is_refused),
        RPC_RIG_TEST(big_messages_pass),
        RPC_RIG_TEST(malformed_bytes_are_an_invalid_argument),
        RPC_RIG_TEST(a_unary_call_without_a_request_is_an_invalid_argument),
        cmocka_unit_test(the_memory_of_an_unpacked_message_is_bounded),
        RPC_RIG_TEST(a_slow_client_pauses_the_server_until_on_drain),
        cmocka_unit_test(a_finished_answer_that_is_not_read_is_dropped),
        RPC_RIG_TEST(cancelling_a_paused_stream_ends_it),
        RPC_RIG_TEST(a_server_that_does_not_read_pauses_the_client),
        cmocka_unit_test(too_many_calls_are_refused),
        cmocka_unit_test(a_limit_of_its_own_leaves_the_slots_of_others_and_needs_none),
        cmocka_unit_test(a_drain_waits_for_calls_with_a_limit_of_their_own),
        cmocka_unit_test(idle_reflection_calls_are_bounded_and_block_no_others),
        RPC_RIG_TEST(a_client_reconnects_to_a_restarted_server),
        cmocka_unit_test(each_errno_has_its_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
