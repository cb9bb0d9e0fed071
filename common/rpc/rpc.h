/* rpc.h - protobuf-c messages over the gRPC core C API. Only common/rpc includes gRPC's headers.
 *
 * Server: methods are registered by path and driven by callbacks. A call belongs to one thread, so
 * its callbacks never overlap. Client: blocking unary calls, and streams driven by callbacks on one
 * thread per client.
 *
 * Callbacks must not block: a callback that waits delays every other call of its thread. If memory
 * runs out in rpc, the process ends, since gRPC core does the same.
 *
 * Threads: any for rpc_call_* and rpc_stream_*, unless their comments say otherwise. */
#pragma once
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include "base/conf.h"
#include "base/err.h"
#include "base/mem.h"

/* ---- status ---- */

/* The numbers are gRPC's. */
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

/* "UNAVAILABLE" ...; "UNKNOWN" for a number that is not one of gRPC's. */
const char *rpc_code_name(enum rpc_code code);
/* The status for a negative errno: -EINVAL is RPC_INVALID_ARGUMENT, -ENOSPC is
 * RPC_RESOURCE_EXHAUSTED ... An errno that means nothing to a client is RPC_INTERNAL. */
enum rpc_code rpc_code_of(int err);

struct rpc_status {
    enum rpc_code code;
    char text[FAIL_TEXT_MAX];
};

/* ---- messages ---- */

#define RPC_MAX_MESSAGE (64 << 20) // default limit of a received message, bytes

struct rpc_msg; // a packed message

/* A field of type bytes. The data must live until the message is packed. text: NULL for none. */
static inline ProtobufCBinaryData rpc_data(const void *data, size_t len)
{
    return (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)data};
}

static inline ProtobufCBinaryData rpc_text(const char *text)
{
    return rpc_data(text, text ? strlen(text) : 0);
}

/* Packs without an intermediate copy. The caller owns the result. */
struct rpc_msg *rpc_pack(const ProtobufCMessage *msg);
/* A message of bytes that are already packed. (Tests also pass invalid ones.) */
struct rpc_msg *rpc_msg_of(const void *data, size_t len);
/* A second reference to the same bytes. */
struct rpc_msg *rpc_msg_share(struct rpc_msg *msg);
/* A message with the fields of both; it references the bytes of both. */
struct rpc_msg *rpc_msg_joined(const struct rpc_msg *a, const struct rpc_msg *b);
size_t rpc_msg_len(const struct rpc_msg *msg);
void rpc_msg_free(struct rpc_msg *msg);

/* NULL: msg is NULL or not a valid message. The memory of the result is bounded: at most 64 bytes
 * per byte received, and at most 64 MiB + 4 bytes per byte. Free it with
 * protobuf_c_message_free_unpacked(). protobuf-c does not limit the depth of nested messages, so no
 * message type in proto/ is recursive. */
ProtobufCMessage *rpc_unpack(const ProtobufCMessageDescriptor *type, const struct rpc_msg *msg);

/* ---- server ---- */

struct rpc_server;
struct rpc_call;

/* What a client of a server is, by its certificate or by the socket that accepted it. A certificate
 * may give several roles, or none. rpc_roles.h has the table. */
enum rpc_role {
    RPC_ROLE_CLIENT = 1, // generates, or verifies its own drafts
    RPC_ROLE_GATEWAY = 2,
    RPC_ROLE_VERIFIER = 4,
    RPC_ROLE_PROPOSER = 8,
    RPC_ROLE_OPERATOR = 16, // changes settings
    RPC_ROLE_ANY = 32,      // in rpc_method.roles: every client, also one without a role
};

/* Concurrent calls of one method with during_drain, in all and of one connection. */
#define RPC_DURING_DRAIN_MAX 512
#define RPC_DURING_DRAIN_CONNECTION_MAX 64

struct rpc_method {
    const char *path;   // "/package.Service/Method"
    unsigned roles;     // RPC_ROLE_*: who may call it, at least one; others: PERMISSION_DENIED
    bool reads_stream;  // false: the only request is read first and passed to on_start
    bool during_drain;  // served during a drain, which does not wait for these calls; separate
                        // limits, see RPC_DURING_DRAIN_MAX
    unsigned max_calls; // of a method with during_drain, if not RPC_DURING_DRAIN_MAX
    size_t drain_mark;  // unsent bytes, see on_drain

