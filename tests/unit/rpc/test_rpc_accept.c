/* test_rpc_accept.c - floods of connections leave a server that serves others. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/metrics.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_accept.h"

static atomic_int_fast64_t ahead_us; // of the clock

int64_t __real_clock_us(void);
int64_t __wrap_clock_us(void);
int64_t __wrap_clock_us(void)
{
    return __real_clock_us() + atomic_load(&ahead_us);
}

struct accept_rig {
    struct rpc_health *health;
    struct rpc_server *server;
    uint16_t port, port6; // port6: 0: this machine has no ::1
};

static void init(struct accept_rig *a)
{
    memset(&rpc_rig_seen, 0, sizeof(rpc_rig_seen));
    a->health = rpc_health_new();
    a->server = rpc_rig_server(NULL, a->health);
    a->port = (uint16_t)rpc_server_listen(a->server, "127.0.0.1:0");
    int port6 = rpc_server_listen(a->server, "[::1]:0");
    a->port6 = port6 < 0 ? 0 : (uint16_t)port6;
    assert_int_equal(rpc_server_start(a->server), 0);
}

static void done(struct accept_rig *a)
{
    rpc_server_stop(a->server, 1000);
    rpc_health_free(a->health);
}

static enum rpc_code echo(const char *host, uint16_t port)
{
    char target[32];
    struct rpc_client *c;
    struct rpc_options opt = {.timeout_us = RPC_RIG_WAIT_US, .wait_for_ready = true};
    snprintf(target, sizeof(target), "%s:%u", host, port);
    assert_int_equal(rpc_client_new(target, NULL, &c), 0);
    enum rpc_code code = rpc_rig_echo(c, &opt, 7).code;
    rpc_client_free(c);
    return code;
}

static double refused(const char *reason)
{
    char label[32];
    snprintf(label, sizeof(label), "reason=\"%s\"", reason);
    return metrics_value(metrics_counter("tandem_rpc_refused_connections_total", "", label));
}

static int tcp_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct timeval limit = {.tv_sec = RPC_RIG_WAIT_US / 1000000};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    return fd;
}

static void connect_to(int fd, uint16_t port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
}

/* Opens descriptors until the process has no free one. Returns the number. */
static int take_descriptors(int fds[], int max)
{
    int n = 0;
    while (n < max && (fds[n] = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    return n;
}

static void without_descriptors_the_listener_stays(void **state)
{
    enum { N = 16, MAX = 256 };
    (void)state;
    struct accept_rig a;
    struct rlimit limit, few;
    int clients[N], taken[MAX];
    init(&a);
    double before = refused("descriptors");
    for (int i = 0; i < N; i++)
        clients[i] = tcp_socket();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)clients[N - 1] + 1, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int n_taken = take_descriptors(taken, MAX);
    for (int i = 0; i < N; i++)
        connect_to(clients[i], a.port);
    int n_closed = 0;
    char byte;
    for (int i = 0; i < N; i++)
        n_closed += recv(clients[i], &byte, 1, 0) == 0 || errno == ECONNRESET;
    for (int i = 0; i < n_taken; i++)
        close(taken[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(n_taken < MAX);
    assert_int_equal(n_closed, N);
    assert_true(refused("descriptors") - before == N);
    assert_int_equal(echo("127.0.0.1", a.port), RPC_OK);
    for (int i = 0; i < N; i++)
        close(clients[i]);
    done(&a);
}

static void a_client_that_connects_too_fast_is_refused_for_a_while(void **state)
{
    (void)state;
    struct accept_rig a;
    init(&a);
    double before = refused("rate");
    atomic_fetch_add(&ahead_us, 60000000); // what tests before have used is forgotten
    int n = 0;
    for (; refused("rate") == before && n < 8 * RPC_ACCEPT_BURST; n++) {
        int fd = tcp_socket();
        connect_to(fd, a.port);
        close(fd);
    }
    assert_in_range(n, RPC_ACCEPT_BURST, 8 * RPC_ACCEPT_BURST - 1);
    if (a.port6) // another client
        assert_int_equal(echo("[::1]", a.port6), RPC_OK);
    atomic_fetch_add(&ahead_us, 60000000);
    assert_int_equal(echo("127.0.0.1", a.port), RPC_OK);
    done(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_descriptors_the_listener_stays),
        cmocka_unit_test(a_client_that_connects_too_fast_is_refused_for_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
