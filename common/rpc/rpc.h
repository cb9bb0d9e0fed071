/* rpc.h - protobuf-c messages over the gRPC core C API: the only door to gRPC.
 *
 * Server: methods are registered by path and driven by callbacks. A call belongs to one thread, so
 * its callbacks never overlap. Client: blocking unary calls, and streams driven by callbacks on one
 * thread per client. What is said about rpc_call_* and rpc_stream_* holds for any thread unless
 * said otherwise.
 *
 * Callbacks must not block: they hold up every other call of their thread. Memory that runs out
 * inside ends the process: gRPC core knows no other way. */
#pragma once
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include "base/err.h"
#include "base/mem.h"

/* ---- status ---- */

/* gRPC's numbers. */
enum rpc_code {
    RPC_OK = 0,
    RPC_CANCELLED = 1,
    RPC_UNKNOWN = 2,
    RPC_INVALID_ARGUMENT = 3,
    RPC_DEADLINE_EXCEEDED = 4,
    RPC_NOT_FOUND = 5,
    RPC_ALREADY_EXISTS = 6,
    RPC_PERMISSION_DENIED = 7,
    RPC_RESOURCE_EXHAUSTED = 8,
    RPC_FAILED_PRECONDITION = 9,
    RPC_ABORTED = 10,
    RPC_OUT_OF_RANGE = 11,
    RPC_UNIMPLEMENTED = 12,
    RPC_INTERNAL = 13,
    RPC_UNAVAILABLE = 14,
    RPC_DATA_LOSS = 15,
    RPC_UNAUTHENTICATED = 16,
};

/* "UNAVAILABLE"; "UNKNOWN" for numbers gRPC has not. */
const char *rpc_code_name(enum rpc_code code);
/* The status for a negative errno of ours: -EINVAL is RPC_INVALID_ARGUMENT, -ENOSPC
 * RPC_RESOURCE_EXHAUSTED ...; RPC_INTERNAL for what says nothing to a client. */
enum rpc_code rpc_code_of(int err);

struct rpc_status {
    enum rpc_code code;
    char text[FAIL_TEXT_MAX];
};

/* ---- messages ---- */

#define RPC_MAX_MESSAGE (64 << 20) // bytes of a received message, if the options say nothing

struct rpc_msg; // a packed message on its way

/* What a message of bytes points to; it must live until the message is packed.
 * text: NULL for none. */
static inline ProtobufCBinaryData rpc_data(const void *data, size_t len)
{
    return (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)data};
}

static inline ProtobufCBinaryData rpc_text(const char *text)
{
    return rpc_data(text, text ? strlen(text) : 0);
}

/* Packs without a copy in between. The caller owns the result. */
struct rpc_msg *rpc_pack(const ProtobufCMessage *msg);
/* Bytes on their way that are packed already (or are not valid: tests). */
struct rpc_msg *rpc_msg_of(const void *data, size_t len);
/* Another owner of the same bytes. */
struct rpc_msg *rpc_msg_share(struct rpc_msg *msg);
/* Another owner of the bytes of both: a message with the fields of both. */
struct rpc_msg *rpc_msg_joined(const struct rpc_msg *a, const struct rpc_msg *b);
size_t rpc_msg_len(const struct rpc_msg *msg);
void rpc_msg_free(struct rpc_msg *msg);

/* NULL: not a valid message, or no message at all. What it becomes in memory is bounded too: at
 * most 64 bytes per byte received, and 64 MiB + 4 bytes per byte.
 * protobuf_c_message_free_unpacked() it. protobuf-c has no limit of depth, so no message type of
 * ours is recursive. */
ProtobufCMessage *rpc_unpack(const ProtobufCMessageDescriptor *type, const struct rpc_msg *msg);

/* ---- server ---- */

struct rpc_server;
struct rpc_call;

struct rpc_method {
    const char *path;  // "/package.Service/Method"
    bool reads_stream; // false: the one request is read before on_start and handed to it
    bool always;       // served in a drain, which does not wait for it; up to 512 calls at once
    size_t drain_mark; // see on_drain

    /* req: freed on return; NULL if reads_stream, or if the client ended without a request. */
    void (*on_start)(struct rpc_call *call, struct rpc_msg *req);
    /* msg: freed on return; NULL once the client has no more to say. */
    void (*on_message)(struct rpc_call *call, struct rpc_msg *msg);
    /* After rpc_call_send() returned more than drain_mark: at most half of that is waiting now. */
    void (*on_drain)(struct rpc_call *call);
    /* The client cancelled, its deadline passed, its connection broke, or the server's drain time
     * is over. Nothing more can be sent. */
    void (*on_cancel)(struct rpc_call *call);
    /* Last of all: free what rpc_call_set_user() stored. May run on any thread. */
    void (*on_end)(struct rpc_call *call);
};

struct rpc_server_options {
    unsigned n_threads;    // 0: 1, the fastest unless calls are busy in their callbacks
    size_t max_message;    // bytes a client may send in one message; 0: RPC_MAX_MESSAGE
    unsigned max_calls;    // running at once, others end with RESOURCE_EXHAUSTED; 0: 8192
    unsigned keepalive_ms; // silence before a ping; its answer has a third of it; 0: 30 s
    unsigned linger_ms;    // for a client to read a finished answer; 0: 60 s
    mode_t socket_mode;    // of unix sockets; 0: 0600
};

int rpc_server_new(const struct rpc_server_options *opt, struct rpc_server **ret);
/* Methods and addresses come before the start. m outlives the server; service is for the callbacks.
 */