    /* req: freed on return; NULL if reads_stream. */
    void (*on_start)(struct rpc_call *call, struct rpc_msg *req);
    /* msg: freed on return; NULL: the client has closed its side, or is gone. */
    void (*on_message)(struct rpc_call *call, struct rpc_msg *msg);
    /* rpc_call_send() has returned more than drain_mark; now at most half of drain_mark is
     * unsent. */
    void (*on_drain)(struct rpc_call *call);
    /* The client cancelled, its deadline passed, its connection broke, the server's drain time is
     * over, or another call took its place. Nothing can be sent afterwards. */
    void (*on_cancel)(struct rpc_call *call);
    /* The last callback: free the pointer of rpc_call_set_user() here. May run on any thread. */
    void (*on_end)(struct rpc_call *call);
};

struct rpc_server_options {
    unsigned n_threads; // 0: 1, which is fastest unless callbacks compute much; as many more serve
                        // only the service's own user and operators
    size_t max_message; // bytes a client may send in one message; 0: RPC_MAX_MESSAGE
    /* Concurrent calls of the methods without a separate limit; 0: 8192. Clients leave a quarter to
     * gateways, verifiers and operators, here and of separate limits. At the limit, a new call ends
     * a client's: the oldest finished answer that was not read, or the oldest call without a
     * message. If there is none, the new call ends with RESOURCE_EXHAUSTED. */
    unsigned max_calls;
    /* Bytes of finished answers that clients have not read. Above, the oldest ones end; 0: 256 MiB.
     * Separate limits of calls have separate budgets. All other unread bytes have the same limit
     * together; above, the call with most of them ends. */
    size_t max_unread;
    unsigned keepalive_ms;  // silence before a ping, which times out after a third of it; 0: 30 s
    size_t max_unexplained; // bytes that TCP clients sent in unfinished headers and messages;
                            // above, a connection is ended; 0: 64 MiB, see rpc_peers.h
    unsigned linger_ms;     // time for a client to read a finished answer; 0: 60 s
    mode_t socket_mode;     // of unix sockets; 0: 0600
    unsigned own_role;      // RPC_ROLE_*, see rpc_roles.h; 0: RPC_ROLE_CLIENT
    bool insecure;          // TCP without TLS may be reached from other machines, see rpc_roles.h
    const struct conf_list *tls_roles; // see rpc_roles.h; NULL: none
};

int rpc_server_new(const struct rpc_server_options *opt, struct rpc_server **ret);
/* Before rpc_server_listen(). m must outlive the server; callbacks get service by
 * rpc_call_service(). */
void rpc_server_add(struct rpc_server *s, const struct rpc_method *m, void *service);
/* After rpc_server_add(), before rpc_server_start(). Gives m, without during_drain, a separate
 * limit, at least 1. Its calls take none of the server's max_calls, and are served when those are
 * all taken. */
void rpc_server_limit(struct rpc_server *s, const struct rpc_method *m, unsigned max_calls);
#define RPC_LISTEN_MAX 16 // addresses and sockets
/* Before rpc_server_start(). addr: "unix:/path" or "host:port" (port 0: any). Returns the port (1
 * for unix). The socket of a dead server is replaced, that of a running one is not. -EPERM: TCP
 * without TLS, which others than the permitted roles can reach. -EADDRINUSE, -EINVAL, -EACCES ...:
 * fail_text() contains the address. */
int rpc_server_listen(struct rpc_server *s, const char *addr);
/* The same for a unix socket, mode 0600, whose clients are operators. */
int rpc_server_listen_admin(struct rpc_server *s, const char *addr);
/* A socket that already listens, for example from a service manager. It is closed with the server.
 * admin: its clients are operators; only a unix socket (-EINVAL). -EPERM: as above. */
int rpc_server_listen_fd(struct rpc_server *s, int fd, bool admin);
int rpc_server_start(struct rpc_server *s);
/* Refuses new calls, lets running ones finish within grace_ms, then ends the rest with UNAVAILABLE
 * and a sentence. Waits until all references to calls are released, then frees the server. NULL is
 * fine. */
void rpc_server_stop(struct rpc_server *s, unsigned grace_ms);
unsigned rpc_server_n_calls(struct rpc_server *s);

void *rpc_call_service(const struct rpc_call *c);
void rpc_call_set_user(struct rpc_call *c, void *user);
void *rpc_call_user(const struct rpc_call *c);
unsigned rpc_call_roles(const struct rpc_call *c); // RPC_ROLE_* of the client

/* Like rpc_unpack(). NULL: the message is not valid, and the call ends with INVALID_ARGUMENT. */
ProtobufCMessage *rpc_call_unpack(struct rpc_call *c, const ProtobufCMessageDescriptor *type,
                                  const struct rpc_msg *msg);
/* The same. *ret_bytes: memory of the unpacked message, which may be many times its length. */
ProtobufCMessage *rpc_call_unpack_counted(struct rpc_call *c,
                                          const ProtobufCMessageDescriptor *type,
                                          const struct rpc_msg *msg, size_t *ret_bytes);
