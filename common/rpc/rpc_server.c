/* rpc_server.c - the server half of rpc: start, listening, all calls, stop. */
#include <errno.h>
#include <grpc/grpc_posix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/loopback.h"
#include "rpc/rpc_accept.h"
#include "rpc/rpc_server_impl.h"

#define ABORT_US 1000000 // for clients to read the status of an aborted call
#define LINGER_MS 60000
#define UNREAD_MAX (256 << 20)
#define HANDSHAKE_MS 10000 // from the connection to the client's first frame

/* ---- the server ---- */

static grpc_server *core_new(const struct rpc_server_options *opt)
{
    int keepalive_ms = opt->keepalive_ms ? (int)opt->keepalive_ms : 30000;
    grpc_arg list[] = {
        RPC_INT_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                    (int)(opt->max_message ? opt->max_message : RPC_MAX_MESSAGE)),
        RPC_INT_ARG(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20), // faster for big messages
        /* With the probe, up to 4 MiB per stream may wait unread before flow control stops the
         * sender. */
        RPC_INT_ARG(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        /* Identity only: gRPC checks the limit above after decompression, too late for gzip
         * bombs. */
        RPC_INT_ARG(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
        RPC_INT_ARG(GRPC_ARG_MAX_CONCURRENT_STREAMS, 8192), // per connection; the next call waits
        RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms),
        RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms / 3),
        /* Without these two, gRPC disconnects clients that ping more often than every 5 minutes. */
        RPC_INT_ARG(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000),
        RPC_INT_ARG(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        /* Closes silent connections on sockets of rpc_listen.h, which have no handshake
         * time-out. */
        RPC_INT_ARG(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 600000),
        RPC_INT_ARG(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_MS),
        RPC_INT_ARG(GRPC_ARG_ALLOW_REUSEPORT, 0), // a second server on the port must fail
    };
    return grpc_server_create(&(grpc_channel_args){ARRAY_LEN(list), list}, NULL);
}

static void add_connection(void *user, int fd, unsigned door)
{
    struct rpc_server *s = user;
    if (door == DOOR_CLIENT && rpc_roles_is_own_user(fd))
        door = DOOR_OWN;
    else if (door == DOOR_CLIENT && !rpc_accept_keeps(fd))
        return;
    else if (door == DOOR_CLIENT)
        rpc_guard_watch_user(s->guard, fd);
    grpc_server_add_channel_from_fd(s->doors[door].core, fd, s->creds);
}

static void linger_due(struct rpc_timer *t);

/* Four checks per linger_ms, so a call exceeds it by at most a quarter. */
static void add_linger_timer(struct rpc_server *s)
{
    s->linger = (struct rpc_timer){.at = rpc_in_us((int64_t)s->linger_ms * 250), .fn = linger_due};
    rpc_worker_add_timer(&s->workers[0], &s->linger);
}

/* So that the thread leaves gRPC core to run it. */
static void beat_due(struct rpc_timer *t)
{
    struct beat *b = OWNER(t, struct beat, t);
    b->t.at = rpc_in_us(RPC_GUARD_BEAT_MS * 1000);
    rpc_worker_add_timer(&b->s->workers[b->worker], &b->t);
}

static void add_beat(struct rpc_server *s, unsigned worker)
{
    struct beat *b = &s->beats[worker];
    *b = (struct beat){.t = {.at = rpc_in_us(0), .fn = beat_due}, .s = s, .worker = worker};
    rpc_worker_add_timer(&s->workers[worker], &b->t);
}

/* The second half of the workers serves the service's own user and operators. So the gateway waits
 * for no flood of calls from other clients: gRPC core polls a queue only while it is empty. */
static bool serves(const struct rpc_server *s, unsigned worker, enum door_kind door)
{
    bool own = door == DOOR_OWN || door == DOOR_ADMIN;
    return own == (worker >= s->n_workers / 2);
}

static void open_doors(struct rpc_server *s, const struct rpc_server_options *opt)
{
    s->doors[DOOR_CLIENT].roles = RPC_ROLE_CLIENT;
    s->doors[DOOR_OWN].roles = opt->own_role ? opt->own_role : RPC_ROLE_CLIENT;
    s->doors[DOOR_ADMIN].roles = RPC_ROLE_OPERATOR;
    for (unsigned d = 0; d < N_DOORS; d++)
        s->doors[d].core = core_new(opt);
    s->refused = metrics_counter("tandem_rpc_refused_calls_total",
                                 "Calls refused because of the client's role.", NULL);
}

