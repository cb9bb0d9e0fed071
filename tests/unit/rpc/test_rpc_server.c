/* test_rpc_server.c - a server's addresses, refusals by role, timers of calls, ends of calls. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "lib/rigs/logged.h"
#include "lib/rigs/rpc_rig.h"
#include "tandem/v1/verifier.pb-c.h"

/* ---- methods ---- */

static struct {
    int started, fired, cancelled, ended;
    char order[32];
    struct rpc_call *call; // the last one of Timed, with a reference
} seen;

static void fire(struct rpc_call *c, char name)
{
    (void)c;
    seen.order[rpc_rig_count(&seen.fired)] = name;
    rpc_rig_bump(&seen.fired);
}

static void fire_a(struct rpc_call *c)
{
    fire(c, 'a');
}

static void fire_b(struct rpc_call *c)
{
    fire(c, 'b');
}

static void finish_last(struct rpc_call *c)
{
    fire(c, 'z');
    rpc_call_finish(c, RPC_OK, NULL);
}

static void timed_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_after(c, 30, finish_last);
    rpc_call_after(c, 10, fire_a);
    rpc_call_after(c, 20, fire_b);
    rpc_call_after(c, 10, fire_b); // after the other of the same time
    rpc_rig_bump(&seen.started);
}

static void patient_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_after(c, 60000000, fire_a);
    rpc_call_after(c, 60000001, fire_b);
    rpc_rig_bump(&seen.started);
}

static void kept_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_ref(c);
    seen.call = c;
    rpc_rig_bump(&seen.started);
}

static void on_cancel(struct rpc_call *c)
{
    (void)c;
    rpc_rig_bump(&seen.cancelled);
}

static void on_end(struct rpc_call *c)
{
    (void)c;
    rpc_rig_bump(&seen.ended);
}

/* Sends more than its mark, and ends. */
static void brief_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_send(c, rpc_rig_text(2000));
    rpc_call_finish(c, RPC_OK, NULL);
}

static void fire_on_drain(struct rpc_call *c)
{
    fire(c, 'd');
}

/* Ends when the client does; the status tells whether there were messages. */
static void told_message(struct rpc_call *c, struct rpc_msg *msg)
{
    if (msg)
        assert_true(rpc_call_received(c));
    else
        rpc_call_finish(c, rpc_call_received(c) ? RPC_OK : RPC_NOT_FOUND, NULL);
}

static const struct rpc_method brief = {.path = "/test/Brief",
                                        .roles = RPC_ROLE_CLIENT,
                                        .drain_mark = 1000,
                                        .on_start = brief_start,
                                        .on_drain = fire_on_drain,
                                        .on_end = on_end},
                               told = {.path = "/test/Told",
                                       .roles = RPC_ROLE_CLIENT,
                                       .reads_stream = true,
                                       .on_message = told_message,
                                       .on_end = on_end};

static const struct rpc_method timed = {.path = "/test/Timed",
                                        .roles = RPC_ROLE_CLIENT,
                                        .on_start = timed_start,
                                        .on_cancel = on_cancel,
                                        .on_end = on_end},
                               patient = {.path = "/test/Patient",
                                          .roles = RPC_ROLE_CLIENT,
                                          .on_start = patient_start,
                                          .on_cancel = on_cancel,
                                          .on_end = on_end},
                               kept = {.path = "/test/Kept",
                                       .roles = RPC_ROLE_CLIENT,
                                       .on_start = kept_start,
                                       .on_cancel = on_cancel,
                                       .on_end = on_end},
                               secret = {.path = "/test/Secret",
                                         .roles = RPC_ROLE_OPERATOR,
                                         .on_start = kept_start},
                               inner = {.path = "/test/Inner",
                                        .roles = RPC_ROLE_GATEWAY | RPC_ROLE_OPERATOR,
                                        .on_start = kept_start};

/* ---- server and client ---- */

static struct rpc_rig rig; // without a health service

