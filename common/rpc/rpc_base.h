/* rpc_base.h - functions that the server half and the client half of rpc share. Private to
 * common/rpc. */
#pragma once
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdatomic.h>
#include "rpc/rpc.h"
#include "rpc/rpc_tls.h"

#if defined(__SANITIZE_THREAD__) // ThreadSanitizer does not see synchronisation inside libgrpc
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

/* gRPC's C API has no timers. The thread of a completion queue keeps a list of timers and waits for
 * events only until the first is due. */
struct rpc_timer {
    struct rpc_timer *next;
    gpr_timespec at;
    void (*fn)(struct rpc_timer *t); // owns the timer
};

struct rpc_worker {
    grpc_completion_queue *cq;
    pthread_t thread;
    struct rpc_timer *timers; // sorted by time; used by this thread only
    /* When the thread has entered gRPC core (clock.h); INT64_MAX: it runs our code. */
    _Atomic int64_t in_core_us;
};

/* Unsent messages of a call. gRPC allows one send in flight; the others wait here. */
struct rpc_sendq {
    grpc_byte_buffer **v;
    size_t head, n, cap;
    size_t n_bytes; // waiting and in flight
    grpc_byte_buffer *in_flight;
    size_t in_flight_bytes;
    bool was_full; // n_bytes has passed the drain mark, and on_drain has not been called since
};

void rpc_init(void); // grpc_init(); sends gRPC's log to ours

/* Credentials for connections, see rpc_tls.h. The caller releases them. */
/* Plain for a unix socket. *ret_version: see below. */
grpc_channel_credentials *rpc_tls_channel(const char *target, unsigned server_role,
                                          uint64_t *ret_version);
/* The version of the certificate that a new connection to the target shows; 0: none. */
uint64_t rpc_tls_version(const char *target);
/* For one port. New connections get the newest certificate. */
grpc_server_credentials *rpc_tls_server(void);

struct rpc_roles_map;
/* The roles that the certificate of a call's client gives; see rpc_roles.h. */
unsigned rpc_roles_of_peer(const struct rpc_roles_map *map, grpc_call *call);

/* struct rpc_msg is gRPC core's byte buffer; rpc.h does not name gRPC's types. */
static inline grpc_byte_buffer *rpc_bytes(const struct rpc_msg *msg)
{
    return (grpc_byte_buffer *)(uintptr_t)msg;
}

static inline struct rpc_msg *rpc_msg(grpc_byte_buffer *bytes)
{
    return (struct rpc_msg *)bytes;
}

/* Like rpc_unpack(). *ret_spent: bytes that it allocated, at least the memory of the message. */
ProtobufCMessage *rpc_unpack_counted(const ProtobufCMessageDescriptor *type,
                                     const struct rpc_msg *msg, size_t *ret_spent);
void *rpc_alloc(size_t n, size_t size); // zeroed; ends the process if there is no memory
gpr_timespec rpc_in_us(int64_t us);
int rpc_worker_start(struct rpc_worker *w);
void rpc_worker_stop(struct rpc_worker *w); // no batch may be started afterwards
void rpc_worker_add_timer(struct rpc_worker *w, struct rpc_timer *t);
void rpc_batch(grpc_call *call, const grpc_op *ops, size_t n_ops, struct rpc_tag *t);

/* Takes ownership of the message; returns the unsent bytes. */
size_t rpc_sendq_push(struct rpc_sendq *q, grpc_byte_buffer *b, size_t drain_mark);
/* Makes the oldest message the one in flight and returns it; NULL: the queue is empty. */
grpc_byte_buffer *rpc_sendq_next(struct rpc_sendq *q);
/* The message in flight has been sent. True: on_drain must be called. */
bool rpc_sendq_sent(struct rpc_sendq *q, size_t drain_mark);
void rpc_sendq_clear(struct rpc_sendq *q); // drops all messages except the one in flight
void rpc_sendq_done(struct rpc_sendq *q);