int rpc_server_new(const struct rpc_server_options *opt, struct rpc_server **ret)
{
    struct rpc_server *s = rpc_alloc(1, sizeof(*s));
    s->n_workers = 2 * (opt->n_threads ? opt->n_threads : 1);
    s->workers = rpc_alloc(s->n_workers, sizeof(*s->workers));
    int r = rpc_roles_read(opt->tls_roles, &s->tls_roles);
    r = r < 0 ? r : rpc_guard_new(s->workers, s->n_workers, opt->max_unexplained, &s->guard);
    r = r < 0 ? r : rpc_listen_init(&s->listen, add_connection, s);
    if (r < 0) {
        rpc_guard_free(s->guard);
        free(s->workers);
        free(s);
        return r;
    }
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->idle, NULL);
    rpc_init();
    rpc_accept_init();
    open_doors(s, opt);
    s->insecure = opt->insecure;
    s->creds = grpc_insecure_server_credentials_create();
    s->shared.max = opt->max_calls ? opt->max_calls : 8192;
    s->max_unread = opt->max_unread ? opt->max_unread : UNREAD_MAX;
    s->linger_ms = opt->linger_ms ? opt->linger_ms : LINGER_MS;
    s->socket_mode = opt->socket_mode ? opt->socket_mode : 0600;
    s->beats = rpc_alloc(s->n_workers, sizeof(*s->beats));
    s->methods[s->n_methods++].m = &rpc_server_unknown;
    add_linger_timer(s);
    for (unsigned i = 0; i < s->n_workers; i++) {
        s->workers[i].cq = grpc_completion_queue_create_for_next(NULL);
        for (unsigned d = 0; d < N_DOORS; d++)
            if (serves(s, i, d))
                grpc_server_register_completion_queue(s->doors[d].core, s->workers[i].cq, NULL);
        add_beat(s, i);
        if (!r)
            r = rpc_worker_start(&s->workers[i]);
    }
    if (r < 0)
        rpc_server_stop(s, 0);
    else
        *ret = s;
    return r;
}

void rpc_server_add(struct rpc_server *s, const struct rpc_method *m, void *service)
{
    struct method *to = &s->methods[s->n_methods];
    if (s->n_methods > MAX_METHODS || !m->roles)
        abort();
    *to = (struct method){.m = m, .service = service};
    if (m->during_drain)
        to->own.max = m->max_calls ? m->max_calls : RPC_DURING_DRAIN_MAX;
    for (unsigned d = 0; d < N_DOORS; d++) {
        to->handles[d] = grpc_server_register_method(
            s->doors[d].core, m->path, NULL, GRPC_SRM_PAYLOAD_NONE,
            0);              // else core would hold calls without a request, unlimited
        if (!to->handles[d]) // registered twice
            abort();
    }
    pthread_mutex_lock(&s->mu); // linger_due() may run already
    s->n_methods++;
    pthread_mutex_unlock(&s->mu);
}

void rpc_server_limit(struct rpc_server *s, const struct rpc_method *m, unsigned max_calls)
{
    if (m->during_drain)
        abort();
    for (unsigned i = 0; i < s->n_methods; i++) {
        if (s->methods[i].m == m)
            s->methods[i].own.max = max_calls;
    }
}

/* Checks the port, since gRPC core silently listens on port 34463 for 99999. */
static bool has_port(const char *addr)
{
    const char *colon = strrchr(addr, ':');
    size_t n = colon ? strspn(colon + 1, "0123456789") : 0;
    return n >= 1 && n <= 5 && !colon[1 + n] && atoi(colon + 1) <= 65535;
}

/* For the system, the slashes of unix:///path are one. */
static int listen_unix(struct rpc_server *s, const char *addr, mode_t mode, enum door_kind door)
{
    return rpc_listen_unix(&s->listen, addr + 5, mode, door);
}

/* Whether a client without another role may call something. Methods for all roles do not count. */
static bool serves_clients(const struct rpc_server *s)
{
    bool limited = false;
    for (unsigned i = 0; i < s->n_methods; i++) {
        if (s->methods[i].m->roles & RPC_ROLE_CLIENT)
            return true;
        limited |= !(s->methods[i].m->roles & RPC_ROLE_ANY);
    }
    return !limited;
}

