/* rpc_client.c - the client half of rpc. */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/loopback.h"
#include "rpc/rpc_base.h"

/* A connection. A new certificate needs a new one. The calls of the old one continue; it is closed
 * after the last of them. */
struct channel {
    grpc_channel *core;
    uint64_t tls_version; // of the certificate that it shows; 0: none
    atomic_uint n_refs;   // of the client and of running calls
};

struct rpc_client {
    char *target;
    struct rpc_client_options opt;
    struct rpc_worker w; // for streams

    pthread_mutex_t mu;
    struct channel *channel; // for new calls
    pthread_cond_t idle;     // signalled when n_streams becomes 0
    unsigned n_streams;
};

struct rpc_stream {
    struct rpc_tag t_start, t_recv, t_send, t_status;
    struct rpc_client *c;
    struct channel *channel; // until the stream has ended
    grpc_call *core;
    struct rpc_events ev;
    void *user;
    atomic_int n_refs;
    atomic_int n_open; // 2: the status and the end of the messages are still to come
    grpc_metadata_array headers, trailers;
    grpc_status_code code;
    grpc_slice text;
    grpc_byte_buffer *in;

    pthread_mutex_t mu; // guards the fields below and the start of batches
    struct rpc_sendq q;
    bool sending, closing, closed, over;
    bool paused, recv_due, cancelled;
};

static const struct rpc_options default_options;

/* Warns once per target, for the first WARNED_MAX of them; then each time. */
#define WARNED_MAX 64
static void warn_if_plain(const char *target)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static char *warned[WARNED_MAX];
    static unsigned n;
    if (rpc_tls_on() || loopback_address(target))
        return;
    pthread_mutex_lock(&mu);
    unsigned i = 0;
    while (i < n && strcmp(warned[i], target) != 0)
        i++;
    bool is_new = i == n;
    if (is_new && n < WARNED_MAX && (warned[n] = strdup(target)))
        n++;
    pthread_mutex_unlock(&mu);
    if (is_new)
        log_warn("connecting without TLS target=%s: prompts and answers are readable on the "
                 "network; set rpc_tls_cert, rpc_tls_key and rpc_tls_ca",
                 target);
}

/* Of a server's messages that gRPC core holds, in all streams of a channel together. Above, gRPC
 * core ends some of them with RESOURCE_EXHAUSTED. Else a hostile server could send a part of the
 * largest message to each call. */
#define QUOTA_BYTES (3u * RPC_MAX_MESSAGE)

static void channel_unref(struct channel *ch)
{
    if (!ch || atomic_fetch_sub(&ch->n_refs, 1) != 1)
        return;
    grpc_channel_destroy(ch->core);
    free(ch);
}

static struct channel *channel_new(const char *target, const struct rpc_client_options *opt)
{
    grpc_resource_quota *quota = grpc_resource_quota_create(target);
    grpc_resource_quota_resize(quota, QUOTA_BYTES);
    int keepalive_ms = opt->keepalive_ms ? (int)opt->keepalive_ms : 10000;
    grpc_arg list[] = {
        RPC_INT_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                    (int)(opt->max_message ? opt->max_message : RPC_MAX_MESSAGE)),
        RPC_INT_ARG(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20), // faster for big messages
        /* With the probe, up to 4 MiB per stream may wait unread before flow control stops the
         * sender. */
        RPC_INT_ARG(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        RPC_INT_ARG(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1), // no gzip bombs
        RPC_INT_ARG(GRPC_ARG_ENABLE_HTTP_PROXY, 0), // else http_proxy is obeyed even for 127.0.0.1
        RPC_INT_ARG(GRPC_ARG_ENABLE_RETRIES, 0),    // its filter aborts if an answer has no status
        RPC_INT_ARG(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), // each client its own connection
        RPC_INT_ARG(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1), // no TXT look-ups
        /* A client finds a restarted server within half a second. A connection attempt times out
         * after two seconds. */
        RPC_INT_ARG(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        RPC_INT_ARG(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500),
        RPC_INT_ARG(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000),
        RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms),
        RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms / 2),
        RPC_INT_ARG(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0), // no limit
        RPC_INT_ARG(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        {.type = GRPC_ARG_POINTER,
         .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {quota, grpc_resource_quota_arg_vtable()}},
    };
    struct channel *ch = rpc_alloc(1, sizeof(*ch));
    grpc_channel_credentials *creds = rpc_tls_channel(target, opt->server_role, &ch->tls_version);
    ch->core = grpc_channel_create(target, creds, &(grpc_channel_args){ARRAY_LEN(list), list});
    grpc_channel_credentials_release(creds);
    grpc_resource_quota_unref(quota); // the channel has a reference
    atomic_init(&ch->n_refs, 1);
    return ch;
}

