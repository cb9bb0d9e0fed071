/* verifier_service.h - the gRPC edge: tandem.v1.Verifier over rpc. The only place that knows its messages.
 *
 * Requests are parsed on rpc threads, checked and tokenized by a thread for that, and handed to the
 * engine; what the engine commits is packed and sent by another thread of its own, which never
 * waits for a client: an answer of which more than SERVICE_UNREAD_MAX bytes are unread pauses its
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

#define SERVICE_NAME "tandem.v1.Verifier"
#define SERVICE_UNREAD_MAX (256u << 10)
#define SERVICE_MAX_MESSAGE (16u << 20)   // bytes: 2 Mi prompt tokens, a prediction and the rest
#define SERVICE_WAITING_MAX (64u << 20)   // bytes in memory of requests that wait
#define SERVICE_MAX_DETOKENIZE (1u << 20) // ids in one call

struct service;

/* All outlive it. -ENOMEM. */
int service_new(const struct options *o, struct engine *e, struct stats *stats,
                struct service **ret);
/* The methods of the Verifier. */
void service_add(struct service *s, struct rpc_server *server);
/* Starts its threads. */
int service_start(struct service *s);
/* After the engine has ended, and every call: returns when everything is sent. */
void service_stop(struct service *s);
void service_free(struct service *s);
DEFINE_AUTO(struct service, service_free)

/* For rpc_stats.h: the typed summary. */
void service_fill_stats(void *user, Tandem__V1__StatsReply *reply);
