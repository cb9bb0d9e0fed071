/* rpc_base.c - statuses, messages, queue threads, timers and the queue of unsent messages. */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/svc.h"
#include "base/thread.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_wire.h"

#if defined(__SANITIZE_THREAD__)
/* libgrpc is not instrumented, so synchronisation between its threads looks like races. Its threads
 * outlive main(); without atexit_sleep_ms every program would wait a second for them at its end. A
 * test aborts a service that does not stop; handle_abort then prints where the service waits. The
 * options are in the program because not every parent process passes the environment on. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "ignore_noninstrumented_modules=1:atexit_sleep_ms=50:handle_abort=1";
}
#endif

static const char *const code_names[] = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};

const char *rpc_code_name(enum rpc_code code)
{
    return (size_t)code < ARRAY_LEN(code_names) ? code_names[code] : "UNKNOWN";
}

enum rpc_code rpc_code_of(int err)
{
    switch (-err) {
    case 0:
        return RPC_OK;
    case EINVAL:
    case EBADMSG:
    case EILSEQ:
    case EMSGSIZE:
    case E2BIG:
    case ERANGE:
        return RPC_INVALID_ARGUMENT;
    case ENOENT:
        return RPC_NOT_FOUND;
    case ENOMEM:
    case ENOSPC:
    case EAGAIN:
    case EBUSY:
        return RPC_RESOURCE_EXHAUSTED;
    case ECANCELED:
        return RPC_CANCELLED;
    case ESTALE:
        return RPC_FAILED_PRECONDITION;
    case ETIMEDOUT:
        return RPC_DEADLINE_EXCEEDED;
    case EPIPE:
    case ECONNREFUSED:
    case ECONNRESET:
        return RPC_UNAVAILABLE;
    case ENOSYS:
    case EOPNOTSUPP:
        return RPC_UNIMPLEMENTED;
    case EACCES:
    case EPERM:
        return RPC_PERMISSION_DENIED;
    default:
        return RPC_INTERNAL;
    }
}

static void log_core(gpr_log_func_args *a)
{
    log_debug("grpc %s:%d %s", a->file, a->line, a->message);
}

void rpc_init(void)
{
    gpr_set_log_function(log_core); // errors of calls are reported in their status
    rpc_wire_init();
    grpc_init();
}

void *rpc_alloc(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) {
        log_error("rpc: out of memory");
        abort();
    }
    return p;
}

gpr_timespec rpc_in_us(int64_t us)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(us, GPR_TIMESPAN));
}

/* ---- messages ---- */

struct rpc_msg *rpc_pack(const ProtobufCMessage *msg)
{
    grpc_slice s = grpc_slice_malloc(protobuf_c_message_get_packed_size(msg));
    protobuf_c_message_pack(msg, GRPC_SLICE_START_PTR(s));
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&s, 1);
    grpc_slice_unref(s); // the buffer has its own reference
    return rpc_msg(b);
}

struct rpc_msg *rpc_msg_of(const void *data, size_t len)
{
    grpc_slice s = grpc_slice_from_copied_buffer(data, len);
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&s, 1);
    grpc_slice_unref(s);
    return rpc_msg(b);
}

size_t rpc_msg_len(const struct rpc_msg *msg)
{
    return grpc_byte_buffer_length(rpc_bytes(msg));
}

struct rpc_msg *rpc_msg_share(struct rpc_msg *msg)
{
    return rpc_msg(grpc_byte_buffer_copy(rpc_bytes(msg)));
}

struct rpc_msg *rpc_msg_joined(const struct rpc_msg *a, const struct rpc_msg *b)
{
    grpc_byte_buffer *all = grpc_byte_buffer_copy(rpc_bytes(a));
    grpc_byte_buffer_reader r;
    grpc_slice s;
    if (grpc_byte_buffer_reader_init(&r, rpc_bytes(b))) {
        while (grpc_byte_buffer_reader_next(&r, &s))
            grpc_slice_buffer_add(&all->data.raw.slice_buffer, s); // takes the reference
        grpc_byte_buffer_reader_destroy(&r);
    }
    return rpc_msg(all);
}

