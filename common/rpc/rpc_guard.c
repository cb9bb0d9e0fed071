/* rpc_guard.c - finds the sockets of abusive connections and shuts them down. */
#include "rpc/rpc_guard.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/log_pace.h"
#include "base/metrics.h"
#include "base/thread.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_wire.h"

/* A sender on the same machine can send 100 MB in this time. A scan takes 3 system calls per
 * descriptor. */
#define SCAN_MS 100
/* While an address is banned, since its connections must not last; and while clients have many
 * unexplained bytes. */
#define FAST_SCAN_MS 20
#define MAX_PAUSE_MS 1000
#define MAX_FDS (1 << 20) // more than a process usually may open

struct rpc_guard {
    struct rpc_peers *peers;
    bool ports[UINT16_MAX + 1];  // where the server listens
    atomic_bool watches;         // ports, or users
    atomic_uint_fast64_t *users; // (MAX_FDS) cookies of unix sockets of other users
    DIR *descriptors;            // /proc/self/fd, open so that a scan needs no descriptor
    int wake_fd;
    int pin_fd; // for a duplicate of the descriptor to shut down
    atomic_bool stopping;
    pthread_t thread;
    const struct rpc_worker *workers;
    unsigned n_workers;
    int64_t awake_us; // since when the process has not been stopped
    struct metric *ended[RPC_PEERS_ENDS];
    struct log_pace pace;
};

static const char *const reasons[RPC_PEERS_ENDS] = {
    [RPC_PEERS_RESETS] = "resets", [RPC_PEERS_CHEAP] = "calls", [RPC_PEERS_REFUSED] = "refused",
    [RPC_PEERS_BYTES] = "bytes",   [RPC_PEERS_STALL] = "stall", [RPC_PEERS_CROWD] = "crowd",
    [RPC_PEERS_BAN] = "ban"};

static void register_metrics(struct rpc_guard *g)
{
    char label[32];
    for (int i = RPC_PEERS_KEEP + 1; i < RPC_PEERS_ENDS; i++) {
        snprintf(label, sizeof(label), "reason=\"%s\"", reasons[i]);
        g->ended[i] =
            metrics_counter("tandem_rpc_ended_connections_total",
                            "gRPC connections ended because their peer abused the service.", label);
    }
}

/* Half of the descriptors stay for other things. */
static unsigned max_connections(void)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    bool few = limit.rlim_cur / 2 < RPC_PEERS_CONNECTIONS_MAX;
    return few ? (unsigned)limit.rlim_cur / 2 : RPC_PEERS_CONNECTIONS_MAX;
}

int rpc_guard_new(const struct rpc_worker *workers, unsigned n_workers, size_t client_bytes,
                  struct rpc_guard **ret)
{
    struct rpc_guard *g = rpc_alloc(1, sizeof(*g));
    g->peers =
        rpc_peers_new(max_connections(), client_bytes ? client_bytes : RPC_PEERS_CLIENT_BYTES_MAX);
    g->workers = workers;
    g->n_workers = n_workers;
    g->users = rpc_alloc(MAX_FDS, sizeof(*g->users)); // of which few pages are used
    g->descriptors = opendir("/proc/self/fd");
    g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->pin_fd = g->wake_fd < 0 ? -1 : fcntl(g->wake_fd, F_DUPFD_CLOEXEC, 0);
    register_metrics(g);
    if (!g->descriptors || g->wake_fd < 0 || g->pin_fd < 0) {
        int r = fail(-errno, "cannot watch connections by /proc/self/fd: %s", strerror(errno));
        rpc_guard_free(g);
        return r;
    }
    *ret = g;
    return 0;
}

static void wake(struct rpc_guard *g)
{
    eventfd_write(g->wake_fd, 1);
}

void rpc_guard_free(struct rpc_guard *g)
{
    if (!g)
        return;
    atomic_store(&g->stopping, true);
    if (g->thread) {
        wake(g);
        pthread_join(g->thread, NULL);
    }
    if (g->descriptors)
        closedir(g->descriptors);
    if (g->wake_fd >= 0)
        close(g->wake_fd);
    if (g->pin_fd >= 0)
        close(g->pin_fd);
    rpc_peers_free(g->peers);
    free(g->users);
    free(g);
}

void rpc_guard_watch(struct rpc_guard *g, uint16_t port)
{
    g->ports[port] = true;
    atomic_store(&g->watches, true);
}

/* ---- the sockets ---- */

/* The client's address of a connected TCP socket. */
static bool peer_of(int fd, struct rpc_peer_address *ret)
{
    struct sockaddr_storage a = {0};
    return getpeername(fd, (struct sockaddr *)&a, &(socklen_t){sizeof(a)}) == 0 &&
           rpc_peer_address_of(&a, ret);
}

/* 0: the system does not tell it. */
static uint64_t cookie_of(int fd)
{
    uint64_t cookie = 0;
    getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &(socklen_t){sizeof(cookie)});
    return cookie;
}

