/* test_rpc_guard.c - TCP clients that abuse a server lose their connection; others are served. */
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/metrics.h"
#include "lib/clients/http2_client.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_peers.h"

#define MAX_UNEXPLAINED (2 << 20)
#define DESCRIPTORS 64

/* A server on TCP, and a good client that has a stream. */
struct guard_rig {
    struct rpc_rig r; // without a unix socket
    uint16_t port;
    struct rpc_stream *stream; // of Chat
    struct rpc_tally tally;
};

static int ended(const char *reason)
{
    char label[32];
    snprintf(label, sizeof(label), "reason=\"%s\"", reason);
    return (int)metrics_value(metrics_counter("tandem_rpc_ended_connections_total", "", label));
}

static int all_ended(void)
{
    return ended("resets") + ended("bytes") + ended("stall") + ended("crowd") + ended("ban");
}

/* The good client's stream has an answer: it was not ended, and the server serves it. */
static void stream_is_served(struct guard_rig *g)
{
    int before = rpc_rig_count(&g->tally.messages);
    assert_true(rpc_stream_send(g->stream, rpc_rig_ids(1, 1)) >= 0);
    rpc_rig_await(&g->tally.messages, before + 1);
}

/* A socket that listens on a free port, like one of a service manager. */
static int listening_socket(uint16_t *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &(socklen_t){sizeof(a)}), 0);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static void init(struct guard_rig *g, bool passed_socket)
{
    char target[32];
    memset(&rpc_rig_seen, 0, sizeof(rpc_rig_seen));
    *g = (struct guard_rig){.r = {.health = rpc_health_new()}};
    g->r.server = rpc_rig_server(&(struct rpc_server_options){.max_unexplained = MAX_UNEXPLAINED},
                                 g->r.health);
    if (passed_socket)
        assert_int_equal(rpc_server_listen_fd(g->r.server, listening_socket(&g->port), false), 0);
    else
        g->port = (uint16_t)rpc_server_listen(g->r.server, "127.0.0.1:0");
    assert_int_equal(rpc_server_start(g->r.server), 0);
    snprintf(target, sizeof(target), "127.0.0.1:%u", g->port);
    assert_int_equal(rpc_client_new(target, NULL, &g->r.client), 0);
    g->stream = rpc_rig_open(&g->r, "/test/Chat", &g->tally);
    stream_is_served(g);
}

static void done(struct guard_rig *g)
{
    rpc_stream_close(g->stream);
    rpc_rig_finish(g->stream, &g->tally, RPC_OK);
    rpc_client_free(g->r.client);
    rpc_server_stop(g->r.server, 1000);
    rpc_health_free(g->r.health);
}

static void endless_headers_end_a_connection(void **state)
{
    (void)state;
    struct guard_rig g;
    int before = all_ended();
    init(&g, false);
    struct http2_client c = http2_client_open_tcp(g.port);
    http2_client_endless_headers(&c, 2 * MAX_UNEXPLAINED);
    http2_client_await_end(&c);
    http2_client_close(&c);
    stream_is_served(&g);
    assert_int_equal(all_ended(), before + 1); // by its bytes, or because they stalled the thread
    done(&g);
}

static void resets(const char *path, bool passed_socket)
{
    struct guard_rig g;
    int before = all_ended();
    init(&g, passed_socket);
    struct http2_client c = http2_client_open_tcp(g.port);
    http2_client_reset(&c, path, 2 * RPC_PEERS_RESETS_BURST);
    http2_client_await_end(&c);
    http2_client_close(&c);
    stream_is_served(&g);
    assert_int_equal(all_ended(), before + 1);
    done(&g);
}

static void reset_calls_end_a_connection(void **state)
{
    (void)state;
    resets("/test/Keep", false);
    resets("/test/Chat", false);
    resets("/unknown", false);
}

static void reset_calls_end_a_connection_of_a_passed_socket(void **state)
{
    (void)state;
    resets("/test/Keep", true);
}

static void a_client_that_cancels_a_thousand_calls_is_not_ended(void **state)
{
    enum { N = 1000 };
    (void)state;
    struct guard_rig g;
    struct rpc_stream *s[N];
    struct rpc_tally t[N];
    int before = all_ended();
    init(&g, false);
    for (int i = 0; i < N; i++)
        s[i] = rpc_rig_call(&g.r, "/test/Keep", 1, 1, &t[i]);
    for (int i = 0; i < N; i++)
        rpc_stream_cancel(s[i]);
    for (int i = 0; i < N; i++)
        rpc_rig_finish(s[i], &t[i], RPC_CANCELLED);
    stream_is_served(&g);
    assert_int_equal(all_ended(), before);
    done(&g);
}

static void large_messages_do_not_end_a_connection(void **state)
{
    (void)state;
    struct guard_rig g;
    int before = all_ended();
    init(&g, false);
    for (int i = 0; i < 4; i++) {
        int n = rpc_rig_count(&g.tally.messages);
        rpc_stream_send(g.stream, rpc_rig_ids(1, MAX_UNEXPLAINED - 1000)); // a byte each
        rpc_rig_await(&g.tally.messages, n + 1);
    }
    assert_int_equal(all_ended(), before);
    done(&g);
}

static bool is_closed(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1;
}

static void silent_connections_leave_half_of_the_descriptors(void **state)
{
    enum { N = DESCRIPTORS / 2 + 8 };
    (void)state;
    struct guard_rig g;
    struct rlimit limit, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){.rlim_cur = DESCRIPTORS, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    init(&g, false);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0); // the clients' are in this process, too
    struct http2_client c[N];
    for (int i = 0; i < N; i++)
        c[i] = http2_client_open_tcp(g.port);
    http2_client_await_end(&c[0]); // the oldest
    stream_is_served(&g);
    int n_open = 0;
    for (int i = 0; i < N; i++) {
        n_open += !is_closed(c[i].fd);
        http2_client_close(&c[i]);
    }
    assert_true(n_open > 0);
    done(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endless_headers_end_a_connection),
        cmocka_unit_test(reset_calls_end_a_connection),
        cmocka_unit_test(reset_calls_end_a_connection_of_a_passed_socket),
        cmocka_unit_test(a_client_that_cancels_a_thousand_calls_is_not_ended),
        cmocka_unit_test(large_messages_do_not_end_a_connection),
        cmocka_unit_test(silent_connections_leave_half_of_the_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
