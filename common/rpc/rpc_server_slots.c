/* rpc_server_slots.c - new calls: whose they are, and whether there is a place for them.
 *
 * A slot is a pending request to gRPC core for the next call of one method on one queue. When a
 * call arrives, the slot passes it to a new rpc_call and requests the next one. */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "rpc/rpc_server_impl.h"

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
};

/* ---- methods that refuse ---- */

static void unknown_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_finish(c, RPC_UNIMPLEMENTED, "unknown method");
}

const struct rpc_method rpc_server_unknown = {.roles = RPC_ROLE_ANY, .on_start = unknown_start};

bool rpc_server_has_request(const struct rpc_method *m)
{
    return !m->reads_stream && m->roles && m != &rpc_server_unknown; // refusals have no roles
}

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

/* ---- places ---- */

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

/* Whether the connection of c has no place of the method left. With the server's lock. */
static bool is_crowded(const struct method *m, const struct rpc_call *c)
{
    unsigned n = 0;
    if (!c->peer)
        return false;
    for (const struct rpc_call *k = m->calls; k; k = k->next)
        n += k->place.in && strcmp(k->peer, c->peer) == 0;
    unsigned part = m->own.max / 4;
    return n >= (part < RPC_DURING_DRAIN_CONNECTION_MAX ? part : RPC_DURING_DRAIN_CONNECTION_MAX);
}

bool rpc_server_is_service(unsigned roles)
{
    return roles & (RPC_ROLE_GATEWAY | RPC_ROLE_VERIFIER | RPC_ROLE_OPERATOR);
}

/* The answer is finished, and its client has not read it. */
static bool is_unread(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    bool unread = c->has_status && c->sending;
    pthread_mutex_unlock(&c->mu);
    return unread;
}

/* Takes the oldest call from a line, which is not empty. If it still gives way, takes its place
 * and returns it, with a reference; the caller must end it. With the server's lock. */
static struct rpc_call *take_oldest(struct rpc_line *line)
{
    struct rpc_call *c = OWNER(line->oldest, struct rpc_call, place);
    bool gives_way = line == &c->place.in->unasked || is_unread(c);
    rpc_places_keep(&c->place);
    if (!gives_way || !rpc_server_try_ref(c))
        return NULL;
    rpc_places_leave(&c->place);
    return c;
}

/* Without the server's lock. c: has given way; may be NULL. */
static void end_displaced(struct rpc_call *c)
{
    if (!c)
        return;
    rpc_server_end_displaced(c);
    rpc_call_unref(c);
}

/* The last quarter is for services. */
static unsigned places_for(const struct rpc_places *ps, unsigned roles)
{
    return rpc_server_is_service(roles) ? ps->max : ps->max - ps->max / 4;
}

/* If the places for c are taken, it gets that of a client's call which gives way. *ret_displaced:
 * that call, with a reference; it must be NULL before, and stays so if there is none. With the
 * server's lock. */
static bool take_place(struct rpc_server *s, struct rpc_call *c, struct method *m,
                       struct rpc_call **ret_displaced)
{
    struct rpc_places *ps = m->own.max ? &m->own : &s->shared;
    unsigned n_max = places_for(ps, c->roles);
    while (!*ret_displaced && ps->n >= n_max && (ps->unread.oldest || ps->unasked.oldest))
        *ret_displaced = take_oldest(ps->unread.oldest ? &ps->unread : &ps->unasked);
    return rpc_places_take(ps, &c->place, *ret_displaced ? ps->max : n_max);
}

/* A drain waits for it from now on. With the server's lock. */
static void run_call(struct rpc_call *c)
{
    c->is_running = !c->m->during_drain;
    c->s->n_running += c->is_running;
}

/* Takes a place for a new call, or makes it a refusal. *ret_displaced: as above. With the server's
 * lock. */
static void admit_call(struct rpc_server *s, struct rpc_call *c, struct method *m,
                       struct rpc_call **ret_displaced)
{
    c->m = m->m;
    if (!(m->m->roles & (c->roles | RPC_ROLE_ANY))) {
        report_refusal(c, m);
        c->m = &refused_method;
    } else if (!m->m->during_drain && s->draining) {
        c->m = &stopping_method;
    } else if (is_crowded(m, c)) {
        c->m = &crowded_method;
    } else if (!take_place(s, c, m, ret_displaced)) {
        c->m = &busy_method;
    } else {
        bool asks = c->m->reads_stream || rpc_server_has_request(c->m);
        if (asks && !rpc_server_is_service(c->roles))
            rpc_places_unasked(&c->place);
        if (!rpc_server_has_request(c->m))
            run_call(c);
    }
}

static void add_call(struct rpc_server *s, struct method *m, struct rpc_call *c)
{
    struct rpc_call *displaced = NULL;
    pthread_mutex_lock(&s->mu);
    s->n_calls++;
    admit_call(s, c, m, &displaced);
    c->next = m->calls;
    c->prev = &m->calls;
    if (c->next)
        c->next->prev = &c->next;
    m->calls = c;
    c->is_refused = c->m != m->m && !rpc_server_is_service(c->roles);
    pthread_mutex_unlock(&s->mu);
    end_displaced(displaced);
    if (c->is_refused)
        rpc_guard_refused(s->guard, c->account);
    if (!rpc_server_is_service(c->roles) &&
        (m->m->during_drain || m->m == &rpc_server_unknown || c->m == &refused_method))
        rpc_guard_cheap(s->guard, c->account);
}