static int start(void **state)
{
    (void)state;
    memset(&seen, 0, sizeof(seen));
    rig = (struct rpc_rig){0};
    snprintf(rig.folder, sizeof(rig.folder), "/tmp/tandem-test-rpc-XXXXXX");
    assert_non_null(mkdtemp(rig.folder));
    snprintf(rig.path, sizeof(rig.path), "%s/s.sock", rig.folder);
    snprintf(rig.target, sizeof(rig.target), "unix:%s", rig.path);
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){.linger_ms = 20}, &rig.server), 0);
    static const struct rpc_method *const all[] = {&timed, &patient, &kept, &secret,
                                                   &inner, &brief,   &told};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        rpc_server_add(rig.server, all[i], NULL);
    assert_int_equal(rpc_server_listen(rig.server, rig.target), 1);
    assert_int_equal(rpc_server_start(rig.server), 0);
    return rpc_client_new(rig.target, NULL, &rig.client);
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(rig.client);
    rpc_server_stop(rig.server, 1000);
    return rmdir(rig.folder);
}

/* ---- timers ---- */

static void timers_of_a_call_fire_in_the_order_of_their_times(void **state)
{
    (void)state;
    struct rpc_tally t;
    int64_t from_us = clock_us();
    struct rpc_stream *s = rpc_rig_call(&rig, "/test/Timed", 1, 1, &t);
    rpc_rig_finish(s, &t, RPC_OK);
    assert_true(clock_us() - from_us >= 30000);
    assert_string_equal(seen.order, "abbz");
    rpc_rig_await(&seen.ended, 1);
    assert_int_equal(seen.cancelled, 0);
}

static void timers_of_a_cancelled_call_do_not_fire(void **state)
{
    (void)state;
    struct rpc_tally a, b;
    struct rpc_stream *first = rpc_rig_call(&rig, "/test/Patient", 1, 1, &a);
    rpc_rig_await(&seen.started, 1);
    struct rpc_stream *second = rpc_rig_call(&rig, "/test/Timed", 1, 1, &b);
    rpc_rig_await(&seen.started, 2);
    rpc_stream_cancel(first);
    rpc_rig_finish(first, &a, RPC_CANCELLED);
    rpc_rig_finish(second, &b, RPC_OK); // its timers stay
    rpc_rig_await(&seen.ended, 2);      // no timer refers to the first call
    assert_string_equal(seen.order, "abbz");
    assert_int_equal(seen.cancelled, 1);
}

/* ---- ends of calls ---- */

static void a_server_counts_its_calls(void **state)
{
    (void)state;
    struct rpc_tally t;
    assert_int_equal(rpc_server_n_calls(rig.server), 0);
    struct rpc_stream *s = rpc_rig_call(&rig, "/test/Kept", 1, 1, &t);
    rpc_rig_await(&seen.started, 1);
    assert_int_equal(rpc_server_n_calls(rig.server), 1);
    rpc_call_finish(seen.call, RPC_OK, NULL);
    rpc_call_unref(seen.call);
    rpc_rig_finish(s, &t, RPC_OK);
    rpc_rig_await(&seen.ended, 1);
}

/* A status has at most FAIL_TEXT_MAX - 1 characters for the client. */
static void a_long_sentence_is_cut_at_the_client(void **state)
{
    (void)state;
    char text[FAIL_TEXT_MAX + 11] = "";
    for (size_t len = FAIL_TEXT_MAX - 2; len <= FAIL_TEXT_MAX + 1; len++) {
        struct rpc_tally t;
        seen.started = 0;
        struct rpc_stream *s = rpc_rig_call(&rig, "/test/Kept", 1, 1, &t);
        rpc_rig_await(&seen.started, 1);
        memset(text, 'x', len);
        rpc_call_finish(seen.call, RPC_ABORTED, text);
        rpc_call_finish(seen.call, RPC_OK, "only the first status counts");
        rpc_call_unref(seen.call);
        rpc_rig_finish(s, &t, RPC_ABORTED);
        assert_int_equal(strlen(t.status.text), len < FAIL_TEXT_MAX ? len : FAIL_TEXT_MAX - 1);
        assert_memory_equal(t.status.text, text, strlen(t.status.text));
    }
}

/* Whether a message is in flight or not, the client gets the status. */
static void an_aborted_call_ends_with_its_status(void **state)
{
    (void)state;
    for (int stuck = 0; stuck < 2; stuck++) {
        struct rpc_tally t;
        seen.started = seen.ended = 0;
        struct rpc_stream *s = rpc_rig_open(&rig, "/test/Kept", &t);
        rpc_stream_pause(s);
        rpc_stream_send(s, rpc_rig_ids(1, 1));
        rpc_stream_close(s);
        rpc_rig_await(&seen.started, 1);
        for (int i = 0; i < 8 * stuck; i++)
            assert_true(rpc_call_send(seen.call, rpc_rig_text(1 << 20)) > 0);
        rpc_call_abort(seen.call, RPC_ABORTED, "enough");
        rpc_call_unref(seen.call);
        rpc_rig_await(&seen.ended, 1); // although the client does not read
        rpc_stream_unpause(s);
        rpc_rig_finish(s, &t, RPC_ABORTED);
        assert_string_equal(t.status.text, "enough");
        assert_true(t.messages < 8);
        assert_int_equal(rpc_rig_count(&seen.cancelled), stuck);
    }
}