static bool is_tcp(int fd)
{
    struct sockaddr_storage a = {0};
    struct rpc_peer_address own;
    return getsockname(fd, (struct sockaddr *)&a, &(socklen_t){sizeof(a)}) == 0 &&
           rpc_peer_address_of(&a, &own);
}

void rpc_guard_watch_user(struct rpc_guard *g, int fd)
{
    if (fd >= MAX_FDS || is_tcp(fd))
        return;
    atomic_store(&g->users[fd], cookie_of(fd));
    if (!atomic_exchange(&g->watches, true))
        wake(g);
}

/* Whether the socket is one of another user. It was accepted with this number. */
static bool is_of_user(const struct rpc_guard *g, int number, int fd, sa_family_t family)
{
    uint64_t cookie = family == AF_UNIX && number < MAX_FDS ? atomic_load(&g->users[number]) : 0;
    return cookie && cookie == cookie_of(fd);
}

/* Whether the server has accepted this socket, with this number. *ret: its client. */
static bool is_ours(const struct rpc_guard *g, int number, int fd, struct rpc_peer_address *ret)
{
    struct sockaddr_storage a = {0};
    struct rpc_peer_address own;
    if (getsockname(fd, (struct sockaddr *)&a, &(socklen_t){sizeof(a)}) < 0)
        return false;
    if (is_of_user(g, number, fd, a.ss_family)) {
        rpc_peer_address_of_user(fd, ret);
        return true;
    }
    return rpc_peer_address_of(&a, &own) && g->ports[own.port] && peer_of(fd, ret);
}

/* gRPC core may have closed fd since its address was read. A kernel or a sandbox without these
 * counts leaves them 0. */
static void saw(struct rpc_guard *g, int fd, const struct rpc_peer_address *a)
{
    struct tcp_info t = {0};
    uint64_t cookie = cookie_of(fd);
    bool is_unix = memcmp(&cookie, a->ip + 8, sizeof(cookie)) == 0;
    if (is_unix)
        t.tcpi_bytes_received = rpc_wire_received(fd);
    else if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &(socklen_t){sizeof(t)}) < 0)
        return;
    const struct rpc_peer_socket socket = {
        .cookie = cookie, .received = t.tcpi_bytes_received, .acked = t.tcpi_bytes_acked};
    unsigned n_settled = rpc_peers_saw(g->peers, a, &socket, clock_us());
    if (n_settled)
        rpc_wire_settled(fd, n_settled);
}

static void report(struct rpc_guard *g, enum rpc_peers_end reason, const struct rpc_peer_address *a)
{
    char from[RPC_PEER_ADDRESS_MAX];
    metrics_add(g->ended[reason], 1);
    unsigned n = log_pace_due(&g->pace, clock_us());
    if (n)
        log_warn("connection ended, its client abuses the service from=%s reason=%s ended=%u",
                 rpc_peer_address_text(a, from), reasons[reason], n);
}

/* Drops what gRPC core has not read. Later bytes are refused by the system. */
static void drop_unread(int fd)
{
    char unread[16384];
    while (recv(fd, unread, sizeof(unread), MSG_DONTWAIT) > 0)
        ;
}

/* gRPC core may close fd at any time, and another socket may get its number. The duplicate stays
 * the same socket. It takes the number of an open descriptor, so there always is one. */
static void end_if_due(struct rpc_guard *g, int fd, const struct rpc_peer_address *a)
{
    struct rpc_peer_address actual;
    if (dup3(fd, g->pin_fd, O_CLOEXEC) < 0)
        return;
    if (is_ours(g, fd, g->pin_fd, &actual) && memcmp(&actual, a, sizeof(actual)) == 0) {
        enum rpc_peers_end reason = rpc_peers_take(g->peers, a, cookie_of(g->pin_fd));
        if (reason) {
            report(g, reason, a); // before the client notices
            shutdown(g->pin_fd, SHUT_RDWR);
            drop_unread(g->pin_fd);
        }
    }
    dup3(g->wake_fd, g->pin_fd, O_CLOEXEC);
}

static void for_each_connection(struct rpc_guard *g, void (*fn)(struct rpc_guard *g, int fd,
                                                                const struct rpc_peer_address *a))
{
    struct rpc_peer_address a;
    rewinddir(g->descriptors);
    for (struct dirent *e; (e = readdir(g->descriptors));) {
        int fd = *e->d_name == '.' ? -1 : atoi(e->d_name);
        if (fd >= 0 && is_ours(g, fd, fd, &a))
            fn(g, fd, &a);
    }
}