void rpc_msg_free(struct rpc_msg *msg)
{
    if (msg)
        grpc_byte_buffer_destroy(rpc_bytes(msg));
}

/* Unpacking allocates from a budget: an empty submessage takes two bytes on the wire and a struct
 * of hundreds of bytes in memory. Ordinary messages with small fields need about 20 bytes per byte,
 * tensors one. */
static void *budget_alloc(void *budget, size_t n)
{
    size_t *left = budget, cost = n + 16; // 16: overhead of malloc()
    if (cost > *left)
        return NULL;
    *left -= cost;
    return malloc(n);
}

static void budget_free(void *budget, void *p)
{
    (void)budget;
    free(p);
}

static ProtobufCMessage *unpack_bytes(const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
                                      size_t n, size_t *ret_spent)
{
    size_t by_size = 64 * n, at_most = (64u << 20) + 4 * n;
    size_t budget = (by_size < at_most ? by_size : at_most) + 4096, left = budget;
    ProtobufCAllocator a = {budget_alloc, budget_free, &left};
    ProtobufCMessage *m = protobuf_c_message_unpack(type, &a, n, bytes);
    *ret_spent = budget - left;
    return m;
}

ProtobufCMessage *rpc_unpack(const ProtobufCMessageDescriptor *type, const struct rpc_msg *msg)
{
    size_t spent;
    return rpc_unpack_counted(type, msg, &spent);
}

ProtobufCMessage *rpc_unpack_counted(const ProtobufCMessageDescriptor *type,
                                     const struct rpc_msg *msg, size_t *ret_spent)
{
    *ret_spent = 0;
    grpc_byte_buffer_reader r;
    if (!msg || !grpc_byte_buffer_reader_init(&r, rpc_bytes(msg)))
        return NULL;

    size_t n = rpc_msg_len(msg);
    grpc_slice *first, all = grpc_empty_slice();
    const uint8_t *bytes = (const uint8_t *)""; // an empty message has no slice
    if (n && grpc_byte_buffer_reader_peek(&r, &first) && GRPC_SLICE_LENGTH(*first) == n) {
        bytes = GRPC_SLICE_START_PTR(*first); // the usual case: parse in place
    } else if (n) {
        grpc_byte_buffer_reader_destroy(&r);
        grpc_byte_buffer_reader_init(&r, rpc_bytes(msg));
        all = grpc_byte_buffer_reader_readall(&r);
        bytes = GRPC_SLICE_START_PTR(all);
    }
    ProtobufCMessage *m = unpack_bytes(type, bytes, n, ret_spent);
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&r);
    return m;
}

/* ---- threads ---- */

static void run_timers(struct rpc_worker *w)
{
    while (w->timers && gpr_time_cmp(w->timers->at, gpr_now(GPR_CLOCK_MONOTONIC)) <= 0) {
        struct rpc_timer *t = w->timers;
        w->timers = t->next;
        t->fn(t);
    }
}

/* The time of the next timer, or an earlier one so that svc_awake() is called in time. */
static gpr_timespec wait_until(const struct rpc_worker *w)
{
    int64_t limit_us = svc_watchdog_interval_us();
    gpr_timespec at = limit_us ? rpc_in_us(limit_us / 2) : gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return w->timers ? gpr_time_min(at, w->timers->at) : at;
}

static _Thread_local struct rpc_worker *this_worker;

static void enter_core(void)
{
    if (this_worker)
        atomic_store(&this_worker->in_core_us, clock_us());
}

static void leave_core(void)
{
    if (this_worker)
        atomic_store(&this_worker->in_core_us, INT64_MAX);
}

