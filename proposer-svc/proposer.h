/* proposer.h - tandem.v1.Proposer over rpc: Describe, and Draft streams in front of the
 * sessions.
 *
 * A Round is taken where it arrives, on an rpc thread, or, for a proposer with PROP_OWN_THREAD, on
 * the drafter thread, which takes all Rounds that wait at once, answers each sequence as soon as it
 * has its draft, and works ahead while none waits.
 *
 * Threads: proposer_new() and proposer_free() by main, the rest by any. */
#pragma once
#include "base/mem.h"
#include "proposer-svc/session.h"

struct rpc_server;
struct rpc_msg;
struct Tandem__V1__Round;
struct Tandem__V1__StatsReply;
struct proposer;

struct proposer_config {
    const char *name;     // what the proposer calls itself: Describe's kind
    const char *instance; // in statistics
    uint32_t k_max, max_context;
    struct sessions *sessions; // outlives the service
    const struct prop_ops *ops;
    void *shared; // what its open() returned
};

/* Starts the drafter thread if there is to be one. -ENOMEM. */
int proposer_new(const struct proposer_config *c, struct proposer **ret);
void proposer_free(struct proposer *s);
DEFINE_AUTO(struct proposer, proposer_free)

/* Its methods; before the server starts. The service outlives the server. */
void proposer_add(struct proposer *s, struct rpc_server *server);
/* Drops the sessions that have idled for too long; every now and then. */
void proposer_expire(struct proposer *s);
/* For rpc_stats.h; user: the service. */
void proposer_fill_stats(void *user, struct Tandem__V1__StatsReply *reply);

/* Takes one Round of a stream on the calling thread, without PROP_OWN_THREAD; *ret_answer is the
 * Drafts for it, NULL if it wants none. -EINVAL: the Round contradicts itself; -ENOMEM. */
int proposer_round(struct proposer *s, uint64_t stream, const struct Tandem__V1__Round *round,
                   struct rpc_msg **ret_answer);
