/* verifier_service.h - the gRPC edge: tandem.v1.Verifier over rpc. The only place that knows its messages.
 *
 * Requests are parsed on rpc threads, checked and tokenized by a thread for that, and handed to the
 * engine; what the engine commits is packed and sent by another thread of its own, which never
 * waits for a client: an answer of which more than VERIFIER_SERVICE_UNREAD_MAX bytes are unread pauses its
 * sequences, and ends after a while.
 *
 * Threads: main. */
#pragma once
#include "base/mem.h"
#include "rpc/rpc.h"
#include "tandem/v1/stats.pb-c.h"
#include "verifier-svc/engine/engine.h"
#include "verifier-svc/verifier_options.h"
#include "verifier-svc/engine/stats.h"

#define VERIFIER_SERVICE_NAME "tandem.v1.Verifier"
#define VERIFIER_SERVICE_UNREAD_MAX (256u << 10)
#define VERIFIER_SERVICE_MAX_MESSAGE                                                               \
    (16u << 20) // bytes: 2 Mi prompt tokens, a prediction and the rest
#define VERIFIER_SERVICE_WAITING_MAX (64u << 20)   // bytes in memory of requests that wait
#define VERIFIER_SERVICE_MAX_DETOKENIZE (1u << 20) // ids in one call

struct verifier_service;

/* All outlive it. -ENOMEM. */
int verifier_service_new(const struct verifier_options *o, struct engine *e, struct stats *stats,
                         struct verifier_service **ret);
/* The methods of the Verifier. */
void verifier_service_add(struct verifier_service *s, struct rpc_server *server);
/* Starts its threads. */
int verifier_service_start(struct verifier_service *s);
/* After the engine has ended, and every call: returns when everything is sent. */
void verifier_service_stop(struct verifier_service *s);
void verifier_service_free(struct verifier_service *s);
DEFINE_AUTO(struct verifier_service, verifier_service_free)

/* For rpc_stats.h: the typed summary. */
void service_fill_stats(void *user, Tandem__V1__StatsReply *reply);
