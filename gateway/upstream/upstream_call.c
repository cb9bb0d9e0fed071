/* upstream_call.c - one Generate call, at one verifier or, after a retry, at another. */
#include <stdio.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "gateway/upstream/upstream_call.h"

#define MAX_TRIES 3 // verifiers per call

void upstream_call_init(struct upstream_call *a)
{
    pthread_mutex_init(&a->mu, NULL);
}

void upstream_call_done(struct upstream_call *a)
{
    upstream_release(TAKE(a->verifier));
    if (a->call)
        rpc_stream_free(a->call);
    rpc_msg_free(a->request);
    free(a->prompt);
    pthread_mutex_destroy(&a->mu);
}

/* With the lock. */
static void cancel_locked(struct upstream_call *a)
{
    a->cancelled = true;
    if (a->call)
        rpc_stream_cancel(a->call); // harmless if it has ended
}

/* ---- the verifier's events ---- */

static void mark_begun(struct upstream_call *a)
{
    pthread_mutex_lock(&a->mu);
    rpc_msg_free(TAKE(a->request));
    free(TAKE(a->prompt));
    a->waiting_since_us = 0;
    pthread_mutex_unlock(&a->mu);
}

static bool take_event(struct upstream_call *a, const Tandem__V1__GenerateEvent *e)
{
    if (e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_STARTED)
        mark_begun(a);
    else if (a->request)
        return false;
    return a->events->on_event(a, e);
}

static void on_message(void *user, struct rpc_msg *msg)
{
    struct upstream_call *a = user;
    ProtobufCMessage *m = rpc_unpack(&tandem__v1__generate_event__descriptor, msg);
    bool ok = m && take_event(a, (Tandem__V1__GenerateEvent *)m);
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
    if (ok)
        return;
    pthread_mutex_lock(&a->mu);
    a->malformed = true;
    cancel_locked(a);
    pthread_mutex_unlock(&a->mu);
}

static bool retry_call(struct upstream_call *a);

/* The call has ended: retries it, or reports the end to the owner. */
static void end_call(struct upstream_call *a)
{
    pthread_mutex_lock(&a->mu);
    bool cancelled = a->cancelled;
    pthread_mutex_unlock(&a->mu);
    if (!cancelled && a->status.code == RPC_UNAVAILABLE)
        upstream_suspect(a->verifier);
    if (!cancelled && retry_call(a))
        return;
    pthread_mutex_lock(&a->mu);
    a->waiting_since_us = 0;
    pthread_mutex_unlock(&a->mu);
    upstream_release(TAKE(a->verifier));
    a->events->on_done(a);
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct upstream_call *a = user;
    a->status = *status;
    pthread_mutex_lock(&a->mu);
    a->call_ended = true;
    bool sending = a->sending;
    pthread_mutex_unlock(&a->mu);
    if (!sending)
        end_call(a);
}

/* ---- the call ---- */

static void send_call(struct upstream_call *a)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    a->target = upstream_target(a->verifier);
    a->tried |= 1u << upstream_index(a->verifier);
    pthread_mutex_lock(&a->mu);
    a->sending = true;
    a->call_ended = false;
    struct rpc_msg *request = rpc_msg_share(a->request);
    pthread_mutex_unlock(&a->mu);
    struct rpc_stream *s = rpc_stream_new(upstream_client(a->verifier),
                                          "/tandem.v1.Verifier/Generate", NULL, &events, a);
    rpc_stream_send(s, request);
    rpc_stream_close(s);
    pthread_mutex_lock(&a->mu);
    a->call = s;
    a->sending = false;
    bool call_ended = a->call_ended;
    if (a->cancelled) // before a->call was set
        rpc_stream_cancel(s);
    pthread_mutex_unlock(&a->mu);
    if (call_ended)
        end_call(a);
}

/* A verifier with the same model that was not tried yet; NULL: there is none. */
static struct verifier *choose_verifier(const struct upstream_call *a)
{
    const struct upstream_want want = {.prompt = a->prompt, .like = a->model, .except = a->tried};
    const struct upstream_model *model;
    struct verifier *v;
    if (upstream_take(a->upstream, &want, &v, &model) < 0)
        return NULL;
    upstream_model_unref(model); // same name and fingerprint as a->model
    return v;
}

/* Retries a request that has not begun, if its verifier is unreachable or full. true: the request
 * was sent to another verifier. */
static bool retry_call(struct upstream_call *a)
{
    bool unreachable = a->status.code == RPC_UNAVAILABLE,
         full = a->status.code == RPC_RESOURCE_EXHAUSTED;
    if (!a->request || !(unreachable || full) || __builtin_popcount(a->tried) == MAX_TRIES)
        return false;
    struct verifier *next = choose_verifier(a);
    if (!next)
        return false;
    a->events->on_retry(a, upstream_target(a->verifier), upstream_target(next));
    upstream_release(a->verifier);
    a->verifier = next;
    pthread_mutex_lock(&a->mu);
    struct rpc_stream *old = TAKE(a->call);
    pthread_mutex_unlock(&a->mu);
    rpc_stream_free(old);
    send_call(a);
    return true;
}

void upstream_call_begin(struct upstream_call *a)
{
    if (!a->verifier && !(a->verifier = choose_verifier(a))) {
        a->status.code = RPC_UNAVAILABLE;
        snprintf(a->status.text, sizeof(a->status.text), "%s", fail_text());
        a->events->on_done(a);
        return;
    }
    pthread_mutex_lock(&a->mu);
    a->waiting_since_us = clock_us();
    pthread_mutex_unlock(&a->mu);
    send_call(a);
}

/* ---- any thread ---- */

void upstream_call_cancel(struct upstream_call *a)
{
    pthread_mutex_lock(&a->mu);
    cancel_locked(a);
    pthread_mutex_unlock(&a->mu);
}

void upstream_call_expire(struct upstream_call *a, int64_t late_us)
{
    pthread_mutex_lock(&a->mu);
    if (a->call && a->waiting_since_us && a->waiting_since_us < late_us) {
        a->overdue = true;
        cancel_locked(a);
    }
    pthread_mutex_unlock(&a->mu);
}

void upstream_call_pause(struct upstream_call *a)
{
    pthread_mutex_lock(&a->mu);
    if (a->call && !a->cancelled)
        rpc_stream_pause(a->call);
    pthread_mutex_unlock(&a->mu);
}

void upstream_call_resume(struct upstream_call *a)
{
    pthread_mutex_lock(&a->mu);
    if (a->call)
        rpc_stream_resume(a->call);
    pthread_mutex_unlock(&a->mu);
}