/* Only finished answers must be read within linger_ms. */
static void a_call_that_is_not_finished_may_wait_for_its_client(void **state)
{
    (void)state;
    struct rpc_tally t, timer;
    struct rpc_stream *s = rpc_rig_open(&rig, "/test/Kept", &t);
    rpc_stream_pause(s);
    rpc_stream_send(s, rpc_rig_ids(1, 1));
    rpc_stream_close(s);
    rpc_rig_await(&seen.started, 1);
    for (int i = 0; i < 8; i++)
        assert_true(rpc_call_send(seen.call, rpc_rig_text(1 << 20)) > 0);
    for (int i = 0; i < 3; i++) { // 30 ms each
        struct rpc_stream *other = rpc_rig_call(&rig, "/test/Timed", 1, 1, &timer);
        rpc_rig_finish(other, &timer, RPC_OK);
    }
    assert_false(rpc_call_cancelled(seen.call));
    rpc_stream_unpause(s);
    rpc_rig_await(&t.messages, 8);
    rpc_call_finish(seen.call, RPC_OK, NULL);
    rpc_call_unref(seen.call);
    rpc_rig_finish(s, &t, RPC_OK);
}

static void on_drain_does_not_come_after_the_status(void **state)
{
    (void)state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_call(&rig, "/test/Brief", 1, 1, &t);
    rpc_rig_finish(s, &t, RPC_OK);
    rpc_rig_await(&seen.ended, 1);
    assert_int_equal(t.messages, 1);
    assert_int_equal(seen.fired, 0);
}

static void a_closed_stream_has_no_on_drain(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(r, "/test/Paused", &t);
    rpc_rig_await(&rpc_rig_seen.starts, 1);
    int sent = 0;
    for (ssize_t n = 0; n < 512 << 10; sent++) { // the server does not read
        assert_true(sent < 200);
        n = rpc_stream_send(s, rpc_rig_ids(1, 16 << 10));
    }
    int drains = rpc_rig_count(&t.drains); // while the connection still accepted bytes
    rpc_stream_close(s);
    assert_int_equal(rpc_stream_send(s, rpc_rig_ids(1, 1)), -ECANCELED);
    rpc_call_unpause(rpc_rig_seen.kept);
    rpc_call_unref(rpc_rig_seen.kept);
    rpc_rig_await_end(&t, RPC_OK);
    assert_int_equal(t.messages, sent);
    assert_int_equal(t.drains, drains);
    rpc_stream_free(s);
    rpc_stream_free(NULL);
}

static void a_call_knows_whether_it_has_received_a_message(void **state)
{
    (void)state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(&rig, "/test/Told", &t);
    rpc_stream_close(s);
    rpc_rig_finish(s, &t, RPC_NOT_FOUND);
    s = rpc_rig_call(&rig, "/test/Told", 1, 1, &t);
    rpc_rig_finish(s, &t, RPC_OK);
}

static void a_reply_of_another_type_is_malformed(void **state)
{
    struct rpc_rig *r = *state;
    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.n_ids = 1;
    req.ids = &(uint32_t){7};
    ProtobufCMessage *m = NULL;
    struct rpc_status st =
        rpc_unary(r->client, "/test/Echo", NULL, &req.base, &tandem__v1__token_run__descriptor, &m);
    assert_int_equal(st.code, RPC_INTERNAL);
    assert_string_equal(st.text, "the server's reply is malformed");
    assert_null(m);
}

/* ---- roles ---- */

static struct rpc_status call_refused(const char *path)
{
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_call(&rig, path, 1, 1, &t);
    rpc_rig_finish(s, &t, RPC_PERMISSION_DENIED);
    return t.status;
}

static void a_refusal_names_the_roles_and_the_way(void **state)
{
    (void)state;
    assert_string_equal(
        call_refused("/test/Secret").text,
        "the role of this client is client; /test/Secret is for the role operator; connect with a "
        "certificate of that role (SAN tandem://ROLE, or tls_roles of this service), or over the "
        "socket of admin_listen");
    assert_string_equal(
        call_refused("/test/Inner").text,
        "the role of this client is client; /test/Inner is for the role gateway or operator; "
        "connect with a certificate of that role (SAN tandem://ROLE, or tls_roles of this "
        "service), or over a unix socket as the user of this service");
    assert_int_equal(seen.started, 0);
}

