/* rpc_wire.c - follows the frames of each connection of gRPC core. */
#include "rpc/rpc_wire.h"
#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/log_pace.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_frames.h"
#include "rpc/rpc_peers.h"
#include "rpc/rpc_rate.h"
#include "rpc/rpc_roles.h"
#include "rpc/rpc_tls.h"

#define MAX_FDS (1 << 20) // more than a process usually may open

/* A connection of gRPC core. */
struct connection {
    struct rpc_frames frames;
    uint64_t n_received;                                       // bytes
    bool (*call_passes)(struct connection *c, int64_t now_us); // with the lock; NULL: all do
    uint8_t client[16]; // as of rpc_peer_client(), or the begin of a certificate's hash
    unsigned n_settled; // connections that have parts of the client's share; 0: it is not settled
    int64_t due_us;     // of its part, see rpc_rate_pass()
};

/* What is known of a descriptor's socket. It stays when the descriptor is closed. */
struct wire {
    pthread_mutex_t mu;
    ino_t socket; // the last one with this descriptor
    struct connection connection;
};

static struct {
    pthread_once_t once;
    ssize_t (*recvmsg)(int fd, struct msghdr *m, int flags);
    int (*ssl_read)(SSL *ssl, void *to, int n);
    int index; // of the struct connection in an SSL
    struct metric *ended;
    struct log_pace pace;
} next = {.once = PTHREAD_ONCE_INIT};
static _Atomic(struct wire *) wires[MAX_FDS];
static struct {
    pthread_mutex_t mu;
    struct rpc_rate services, shares;
    int64_t all_us;               // of all clients, see rpc_rate_pass()
    struct rpc_rate_clients busy; // their calls are above the rate of all
} calls = {.mu = PTHREAD_MUTEX_INITIALIZER,
           .services = {.limit = {RPC_WIRE_SERVICE_PER_S, RPC_WIRE_SERVICE_BURST}},
           .shares = {.limit = {RPC_WIRE_SHARES_PER_S, RPC_WIRE_SHARES_BURST}}};

/* gRPC core reads a TLS connection in one thread at a time, but by locks that ThreadSanitizer does
 * not see. Connections share these locks. */
static pthread_mutex_t tls_mu[64] = {[0 ... 63] = PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t *mutex_of(const void *ssl)
{
    return &tls_mu[(uintptr_t)ssl / 64 % ARRAY_LEN(tls_mu)];
}

static void free_connection(void *ssl, void *connection, CRYPTO_EX_DATA *all, int index, long n,
                            void *p)
{
    (void)all, (void)index, (void)n, (void)p;
    pthread_mutex_lock(mutex_of(ssl));
    free(connection);
    pthread_mutex_unlock(mutex_of(ssl));
}

static void init(void)
{
    calls.services.seed = calls.shares.seed = rng_secret();
    *(void **)&next.recvmsg = dlsym(RTLD_NEXT, "recvmsg");
    *(void **)&next.ssl_read = dlsym(RTLD_NEXT, "SSL_read");
    next.index = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_connection);
    next.ended = metrics_counter("tandem_rpc_ended_connections_total",
                                 "gRPC connections ended because their peer abused the service.",
                                 "reason=\"frames\"");
}

void rpc_wire_init(void)
{
    pthread_once(&next.once, init);
}

static void report(const char *from)
{
    metrics_add(next.ended, 1);
    unsigned n = log_pace_due(&next.pace, clock_us());
    if (n)
        log_warn("connection ended, its peer sends an endless header, or too many frames or calls "
                 "from=%s reason=frames ended=%u",
                 from, n);
}

/* ---- what may pass ---- */

static bool service_passes(struct connection *c, int64_t now_us)
{
    return rpc_rate_take(&calls.services, c->client, 1, now_us);
}

static bool share_passes(struct connection *c, int64_t now_us)
{
    unsigned n =
        rpc_rate_present(&calls.busy, rpc_rate_place(calls.shares.seed, c->client), now_us);
    n = n < RPC_WIRE_SHARES_MAX ? n : RPC_WIRE_SHARES_MAX;
    return (c->n_settled &&
            rpc_rate_pass(&c->due_us, &calls.shares.limit, n * c->n_settled, now_us)) ||
           rpc_rate_take(&calls.shares, c->client, n, now_us);
}

