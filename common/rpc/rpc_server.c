/* rpc_server.c - the server half of rpc.
 *
 * A door is a server of gRPC core, and there is one for each kind of connection. So the door of a
 * call tells the roles of its client.
 *
 * A slot is a pending request to gRPC core for the next call of one method on one queue. When a
 * call arrives, the slot passes it to a new rpc_call and requests the next one. A call is freed
 * when its last batch has returned, and its timers and references are released. */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc_posix.h>
#include <grpc/support/alloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/loopback.h"
#include "base/metrics.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_guard.h"
#include "rpc/rpc_listen.h"
#include "rpc/rpc_roles.h"

#define MAX_METHODS 64
#define ABORT_US 1000000 // for clients to read the status of an aborted call
#define LINGER_MS 60000
#define HANDSHAKE_MS 10000 // from the connection to the client's first frame

enum door_kind {
    DOOR_CLIENT, // TCP without TLS, and other users at a unix socket
    DOOR_OWN,    // the service's own user at a unix socket; with `insecure` TCP without TLS, too
    DOOR_ADMIN,  // the admin sockets
    DOOR_TLS,
    N_DOORS,
};

struct door {
    grpc_server *core;
    unsigned roles; // of its clients; DOOR_TLS: their certificates decide
};

struct method {
    const struct rpc_method *m;
    void *service;
    void *handles[N_DOORS]; // NULL: this entry serves all unknown methods
    unsigned max_calls;     // of this method; 0: its calls count in the server's max_calls
    /* Under the server's lock: */
    unsigned n_calls;       // that count in the method's max_calls
    unsigned reported;      // bit i: a refusal of the roles i has been logged
    struct rpc_call *calls; // list of its calls, the newest first
};

struct beat {
    struct rpc_timer t;
    struct rpc_server *s;
    unsigned worker;
};

struct rpc_server {
    struct door doors[N_DOORS];
    grpc_server_credentials *creds;
    struct rpc_roles_map tls_roles;
    struct metric *refused;
    bool insecure;
    struct rpc_worker *workers;
    unsigned n_workers, max_calls, linger_ms;
    struct rpc_timer linger; // runs on the first worker
    mode_t socket_mode;
    struct method methods[MAX_METHODS + 1];
    unsigned n_methods;
    struct rpc_listen listen;
    struct rpc_guard *guard;
    struct beat *beats; // of each worker

    pthread_mutex_t mu;
    pthread_cond_t idle; // signalled when n_running or n_calls becomes 0
    unsigned n_calls;
    unsigned n_shared;  // calls that count in the server's max_calls
    unsigned n_running; // calls that a drain waits for
    bool draining;
};

struct slot {
    struct rpc_tag tag;
    struct rpc_server *s;
    struct rpc_worker *w;
    struct method *m;
    enum door_kind door;
    grpc_call *call;
    grpc_call_details details; // of an unknown method
    gpr_timespec deadline;
    grpc_metadata_array headers;
    grpc_byte_buffer *request;
};

struct rpc_call {
    struct rpc_tag t_recv, t_send, t_close;
    struct rpc_server *s;
    struct rpc_worker *w;
    const struct rpc_method *m;
    void *service, *user;
    const struct rpc_method *asked; // what the client called; m differs if that is refused
    unsigned roles;                 // of the client
    grpc_call *core;
    char *peer;               // names the connection, if the method has during_drain; else NULL
    struct rpc_peer *account; // of the connection; NULL: it is not watched
    int64_t begun_us;
    grpc_byte_buffer *in;
    int was_cancelled; // written by the core before t_close
    atomic_int n_refs;
    struct rpc_call *next, **prev; // in the method's list, under the server's lock
    unsigned *counter;             // of its limit, under the server's lock; NULL: it was refused
    bool is_running;               // counts in n_running

    pthread_mutex_t mu; // guards the fields below and the start of batches
    struct rpc_sendq q;
    bool sending, sent_headers, has_status, sent_status;
    bool cancelled, aborted; // by the client; by rpc_server_stop()
    bool paused, recv_due;
    bool received; // a message has arrived; its thread's
    bool answered; // the client has got something; its thread's
    enum rpc_code code;
    char *text;
    int64_t finished_us; // valid if has_status
};

struct call_timer {
    struct rpc_timer t;
    struct rpc_call *c;
    void (*fn)(struct rpc_call *c);
};

static void unknown_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_finish(c, RPC_UNIMPLEMENTED, "unknown method");
}