static void each_refusal_is_counted_and_the_first_one_logged(void **state)
{
    (void)state;
    struct metric *m = metrics_counter("tandem_rpc_refused_calls_total", "", NULL);
    double before = metrics_value(m);
    logged_begin();
    call_refused("/test/Secret");
    call_refused("/test/Secret");
    call_refused("/test/Inner");
    call_refused("/test/Inner");
    const char *log = logged_end();
    assert_true(metrics_value(m) == before + 4);
    assert_int_equal(logged_count(log, "call refused method=/test/Secret role=client from="), 1);
    assert_int_equal(logged_count(log, "call refused method=/test/Inner role=client from="), 1);
    assert_int_equal(logged_count(log, "\n"), 2);
}

/* ---- addresses ---- */

static int listen_on(unsigned roles, bool insecure, const char *addr)
{
    struct rpc_server *s;
    struct rpc_method m = {.path = "/test/M", .roles = roles, .on_start = kept_start};
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){.insecure = insecure}, &s), 0);
    rpc_server_add(s, &m, NULL);
    int r = rpc_server_listen(s, addr);
    rpc_server_stop(s, 0);
    return r;
}

static void a_port_has_one_to_five_digits_up_to_65535(void **state)
{
    (void)state;
    static const struct {
        const char *addr;
        int r;
    } cases[] = {{"203.0.113.1:0", -EPERM},
                 {"203.0.113.1:9", -EPERM},
                 {"203.0.113.1:65535", -EPERM},
                 {"203.0.113.1:00080", -EPERM},
                 {"203.0.113.1:65536", -EINVAL},
                 {"203.0.113.1:99999", -EINVAL},
                 {"203.0.113.1:000080", -EINVAL},
                 {"203.0.113.1:", -EINVAL},
                 {"203.0.113.1:8x", -EINVAL},
                 {"203.0.113.1:x8", -EINVAL},
                 {"203.0.113.1", -EINVAL},
                 {"80", -EINVAL},
                 {"", -EINVAL}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int r = listen_on(RPC_ROLE_CLIENT, false, cases[i].addr);
        if (r != cases[i].r)
            fail_msg("%s: %d", cases[i].addr, r);
    }
    assert_string_equal(fail_text(), "cannot listen on : use unix:/path or host:port, with a port "
                                     "of 0 to 65535");
}

static void tcp_without_tls_is_only_for_clients_of_this_machine(void **state)
{
    (void)state;
    static const unsigned for_clients[] = {RPC_ROLE_CLIENT, RPC_ROLE_CLIENT | RPC_ROLE_OPERATOR,
                                           RPC_ROLE_ANY, RPC_ROLE_ANY | RPC_ROLE_OPERATOR};
    for (size_t i = 0; i < ARRAY_LEN(for_clients); i++) {
        assert_true(listen_on(for_clients[i], false, "127.0.0.1:0") > 1);
        assert_int_equal(listen_on(for_clients[i], false, "203.0.113.1:80"), -EPERM);
        assert_non_null(strstr(fail_text(), "203.0.113.1:80: other machines can reach it, and "
                                            "there is no TLS"));
    }
    assert_int_equal(listen_on(RPC_ROLE_VERIFIER, false, "127.0.0.1:0"), -EPERM);
    assert_non_null(strstr(fail_text(), "127.0.0.1:0: every user of this machine can reach it"));
    assert_true(listen_on(RPC_ROLE_VERIFIER, true, "127.0.0.1:0") > 1);
}

static void what_grpc_core_logs_is_for_debugging(void **state)
{
    (void)state;
    struct rpc_server *first, *second;
    char addr[32];
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){0}, &first), 0);
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){0}, &second), 0);
    snprintf(addr, sizeof(addr), "127.0.0.1:%d", rpc_server_listen(first, "127.0.0.1:0"));
    for (int debug = 0; debug < 2; debug++) {
        log_init("test", debug ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
        logged_begin();
        int r = rpc_server_listen(second, addr);
        const char *log = logged_end();
        log_init("test", LOG_LEVEL_WARN);
        assert_int_equal(r, -EADDRINUSE);
        assert_int_equal(logged_count(log, " debug: grpc ") > 0, debug);
        assert_int_equal(*log != 0, debug);
    }
    rpc_server_stop(second, 0);
    rpc_server_stop(first, 0);
}