static bool client_passes(struct connection *c, int64_t now_us)
{
    static const struct rpc_rate_limit all = {RPC_WIRE_ALL_PER_S, RPC_WIRE_ALL_BURST};
    return rpc_rate_pass(&calls.all_us, &all, 1, now_us) || share_passes(c, now_us);
}

static bool call_passes(struct connection *c, int64_t now_us)
{
    pthread_mutex_lock(&calls.mu);
    bool ok = c->call_passes(c, now_us);
    pthread_mutex_unlock(&calls.mu);
    return ok;
}

/* Whether the next bytes of the peer may pass. */
static bool bytes_pass(struct connection *c, const void *bytes, size_t n, int64_t now_us)
{
    uint64_t before = c->frames.n_calls;
    c->n_received += n;
    bool ok = rpc_frames_pass(&c->frames, bytes, n, now_us);
    for (uint64_t i = before; c->call_passes && ok && i < c->frames.n_calls; i++)
        ok = call_passes(c, now_us);
    if (!ok)
        c->frames.state = RPC_FRAMES_OVER;
    return ok;
}

/* ---- without TLS ---- */

/* NULL: fd is no socket, or too high. */
static struct wire *wire_of(int fd, ino_t *ret_socket)
{
    struct stat st;
    if (fd < 0 || fd >= MAX_FDS || fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode))
        return NULL;
    *ret_socket = st.st_ino;
    struct wire *w = atomic_load(&wires[fd]);
    if (w)
        return w;
    struct wire *made = rpc_alloc(1, sizeof(*made));
    pthread_mutex_init(&made->mu, NULL);
    if (atomic_compare_exchange_strong(&wires[fd], &w, made))
        return made;
    free(made); // another thread was faster; w is its
    return w;
}

static bool message_passes(struct connection *c, const struct msghdr *m, size_t n)
{
    int64_t now_us = clock_us();
    bool ok = true;
    for (size_t i = 0; i < m->msg_iovlen && n && ok; i++) {
        size_t part = m->msg_iov[i].iov_len < n ? m->msg_iov[i].iov_len : n;
        ok = bytes_pass(c, m->msg_iov[i].iov_base, part, now_us);
        n -= part;
    }
    return ok;
}

/* False: fd is no unix socket, or its other end is the own user. */
static bool is_other_user(int fd, sa_family_t family, uint8_t ret_client[16])
{
    struct rpc_peer_address a;
    if (family != AF_UNIX || rpc_roles_is_own_user(fd))
        return false;
    rpc_peer_address_of_user(fd, &a);
    rpc_peer_client(&a, ret_client);
    return true;
}

/* With its lock: another socket has the descriptor. One without a peer was reset before its first
 * byte was read. Its calls have nobody to answer to, and nobody to be counted for. */
static void begin(struct wire *w, int fd, ino_t socket)
{
    struct connection *c = &w->connection;
    struct sockaddr_storage a = {0};
    struct rpc_peer_address peer;
    w->socket = socket;
    *c = (struct connection){0};
    if (getpeername(fd, (struct sockaddr *)&a, &(socklen_t){sizeof(a)}) < 0)
        c->frames.state = RPC_FRAMES_OVER;
    bool is_tcp = rpc_peer_address_of(&a, &peer);
    if (is_tcp)
        rpc_peer_client(&peer, c->client);
    if (is_tcp || is_other_user(fd, a.ss_family, c->client))
        c->call_passes = client_passes;
}

void rpc_wire_settled(int fd, unsigned n)
{
    ino_t socket;
    struct wire *w = wire_of(fd, &socket);
    if (!w)
        return;
    pthread_mutex_lock(&w->mu);
    if (w->socket == socket)
        w->connection.n_settled = n;
    pthread_mutex_unlock(&w->mu);
}