/* Checks TCP without TLS. local: only this machine can reach it. */
static int check_plain(const struct rpc_server *s, const char *addr, bool local)
{
    if (s->insecure || (local && serves_clients(s)))
        return 0;
    return fail(-EPERM,
                "cannot listen on %s: %s, and there is no TLS; set rpc_tls_cert, rpc_tls_key and "
                "rpc_tls_ca, or insecure_listen=true to permit this",
                addr,
                local ? "every user of this machine can reach it" : "other machines can reach it");
}

static void watch_port(struct rpc_server *s, uint16_t port)
{
    rpc_guard_watch(s->guard, port);
    rpc_accept_watch(port);
}

static enum door_kind door_of_plain(const struct rpc_server *s)
{
    return s->insecure ? DOOR_OWN : DOOR_CLIENT;
}

int rpc_server_listen(struct rpc_server *s, const char *addr)
{
    if (strncmp(addr, "unix:", 5) == 0) {
        int r = listen_unix(s, addr, s->socket_mode, DOOR_CLIENT);
        return r < 0 ? r : 1;
    }
    if (!has_port(addr))
        return fail(-EINVAL,
                    "cannot listen on %s: use unix:/path or host:port, with a port of 0 to 65535",
                    addr);
    int r = rpc_tls_on() ? 0 : check_plain(s, addr, loopback_address(addr));
    if (r < 0)
        return r;
    grpc_server *core = s->doors[rpc_tls_on() ? DOOR_TLS : door_of_plain(s)].core;
    grpc_server_credentials *creds = rpc_tls_server();
    int port = grpc_server_add_http2_port(core, addr, creds);
    grpc_server_credentials_release(creds);
    if (port <= 0)
        return fail(-EADDRINUSE,
                    "cannot listen on %s: it is in use, or not an address of this machine", addr);
    watch_port(s, (uint16_t)port);
    return port;
}

int rpc_server_listen_admin(struct rpc_server *s, const char *addr)
{
    if (strncmp(addr, "unix:", 5) != 0)
        return fail(-EINVAL, "admin_listen: %s is not unix:/path", addr);
    return listen_unix(s, addr, 0600, DOOR_ADMIN);
}

