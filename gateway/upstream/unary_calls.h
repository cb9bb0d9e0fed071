/* unary_calls.h - unary calls without waiting, which can all be ended at once.
 *
 * Threads: any. Callbacks run on rpc threads, or in unary_calls_make(), and must not block. */
#pragma once
#include <stdint.h>
#include "base/mem.h"
#include "rpc/rpc.h"

struct unary_calls;

/* -ENOMEM. */
int unary_calls_new(struct unary_calls **ret);
/* Ends what is under way and what comes later, as cancelled and with this sentence (static). */
void unary_calls_stop(struct unary_calls *s, const char *why);
/* When the clients are gone. */
void unary_calls_free(struct unary_calls *s);
DEFINE_AUTO(struct unary_calls, unary_calls_free)

/* reply: NULL unless the status is OK; the callee frees it with
 * protobuf_c_message_free_unpacked(). Called once. */
typedef void unary_calls_done(void *user, const struct rpc_status *status, ProtobufCMessage *reply);
void unary_calls_make(struct unary_calls *s, struct rpc_client *client, const char *path,
                      int64_t timeout_us, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply, unary_calls_done *done, void *user);