void rpc_server_add(struct rpc_server *s, const struct rpc_method *m, void *service);
#define RPC_LISTEN_MAX 16 // addresses and sockets
/* addr: "unix:/path" or "host:port" (port 0: any). Returns the port (1 for unix). A unix path that
 * another server listens on is left alone, a dead server's socket is replaced.
 * -EADDRINUSE, -EINVAL, -EACCES ...: a sentence with the address. */
int rpc_server_listen(struct rpc_server *s, const char *addr);
/* A socket that listens already, as from a service manager; closed with the server. */
int rpc_server_listen_fd(struct rpc_server *s, int fd);
int rpc_server_start(struct rpc_server *s);
/* Refuses new calls, leaves the running ones grace_ms, then ends the rest with UNAVAILABLE and a
 * sentence, waits for everybody who holds a reference to a call, frees the server. NULL is fine. */
void rpc_server_stop(struct rpc_server *s, unsigned grace_ms);
unsigned rpc_server_n_calls(struct rpc_server *s);

void *rpc_call_service(const struct rpc_call *c);
void rpc_call_set_user(struct rpc_call *c, void *user);
void *rpc_call_user(const struct rpc_call *c);

/* rpc_unpack(); a message that is not valid ends the call with INVALID_ARGUMENT, then NULL. */
ProtobufCMessage *rpc_call_unpack(struct rpc_call *c, const ProtobufCMessageDescriptor *type,
                                  const struct rpc_msg *msg);
/* Likewise; *ret_bytes: what it takes in memory, which may be many times what came. */
ProtobufCMessage *rpc_call_unpack_counted(struct rpc_call *c,
                                          const ProtobufCMessageDescriptor *type,
                                          const struct rpc_msg *msg, size_t *ret_bytes);
/* Queues a message and takes it. Returns the bytes the client has not taken yet, which the caller
 * must bound, or -ECANCELED when the call is over. */
ssize_t rpc_call_send(struct rpc_call *c, struct rpc_msg *msg);
/* Ends the call after what is queued; the first end counts. What the client has not read after
 * linger_ms is dropped. text: NULL for none. */
void rpc_call_finish(struct rpc_call *c, enum rpc_code code, const char *text);
/* Ends it at once, for a client that does not read: what is queued is dropped. */
void rpc_call_abort(struct rpc_call *c, enum rpc_code code, const char *text);
/* Sends the one answer of a unary call and ends it with OK. */
void rpc_call_reply(struct rpc_call *c, const ProtobufCMessage *reply);
/* Ends it with rpc_code_of(err) and this thread's fail_text(). */
void rpc_call_fail(struct rpc_call *c, int err);
bool rpc_call_cancelled(struct rpc_call *c);

/* Stops reading what the client sends, so that the client must wait; a message that is being read
 * already still arrives. */
void rpc_call_pause(struct rpc_call *c);
void rpc_call_resume(struct rpc_call *c);

/* Runs fn on the call's thread unless the call is cancelled first. Only from its callbacks. */
void rpc_call_after(struct rpc_call *c, unsigned ms, void (*fn)(struct rpc_call *c));

/* For another thread, or a list, that keeps the call. */
void rpc_call_ref(struct rpc_call *c);
void rpc_call_unref(struct rpc_call *c);

/* ---- client ---- */

struct rpc_client;
struct rpc_stream;

struct rpc_client_options {
    size_t max_message;    // bytes of an answer; 0: RPC_MAX_MESSAGE
    unsigned keepalive_ms; // silence before a ping; its answer has half of it; 0: 10 s
};

struct rpc_options {
    int64_t timeout_us;  // 0: none
    bool wait_for_ready; // false: fail at once while the server cannot be reached
};

/* target: "unix:/path", "host:port", "dns:///host:port". Connects on the first call, and again by
 * itself after 100 to 500 ms when the connection is lost. opt: NULL for the defaults. */
int rpc_client_new(const char *target, const struct rpc_client_options *opt,
                   struct rpc_client **ret);
/* Waits until every stream has ended: cancel them before. Not from a callback. NULL is fine. */
void rpc_client_free(struct rpc_client *c);
DEFINE_AUTO(struct rpc_client, rpc_client_free)

/* Blocks. *ret_reply is NULL unless the status is OK; protobuf_c_message_free_unpacked() it.
 * opt: NULL for the defaults. */
struct rpc_status rpc_unary(struct rpc_client *c, const char *path, const struct rpc_options *opt,
                            const ProtobufCMessage *req, const ProtobufCMessageDescriptor *reply,
                            ProtobufCMessage **ret_reply);

struct rpc_events {
    size_t drain_mark;
    void (*on_message)(void *user, struct rpc_msg *msg); // msg is freed on return
    /* After rpc_stream_send() returned more than drain_mark: at most half of that waits now. */
    void (*on_drain)(void *user);
    void (*on_end)(void *user, const struct rpc_status *status); // last
};

/* Callbacks may run before it returns. opt: NULL for the defaults. Free the handle with
 * rpc_stream_free(). */
struct rpc_stream *rpc_stream_new(struct rpc_client *c, const char *path,
                                  const struct rpc_options *opt, const struct rpc_events *ev,
                                  void *user);
/* Like rpc_call_send(). */
ssize_t rpc_stream_send(struct rpc_stream *s, struct rpc_msg *msg);
void rpc_stream_close(struct rpc_stream *s); // nothing more to send
void rpc_stream_cancel(struct rpc_stream *s);
/* Stops reading, so that the server must wait; a message being read already still arrives, on_end
 * comes after the resume. Cancelling resumes. */
void rpc_stream_pause(struct rpc_stream *s);
void rpc_stream_resume(struct rpc_stream *s);
/* Gives up the handle only: the call goes on until on_end. */
void rpc_stream_free(struct rpc_stream *s);
