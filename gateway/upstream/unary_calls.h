/* unary_calls.h - asynchronous unary calls, which can all be ended together.
 *
 * Threads: any. Callbacks run on rpc threads, or in unary_calls_make(), and must not block. */
#pragma once
#include <stdint.h>
#include "base/mem.h"
#include "rpc/rpc.h"

struct unary_calls;

/* -ENOMEM. */
int unary_calls_new(struct unary_calls **ret);
/* Ends the current calls and all later ones as cancelled, with the sentence `why` (static). */
void unary_calls_stop(struct unary_calls *s, const char *why);
/* After the rpc_clients of the calls are freed. */
void unary_calls_free(struct unary_calls *s);
DEFINE_AUTO(struct unary_calls, unary_calls_free)

/* Called once. A verifier that cancels the call is UNAVAILABLE.
 * reply: NULL unless the status is OK; the callee frees it with
 * protobuf_c_message_free_unpacked(). */
typedef void unary_calls_done(void *user, const struct rpc_status *status, ProtobufCMessage *reply);
/* done() may be called before this returns, and may free what the request points to. */
void unary_calls_make(struct unary_calls *s, struct rpc_client *client, const char *path,
                      int64_t timeout_us, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply, unary_calls_done *done, void *user);