static void unix_addresses_have_one_or_three_slashes(void **state)
{
    (void)state;
    char addr[160], path[128];
    snprintf(path, sizeof(path), "%s/t.sock", rig.folder);
    for (int slashes = 0; slashes < 2; slashes++) {
        struct rpc_server *s;
        struct stat st;
        snprintf(addr, sizeof(addr), "unix:%s%s", slashes ? "//" : "", path);
        assert_int_equal(rpc_server_new(&(struct rpc_server_options){0}, &s), 0);
        assert_int_equal(rpc_server_listen(s, addr), 1);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        rpc_server_stop(s, 0);
        assert_int_equal(rpc_server_new(&(struct rpc_server_options){.socket_mode = 0660}, &s), 0);
        assert_int_equal(rpc_server_listen_admin(s, addr), 0); // always 0600
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        rpc_server_stop(s, 0);
    }
}

static void passed_sockets_that_cannot_be_served_are_refused(void **state)
{
    (void)state;
    struct rpc_server *s;
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){0}, &s), 0);
    assert_int_equal(rpc_server_listen_fd(s, -1, false), -EBADF);
    assert_string_equal(fail_text(), "descriptor -1: Bad file descriptor");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(rpc_server_listen_fd(s, fd, true), -EINVAL);
    assert_string_equal(fail_text(), "the passed admin socket is not a unix socket");
    assert_int_equal(rpc_server_listen_fd(s, fd, false), -EPERM); // on all addresses
    char text[64];
    snprintf(text, sizeof(text), "cannot listen on the passed socket %d: other machines", fd);
    assert_non_null(strstr(fail_text(), text));
    close(fd);
    assert_int_equal(rpc_server_listen_admin(s, "127.0.0.1:0"), -EINVAL);
    assert_string_equal(fail_text(), "admin_listen: 127.0.0.1:0 is not unix:/path");
    rpc_server_stop(s, 0);
    rpc_server_stop(NULL, 0);
}

/* ---- a client's warning ---- */

static unsigned n_warnings(const char *target)
{
    struct rpc_client *c;
    logged_begin();
    assert_int_equal(rpc_client_new(target, NULL, &c), 0);
    rpc_client_free(c);
    const char *log = logged_end();
    return logged_count(log, "connecting without TLS target=");
}

static void a_target_without_tls_is_warned_of_once(void **state)
{
    (void)state;
    char target[32];
    assert_int_equal(n_warnings("127.0.0.1:1"), 0);
    assert_int_equal(n_warnings("unix:/tmp/tandem-nobody.sock"), 0);
    for (int again = 0; again < 2; again++) {
        for (unsigned i = 0; i < 64; i++) {
            snprintf(target, sizeof(target), "203.0.113.%u:1", i);
            assert_int_equal(n_warnings(target), !again);
        }
    }
    assert_int_equal(n_warnings("203.0.113.64:1"), 1); // beyond the table: each time
    assert_int_equal(n_warnings("203.0.113.64:1"), 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(timers_of_a_call_fire_in_the_order_of_their_times),
        TEST(timers_of_a_cancelled_call_do_not_fire),
        TEST(a_server_counts_its_calls),
        TEST(a_long_sentence_is_cut_at_the_client),
        TEST(an_aborted_call_ends_with_its_status),
        TEST(a_call_that_is_not_finished_may_wait_for_its_client),
        TEST(on_drain_does_not_come_after_the_status),
        RPC_RIG_TEST(a_closed_stream_has_no_on_drain),
        TEST(a_call_knows_whether_it_has_received_a_message),
        RPC_RIG_TEST(a_reply_of_another_type_is_malformed),
        TEST(a_refusal_names_the_roles_and_the_way),
        TEST(each_refusal_is_counted_and_the_first_one_logged),
        cmocka_unit_test(a_port_has_one_to_five_digits_up_to_65535),
        cmocka_unit_test(tcp_without_tls_is_only_for_clients_of_this_machine),
        cmocka_unit_test(what_grpc_core_logs_is_for_debugging),
        TEST(unix_addresses_have_one_or_three_slashes),
        cmocka_unit_test(passed_sockets_that_cannot_be_served_are_refused),
        cmocka_unit_test(a_target_without_tls_is_warned_of_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
