/* rpc_server_calls.c - a call: its events, its timers, and the functions for its owner.
 *
 * A call is freed when its last batch has returned, and its timers and references are released. */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "rpc/rpc_server_impl.h"

struct call_timer {
    struct rpc_timer t;
    struct rpc_call *c;
    void (*fn)(struct rpc_call *c);
};

/* ---- timers ---- */

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

/* ---- events ---- */

static void recv_start(struct rpc_call *c) // with the lock
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->in};
    c->in = NULL;
    rpc_call_ref(c);
    rpc_batch(c->core, &op, 1, &c->t_recv);
}

/* Reads the next message, now or when the owner continues. */
static void read_next(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    if (c->paused)
        c->recv_due = true;
    else
        recv_start(c);
    pthread_mutex_unlock(&c->mu);
}

static void empty_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_finish(c, RPC_INVALID_ARGUMENT, "the request is missing");
}

static const struct rpc_method empty_method = {.on_start = empty_start};

static void start(struct rpc_call *c, struct rpc_msg *request)
{
    c->started = true;
    if (c->m->on_start)
        c->m->on_start(c, request);
}

/* request: NULL if the client has closed its side before. */
static void start_unary(struct rpc_call *c, grpc_byte_buffer *request)
{
    if (!request)
        c->m = &empty_method;
    start(c, rpc_msg(request));
}

/* A refusal needs no request, but what has arrived of it is read: else it would count as bytes that
 * belong to no message. */
void rpc_server_begin(struct rpc_call *c)
{
    bool waits = rpc_server_has_request(c->m);
    if (waits || !c->m->reads_stream)
        read_next(c);
    if (!waits)
        start(c, NULL);
    if (c->m->reads_stream) // on_start() may have paused it
        read_next(c);
}

void rpc_server_on_recv(struct rpc_tag *t, bool ok)
{
    struct rpc_call *c = OWNER(t, struct rpc_call, t_recv);
    grpc_byte_buffer *msg = ok ? c->in : NULL;
    bool stream = c->m->reads_stream;
    if (msg)
        rpc_guard_message(c->s->guard, c->account, grpc_byte_buffer_length(msg));
    if (!c->received && (msg || !stream))
        rpc_server_asked(c);
    c->received |= msg != NULL;
    bool cancelled = rpc_call_cancelled(c);
    if (stream && c->m->on_message && !cancelled)
        c->m->on_message(c, rpc_msg(msg));
    else if (!stream && !c->started && !cancelled)
        start_unary(c, msg);
    if (c->in)
        grpc_byte_buffer_destroy(c->in);
    if (msg && stream)
        read_next(c);
    rpc_call_unref(c);
}

/* Gateways are left out: they pass on the resets of their clients. */
static void count_reset(struct rpc_call *c)
{
    if (c->was_cancelled && !c->answered && !(c->roles & RPC_ROLE_GATEWAY) &&
        clock_us() - c->begun_us < RPC_PEERS_RESET_US)
        rpc_guard_reset(c->s->guard, c->account);
}

void rpc_server_on_close(struct rpc_tag *t, bool ok)
{
    struct rpc_call *c = OWNER(t, struct rpc_call, t_close);
    (void)ok; // always true for this operation
    pthread_mutex_lock(&c->mu);
    c->cancelled |= c->was_cancelled || c->aborted;
    bool cancelled = c->cancelled;
    pthread_mutex_unlock(&c->mu);
    drop_timers(c);
    count_reset(c);
    if (cancelled && c->started && c->m->on_cancel)
        c->m->on_cancel(c);
    rpc_call_unref(c);
}

/* Updates the sum of queued bytes. A client's finished answer is in a line of rpc_places. True: the
 * sum is too large. With the lock. */
