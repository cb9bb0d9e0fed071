/* unary_calls.c - asynchronous unary calls. */
#include "gateway/upstream/unary_calls.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/err.h"

struct call {
    struct unary_calls *s;
    struct call *prev, *next;  // in s->all, with its lock
    struct rpc_stream *stream; // with the lock; NULL: unary_calls_make() still runs
    bool ended;                // with the lock
    const ProtobufCMessageDescriptor *type;
    ProtobufCMessage *reply;
    unary_calls_done *done;
    void *user;
};

struct unary_calls {
    pthread_mutex_t mu;
    const char *stop_reason; // NULL: not stopped
    struct call *all;        // calls that have not ended
};

static void call_free(struct call *c)
{
    rpc_stream_free(c->stream);
    free(c);
}

static void list_add(struct call *c)
{
    pthread_mutex_lock(&c->s->mu);
    c->next = c->s->all;
    if (c->next)
        c->next->prev = c;
    c->s->all = c;
    pthread_mutex_unlock(&c->s->mu);
}

/* With the lock. */
static void list_remove(struct call *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        c->s->all = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

static void on_message(void *user, struct rpc_msg *msg)
{
    struct call *c = user;
    if (!c->reply)
        c->reply = rpc_unpack(c->type, msg);
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct call *c = user;
    struct rpc_status st = *status;
    if (st.code == RPC_OK && !c->reply)
        st = (struct rpc_status){RPC_INTERNAL, "the verifier's answer is malformed"};
    if (st.code != RPC_OK && c->reply)
        protobuf_c_message_free_unpacked(TAKE(c->reply), NULL);
    pthread_mutex_lock(&c->s->mu);
    list_remove(c);
    if (st.code == RPC_CANCELLED && c->s->stop_reason)
        snprintf(st.text, sizeof(st.text), "%s", c->s->stop_reason);
    else if (st.code == RPC_CANCELLED)
        st.code = RPC_UNAVAILABLE; // a verifier that ends
    pthread_mutex_unlock(&c->s->mu);
    c->done(c->user, &st, c->reply);
    pthread_mutex_lock(&c->s->mu);
    c->ended = true;
    bool last = c->stream;
    pthread_mutex_unlock(&c->s->mu);
    if (last)
        call_free(c);
}

void unary_calls_make(struct unary_calls *s, struct rpc_client *client, const char *path,
                      int64_t timeout_us, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply, unary_calls_done *done, void *user)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    struct rpc_options opt = {.timeout_us = timeout_us};
    struct call *c = calloc(1, sizeof(*c));
    if (!c) {
        done(user, &(struct rpc_status){RPC_INTERNAL, "no memory"}, NULL);
        return;
    }
    *c = (struct call){.s = s, .type = reply, .done = done, .user = user};
    list_add(c);
    struct rpc_msg *msg = rpc_pack(request); // done() may run as soon as there is a stream
    struct rpc_stream *stream = rpc_stream_new(client, path, &opt, &events, c);
    rpc_stream_send(stream, msg);
    rpc_stream_close(stream);
    pthread_mutex_lock(&s->mu);
    c->stream = stream;
    bool last = c->ended;
    if (s->stop_reason) // harmless if it has ended
        rpc_stream_cancel(stream);
    pthread_mutex_unlock(&s->mu);
    if (last)
        call_free(c);
}

int unary_calls_new(struct unary_calls **ret)
{
    struct unary_calls *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "calls: no memory");
    pthread_mutex_init(&s->mu, NULL);
    *ret = s;
    return 0;
}

void unary_calls_stop(struct unary_calls *s, const char *why)
{
    pthread_mutex_lock(&s->mu);
    s->stop_reason = why;
    for (struct call *c = s->all; c; c = c->next)
        if (c->stream)
            rpc_stream_cancel(c->stream);
    pthread_mutex_unlock(&s->mu);
}

void unary_calls_free(struct unary_calls *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->mu);
    free(s);
}