void rpc_server_asked(struct rpc_call *c)
{
    pthread_mutex_lock(&c->s->mu);
    if (c->place.in && c->place.line == &c->place.in->unasked)
        rpc_places_keep(&c->place);
    if (!c->started && c->s->draining && !c->m->during_drain)
        c->m = &stopping_method;
    else if (!c->started)
        run_call(c);
    pthread_mutex_unlock(&c->s->mu);
}

void rpc_server_left_unread(struct rpc_call *c, size_t bytes)
{
    struct rpc_server *s = c->s;
    struct rpc_call *displaced = NULL;
    bool reads = rpc_server_is_service(c->roles); // services read what they asked for
    pthread_mutex_lock(&s->mu);
    struct rpc_places *ps = reads ? NULL : c->place.in;
    if (reads)
        rpc_places_keep(&c->place);
    else
        rpc_places_unread(&c->place, bytes);
    pthread_mutex_unlock(&s->mu);
    do {
        end_displaced(displaced);
        displaced = NULL;
        pthread_mutex_lock(&s->mu);
        while (ps && !displaced && ps->unread_bytes > s->max_unread &&
               ps->unread.oldest != ps->unread.newest)
            displaced = take_oldest(&ps->unread);
        pthread_mutex_unlock(&s->mu);
    } while (displaced);
}

/* The call with most queued bytes, with a reference. NULL: none has any. With the server's lock. */
static struct rpc_call *find_slowest(struct rpc_server *s)
{
    struct rpc_call *slowest = NULL;
    size_t most = 0;
    for (unsigned i = 0; i < s->n_methods; i++) {
        for (struct rpc_call *c = s->methods[i].calls; c; c = c->next) {
            pthread_mutex_lock(&c->mu);
            bool more = c->queued > most;
            most = more ? c->queued : most;
            pthread_mutex_unlock(&c->mu);
            slowest = more ? c : slowest;
        }
    }
    return slowest && rpc_server_try_ref(slowest) ? slowest : NULL;
}

void rpc_server_end_slowest(struct rpc_server *s)
{
    pthread_mutex_lock(&s->mu);
    struct rpc_call *c = atomic_load(&s->queued) > s->max_unread ? find_slowest(s) : NULL;
    pthread_mutex_unlock(&s->mu);
    if (!c)
        return;
    rpc_server_end_slow(c);
    rpc_call_unref(c);
}

/* ---- slots ---- */

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
    const struct rpc_peer_call call = {.header_bytes = header_bytes(&sl->headers),
                                       .trusted = rpc_server_is_service(roles)};
    char *peer = grpc_call_get_peer(sl->call);
    int r = rpc_guard_call(sl->s->guard, peer, &call, ret);
    gpr_free(peer);
    return r == 0;
}

static struct rpc_call *call_new(struct slot *sl, unsigned roles, struct rpc_peer *account)
{
    struct rpc_call *c = rpc_alloc(1, sizeof(*c));
    struct rpc_server *s = sl->s;
    *c = (struct rpc_call){.t_recv = {rpc_server_on_recv},
                           .t_send = {rpc_server_on_send},
                           .t_close = {rpc_server_on_close},
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
    atomic_init(&c->n_refs, 2); // slot_event()'s and rpc_server_on_close()'s
    add_call(s, sl->m, c);
    return c;
}

/* Requests the next call of the slot's method. */
static void slot_request(struct slot *sl)
{
    grpc_completion_queue *cq = sl->w->cq;
    grpc_call_error e;
    grpc_metadata_array_init(&sl->headers);
    grpc_call_details_init(&sl->details);
    RPC_RELEASE(&sl->tag);
    grpc_server *core = sl->s->doors[sl->door].core;
    if (sl->m->handles[sl->door])
        e = grpc_server_request_registered_call(core, sl->m->handles[sl->door], &sl->call,
                                                &sl->deadline, &sl->headers, NULL, cq, cq,
                                                &sl->tag);
    else
        e = grpc_server_request_call(core, &sl->call, &sl->details, &sl->headers, cq, cq, &sl->tag);
    if (e != GRPC_CALL_OK)
        abort();
}

/* gRPC core still has thousands of calls of a connection that is ended for its resets. */
static void drop_call(struct slot *sl)
{
    grpc_call_unref(sl->call);
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
    grpc_metadata_array_destroy(&sl->headers);
    grpc_call_details_destroy(&sl->details);
    slot_request(sl);

    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                  .data.recv_close_on_server.cancelled = &c->was_cancelled};
    rpc_batch(c->core, &op, 1, &c->t_close);
    rpc_server_begin(c);
    rpc_call_unref(c);
}

void rpc_server_request_calls(struct rpc_server *s, struct rpc_worker *w, enum door_kind door)
{
    for (unsigned k = 0; k < s->n_methods; k++) {
        struct slot *sl = rpc_alloc(1, sizeof(*sl));
        *sl = (struct slot){.tag = {slot_event}, .s = s, .w = w, .m = &s->methods[k], .door = door};
        slot_request(sl);
    }
}
