/* test_rpc_keepalive.c - a peer that falls silent without closing, for example after a power
 * loss. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "lib/rigs/rpc_rig.h"

/* The time-out of a ping must be far below RPC_RIG_WAIT_US; the default is not. */
#define KEEPALIVE_MS 600

/* Forwards bytes between one client and the server. Falls silent with all sockets open. */
struct silent_relay {
    int listening, client, server, stop_fd;
    struct sockaddr_un to;
    pthread_t thread;
};

static void forward(int from, int to)
{
    char data[16384];
    ssize_t n = recv(from, data, sizeof(data), 0);
    for (ssize_t at = 0, sent; at < n; at += sent)
        assert_true((sent = send(to, data + at, (size_t)(n - at), MSG_NOSIGNAL)) > 0);
}

static void *relay_main(void *arg)
{
    struct silent_relay *l = arg;
    l->client = accept(l->listening, NULL, NULL);
    l->server = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(l->server, (struct sockaddr *)&l->to, sizeof(l->to)), 0);
    struct pollfd p[] = {{.fd = l->stop_fd, .events = POLLIN},
                         {.fd = l->client, .events = POLLIN},
                         {.fd = l->server, .events = POLLIN}};
    while (poll(p, 3, -1) > 0 && !p[0].revents) {
        if (p[1].revents)
            forward(l->client, l->server);
        if (p[2].revents)
            forward(l->server, l->client);
    }
    return NULL;
}

static void relay_start(struct silent_relay *l, const char *to, char target[32])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    *l = (struct silent_relay){.listening = socket(AF_INET, SOCK_STREAM, 0),
                               .stop_fd = eventfd(0, EFD_CLOEXEC),
                               .to.sun_family = AF_UNIX};
    snprintf(l->to.sun_path, sizeof(l->to.sun_path), "%s", to);
    assert_int_equal(bind(l->listening, (struct sockaddr *)&a, len), 0);
    assert_int_equal(listen(l->listening, 8), 0);
    assert_int_equal(getsockname(l->listening, (struct sockaddr *)&a, &len), 0);
    snprintf(target, 32, "127.0.0.1:%d", ntohs(a.sin_port));
    assert_int_equal(pthread_create(&l->thread, NULL, relay_main, l), 0);
}

static void relay_fall_silent(struct silent_relay *l)
{
    eventfd_write(l->stop_fd, 1);
    pthread_join(l->thread, NULL);
}

static void relay_close(struct silent_relay *l)
{
    close(l->listening);
    close(l->client);
    close(l->server);
    close(l->stop_fd);
}

static void both_sides_drop_a_peer_that_falls_silent(void **state)
{
    (void)state;
    struct rpc_rig r;
    struct silent_relay relay;
    struct rpc_tally t;
    char target[32];
    rpc_rig_init(&r, &(struct rpc_server_options){.keepalive_ms = KEEPALIVE_MS});
    relay_start(&relay, r.path, target);
    rpc_client_free(r.client);
    struct rpc_client_options opt = {.keepalive_ms = KEEPALIVE_MS};
    assert_int_equal(rpc_client_new(target, &opt, &r.client), 0);
    struct rpc_stream *s = rpc_rig_call(&r, "/test/Keep", 1, 1, &t);
    rpc_rig_await(&rpc_rig_seen.starts, 1);
    relay_fall_silent(&relay);
    rpc_rig_await_end(&t, RPC_UNAVAILABLE);
    rpc_rig_await(&rpc_rig_seen.cancels, 1); // nothing else showed that the client is gone
    rpc_rig_await(&rpc_rig_seen.ends, 1);
    struct pollfd p = {.fd = relay.server, .events = POLLRDHUP};
    assert_int_equal(poll(&p, 1, RPC_RIG_WAIT_US / 1000),
                     1); // the connection ends, not only the call
    rpc_stream_free(s);
    relay_close(&relay);
    rpc_rig_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_drop_a_peer_that_falls_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