/* Since when the thread that entered gRPC core first has been there. */
static int64_t stalled_since_us(const struct rpc_guard *g)
{
    int64_t oldest = INT64_MAX;
    for (unsigned i = 0; i < g->n_workers; i++) {
        int64_t in_core_us = atomic_load(&g->workers[i].in_core_us);
        oldest = in_core_us < oldest ? in_core_us : oldest;
    }
    return oldest > g->awake_us ? oldest : g->awake_us;
}

/* A stall is judged by the time when the scan begins, so a long scan is none. */
static void scan(struct rpc_guard *g)
{
    int64_t begin_us = clock_us(), stalled_us = stalled_since_us(g);
    rpc_peers_scan_begin(g->peers);
    for_each_connection(g, saw);
    rpc_peers_memory(g->peers, mallinfo2().uordblks); // weights and KV are not in it
    if (rpc_peers_scan_end(g->peers, stalled_us, begin_us))
        for_each_connection(g, end_if_due);
}

/* Until the next scan, or until a connection must end. Scans take at most half of the time. */
static void pause_after(struct rpc_guard *g, int64_t scan_us)
{
    struct pollfd p = {.fd = g->wake_fd, .events = POLLIN};
    int64_t begin_us = clock_us();
    bool fast = rpc_peers_any_banned(g->peers, begin_us) || rpc_peers_many_bytes(g->peers);
    int ms = fast ? FAST_SCAN_MS : SCAN_MS;
    if (scan_us > ms * 1000)
        ms = scan_us < MAX_PAUSE_MS * 1000 ? (int)(scan_us / 1000) : MAX_PAUSE_MS;
    poll(&p, 1, atomic_load(&g->watches) ? ms : -1);
    eventfd_read(g->wake_fd, &(eventfd_t){0});
    if (clock_us() - begin_us > ms * 1000 + RPC_PEERS_STALL_US / 2)
        g->awake_us = clock_us(); // the process was stopped, or got no CPU
}

static void *guard_main(void *arg)
{
    struct rpc_guard *g = arg;
    while (!atomic_load(&g->stopping)) {
        int64_t begin_us = clock_us();
        scan(g);
        pause_after(g, clock_us() - begin_us);
    }
    return NULL;
}

int rpc_guard_start(struct rpc_guard *g)
{
    g->awake_us = clock_us();
    return thread_start(guard_main, g, 0, &g->thread);
}

/* ---- calls ---- */

static bool user_of(const struct rpc_guard *g, int fd, struct rpc_peer_address *ret)
{
    bool found = is_of_user(g, fd, fd, AF_UNIX);
    if (found)
        rpc_peer_address_of_user(fd, ret);
    return found;
}

/* For a connection that rpc_listen.h accepted, gRPC core only tells the descriptor. It closes that
 * after the last call of the connection is freed, so the number still names the connection. But one
 * that its client has reset has no address. *ret_over: it is such a connection. */
static bool read_peer(const struct rpc_guard *g, const char *peer, struct rpc_peer_address *ret,
                      bool *ret_over)
{
    *ret_over = false;
    if (strncmp(peer, "fd:", 3) != 0)
        return rpc_peer_address_read(peer, ret);
    int fd = atoi(peer + 3);
    bool found = peer_of(fd, ret) || user_of(g, fd, ret);
    *ret_over = !found && is_tcp(fd);
    return found;
}

int rpc_guard_call(struct rpc_guard *g, const char *peer, const struct rpc_peer_call *call,
                   struct rpc_peer **ret)
{
    struct rpc_peer_address a;
    bool over;
    *ret = NULL;
    if (!atomic_load(&g->watches))
        return 0;
    if (!read_peer(g, peer, &a, &over))
        return over ? -ECONNABORTED : 0;
    *ret = rpc_peers_call(g->peers, &a, call, clock_us());
    return *ret ? 0 : -ECONNABORTED;
}

void rpc_guard_message(struct rpc_guard *g, struct rpc_peer *p, size_t bytes)
{
    if (p)
        rpc_peer_message(g->peers, p, bytes);
}

void rpc_guard_sent(struct rpc_guard *g, struct rpc_peer *p)
{
    if (p)
        rpc_peer_sent(g->peers, p);
}

void rpc_guard_reset(struct rpc_guard *g, struct rpc_peer *p)
{
    if (p && rpc_peer_reset(g->peers, p, clock_us()))
        wake(g);
}

void rpc_guard_cheap(struct rpc_guard *g, struct rpc_peer *p)
{
    if (p)
        rpc_peer_cheap(g->peers, p, clock_us());
}

void rpc_guard_refused(struct rpc_guard *g, struct rpc_peer *p)
{
    if (p && rpc_peer_refused(g->peers, p, clock_us()))
        wake(g);
}

void rpc_guard_refused_done(struct rpc_guard *g, struct rpc_peer *p)
{
    if (p)
        rpc_peer_refused_done(g->peers, p);
}

void rpc_guard_done(struct rpc_guard *g, struct rpc_peer *p)
{
    if (p)
        rpc_peer_done(g->peers, p, clock_us());
}
