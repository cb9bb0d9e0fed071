/* verifier_service_impl.h - what the edge's files share: service.c (requests in), service_jobs.c (long
 * work for them), service_out.c (answers out), service_info.c (model, tokenizer, figures),
 * service_speculation.c (how it speculates). Not for other files. */
#pragma once
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "tandem/v1/verifier.pb-c.h"
#include "verifier-svc/edge/verifier_service.h"

struct verifier_service;
struct job;

/* Answers a call, or begins to. Runs on the thread for jobs, once there is a model. */
typedef void job_fn(struct verifier_service *s, const struct job *j);

/* A call that waits for its turn. */
struct job {
    struct job *next;
    job_fn *run;
    struct rpc_call *call; // with a reference
    ProtobufCMessage *msg;
    size_t bytes; // that the message takes in memory
    int64_t arrived_us;
};

struct verifier_service {
    const struct verifier_options *options;
    struct engine *engine;
    struct stats *stats;
    pthread_t sender, worker; // service_out.c's, service_jobs.c's; 0: not started

    pthread_mutex_t mu; // for the list, and for a call's user while it may still change
    pthread_cond_t jobs_changed;
    struct job *jobs; // in order of their turns
    uint32_t n_jobs;
    size_t job_bytes;
    bool stopping;

    /* service_out.c: room for one message. */
    Tandem__V1__Token tokens[DRAFT_MAX_NODES + 1];
    Tandem__V1__Token *token_list[DRAFT_MAX_NODES + 1];
    Tandem__V1__TopLogprob tops[(DRAFT_MAX_NODES + 1) * DIST_MAX_TOP];
    Tandem__V1__TopLogprob *top_list[(DRAFT_MAX_NODES + 1) * DIST_MAX_TOP];
    struct request *slow; // whose answers are not read

    /* service_info.c: what the last reply points to. */
    Tandem__V1__SpeculationStats speculation;
    Tandem__V1__CacheStats cache;
    Tandem__V1__CacheHolder holders[ENGINE_KV_HOLDERS];
    Tandem__V1__CacheHolder *holder_list[ENGINE_KV_HOLDERS];
    struct engine_kv_view kv;
    Tandem__V1__ProposerStats proposers[DRAFTS_MAX];
    Tandem__V1__ProposerStats *proposer_list[DRAFTS_MAX];
    Tandem__V1__PassTime pass_times[PASS_TIME_TIMED];
    Tandem__V1__PassTime *pass_time_list[PASS_TIME_TIMED];
    struct drafts_stats proposer_stats[DRAFTS_MAX];
    char mode[256];
};

/* ---- service.c ---- */

/* -EPIPE and why nothing can be served now: "the model is being loaded (42 %)" and the like. */
int verifier_service_not_ready(struct verifier_service *s);
/* Ends a call with this thread's last sentence. msg: NULL if the call has none, or it is gone. */
void verifier_service_refuse(struct verifier_service *s, struct rpc_call *call,
                             const Tandem__V1__GenerateRequest *msg, int err);

/* ---- service_jobs.c ---- */

/* Takes msg. A call has one job at most. While the model loads it waits for load_wait. -EPIPE: as
 * verifier_service_not_ready(); -EAGAIN: too many wait, or too much; -EMSGSIZE, -ENOMEM. bytes: what msg
 * takes in memory. */
int verifier_service_add_job(struct verifier_service *s, struct rpc_call *call,
                             ProtobufCMessage *msg, size_t bytes, job_fn *run);
/* For a call with one request: unpacks it and adds its job, or ends the call. */
void verifier_service_start_job(struct rpc_call *call, struct rpc_msg *in,
                                const ProtobufCMessageDescriptor *type, job_fn *run);
/* The call is over: forgets its job if that has not begun. */
void verifier_service_drop_job(struct verifier_service *s, const struct rpc_call *call);
/* The model is there, or will never be; or the service stops. */
void verifier_service_wake_jobs(struct verifier_service *s, bool stop);
void *verifier_service_jobs_main(void *service);

/* ---- service_out.c ---- */

void *verifier_service_out_main(void *service);

/* ---- service_info.c ---- */

extern const struct rpc_method service_get_model, service_tokenize, service_detokenize;

/* ---- service_speculation.c ---- */

extern const struct rpc_method service_set_speculation;