/* Without this method, calls of unknown methods would wait until their deadline. */
static const struct rpc_method unknown_method = {.roles = RPC_ROLE_ANY, .on_start = unknown_start};

static void refused_start(struct rpc_call *c, struct rpc_msg *req)
{
    char theirs[RPC_ROLES_TEXT_MAX], needed[RPC_ROLES_TEXT_MAX];
    (void)req;
    fail(-EACCES,
         "the role of this client is %s; %s is for the role %s; connect with a certificate of that "
         "role (SAN tandem://ROLE, or tls_roles of this service), or over %s",
         rpc_roles_text(c->roles, theirs), c->asked->path, rpc_roles_text(c->asked->roles, needed),
         c->asked->roles == RPC_ROLE_OPERATOR ? "the socket of admin_listen"
                                              : "a unix socket as the user of this service");
    rpc_call_finish(c, RPC_PERMISSION_DENIED, fail_text());
}

static const struct rpc_method refused_method = {.on_start = refused_start};

static void busy_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_finish(c, RPC_RESOURCE_EXHAUSTED, "the server has too many calls running");
}

static const struct rpc_method busy_method = {.on_start = busy_start};

static void crowded_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_finish(c, RPC_RESOURCE_EXHAUSTED, "this connection has too many calls running");
}

static const struct rpc_method crowded_method = {.on_start = crowded_start};

static void stopping_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_finish(c, RPC_UNAVAILABLE, "the server is stopping");
}

static const struct rpc_method stopping_method = {.on_start = stopping_start};

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
    s->n_workers = opt->n_threads ? opt->n_threads : 1;
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
    open_doors(s, opt);
    s->insecure = opt->insecure;
    s->creds = grpc_insecure_server_credentials_create();
    s->max_calls = opt->max_calls ? opt->max_calls : 8192;
    s->linger_ms = opt->linger_ms ? opt->linger_ms : LINGER_MS;
    s->socket_mode = opt->socket_mode ? opt->socket_mode : 0600;
    s->beats = rpc_alloc(s->n_workers, sizeof(*s->beats));
    s->methods[s->n_methods++].m = &unknown_method;
    add_linger_timer(s);
    for (unsigned i = 0; i < s->n_workers; i++) {
        s->workers[i].cq = grpc_completion_queue_create_for_next(NULL);
        for (unsigned d = 0; d < N_DOORS; d++)
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
    *to = (struct method){
        .m = m, .service = service, .max_calls = m->during_drain ? RPC_DURING_DRAIN_MAX : 0};
    for (unsigned d = 0; d < N_DOORS; d++) {
        to->handles[d] = grpc_server_register_method(
            s->doors[d].core, m->path, NULL,
            m->reads_stream ? GRPC_SRM_PAYLOAD_NONE : GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
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
            s->methods[i].max_calls = max_calls;
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
    rpc_guard_watch(s->guard, (uint16_t)port);
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
        rpc_guard_watch(s->guard, own.port);
    return rpc_listen_fd(&s->listen, fd, door_of_plain(s));
}

static void slot_event(struct rpc_tag *t, bool ok);

/* Requests the next call of the slot's method. */
static void slot_request(struct slot *sl)
{
    grpc_completion_queue *cq = sl->w->cq;
    grpc_call_error e;
    sl->request = NULL;
    grpc_metadata_array_init(&sl->headers);
    grpc_call_details_init(&sl->details);
    RPC_RELEASE(&sl->tag);
    grpc_server *core = sl->s->doors[sl->door].core;
    if (sl->m->handles[sl->door])
        e = grpc_server_request_registered_call(
            core, sl->m->handles[sl->door], &sl->call, &sl->deadline, &sl->headers,
            sl->m->m->reads_stream ? NULL : &sl->request, cq, cq, &sl->tag);
    else
        e = grpc_server_request_call(core, &sl->call, &sl->details, &sl->headers, cq, cq, &sl->tag);
    if (e != GRPC_CALL_OK)
        abort();
}

static void request_calls(struct rpc_server *s, struct rpc_worker *w, enum door_kind door)
{
    for (unsigned k = 0; k < s->n_methods; k++) {
        struct slot *sl = rpc_alloc(1, sizeof(*sl));
        *sl = (struct slot){.tag = {slot_event}, .s = s, .w = w, .m = &s->methods[k], .door = door};
        slot_request(sl);
    }
}

int rpc_server_start(struct rpc_server *s)
{
    for (unsigned d = 0; d < N_DOORS; d++) {
        grpc_server_start(s->doors[d].core);
        for (unsigned i = 0; i < s->n_workers; i++)
            request_calls(s, &s->workers[i], d);
    }
    int r = rpc_guard_start(s->guard);
    return r < 0 ? r : rpc_listen_start(&s->listen);
}

/* ---- a call's events ---- */

static void recv_start(struct rpc_call *c) // with the lock
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->in};
    c->in = NULL;
    rpc_call_ref(c);
    rpc_batch(c->core, &op, 1, &c->t_recv);
}