/* The channel for a new call. The caller has a reference. */
static struct channel *channel_take(struct rpc_client *c)
{
    struct channel *old = NULL;
    pthread_mutex_lock(&c->mu);
    if (c->channel->tls_version != rpc_tls_version(c->target)) {
        old = c->channel;
        c->channel = channel_new(c->target, &c->opt);
    }
    struct channel *ch = c->channel;
    atomic_fetch_add(&ch->n_refs, 1);
    pthread_mutex_unlock(&c->mu);
    channel_unref(old);
    return ch;
}

int rpc_client_new(const char *target, const struct rpc_client_options *opt,
                   struct rpc_client **ret)
{
    static const struct rpc_client_options defaults;
    if (!*target)
        return fail(-EINVAL, "a server address is empty");
    struct rpc_client *c = rpc_alloc(1, sizeof(*c));
    rpc_init();
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->idle, NULL);
    warn_if_plain(target);
    c->target = rpc_alloc(1, strlen(target) + 1);
    strcpy(c->target, target);
    c->opt = opt ? *opt : defaults;
    c->channel = channel_new(target, &c->opt);
    c->w.cq = grpc_completion_queue_create_for_next(NULL);
    int r = rpc_worker_start(&c->w);
    if (r < 0)
        rpc_client_free(c);
    else
        *ret = c;
    return r;
}

void rpc_client_free(struct rpc_client *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->mu);
    while (c->n_streams)
        pthread_cond_wait(&c->idle, &c->mu);
    pthread_mutex_unlock(&c->mu);
    rpc_worker_stop(&c->w);
    channel_unref(c->channel);
    pthread_cond_destroy(&c->idle);
    pthread_mutex_destroy(&c->mu);
    free(c->target);
    free(c); // without grpc_shutdown(), see rpc_server_stop()
}

/* ---- unary calls and streams ---- */

static grpc_call *call_new(struct channel *ch, const char *path, const struct rpc_options *opt,
                           grpc_completion_queue *cq)
{
    gpr_timespec deadline =
        opt->timeout_us ? rpc_in_us(opt->timeout_us) : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_slice method = grpc_slice_from_copied_string(path);
    grpc_call *call = grpc_channel_create_call(ch->core, NULL, GRPC_PROPAGATE_DEFAULTS, cq, method,
                                               NULL, deadline, NULL);
    grpc_slice_unref(method);
    return call;
}

/* The first operation of a call. */
static grpc_op op_headers(const struct rpc_options *opt)
{
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    if (opt->wait_for_ready)
        op.flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                   GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    return op;
}

static struct rpc_status status_of(grpc_status_code code, grpc_slice text)
{
    struct rpc_status st = {.code = (enum rpc_code)code};
    size_t n = GRPC_SLICE_LENGTH(text);
    memcpy(st.text, GRPC_SLICE_START_PTR(text), n < sizeof(st.text) ? n : sizeof(st.text) - 1);
    return st;
}

/* ---- unary ---- */

/* Written by gRPC core while a unary call runs. */
struct answer {
    grpc_metadata_array headers, trailers;
    grpc_status_code code;
    grpc_slice text;
    grpc_byte_buffer *in;
};

/* Blocks until the call has a status. */
static void run_unary(grpc_call *call, grpc_completion_queue *cq, const struct rpc_options *opt,
                      grpc_byte_buffer *out, struct answer *a)
{
    grpc_op ops[] = {
        op_headers(opt),
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = out},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &a->headers},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &a->in},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &a->trailers,
                                        .status = &a->code,
                                        .status_details = &a->text}},
    };
    struct rpc_tag tag;
    rpc_batch(call, ops, ARRAY_LEN(ops), &tag);
    grpc_completion_queue_pluck(cq, &tag, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    RPC_ACQUIRE(&tag);
}

