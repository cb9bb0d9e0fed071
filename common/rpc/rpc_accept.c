/* rpc_accept.c - accept4() for gRPC core. */
#include "rpc/rpc_accept.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/log_pace.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "rpc/rpc_peers.h"
#include "rpc/rpc_rate.h"

#define TAKEN_MS 10
#define KEPT_PART 4 // 1 / KEPT_PART of the descriptors is for the own user and operators

static atomic_bool watched[UINT16_MAX + 1];

enum reason { RATE, DESCRIPTORS, N_REASONS };

static struct {
    pthread_once_t once;
    pthread_mutex_t mu; // guards the fields below
    int reserve_fd;     // closed to accept a connection that must be closed; -1: none
    struct rpc_rate rate;
} gate = {.once = PTHREAD_ONCE_INIT,
          .mu = PTHREAD_MUTEX_INITIALIZER,
          .reserve_fd = -1,
          .rate = {.limit = {RPC_ACCEPT_PER_S, RPC_ACCEPT_BURST}}};

static struct {
    const char *label;
    struct metric *count;
    struct log_pace pace;
} refused[N_REASONS] = {
    [RATE] = {.label = "reason=\"rate\""}, [DESCRIPTORS] = {.label = "reason=\"descriptors\""}};

static void fill_reserve(void)
{
    if (gate.reserve_fd < 0)
        gate.reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void init_gate(void)
{
    for (int i = 0; i < N_REASONS; i++)
        refused[i].count =
            metrics_counter("tandem_rpc_refused_connections_total",
                            "Connections closed when they were accepted.", refused[i].label);
    gate.rate.seed = rng_secret();
    fill_reserve();
}

void rpc_accept_init(void)
{
    pthread_once(&gate.once, init_gate);
}

void rpc_accept_watch(uint16_t port)
{
    atomic_store(&watched[port], true);
}

static bool is_watched(int fd)
{
    struct sockaddr_storage a = {0};
    struct rpc_peer_address own;
    return getsockname(fd, (struct sockaddr *)&a, &(socklen_t){sizeof(a)}) == 0 &&
           rpc_peer_address_of(&a, &own) && atomic_load(&watched[own.port]);
}

static int system_accept(int fd, struct sockaddr *a, socklen_t *len, int flags)
{
    return (int)syscall(SYS_accept4, fd, a, len, flags);
}

static void report(enum reason reason)
{
    metrics_add(refused[reason].count, 1);
    unsigned n = log_pace_due(&refused[reason].pace, clock_us());
    if (n)
        log_warn("connections refused %s refused=%u", refused[reason].label, n);
}

/* Whether an accepted connection may stay. Descriptors are free, so the reserve is filled again. */
static bool admit(const struct rpc_peer_address *a)
{
    uint8_t client[16];
    rpc_peer_client(a, client);
    pthread_mutex_lock(&gate.mu);
    fill_reserve();
    bool ok = rpc_rate_take(&gate.rate, client, 1, clock_us());
    pthread_mutex_unlock(&gate.mu);
    return ok;
}

static bool is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* Whether the connection that waited had this error, see accept(2). The next one may be good. */
static bool is_of_connection(int error)
{
    return error == ECONNABORTED || error == EPROTO || error == EPERM || error == ENETDOWN ||
           error == EHOSTDOWN || error == EHOSTUNREACH || error == ENETUNREACH || error == ENONET;
}

/* Closes one waiting connection. False: none waits, or another thread took the descriptor. */
static bool close_waiting(int fd)
{
    pthread_mutex_lock(&gate.mu);
    if (gate.reserve_fd >= 0)
        close(gate.reserve_fd);
    gate.reserve_fd = -1;
    int c = system_accept(fd, NULL, NULL, SOCK_CLOEXEC);
    bool taken = c < 0 && is_shortage(errno);
    if (c >= 0) {
        report(DESCRIPTORS); // before the client notices
        close(c);
    }
    fill_reserve();
    pthread_mutex_unlock(&gate.mu);
    if (taken)
        poll(NULL, 0, TAKEN_MS); // rpc_listen.h would try again without a pause
    return c >= 0;
}

static int accept_for_core(int fd, int flags, struct sockaddr_storage *from)
{
    for (;;) {
        socklen_t len = sizeof(*from);
        int c = system_accept(fd, (struct sockaddr *)from, &len, flags);
        struct rpc_peer_address a;
        if (c >= 0 && rpc_peer_address_of(from, &a) && admit(&a))
            return c;
        if (c >= 0) {
            report(RATE); // before the client notices
            close(c);
        } else if (is_shortage(errno)) {
            if (!close_waiting(fd)) {
                errno = EAGAIN; // the next connection wakes gRPC core again
                return -1;
            }
        } else if (!is_of_connection(errno)) {
            return -1;
        }
    }
}

/* Replaces that of the C library, also for shared libraries. */
__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *a, socklen_t *len,
                                                   int flags)
{
    struct sockaddr_storage from = {0};
    if (!is_watched(fd))
        return system_accept(fd, a, len, flags);
    int c = accept_for_core(fd, flags, &from);
    if (c >= 0 && a && len) {
        memcpy(a, &from, *len < sizeof(from) ? *len : sizeof(from));
        *len = from.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    }
    return c;
}

/* The system gives out the lowest free descriptor. */
static bool is_high(int fd)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    getrlimit(RLIMIT_NOFILE, &limit);
    return (rlim_t)fd >= limit.rlim_cur - limit.rlim_cur / KEPT_PART;
}

bool rpc_accept_keeps(int fd)
{
    struct sockaddr_storage own = {0};
    struct rpc_peer_address a;
    getsockname(fd, (struct sockaddr *)&own, &(socklen_t){sizeof(own)});
    if (own.ss_family != AF_UNIX)
        return true;
    rpc_peer_address_of_user(fd, &a);
    bool admitted = admit(&a);
    if (admitted && !is_high(fd))
        return true;
    report(admitted ? DESCRIPTORS : RATE); // before the client notices
    close(fd);
    return false;
}