/* gRPC core serves connections from a passed socket only without TLS. */
int rpc_server_listen_fd(struct rpc_server *s, int fd, bool admin)
{
    char addr[32];
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    if (getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        return fail(-errno, "descriptor %d: %s", fd, strerror(errno));
    if (a.ss_family == AF_UNIX)
        return rpc_listen_fd(&s->listen, fd, admin ? DOOR_ADMIN : DOOR_CLIENT);
    if (admin)
        return fail(-EINVAL, "the passed admin socket is not a unix socket");
    if (rpc_tls_on())
        return fail(-EINVAL, "a passed TCP socket cannot speak TLS: name its address in `listen` "
                             "instead");
    snprintf(addr, sizeof(addr), "the passed socket %d", fd);
    int r = check_plain(s, addr, loopback_socket(fd));
    if (r < 0)
        return r;
    struct rpc_peer_address own;
    if (rpc_peer_address_of(&a, &own))
        watch_port(s, own.port);
    return rpc_listen_fd(&s->listen, fd, door_of_plain(s));
}

int rpc_server_start(struct rpc_server *s)
{
    for (unsigned d = 0; d < N_DOORS; d++) {
        grpc_server_start(s->doors[d].core);
        for (unsigned i = 0; i < s->n_workers; i++)
            if (serves(s, i, d))
                rpc_server_request_calls(s, &s->workers[i], d);
    }
    int r = rpc_guard_start(s->guard);
    return r < 0 ? r : rpc_listen_start(&s->listen);
}

/* ---- all calls ---- */

/* Calls fn for every call, without holding the server's lock. */
static void for_each_call(struct rpc_server *s, void (*fn)(struct rpc_call *c))
{
    pthread_mutex_lock(&s->mu);
    struct rpc_call **held = rpc_alloc(s->n_calls + 1, sizeof(struct rpc_call *));
    size_t n = 0;
    for (unsigned i = 0; i < s->n_methods; i++) {
        for (struct rpc_call *c = s->methods[i].calls; c; c = c->next) {
            if (rpc_server_try_ref(c))
                held[n++] = c;
        }
    }
    pthread_mutex_unlock(&s->mu);
    for (size_t i = 0; i < n; i++) {
        fn(held[i]);
        rpc_call_unref(held[i]);
    }
    free(held);
}

/* Ends a call whose client does not read its finished answer: the call, and so a drain, would wait
 * for the client. */
static void end_if_unread(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    bool over = c->has_status && c->sending &&
                clock_us() - c->finished_us >= (int64_t)c->s->linger_ms * 1000;
    pthread_mutex_unlock(&c->mu);
    if (over)
        rpc_server_end_unread(c);
}

static void linger_due(struct rpc_timer *t)
{
    struct rpc_server *s = OWNER(t, struct rpc_server, linger);
    for_each_call(s, end_if_unread);
    add_linger_timer(s);
}

unsigned rpc_server_n_calls(struct rpc_server *s)
{
    pthread_mutex_lock(&s->mu);
    unsigned n = s->n_calls;
    pthread_mutex_unlock(&s->mu);
    return n;
}

/* ---- stopping ---- */

struct stop_wait {
    struct rpc_tag tag;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    unsigned n_left; // doors that have calls
};

static void stop_event(struct rpc_tag *t, bool ok)
{
    struct stop_wait *w = OWNER(t, struct stop_wait, tag);
    (void)ok;
    pthread_mutex_lock(&w->mu);
    w->n_left--;
    pthread_cond_signal(&w->cv);
    pthread_mutex_unlock(&w->mu);
}

/* Waits until gRPC core has no calls. A call that arrives during the shutdown is neither refused
 * nor passed to us (gRPC 1.51), so after ABORT_US all calls are cancelled. */
static void stop_core(struct rpc_server *s)
{
    struct stop_wait w = {
        {stop_event}, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, N_DOORS};
    struct timespec until = clock_at(clock_us() + ABORT_US);
    RPC_RELEASE(&w.tag);
    /* The queue need not be one of the door (gRPC 1.51), but its worker must run. */
    for (unsigned d = 0; d < N_DOORS; d++)
        grpc_server_shutdown_and_notify(s->doors[d].core, s->workers[0].cq, &w.tag);
    pthread_mutex_lock(&w.mu);
    while (w.n_left && pthread_cond_clockwait(&w.cv, &w.mu, CLOCK_MONOTONIC, &until) != ETIMEDOUT)
        ;
    for (unsigned d = 0; d < N_DOORS && w.n_left; d++)
        grpc_server_cancel_all_calls(s->doors[d].core);
    while (w.n_left)
        pthread_cond_wait(&w.cv, &w.mu);
    pthread_mutex_unlock(&w.mu);
}

/* gRPC core has its own drain, but it does not answer health and stats, and refuses new calls
 * without a sentence. It also does not wait until all references to calls are released. */
static void drain_calls(struct rpc_server *s, unsigned grace_ms)
{
    struct timespec until = clock_at(clock_us() + (int64_t)grace_ms * 1000);
    int r = 0;
    pthread_mutex_lock(&s->mu);
    s->draining = true;
    while (s->n_running && r != ETIMEDOUT)
        r = pthread_cond_clockwait(&s->idle, &s->mu, CLOCK_MONOTONIC, &until);
    pthread_mutex_unlock(&s->mu);
    for_each_call(s, rpc_server_stop_call);
    if (s->workers[0].thread) // else nobody would tell that the core has stopped; it has no calls
        stop_core(s);
    pthread_mutex_lock(&s->mu);
    while (s->n_calls)
        pthread_cond_wait(&s->idle, &s->mu);
    pthread_mutex_unlock(&s->mu);
}

void rpc_server_stop(struct rpc_server *s, unsigned grace_ms)
{
    if (!s)
        return;
    rpc_listen_done(&s->listen);
    drain_calls(s, grace_ms);
    for (unsigned d = 0; d < N_DOORS; d++)
        grpc_server_destroy(s->doors[d].core);
    for (unsigned i = 0; i < s->n_workers; i++)
        rpc_worker_stop(&s->workers[i]);
    rpc_guard_free(s->guard);
    free(s->workers);
    free(s->beats);
    grpc_server_credentials_release(s->creds);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->mu);
    free(s);
    /* No grpc_shutdown(): in 1.51 it joins a poller that may sleep 10 s after a blocked write. */
}
