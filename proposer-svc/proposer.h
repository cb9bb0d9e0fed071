/* proposer.h - tandem.v1.Proposer over rpc: Describe, and the Draft streams.
 *
 * A Round is processed on the rpc thread that received it. With PROP_OWN_THREAD the draft thread
 * processes it (draft_thread.h).
 *
 * Threads: main calls proposer_new() and proposer_free(); any thread calls the others. */
#pragma once
#include "base/mem.h"
#include "proposer-svc/session.h"

struct rpc_server;
struct Tandem__V1__StatsReply;
struct proposer;

struct proposer_config {
    const char *name; // the `kind` in Describe
    uint32_t k_max, max_context;
    struct sessions *sessions; // outlives the service
    const struct prop_ops *ops;
    void *shared; // what its open() returned
};

/* Starts the draft thread if the proposer has PROP_OWN_THREAD. -ENOMEM, -EAGAIN: no thread. */
int proposer_new(const struct proposer_config *c, struct proposer **ret);
void proposer_free(struct proposer *s);
DEFINE_AUTO(struct proposer, proposer_free)

/* Adds the methods to a server that has not started. The service outlives the server. */
void proposer_add(struct proposer *s, struct rpc_server *server);
/* Drops the sessions whose idle time is over. To be called about once a second. */
void proposer_expire(struct proposer *s);
/* The fill_stats callback of rpc_service.h. user: the service. */
void proposer_fill_stats(void *user, struct Tandem__V1__StatsReply *reply);