static void *worker_main(void *arg)
{
    struct rpc_worker *w = this_worker = arg;
    for (;;) {
        svc_awake();
        enter_core();
        grpc_event ev = grpc_completion_queue_next(w->cq, wait_until(w), NULL);
        leave_core();
        if (ev.type == GRPC_QUEUE_SHUTDOWN) {
            svc_asleep();
            this_worker = NULL;
            return NULL;
        }
        if (ev.type == GRPC_OP_COMPLETE) {
            struct rpc_tag *t = ev.tag;
            RPC_ACQUIRE(t);
            t->fn(t, ev.success);
        }
        run_timers(w);
    }
}

int rpc_worker_start(struct rpc_worker *w)
{
    atomic_store(&w->in_core_us, INT64_MAX);
    return thread_start(worker_main, w, 0, &w->thread);
}

void rpc_worker_stop(struct rpc_worker *w)
{
    grpc_completion_queue_shutdown(w->cq); // the thread drains it and returns
    if (w->thread)
        pthread_join(w->thread, NULL);
    else
        worker_main(w); // the thread was never started, but the queue may hold tags
    grpc_completion_queue_destroy(w->cq);
}

void rpc_worker_add_timer(struct rpc_worker *w, struct rpc_timer *t)
{
    struct rpc_timer **p = &w->timers;
    while (*p && gpr_time_cmp((*p)->at, t->at) <= 0)
        p = &(*p)->next;
    t->next = *p;
    *p = t;
}

void rpc_batch(grpc_call *call, const grpc_op *ops, size_t n_ops, struct rpc_tag *t)
{
    RPC_RELEASE(t);
    enter_core(); // it may also read from other connections
    grpc_call_error e = grpc_call_start_batch(call, ops, n_ops, t, NULL);
    leave_core();
    if (e != GRPC_CALL_OK) { // a mistake in our code; a peer cannot cause it
        log_error("rpc: batch: %s", grpc_call_error_to_string(e));
        abort();
    }
}

/* ---- unsent messages ---- */

static void sendq_grow(struct rpc_sendq *q)
{
    size_t cap = q->cap ? q->cap * 2 : 8;
    grpc_byte_buffer **v = rpc_alloc(cap, sizeof(*v));
    for (size_t i = 0; i < q->n; i++)
        v[i] = q->v[(q->head + i) % q->cap];
    free(q->v);
    q->v = v;
    q->head = 0;
    q->cap = cap;
}

size_t rpc_sendq_push(struct rpc_sendq *q, grpc_byte_buffer *b, size_t drain_mark)
{
    if (q->n == q->cap)
        sendq_grow(q);
    q->v[(q->head + q->n++) % q->cap] = b;
    q->n_bytes += grpc_byte_buffer_length(b);
    q->was_full |= q->n_bytes > drain_mark;
    return q->n_bytes;
}

static grpc_byte_buffer *sendq_pop(struct rpc_sendq *q)
{
    if (!q->n)
        return NULL;
    grpc_byte_buffer *b = q->v[q->head];
    q->head = (q->head + 1) % q->cap;
    q->n--;
    return b;
}

grpc_byte_buffer *rpc_sendq_next(struct rpc_sendq *q)
{
    q->in_flight = sendq_pop(q); // the core empties it; we free it when the tag has returned
    q->in_flight_bytes = q->in_flight ? grpc_byte_buffer_length(q->in_flight) : 0;
    return q->in_flight;
}

bool rpc_sendq_sent(struct rpc_sendq *q, size_t drain_mark)
{
    if (q->in_flight) {
        q->n_bytes -= q->in_flight_bytes;
        grpc_byte_buffer_destroy(q->in_flight);
        q->in_flight = NULL;
    }
    bool drained = q->was_full && q->n_bytes <= drain_mark / 2;
    q->was_full &= !drained;
    return drained;
}

void rpc_sendq_clear(struct rpc_sendq *q)
{
    for (grpc_byte_buffer *b; (b = sendq_pop(q));) {
        q->n_bytes -= grpc_byte_buffer_length(b);
        grpc_byte_buffer_destroy(b);
    }
}

void rpc_sendq_done(struct rpc_sendq *q)
{
    rpc_sendq_clear(q);
    free(q->v);
}
