/* verifier_service_impl.h - what the edge's files share. Not for other files.
 *
 *     verifier_service.c              Generate and Verify: requests in
 *     verifier_service_jobs.c         the jobs threads: check and tokenize
 *     verifier_service_out.c          the sender thread: sends answers
 *     verifier_service_info.c         model, tokenizer, statistics
 *     verifier_service_speculation.c  the settings of speculation */
#pragma once
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "base/log_burst.h"
#include "tandem/v1/verifier.pb-c.h"
#include "verifier-svc/edge/verifier_service.h"
#include "verifier-svc/engine/flows.h"

struct verifier_service;
struct job;

/* Answers a call, or starts its answer. Runs on a jobs thread, once the model is loaded. */
typedef void job_fn(struct verifier_service *s, const struct job *j);

/* A waiting call. */
struct job {
    struct job *next;
    job_fn *run;
    struct rpc_call *call; // with a reference
    ProtobufCMessage *msg;
    struct flows_place place; // in job_flows
    int64_t arrived_us;
};

struct jobs_thread {
    struct verifier_service *service;
    size_t max_bytes; // of the jobs that it runs
    pthread_t thread; // 0: not started
};

struct verifier_service {
    const struct verifier_options *options;
    struct engine *engine;
    struct stats *stats;
    pthread_t sender_thread;            // 0: not started
    struct jobs_thread jobs_threads[2]; // for all jobs, and for short ones

    pthread_mutex_t mu; // for jobs, refusals, and the user of a call while it can change
    pthread_cond_t jobs_changed;
    struct job *jobs;         // short ones before long ones
    struct flows *job_flows;  // whose turn it is, by bytes, and whose jobs give way
    struct flows_turn *turns; // memory for sorting the jobs
    uint32_t n_jobs;
    bool stopping;
    struct log_burst refusals; // their log lines

    /* The sender thread: memory for one message. */
    Tandem__V1__Token tokens[DRAFT_MAX_NODES + 1];
    Tandem__V1__Token *token_list[DRAFT_MAX_NODES + 1];
    Tandem__V1__TopLogprob tops[(DRAFT_MAX_NODES + 1) * DIST_MAX_TOP];
    Tandem__V1__TopLogprob *top_list[(DRAFT_MAX_NODES + 1) * DIST_MAX_TOP];
    struct request *slow; // paused requests

    /* GetStats: what the last reply points to. */
    Tandem__V1__SpeculationStats speculation;
    Tandem__V1__CacheStats cache;
    Tandem__V1__CacheHolder holders[ENGINE_KV_HOLDERS];
    Tandem__V1__CacheHolder *holder_list[ENGINE_KV_HOLDERS];
    struct engine_kv_view kv;
    Tandem__V1__ProposerStats proposers[DRAFT_MAX_PROPOSERS];
    Tandem__V1__ProposerStats *proposer_list[DRAFT_MAX_PROPOSERS];
    Tandem__V1__PassTime pass_times[PASS_TIME_TIMED];
    Tandem__V1__PassTime *pass_time_list[PASS_TIME_TIMED];
    struct drafts_stats proposer_stats[DRAFT_MAX_PROPOSERS];
    struct proposer_series_copy series_copies[DRAFT_MAX_PROPOSERS];
    Tandem__V1__ProposerSeries series[DRAFT_MAX_PROPOSERS];
    Tandem__V1__ProposerSeries *series_list[DRAFT_MAX_PROPOSERS];
    char mode[256];
};

/* ---- verifier_service.c ---- */

/* 0: the engine is ready. -EPIPE, with the reason: "the model is being loaded (42 %)", for
 * example. */
int verifier_service_not_ready(struct verifier_service *s);
/* Ends a call with this thread's fail_text(). msg: NULL if the call has no message any longer. */
void verifier_service_refuse(struct verifier_service *s, struct rpc_call *call,
                             const Tandem__V1__GenerateRequest *msg, int err);
/* Whether the client names its tenants and flows: it is a gateway or an operator. Those of clients
 * are apart from these (request.h). */
bool verifier_service_may_name(const struct rpc_call *call);

/* ---- verifier_service_jobs.c ---- */

/* Adds a job for a call; takes msg, which occupies `bytes` of memory. A call has at most one job.
 * While the model loads, the job waits for at most load_wait. -EPIPE: as
 * verifier_service_not_ready(); -EAGAIN: too many jobs or bytes are waiting; -EMSGSIZE, -ENOMEM. */
int verifier_service_add_job(struct verifier_service *s, struct rpc_call *call,
                             ProtobufCMessage *msg, size_t bytes, job_fn *run);
/* For a call with one request message: unpacks it and adds its job, or ends the call. */
void verifier_service_start_job(struct rpc_call *call, struct rpc_msg *in,
                                const ProtobufCMessageDescriptor *type, job_fn *run);
/* The call has ended: removes its job if that has not started. */
void verifier_service_drop_job(struct verifier_service *s, const struct rpc_call *call);
/* Loading has ended, with success or not; or the service stops. */
void verifier_service_wake_jobs(struct verifier_service *s, bool stop);
/* thread: a jobs_thread. */
void *verifier_service_jobs_main(void *thread);

/* ---- verifier_service_out.c ---- */

void *verifier_service_out_main(void *service);

/* ---- verifier_service_info.c ---- */

extern const struct rpc_method verifier_service_get_model, verifier_service_tokenize,
    verifier_service_detokenize;

/* ---- verifier_service_speculation.c ---- */

extern const struct rpc_method verifier_service_set_speculation;