uint64_t rpc_wire_received(int fd)
{
    ino_t socket;
    struct wire *w = wire_of(fd, &socket);
    if (!w)
        return 0;
    pthread_mutex_lock(&w->mu);
    uint64_t n = w->socket == socket ? w->connection.n_received : 0;
    pthread_mutex_unlock(&w->mu);
    return n;
}

/* Whether the n bytes that were read from fd may pass. *ret_ends: they are the first that may not.
 * gRPC core reads again what the system still holds of a connection that is shut down. */
static bool received(int fd, const struct msghdr *m, size_t n, bool *ret_ends)
{
    ino_t socket;
    struct wire *w = wire_of(fd, &socket);
    *ret_ends = false;
    if (!w)
        return true;
    pthread_mutex_lock(&w->mu);
    if (w->socket != socket)
        begin(w, fd, socket);
    bool over = w->connection.frames.state == RPC_FRAMES_OVER;
    bool ok = message_passes(&w->connection, m, n);
    pthread_mutex_unlock(&w->mu);
    *ret_ends = !ok && !over;
    return ok;
}

static void end_connection(int fd)
{
    char from[RPC_PEER_ADDRESS_MAX] = "unknown";
    struct sockaddr_storage a = {0};
    struct rpc_peer_address peer;
    getpeername(fd, (struct sockaddr *)&a, &(socklen_t){sizeof(a)});
    if (rpc_peer_address_of(&a, &peer))
        rpc_peer_address_text(&peer, from);
    else if (a.ss_family == AF_UNIX)
        strcpy(from, "unix");
    report(from); // before the peer notices
    shutdown(fd, SHUT_RDWR);
}

/* Replaces that of the C library, also for shared libraries. */
__attribute__((visibility("default"))) ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
    rpc_wire_init();
    bool ends;
    ssize_t n = next.recvmsg(fd, m, flags);
    if (n <= 0 || flags || received(fd, m, (size_t)n, &ends))
        return n;
    if (ends)
        end_connection(fd);
    return 0;
}

/* ---- with TLS ---- */

/* Each client of a server has a certificate. */
static void begin_tls(struct connection *c, const SSL *ssl)
{
    uint8_t hash[EVP_MAX_MD_SIZE] = {0};
    const X509 *x = SSL_is_server(ssl) ? SSL_get0_peer_certificate(ssl) : NULL;
    if (!x || !X509_digest(x, EVP_sha256(), hash, NULL))
        return;
    memcpy(c->client, hash, sizeof(c->client));
    c->call_passes = rpc_tls_roles(x) & ~RPC_ROLE_CLIENT ? service_passes : client_passes;
}

/* NULL: there is no memory. */
static struct connection *connection_of(SSL *ssl)
{
    struct connection *c = SSL_get_ex_data(ssl, next.index);
    if (c)
        return c;
    c = rpc_alloc(1, sizeof(*c));
    begin_tls(c, ssl);
    if (SSL_set_ex_data(ssl, next.index, c))
        return c;
    free(c);
    return NULL;
}

/* As received(), for a TLS connection. */
static bool decrypted(SSL *ssl, const void *bytes, size_t n, bool *ret_ends)
{
    pthread_mutex_lock(mutex_of(ssl));
    struct connection *c = connection_of(ssl);
    bool over = c && c->frames.state == RPC_FRAMES_OVER;
    bool ok = !c || bytes_pass(c, bytes, n, clock_us());
    pthread_mutex_unlock(mutex_of(ssl));
    *ret_ends = !ok && !over;
    return ok;
}

/* Replaces that of OpenSSL. gRPC core closes a connection after an error, and reads its code from
 * OpenSSL's queue. */
__attribute__((visibility("default"))) int SSL_read(SSL *ssl, void *to, int n)
{
    rpc_wire_init();
    bool ends;
    int got = next.ssl_read(ssl, to, n);
    if (got <= 0 || decrypted(ssl, to, (size_t)got, &ends))
        return got;
    if (ends)
        report("TLS");
    ERR_raise(ERR_LIB_USER, 1);
    return -1;
}