static void recv_next(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    if (c->paused)
        c->recv_due = true;
    else
        recv_start(c);
    pthread_mutex_unlock(&c->mu);
}

static void recv_event(struct rpc_tag *t, bool ok)
{
    struct rpc_call *c = OWNER(t, struct rpc_call, t_recv);
    grpc_byte_buffer *msg = ok ? c->in : NULL;
    if (msg) {
        c->received = true;
        rpc_guard_message(c->s->guard, c->account, grpc_byte_buffer_length(msg));
    }
    if (c->m->on_message && !rpc_call_cancelled(c))
        c->m->on_message(c, rpc_msg(msg));
    if (c->in)
        grpc_byte_buffer_destroy(c->in);
    if (msg)
        recv_next(c);
    rpc_call_unref(c);
}

static void drop_timers(struct rpc_call *c);

/* Gateways are left out: they pass on the resets of their clients. */
static void count_reset(struct rpc_call *c)
{
    if (c->was_cancelled && !c->answered && !(c->roles & RPC_ROLE_GATEWAY) &&
        clock_us() - c->begun_us < RPC_PEERS_RESET_US)
        rpc_guard_reset(c->s->guard, c->account);
}

static void close_event(struct rpc_tag *t, bool ok)
{
    struct rpc_call *c = OWNER(t, struct rpc_call, t_close);
    (void)ok; // always true for this operation
    pthread_mutex_lock(&c->mu);
    c->cancelled |= c->was_cancelled || c->aborted;
    bool cancelled = c->cancelled;
    pthread_mutex_unlock(&c->mu);
    drop_timers(c);
    count_reset(c);
    if (cancelled && c->m->on_cancel)
        c->m->on_cancel(c);
    rpc_call_unref(c);
}

/* Starts the next send if none is in flight. With the lock. */
static void call_flush(struct rpc_call *c)
{
    if (c->sending || c->cancelled || c->sent_status)
        return;
    grpc_byte_buffer *b = rpc_sendq_next(&c->q);
    bool last = c->has_status && !c->q.n;
    if (!b && !last)
        return;

    grpc_op ops[3] = {0};
    size_t n = 0;
    if (!c->sent_headers)
        ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    if (b) {
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n].flags = c->q.n ? GRPC_WRITE_BUFFER_HINT : 0; // more follows: one write for both
        ops[n++].data.send_message.send_message = b;
    }
    grpc_slice text = grpc_slice_from_copied_string(c->text ? c->text : "");
    if (last) {
        ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[n].data.send_status_from_server.status = (grpc_status_code)c->code;
        ops[n++].data.send_status_from_server.status_details = &text;
    }
    c->sent_headers = c->sending = true;
    c->sent_status = last;
    rpc_call_ref(c);
    rpc_batch(c->core, ops, n, &c->t_send);
    grpc_slice_unref(text); // the core holds its own reference
}

static void send_event(struct rpc_tag *t, bool ok)
{
    struct rpc_call *c = OWNER(t, struct rpc_call, t_send);
    c->answered |= ok;
    rpc_guard_sent(c->s->guard, c->account);
    pthread_mutex_lock(&c->mu);
    bool drained = rpc_sendq_sent(&c->q, c->m->drain_mark);
    c->sending = false;
    if (!ok)
        c->cancelled = true; // close_event() notifies the owner
    call_flush(c);
    drained &= !c->cancelled && !c->has_status;
    pthread_mutex_unlock(&c->mu);
    if (drained && c->m->on_drain)
        c->m->on_drain(c);
    rpc_call_unref(c);
}

/* Takes a reference, unless the last one has already been released. */
static bool try_ref(struct rpc_call *c)
{
    int n = atomic_load(&c->n_refs);
    while (n > 0 && !atomic_compare_exchange_weak(&c->n_refs, &n, n + 1))
        ;
    return n > 0;
}

static void end_unread(struct rpc_call *c)
{
    rpc_call_abort(c, RPC_RESOURCE_EXHAUSTED, "the answer was not read in time");
}