static bool count_queued(struct rpc_call *c)
{
    bool in_line = c->has_status && !rpc_server_is_service(c->roles);
    size_t n = in_line ? 0 : c->q.n_bytes, more = n - c->queued;
    c->queued = n;
    return atomic_fetch_add(&c->s->queued, more) + more > c->s->max_unread;
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

void rpc_server_on_send(struct rpc_tag *t, bool ok)
{
    struct rpc_call *c = OWNER(t, struct rpc_call, t_send);
    c->answered |= ok;
    rpc_guard_sent(c->s->guard, c->account);
    pthread_mutex_lock(&c->mu);
    bool drained = rpc_sendq_sent(&c->q, c->m->drain_mark);
    count_queued(c);
    c->sending = false;
    if (!ok)
        c->cancelled = true; // rpc_server_on_close() notifies the owner
    call_flush(c);
    drained &= !c->cancelled && !c->has_status;
    pthread_mutex_unlock(&c->mu);
    if (drained && c->m->on_drain)
        c->m->on_drain(c);
    rpc_call_unref(c);
}

/* ---- references ---- */

bool rpc_server_try_ref(struct rpc_call *c)
{
    int n = atomic_load(&c->n_refs);
    while (n > 0 && !atomic_compare_exchange_weak(&c->n_refs, &n, n + 1))
        ;
    return n > 0;
}

void rpc_call_ref(struct rpc_call *c)
{
    atomic_fetch_add(&c->n_refs, 1);
}

void rpc_call_unref(struct rpc_call *c)
{
    if (atomic_fetch_sub(&c->n_refs, 1) != 1)
        return;
    if (c->started && c->m->on_end)
        c->m->on_end(c);
    struct rpc_server *s = c->s;
    rpc_sendq_done(&c->q);
    atomic_fetch_sub(&s->queued, c->queued);
    grpc_call_unref(c->core);
    if (c->is_refused)
        rpc_guard_refused_done(s->guard, c->account);
    rpc_guard_done(s->guard, c->account);
    pthread_mutex_lock(&s->mu);
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    s->n_calls--;
    rpc_places_leave(&c->place);
    s->n_running -= c->is_running;
    if (!s->n_calls || !s->n_running)
        pthread_cond_signal(&s->idle);
    pthread_mutex_unlock(&s->mu); // another thread may free the server now
    pthread_mutex_destroy(&c->mu);
    gpr_free(c->peer);
    free(c->text);
    free(c);
}

/* ---- functions for the owner ---- */

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
    bool too_much = false;
    pthread_mutex_lock(&c->mu);
    if (!c->cancelled && !c->has_status) {
        n = (ssize_t)rpc_sendq_push(&c->q, rpc_bytes(msg), c->m->drain_mark);
        too_much = count_queued(c);
        call_flush(c);
        msg = NULL;
    }
    pthread_mutex_unlock(&c->mu);
    if (too_much)
        rpc_server_end_slowest(c->s);
    rpc_msg_free(msg);
    return n;
}

size_t rpc_call_unread(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    size_t n = c->q.n_bytes;
    pthread_mutex_unlock(&c->mu);
    return n;
}

void rpc_call_finish(struct rpc_call *c, enum rpc_code code, const char *text)
{
    pthread_mutex_lock(&c->mu);
    bool now = !c->has_status;
    if (now) {
        c->has_status = true;
        c->finished_us = clock_us();
        c->code = code;
        c->text = text ? strdup(text) : NULL;
        count_queued(c);
        call_flush(c);
    }
    size_t unread = c->q.n_bytes;
    pthread_mutex_unlock(&c->mu);
    if (now)
        rpc_server_left_unread(c, unread);
}

void rpc_call_abort(struct rpc_call *c, enum rpc_code code, const char *text)
{
    pthread_mutex_lock(&c->mu);
    rpc_sendq_clear(&c->q);
    count_queued(c);
    bool stuck = c->sending; // the status would wait for the message in flight
    pthread_mutex_unlock(&c->mu);
    if (stuck)
        grpc_call_cancel_with_status(c->core, (grpc_status_code)code, text, NULL);
    else
        rpc_call_finish(c, code, text);
}

/* Ends a call that its owner has not finished; rpc_server_on_close() then notifies the owner.
 * False: it is finished. */
static bool abort_call(struct rpc_call *c, enum rpc_code code, const char *text)
{
    pthread_mutex_lock(&c->mu);
    bool now = !c->has_status;
    if (now) {
        c->has_status = c->aborted = true;
        c->finished_us = clock_us();
        c->code = code;
        c->text = strdup(text);
        rpc_sendq_clear(&c->q);
        count_queued(c);
        call_flush(c);
    }
    pthread_mutex_unlock(&c->mu);
    return now;
}

void rpc_server_end_unread(struct rpc_call *c)
{
    rpc_call_abort(c, RPC_RESOURCE_EXHAUSTED, "the answer was not read in time");
}

void rpc_server_end_slow(struct rpc_call *c)
{
    pthread_mutex_lock(&c->mu);
    bool slow = c->queued && c->sending; // it has read nothing meanwhile
    if (slow)
        rpc_sendq_clear(&c->q);
    count_queued(c);
    pthread_mutex_unlock(&c->mu);
    if (slow)
        grpc_call_cancel_with_status(c->core, (grpc_status_code)RPC_RESOURCE_EXHAUSTED,
                                     "the client has left too many bytes of this stream unread",
                                     NULL);
}

void rpc_server_end_displaced(struct rpc_call *c)
{
    if (!abort_call(c, RPC_RESOURCE_EXHAUSTED,
                    "no message arrived on this stream, and its place was needed for another call"))
        rpc_server_end_unread(c);
}

void rpc_server_stop_call(struct rpc_call *c)
{
    abort_call(c, RPC_UNAVAILABLE,
               "the server is stopping and its time limit for running calls has passed");
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