static void pluck_queue_free(grpc_completion_queue *cq)
{
    gpr_timespec never = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_completion_queue_shutdown(cq);
    while (grpc_completion_queue_pluck(cq, NULL, never, NULL).type != GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(cq);
}

struct rpc_status rpc_unary(struct rpc_client *c, const char *path, const struct rpc_options *opt,
                            const ProtobufCMessage *req, const ProtobufCMessageDescriptor *reply,
                            ProtobufCMessage **ret_reply)
{
    if (!opt)
        opt = &default_options;
    /* The calling thread polls the connection, so the answer does not have to wake another one. */
    grpc_completion_queue *cq = grpc_completion_queue_create_for_pluck(NULL);
    struct channel *ch = channel_take(c);
    grpc_call *call = call_new(ch, path, opt, cq);
    struct rpc_msg *out = rpc_pack(req);
    struct answer a = {.code = GRPC_STATUS_UNKNOWN, .text = grpc_empty_slice()};
    grpc_metadata_array_init(&a.headers);
    grpc_metadata_array_init(&a.trailers);
    run_unary(call, cq, opt, rpc_bytes(out), &a);

    struct rpc_status st = status_of(a.code, a.text);
    *ret_reply = st.code == RPC_OK ? rpc_unpack(reply, rpc_msg(a.in)) : NULL;
    if (st.code == RPC_OK && !*ret_reply)
        st = (struct rpc_status){RPC_INTERNAL, "the server's reply is malformed"};
    grpc_slice_unref(a.text);
    rpc_msg_free(out);
    rpc_msg_free(rpc_msg(a.in));
    grpc_metadata_array_destroy(&a.headers);
    grpc_metadata_array_destroy(&a.trailers);
    grpc_call_unref(call);
    channel_unref(ch);
    pluck_queue_free(cq);
    return st;
}

/* ---- streams ---- */

static void stream_unref(struct rpc_stream *s)
{
    if (atomic_fetch_sub(&s->n_refs, 1) != 1)
        return;
    rpc_sendq_done(&s->q);
    grpc_slice_unref(s->text);
    grpc_metadata_array_destroy(&s->headers);
    grpc_metadata_array_destroy(&s->trailers);
    grpc_call_unref(s->core);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

static void client_add_stream(struct rpc_client *c, int n)
{
    pthread_mutex_lock(&c->mu);
    c->n_streams += (unsigned)n;
    if (!c->n_streams)
        pthread_cond_signal(&c->idle);
    pthread_mutex_unlock(&c->mu); // at 0 another thread may free the client now
}

static void stream_batch(struct rpc_stream *s, const grpc_op *ops, size_t n, struct rpc_tag *t)
{
    atomic_fetch_add(&s->n_refs, 1);
    rpc_batch(s->core, ops, n, t);
}

static void recv_start(struct rpc_stream *s) // with the lock
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &s->in};
    s->in = NULL;
    stream_batch(s, &op, 1, &s->t_recv);
}

static void recv_next(struct rpc_stream *s)
{
    pthread_mutex_lock(&s->mu);
    if (s->paused)
        s->recv_due = true;
    else
        recv_start(s);
    pthread_mutex_unlock(&s->mu);
}

static void start_event(struct rpc_tag *t, bool ok)
{
    (void)ok; // the status reports a failure
    stream_unref(OWNER(t, struct rpc_stream, t_start));
}

/* The status may arrive before the last message; on_end is called after both. */
static void stream_end(struct rpc_stream *s)
{
    if (atomic_fetch_sub(&s->n_open, 1) != 1)
        return;
    struct rpc_status st = status_of(s->code, s->text);
    pthread_mutex_lock(&s->mu);
    s->over = true;
    pthread_mutex_unlock(&s->mu);
    s->ev.on_end(s->user, &st);
    channel_unref(s->channel);
    client_add_stream(s->c, -1);
}

static void status_event(struct rpc_tag *t, bool ok)
{
    struct rpc_stream *s = OWNER(t, struct rpc_stream, t_status);
    (void)ok; // always true for this operation
    stream_end(s);
    stream_unref(s);
}

static void recv_event(struct rpc_tag *t, bool ok)
{
    struct rpc_stream *s = OWNER(t, struct rpc_stream, t_recv);
    struct rpc_msg *msg = rpc_msg(s->in);
    if (ok && msg)
        s->ev.on_message(s->user, msg);
    rpc_msg_free(msg);
    if (ok && msg)
        recv_next(s);
    else
        stream_end(s);
    stream_unref(s);
}