/* Counts a refused call, and logs the first one of a method and a set of roles. With the server's
 * lock. */
static void report_refusal(const struct rpc_call *c, struct method *m)
{
    char theirs[RPC_ROLES_TEXT_MAX];
    metrics_add(c->s->refused, 1);
    if (m->reported & 1u << c->roles)
        return;
    m->reported |= 1u << c->roles;
    char *from = grpc_call_get_peer(c->core);
    log_warn("call refused method=%s role=%s from=%s (logged once per method and role)", m->m->path,
             rpc_roles_text(c->roles, theirs), from);
    gpr_free(from);
}

/* Whether the connection of c has no slot of the method left. With the server's lock. */
static bool is_crowded(const struct method *m, const struct rpc_call *c)
{
    unsigned n = 0;
    for (const struct rpc_call *k = m->calls; k && c->peer; k = k->next)
        n += k->counter && strcmp(k->peer, c->peer) == 0;
    return n >= RPC_DURING_DRAIN_CONNECTION_MAX;
}

/* The answer is finished, and its client has not read it. */
static bool is_unread(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    bool unread = c->has_status && c->sending;
    pthread_mutex_unlock(&c->mu);
    return unread;
}

/* Takes the slot of the oldest unread answer, so that clients that do not read leave the others
 * their slots. Returns its call, with a reference; NULL: there is none. With the server's lock. */
static struct rpc_call *take_unread(struct method *m)
{
    struct rpc_call *oldest = NULL;
    for (struct rpc_call *k = m->calls; k && m->m->during_drain; k = k->next)
        oldest = k->counter && is_unread(k) ? k : oldest;
    if (!oldest || !try_ref(oldest))
        return NULL;
    oldest->counter = NULL;
    m->n_calls--;
    return oldest;
}

/* Takes a slot for a new call, or makes it a refusal. *ret_unread: the call that must end for it,
 * with a reference. With the server's lock. */
static void take_slot(struct rpc_server *s, struct rpc_call *c, struct method *m,
                      struct rpc_call **ret_unread)
{
    unsigned *n = m->max_calls ? &m->n_calls : &s->n_shared;
    c->m = m->m;
    if (!(m->m->roles & (c->roles | RPC_ROLE_ANY))) {
        report_refusal(c, m);
        c->m = &refused_method;
    } else if (!m->m->during_drain && s->draining) {
        c->m = &stopping_method;
    } else if (is_crowded(m, c)) {
        c->m = &crowded_method;
    } else if (*n >= (m->max_calls ? m->max_calls : s->max_calls) &&
               !(*ret_unread = take_unread(m))) {
        c->m = &busy_method;
    } else {
        c->counter = n;
        ++*n;
        c->is_running = !m->m->during_drain;
        s->n_running += c->is_running;
    }
}

static void add_call(struct rpc_server *s, struct method *m, struct rpc_call *c)
{
    struct rpc_call *unread = NULL;
    pthread_mutex_lock(&s->mu);
    s->n_calls++;
    take_slot(s, c, m, &unread);
    c->next = m->calls;
    c->prev = &m->calls;
    if (c->next)
        c->next->prev = &c->next;
    m->calls = c;
    pthread_mutex_unlock(&s->mu);
    if (!unread)
        return;
    end_unread(unread);
    rpc_call_unref(unread);
}

static size_t header_bytes(const grpc_metadata_array *headers)
{
    size_t n = 0;
    for (size_t i = 0; i < headers->count; i++)
        n += GRPC_SLICE_LENGTH(headers->metadata[i].key) +
             GRPC_SLICE_LENGTH(headers->metadata[i].value);
    return n;
}

static unsigned roles_of(const struct slot *sl)
{
    return sl->door == DOOR_TLS ? rpc_roles_of_peer(&sl->s->tls_roles, sl->call)
                                : sl->s->doors[sl->door].roles;
}

/* Adds a new call to the account of its connection. False: that is being ended. */
static bool open_account(const struct slot *sl, unsigned roles, struct rpc_peer **ret)
{
    const struct rpc_peer_call call = {
        .header_bytes = header_bytes(&sl->headers),
        .message_bytes = sl->request ? grpc_byte_buffer_length(sl->request) : 0,
        .trusted = roles & (RPC_ROLE_GATEWAY | RPC_ROLE_VERIFIER | RPC_ROLE_OPERATOR)};
    char *peer = grpc_call_get_peer(sl->call);
    int r = rpc_guard_call(sl->s->guard, peer, &call, ret);
    gpr_free(peer);
    return r == 0;
}

