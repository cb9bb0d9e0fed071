/* test_rpc_accept.c - floods of connections leave a server that serves others. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/metrics.h"
#include "lib/clients/http2_client.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_accept.h"
#include "rpc/rpc_wire.h"

static atomic_int_fast64_t ahead_us;   // of the clock
static atomic_int_fast64_t stopped_us; // the time of the clock if it stands; 0: it runs

int64_t __real_clock_us(void);
int64_t __wrap_clock_us(void);
int64_t __wrap_clock_us(void)
{
    int64_t stopped = atomic_load(&stopped_us);
    return stopped ? stopped : __real_clock_us() + atomic_load(&ahead_us);
}

uint64_t __wrap_rng_secret(void);
uint64_t __wrap_rng_secret(void)
{
    return 1; // 127.0.0.1 and ::1 have different places in the table of rates
}

static atomic_bool no_reserve; // open() fails

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    if (!atomic_load(&no_reserve))
        return __real_open(path, flags);
    errno = EMFILE;
    return -1;
}

struct accept_rig {
    struct rpc_health *health;
    struct rpc_server *server;
    uint16_t port;
};

/* ret_port6: of ::1, if not NULL; negative: this machine has none. */
static void init(struct accept_rig *a, int *ret_port6)
{
    memset(&rpc_rig_seen, 0, sizeof(rpc_rig_seen));
    a->health = rpc_health_new();
    a->server = rpc_rig_server(NULL, a->health);
    a->port = (uint16_t)rpc_server_listen(a->server, "127.0.0.1:0");
    if (ret_port6)
        *ret_port6 = rpc_server_listen(a->server, "[::1]:0");
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

/* Opens descriptors until the process has no free one. gRPC core closes those of earlier servers
 * and clients late, so none may become free for SETTLE_MS. Returns the number. */
static int take_descriptors(int fds[], int max)
{
    enum { SETTLE_MS = 200 };
    int n = 0, before;
    do {
        before = n;
        while (n < max && (fds[n] = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
            n++;
        poll(NULL, 0, SETTLE_MS);
    } while (n != before);
    return n;
}

#define N_CLIENTS 16

/* Connects N_CLIENTS sockets while the process has no free descriptor, until `closed` of them are
 * closed. Returns the number that are. */
static int connect_without_descriptors(uint16_t port, int clients[N_CLIENTS], int closed)
{
    enum { MAX = 256 };
    struct rlimit limit, few;
    int taken[MAX], n_closed = 0;
    char byte;
    for (int i = 0; i < N_CLIENTS; i++)
        clients[i] = tcp_socket();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){.rlim_cur = MAX, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int n_taken = take_descriptors(taken, MAX);
    for (int i = 0; i < N_CLIENTS; i++)
        connect_to(clients[i], port);
    for (int i = 0; i < closed; i++) {
        ssize_t n = recv(clients[i], &byte, 1, 0);
        n_closed += n == 0 || (n < 0 && errno == ECONNRESET);
    }
    for (int i = 0; i < n_taken; i++)
        close(taken[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(n_taken < MAX);
    return n_closed;
}

static void close_all(const int clients[N_CLIENTS])
{
    for (int i = 0; i < N_CLIENTS; i++)
        close(clients[i]);
}

static void without_descriptors_the_listener_stays(void **state)
{
    (void)state;
    struct accept_rig a;
    int clients[N_CLIENTS];
    init(&a, NULL);
    double before = refused("descriptors");
    assert_int_equal(connect_without_descriptors(a.port, clients, N_CLIENTS), N_CLIENTS);
    assert_true(refused("descriptors") - before == N_CLIENTS);
    assert_int_equal(echo("127.0.0.1", a.port), RPC_OK);
    close_all(clients);
    done(&a);
}

/* Another thread may take the descriptor of the reserve. Then connections wait for the next one. */
static void a_reserve_that_was_lost_is_filled_again(void **state)
{
    (void)state;
    struct accept_rig a;
    int clients[N_CLIENTS];
    init(&a, NULL);
    double before = refused("descriptors");
    atomic_store(&no_reserve, true);
    assert_int_equal(connect_without_descriptors(a.port, clients, 1), 1);
    atomic_store(&no_reserve, false);
    assert_true(refused("descriptors") - before == 1);
    assert_int_equal(echo("127.0.0.1", a.port), RPC_OK);
    close_all(clients);
    done(&a);
    without_descriptors_the_listener_stays(state);
}

/* Until the first is refused. Returns the number of connections. */
static int connect_too_fast(uint16_t port)
{
    enum { MAX = 8 * RPC_ACCEPT_BURST };
    double before = refused("rate");
    int n = 0;
    for (; refused("rate") == before && n < MAX; n++) {
        int fd = tcp_socket();
        connect_to(fd, port);
        close(fd);
    }
    assert_true(n < MAX);
    return n;
}

static void a_client_that_connects_too_fast_is_refused_for_a_while(void **state)
{
    (void)state;
    struct accept_rig a;
    init(&a, NULL);
    atomic_fetch_add(&ahead_us, 60000000); // what tests before have used is forgotten
    assert_true(connect_too_fast(a.port) >= RPC_ACCEPT_BURST);
    atomic_fetch_add(&ahead_us, 60000000);
    assert_int_equal(echo("127.0.0.1", a.port), RPC_OK);
    done(&a);
}

static void another_client_is_not_refused_with_it(void **state)
{
    (void)state;
    struct accept_rig a;
    int port6;
    init(&a, &port6);
    if (port6 > 0) {
        char byte;
        atomic_store(&stopped_us, clock_us() + 60000000);
        connect_too_fast(a.port);
        assert_int_equal(echo("[::1]", (uint16_t)port6), RPC_OK);
        int fd = tcp_socket(); // the rate is still used up
        connect_to(fd, a.port);
        assert_true(recv(fd, &byte, 1, 0) <= 0);
        close(fd);
        atomic_store(&stopped_us, 0);
        atomic_fetch_add(&ahead_us, 120000000);
    }
    done(&a);
    if (port6 < 0)
        lib_skip("this machine has no ::1");
}

static double ended(void)
{
    return metrics_value(
        metrics_counter("tandem_rpc_ended_connections_total", "", "reason=\"frames\""));
}

/* On many connections, each of which it closes before the calls are known. */
static void a_client_that_begins_too_many_calls_loses_connections(void **state)
{
    enum { EACH = 200, CALLS = RPC_WIRE_ALL_BURST + RPC_WIRE_SHARES_BURST };
    (void)state;
    struct accept_rig a;
    init(&a, NULL);
    atomic_fetch_add(&ahead_us, 60000000);
    atomic_store(&stopped_us, clock_us());
    double before = ended();
    for (int i = 0; i < 4 * CALLS / EACH && ended() == before; i++) {
        struct http2_client c = http2_client_open_tcp(a.port);
        for (int k = 0; k < EACH; k++)
            http2_client_call(&c, "/test/Echo");
        enum rpc_code code = echo("127.0.0.1", a.port);
        assert_true(code == RPC_OK || ended() > before);
        http2_client_close(&c);
        assert_true(ended() == before || i * EACH >= CALLS - 2 * EACH);
    }
    assert_true(ended() > before);
    atomic_store(&stopped_us, 0);
    done(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_descriptors_the_listener_stays),
        cmocka_unit_test(a_reserve_that_was_lost_is_filled_again),
        cmocka_unit_test(a_client_that_connects_too_fast_is_refused_for_a_while),
        cmocka_unit_test(another_client_is_not_refused_with_it),
        cmocka_unit_test(a_client_that_begins_too_many_calls_loses_connections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