/* Starts the next send if none is in flight. With the lock. */
static void stream_flush(struct rpc_stream *s)
{
    if (s->sending || s->closed || s->over)
        return;
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    grpc_byte_buffer *b = rpc_sendq_next(&s->q);
    if (!b && !s->closing)
        return;
    if (b) {
        op.op = GRPC_OP_SEND_MESSAGE;
        op.flags = s->q.n ? GRPC_WRITE_BUFFER_HINT : 0; // more follows: one write for both
        op.data.send_message.send_message = b;
    }
    s->closed = !b;
    s->sending = true;
    stream_batch(s, &op, 1, &s->t_send);
}

static void send_event(struct rpc_tag *t, bool ok)
{
    struct rpc_stream *s = OWNER(t, struct rpc_stream, t_send);
    pthread_mutex_lock(&s->mu);
    bool drained = rpc_sendq_sent(&s->q, s->ev.drain_mark);
    s->sending = false;
    if (!ok)
        s->over = true; // the status says why
    stream_flush(s);
    drained &= !s->over && !s->closing;
    pthread_mutex_unlock(&s->mu);
    if (drained && s->ev.on_drain)
        s->ev.on_drain(s->user);
    stream_unref(s);
}

struct rpc_stream *rpc_stream_new(struct rpc_client *c, const char *path,
                                  const struct rpc_options *opt, const struct rpc_events *ev,
                                  void *user)
{
    if (!opt)
        opt = &default_options;
    struct rpc_stream *s = rpc_alloc(1, sizeof(*s));
    struct channel *ch = channel_take(c);
    *s = (struct rpc_stream){.t_start = {start_event},
                             .t_recv = {recv_event},
                             .t_send = {send_event},
                             .t_status = {status_event},
                             .c = c,
                             .channel = ch,
                             .core = call_new(ch, path, opt, c->w.cq),
                             .ev = *ev,
                             .user = user,
                             .text = grpc_empty_slice()};
    pthread_mutex_init(&s->mu, NULL);
    atomic_init(&s->n_refs, 1);
    atomic_init(&s->n_open, 2);
    grpc_metadata_array_init(&s->headers);
    grpc_metadata_array_init(&s->trailers);
    client_add_stream(c, 1);
    grpc_op start[] = {op_headers(opt),
                       {.op = GRPC_OP_RECV_INITIAL_METADATA,
                        .data.recv_initial_metadata.recv_initial_metadata = &s->headers}};
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                      .data.recv_status_on_client = {.trailing_metadata = &s->trailers,
                                                     .status = &s->code,
                                                     .status_details = &s->text}};
    pthread_mutex_lock(&s->mu);
    stream_batch(s, start, 2, &s->t_start);
    stream_batch(s, &status, 1, &s->t_status);
    recv_start(s);
    pthread_mutex_unlock(&s->mu);
    return s;
}

ssize_t rpc_stream_send(struct rpc_stream *s, struct rpc_msg *msg)
{
    ssize_t n = -ECANCELED;
    pthread_mutex_lock(&s->mu);
    if (!s->over && !s->closing) {
        n = (ssize_t)rpc_sendq_push(&s->q, rpc_bytes(msg), s->ev.drain_mark);
        stream_flush(s);
        msg = NULL;
    }
    pthread_mutex_unlock(&s->mu);
    rpc_msg_free(msg);
    return n;
}

void rpc_stream_close(struct rpc_stream *s)
{
    pthread_mutex_lock(&s->mu);
    s->closing = true;
    stream_flush(s);
    pthread_mutex_unlock(&s->mu);
}

void rpc_stream_cancel(struct rpc_stream *s)
{
    pthread_mutex_lock(&s->mu);
    s->cancelled = true;
    pthread_mutex_unlock(&s->mu);
    grpc_call_cancel(s->core, NULL);
    rpc_stream_unpause(s); // on_end comes only after the last message
}

void rpc_stream_pause(struct rpc_stream *s)
{
    pthread_mutex_lock(&s->mu);
    s->paused = !s->cancelled;
    pthread_mutex_unlock(&s->mu);
}

void rpc_stream_unpause(struct rpc_stream *s)
{
    pthread_mutex_lock(&s->mu);
    bool due = s->recv_due;
    s->paused = s->recv_due = false;
    if (due)
        recv_start(s);
    pthread_mutex_unlock(&s->mu);
}

void rpc_stream_free(struct rpc_stream *s)
{
    if (s)
        stream_unref(s);
}