static struct rpc_call *call_new(struct slot *sl, unsigned roles, struct rpc_peer *account)
{
    struct rpc_call *c = rpc_alloc(1, sizeof(*c));
    struct rpc_server *s = sl->s;
    *c = (struct rpc_call){.t_recv = {recv_event},
                           .t_send = {send_event},
                           .t_close = {close_event},
                           .s = s,
                           .w = sl->w,
                           .service = sl->m->service,
                           .asked = sl->m->m,
                           .roles = roles,
                           .core = sl->call,
                           .account = account,
                           .begun_us = clock_us()};
    c->peer = sl->m->m->during_drain ? grpc_call_get_peer(sl->call) : NULL;
    pthread_mutex_init(&c->mu, NULL);
    atomic_init(&c->n_refs, 2); // slot_event()'s and close_event()'s
    add_call(s, sl->m, c);
    return c;
}

/* gRPC core still has thousands of calls of a connection that is ended for its resets. */
static void drop_call(struct slot *sl)
{
    grpc_call_unref(sl->call);
    if (sl->request)
        grpc_byte_buffer_destroy(sl->request);
    grpc_metadata_array_destroy(&sl->headers);
    grpc_call_details_destroy(&sl->details);
    slot_request(sl);
}

static void slot_event(struct rpc_tag *t, bool ok)
{
    struct slot *sl = OWNER(t, struct slot, tag);
    if (!ok) { // the server is stopping
        grpc_metadata_array_destroy(&sl->headers);
        grpc_call_details_destroy(&sl->details);
        free(sl);
        return;
    }
    unsigned roles = roles_of(sl);
    struct rpc_peer *account;
    if (!open_account(sl, roles, &account)) {
        drop_call(sl);
        return;
    }
    struct rpc_call *c = call_new(sl, roles, account);
    struct rpc_msg *req = rpc_msg(sl->request);
    grpc_metadata_array_destroy(&sl->headers);
    grpc_call_details_destroy(&sl->details);
    slot_request(sl);

    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                  .data.recv_close_on_server.cancelled = &c->was_cancelled};
    rpc_batch(c->core, &op, 1, &c->t_close);
    if (c->m->on_start)
        c->m->on_start(c, req);
    rpc_msg_free(req);
    if (c->m->reads_stream)
        recv_next(c);
    rpc_call_unref(c);
}

static void timer_due(struct rpc_timer *t)
{
    struct call_timer *ct = OWNER(t, struct call_timer, t);
    ct->fn(ct->c);
    rpc_call_unref(ct->c);
    free(ct);
}

static void drop_timers(struct rpc_call *c)
{
    for (struct rpc_timer **p = &c->w->timers; *p;) {
        struct call_timer *ct = OWNER(*p, struct call_timer, t);
        if ((*p)->fn == timer_due && ct->c == c) {
            *p = ct->t.next;
            free(ct);
            rpc_call_unref(c); // not the last reference: the caller holds one
        } else {
            p = &ct->t.next;
        }
    }
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
            if (try_ref(c))
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
        end_unread(c);
}

static void linger_due(struct rpc_timer *t)
{
    struct rpc_server *s = OWNER(t, struct rpc_server, linger);
    for_each_call(s, end_if_unread);
    add_linger_timer(s);
}

/* ---- functions for the owner of a call ---- */

ProtobufCMessage *rpc_call_unpack(struct rpc_call *c, const ProtobufCMessageDescriptor *type,
                                  const struct rpc_msg *msg)
{
    size_t spent;
    return rpc_call_unpack_counted(c, type, msg, &spent);
}

ProtobufCMessage *rpc_call_unpack_counted(struct rpc_call *c,
                                          const ProtobufCMessageDescriptor *type,
                                          const struct rpc_msg *msg, size_t *ret_bytes)
{
    ProtobufCMessage *m = rpc_unpack_counted(type, msg, ret_bytes);
    if (!m) {
        char text[128];
        snprintf(text, sizeof(text), "the request is not a valid %.80s", type->name);
        rpc_call_finish(c, RPC_INVALID_ARGUMENT, text);
    }
    return m;
}

ssize_t rpc_call_send(struct rpc_call *c, struct rpc_msg *msg)
{
    ssize_t n = -ECANCELED;
    pthread_mutex_lock(&c->mu);
    if (!c->cancelled && !c->has_status) {
        n = (ssize_t)rpc_sendq_push(&c->q, rpc_bytes(msg), c->m->drain_mark);
        call_flush(c);
        msg = NULL;
    }
    pthread_mutex_unlock(&c->mu);
    rpc_msg_free(msg);
    return n;
}

