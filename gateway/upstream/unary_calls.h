/* unary_calls.h - unary calls without waiting, which can all be ended at once.
 *
 * Threads: any. Callbacks run on rpc threads, or in calls_make(), and must not block. */
#pragma once
#include <stdint.h>
#include "base/mem.h"
#include "rpc/rpc.h"

struct calls;

/* -ENOMEM. */
int calls_new(struct calls **ret);
/* Ends what is under way and what comes later, as cancelled and with this sentence (static). */
void calls_stop(struct calls *s, const char *why);
/* When the clients are gone. */
void calls_free(struct calls *s);
DEFINE_AUTO(struct calls, calls_free)

/* reply: NULL unless the status is OK; the callee frees it with
 * protobuf_c_message_free_unpacked(). Called once. */
typedef void calls_done(void *user, const struct rpc_status *status, ProtobufCMessage *reply);
void calls_make(struct calls *s, struct rpc_client *client, const char *path, int64_t timeout_us,
                const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply,
                calls_done *done, void *user);
