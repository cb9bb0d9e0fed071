/* rpc_base.h - what the server and the client half of rpc share. Not for other folders. */
#pragma once
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include "rpc/rpc.h"

#if defined(__SANITIZE_THREAD__) // the hand-over through libgrpc is invisible to ThreadSanitizer
#include <sanitizer/tsan_interface.h>
#define RPC_RELEASE(p) __tsan_release(p)
#define RPC_ACQUIRE(p) __tsan_acquire(p)
#else
#define RPC_RELEASE(p) ((void)(p))
#define RPC_ACQUIRE(p) ((void)(p))
#endif

#define RPC_INT_ARG(k, v)                                                                          \
    {                                                                                              \
        .type = GRPC_ARG_INTEGER, .key = (char *)(k), .value.integer = (v)                         \
    }

/* Every completion-queue tag points to one of these. */
struct rpc_tag {
    void (*fn)(struct rpc_tag *t, bool ok);
};

/* The C API has no alarms, so a queue's thread keeps its own and bounds its wait by the first. */
struct rpc_timer {
    struct rpc_timer *next;
    gpr_timespec at;
    void (*fn)(struct rpc_timer *t); // takes the timer
};

struct rpc_worker {
    grpc_completion_queue *cq;
    pthread_t thread;
    struct rpc_timer *timers; // sorted; the thread's own
};

/* Messages waiting for the one send that may be in flight. The bytes count until they are sent. */
struct rpc_sendq {
    grpc_byte_buffer **v;
    size_t head, n, cap, n_bytes;
    grpc_byte_buffer *in_flight;
    size_t in_flight_bytes;
    bool was_full; // passed the drain mark and on_drain has not been called since
};

void rpc_init(void); // grpc_init() and its log

/* What a connection of TCP wants: rpc_tls.h. The caller releases them. */
bool rpc_tls_on(void);
grpc_channel_credentials *rpc_tls_channel(const char *target); // plain for a unix socket
grpc_server_credentials *rpc_tls_server(void);

/* struct rpc_msg is the core's byte buffer under a name of ours. */
static inline grpc_byte_buffer *rpc_bytes(const struct rpc_msg *msg)
{
    return (grpc_byte_buffer *)(uintptr_t)msg;
}

static inline struct rpc_msg *rpc_msg(grpc_byte_buffer *bytes)
{
    return (struct rpc_msg *)bytes;
}

/* rpc_unpack(), and what it allocated in all, which is at least what the message takes. */
ProtobufCMessage *rpc_unpack_counted(const ProtobufCMessageDescriptor *type,
                                     const struct rpc_msg *msg, size_t *ret_spent);
void *rpc_alloc(size_t n, size_t size); // zeroed; ends the process when memory is out
gpr_timespec rpc_in_us(int64_t us);
int rpc_worker_start(struct rpc_worker *w);
void rpc_worker_stop(struct rpc_worker *w); // after the last batch was started
void rpc_worker_add_timer(struct rpc_worker *w, struct rpc_timer *t);
void rpc_batch(grpc_call *call, const grpc_op *ops, size_t n_ops, struct rpc_tag *t);

/* Takes the message; returns the bytes that wait. */
size_t rpc_sendq_push(struct rpc_sendq *q, grpc_byte_buffer *b, size_t drain_mark);
/* Moves the oldest message into flight; NULL if there is none. */
grpc_byte_buffer *rpc_sendq_next(struct rpc_sendq *q);
/* What was in flight is gone; true: time for on_drain. */
bool rpc_sendq_sent(struct rpc_sendq *q, size_t drain_mark);
void rpc_sendq_clear(struct rpc_sendq *q); // all but what is in flight
void rpc_sendq_done(struct rpc_sendq *q);
