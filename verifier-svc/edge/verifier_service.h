/* verifier_service.h - the gRPC edge: tandem.v1.Verifier over rpc. Only the files of the edge and
 * request.c know its messages.
 *
 * Requests are parsed on rpc threads, checked and tokenized by the jobs threads, and passed to the
 * engine. The sender thread packs and sends the committed tokens, and never waits for a client. If
 * more than VERIFIER_SERVICE_UNREAD_MAX bytes of an answer are unread, its sequences are paused.
 * The answer is aborted if the client does not read for reader_timeout.
 *
 * Threads: main. */
#pragma once
#include "base/mem.h"
#include "rpc/rpc.h"
#include "tandem/v1/stats.pb-c.h"
#include "verifier-svc/engine/engine.h"
#include "verifier-svc/engine/stats.h"
#include "verifier-svc/settings/verifier_options.h"

#define VERIFIER_SERVICE_NAME "tandem.v1.Verifier"
/* Who may generate. A proposer is not trusted, so its certificate may call nothing here. */
#define VERIFIER_SERVICE_CALLERS (RPC_ROLE_CLIENT | RPC_ROLE_GATEWAY | RPC_ROLE_OPERATOR)
#define VERIFIER_SERVICE_UNREAD_MAX (256u << 10)
/* bytes: 2 Mi prompt tokens, a prediction and the rest */
#define VERIFIER_SERVICE_MAX_MESSAGE (16u << 20)
/* bytes of memory of waiting requests, and as many of waiting resumed answers */
#define VERIFIER_SERVICE_WAITING_MAX (64u << 20)
/* bytes of a job that waits for no longer one; at 0.2 us per byte it takes 13 ms */
#define VERIFIER_SERVICE_SHORT_JOB (64u << 10)
#define VERIFIER_SERVICE_MAX_DETOKENIZE (1u << 20) // ids in one call
/* A Verify stream ends if its client sends no `open` for this long, or for a shorter
 * verify_timeout. */
#define VERIFIER_SERVICE_OPEN_S 10

struct verifier_service;

/* All arguments outlive the service. -ENOMEM. */
int verifier_service_new(const struct verifier_options *o, struct engine *e, struct stats *stats,
                         struct verifier_service **ret);
/* Adds the methods of the Verifier. */
void verifier_service_add(struct verifier_service *s, struct rpc_server *server);
/* Starts its threads. */
int verifier_service_start(struct verifier_service *s);
/* Call it after the engine and all calls have ended. Returns when everything is sent. */
void verifier_service_stop(struct verifier_service *s);
void verifier_service_free(struct verifier_service *s);
DEFINE_AUTO(struct verifier_service, verifier_service_free)

/* For rpc_stats.h: fills the typed summary. */
void verifier_service_fill_stats(void *user, Tandem__V1__StatsReply *reply);