void rpc_call_finish(struct rpc_call *c, enum rpc_code code, const char *text)
{
    pthread_mutex_lock(&c->mu);
    if (!c->has_status) {
        c->has_status = true;
        c->finished_us = clock_us();
        c->code = code;
        c->text = text ? strdup(text) : NULL;
        call_flush(c);
    }
    pthread_mutex_unlock(&c->mu);
}

void rpc_call_abort(struct rpc_call *c, enum rpc_code code, const char *text)
{
    pthread_mutex_lock(&c->mu);
    rpc_sendq_clear(&c->q);
    bool stuck = c->sending; // the status would wait for the message in flight
    pthread_mutex_unlock(&c->mu);
    if (stuck)
        grpc_call_cancel_with_status(c->core, (grpc_status_code)code, text, NULL);
    else
        rpc_call_finish(c, code, text);
}

void rpc_call_reply(struct rpc_call *c, const ProtobufCMessage *reply)
{
    rpc_call_send(c, rpc_pack(reply));
    rpc_call_finish(c, RPC_OK, NULL);
}

void rpc_call_fail(struct rpc_call *c, int err)
{
    rpc_call_finish(c, rpc_code_of(err), fail_text());
}

bool rpc_call_cancelled(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    bool r = c->cancelled || c->aborted;
    pthread_mutex_unlock(&c->mu);
    return r;
}

void rpc_call_pause(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    c->paused = true;
    pthread_mutex_unlock(&c->mu);
}

void rpc_call_unpause(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    bool due = c->recv_due && !c->cancelled;
    c->paused = c->recv_due = false;
    if (due)
        recv_start(c);
    pthread_mutex_unlock(&c->mu);
}

bool rpc_call_received(const struct rpc_call *c)
{
    return c->received;
}

void rpc_call_after(struct rpc_call *c, unsigned ms, void (*fn)(struct rpc_call *c))
{
    struct call_timer *ct = rpc_alloc(1, sizeof(*ct));
    *ct = (struct call_timer){
        .t = {.at = rpc_in_us((int64_t)ms * 1000), .fn = timer_due}, .c = c, .fn = fn};
    rpc_call_ref(c);
    rpc_worker_add_timer(c->w, &ct->t);
}

void rpc_call_ref(struct rpc_call *c)
{
    atomic_fetch_add(&c->n_refs, 1);
}

void rpc_call_unref(struct rpc_call *c)
{
    if (atomic_fetch_sub(&c->n_refs, 1) != 1)
        return;
    if (c->m->on_end)
        c->m->on_end(c);
    struct rpc_server *s = c->s;
    rpc_sendq_done(&c->q);
    grpc_call_unref(c->core);
    rpc_guard_done(s->guard, c->account);
    pthread_mutex_lock(&s->mu);
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_calls--;
    if (c->counter)
        --*c->counter;
    s->n_running -= c->is_running;
    if (!s->n_calls || !s->n_running)
        pthread_cond_signal(&s->idle);
    pthread_mutex_unlock(&s->mu); // another thread may free the server now
    pthread_mutex_destroy(&c->mu);
    gpr_free(c->peer);
    free(c->text);
    free(c);
}

void *rpc_call_service(const struct rpc_call *c)
{
    return c->service;
}

void rpc_call_set_user(struct rpc_call *c, void *user)
{
    c->user = user;
}

void *rpc_call_user(const struct rpc_call *c)
{
    return c->user;
}

unsigned rpc_call_roles(const struct rpc_call *c)
{
    return c->roles;
}

unsigned rpc_server_n_calls(struct rpc_server *s)
{
    pthread_mutex_lock(&s->mu);
    unsigned n = s->n_calls;
    pthread_mutex_unlock(&s->mu);
    return n;
}

/* ---- stopping ---- */

/* Ends a call with a sentence; close_event() then notifies its owner. */
static void abort_call(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    if (!c->has_status) {
        c->has_status = c->aborted = true;
        c->code = RPC_UNAVAILABLE;
        c->text = strdup("the server is stopping and its time limit for running calls has passed");
        rpc_sendq_clear(&c->q);
        call_flush(c);
    }
    pthread_mutex_unlock(&c->mu);
}

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
    for_each_call(s, abort_call);
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