/* Queues a message and takes ownership. Returns the bytes that the client has not read yet, which
 * the caller must bound. -ECANCELED: the call is over. */
ssize_t rpc_call_send(struct rpc_call *c, struct rpc_msg *msg);
/* Bytes of sent messages that the client has not read yet. */
size_t rpc_call_unread(struct rpc_call *c);
/* Ends the call after the queued messages; only the first status counts. Messages that the client
 * has not read after linger_ms are dropped. text: NULL for none. */
void rpc_call_finish(struct rpc_call *c, enum rpc_code code, const char *text);
/* Ends the call immediately and drops the queued messages, for a client that does not read. */
void rpc_call_abort(struct rpc_call *c, enum rpc_code code, const char *text);
/* Sends the only answer of a unary call and ends it with OK. */
void rpc_call_reply(struct rpc_call *c, const ProtobufCMessage *reply);
/* Ends the call with rpc_code_of(err) and this thread's fail_text(). */
void rpc_call_fail(struct rpc_call *c, int err);
bool rpc_call_cancelled(struct rpc_call *c);

/* Stops reading from the client, so the client must wait. A message whose read has already started
 * still arrives. */
void rpc_call_pause(struct rpc_call *c);
void rpc_call_unpause(struct rpc_call *c);

/* True: the client of a stream has sent a message. Only from the callbacks of the call. */
bool rpc_call_received(const struct rpc_call *c);

/* Runs fn on the call's thread after ms, unless the call is cancelled first. Only from the
 * callbacks of the call. */
void rpc_call_after(struct rpc_call *c, unsigned ms, void (*fn)(struct rpc_call *c));

/* References, for another thread or a list that stores the call. */
void rpc_call_ref(struct rpc_call *c);
void rpc_call_unref(struct rpc_call *c);

/* ---- client ---- */

struct rpc_client;
struct rpc_stream;

struct rpc_client_options {
    size_t max_message;    // bytes of an answer; 0: RPC_MAX_MESSAGE
    unsigned keepalive_ms; // silence before a ping, which times out after half of it; 0: 10 s
    unsigned server_role;  // RPC_ROLE_*: with TLS, of the server's certificate; 0: any
};

struct rpc_options {
    int64_t timeout_us;  // 0: none
    bool wait_for_ready; // false: fail immediately if the server cannot be reached
};

/* target: "unix:/path", "host:port", "dns:///host:port". Connects on the first call. Reconnects
 * after 100 to 500 ms when the connection is lost. Without TLS, a target that may be another
 * machine is logged once, as a warning. opt: NULL for the defaults. */
int rpc_client_new(const char *target, const struct rpc_client_options *opt,
                   struct rpc_client **ret);
/* Waits until every stream has ended: cancel them first. Not from a callback. NULL is fine. */
void rpc_client_free(struct rpc_client *c);
DEFINE_AUTO(struct rpc_client, rpc_client_free)

/* Blocks until the call has ended. *ret_reply is NULL unless the status is OK; free it with
 * protobuf_c_message_free_unpacked(). opt: NULL for the defaults. */
struct rpc_status rpc_unary(struct rpc_client *c, const char *path, const struct rpc_options *opt,
                            const ProtobufCMessage *req, const ProtobufCMessageDescriptor *reply,
                            ProtobufCMessage **ret_reply);

struct rpc_events {
    size_t drain_mark;
    void (*on_message)(void *user, struct rpc_msg *msg); // msg is freed on return
    /* rpc_stream_send() has returned more than drain_mark; now at most half of it is unsent. */
    void (*on_drain)(void *user);
    void (*on_end)(void *user, const struct rpc_status *status); // the last callback
};

/* Starts a call. Callbacks may run before this returns. opt: NULL for the defaults. Free the handle
 * with rpc_stream_free(). */
struct rpc_stream *rpc_stream_new(struct rpc_client *c, const char *path,
                                  const struct rpc_options *opt, const struct rpc_events *ev,
                                  void *user);
/* Like rpc_call_send(). */
ssize_t rpc_stream_send(struct rpc_stream *s, struct rpc_msg *msg);
void rpc_stream_close(struct rpc_stream *s); // the client sends no more messages
void rpc_stream_cancel(struct rpc_stream *s);
/* Stops reading, so the server must wait. A message whose read has already started still arrives;
 * on_end comes only after rpc_stream_unpause(). rpc_stream_cancel() unpauses. */
void rpc_stream_pause(struct rpc_stream *s);
void rpc_stream_unpause(struct rpc_stream *s);
/* Frees the handle only: the call continues until on_end. */
void rpc_stream_free(struct rpc_stream *s);
