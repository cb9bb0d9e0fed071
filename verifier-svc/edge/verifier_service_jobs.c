/* verifier_service_jobs.c - the jobs threads: long work with a call's text, such as tokenizing a
 * megabyte, without delaying the streams of other calls. Calls that arrive while the model loads
 * wait in the same list.
 *
 * One thread runs all jobs, the other one runs short jobs only. So a short job never waits for a
 * long one.
 *
 * Jobs of different flows take turns, by their bytes (flows.h). So a long job waits for at most two
 * long jobs of each other flow: the one that runs, and one with an earlier turn.
 *
 * Within a flow, short jobs go before long ones. A smaller job passes a larger one if it arrives
 * within the larger one's bytes times LETS_PASS_US. So equal jobs keep their order, and no job
 * starves. Jobs of resumed answers go before all others. Their number is bounded, since each is an
 * answer that has begun. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/svc.h"
#include "verifier-svc/edge/verifier_service_impl.h"

#define LETS_PASS_US 10 // per byte, many times the run time: 8 MiB let smaller jobs pass for 84 s

/* The request that a message holds; NULL for other messages. */
static const Tandem__V1__GenerateRequest *request_of(const ProtobufCMessage *msg)
{
    if (msg->descriptor == &tandem__v1__generate_request__descriptor)
        return (const Tandem__V1__GenerateRequest *)msg;
    if (msg->descriptor != &tandem__v1__verify_request__descriptor)
        return NULL;
    const Tandem__V1__VerifyRequest *verify = (const Tandem__V1__VerifyRequest *)msg;
    return verify->message_case == TANDEM__V1__VERIFY_REQUEST__MESSAGE_OPEN ? verify->open : NULL;
}

/* The flow that a message names; an empty name for other messages. */
static ProtobufCBinaryData named_flow(const ProtobufCMessage *msg)
{
    const Tandem__V1__GenerateRequest *request = request_of(msg);
    if (request)
        return request->flow;
    if (msg->descriptor == &tandem__v1__tokenize_request__descriptor)
        return ((const Tandem__V1__TokenizeRequest *)msg)->flow;
    if (msg->descriptor == &tandem__v1__detokenize_request__descriptor)
        return ((const Tandem__V1__DetokenizeRequest *)msg)->flow;
    return rpc_data(NULL, 0);
}

/* A gateway that counts as a client loses the turns of its keys, so this is logged once. */
static ProtobufCBinaryData flow_of(const struct rpc_call *call, const ProtobufCMessage *msg)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    ProtobufCBinaryData flow = named_flow(msg);
    if (verifier_service_may_name(call))
        return flow;
    if (flow.len && !atomic_flag_test_and_set(&warned))
        log_warn("a client names flows, and only gateways and operators may: "
                 "the requests of all clients are one flow");
    return rpc_text(REQUEST_CLIENT_FLOW);
}

static void job_free(struct job *j)
{
    protobuf_c_message_free_unpacked(j->msg, NULL);
    rpc_call_unref(j->call);
    free(j);
}

/* With the lock: removes the job at `at` from the list. */
static struct job *remove_at(struct verifier_service *s, struct job **at)
{
    struct job *j = *at;
    *at = j->next;
    s->n_jobs--;
    flows_leave(s->job_flows, &j->place);
    return j;
}

/* Removes the job of a call; NULL: it has started, or there is none. */
static struct job *remove_of(struct verifier_service *s, const struct rpc_call *call)
{
    pthread_mutex_lock(&s->mu);
    struct job **at = &s->jobs;
    while (*at && (*at)->call != call)
        at = &(*at)->next;
    struct job *j = *at ? remove_at(s, at) : NULL;
    pthread_mutex_unlock(&s->mu);
    return j;
}

void verifier_service_drop_job(struct verifier_service *s, const struct rpc_call *call)
{
    struct job *j = remove_of(s, call);
    if (j)
        job_free(j);
}

/* The call has waited for the model for load_wait. */
static void load_wait_over(struct rpc_call *call)
{
    struct verifier_service *s = rpc_call_service(call);
    int err = verifier_service_not_ready(s);
    struct job *j = err ? remove_of(s, call) : NULL;
    if (!j)
        return; // the model is loaded, and the job will run
    verifier_service_refuse(s, call, NULL, err);
    job_free(j);
}

/* Only a gateway resumes answers. Others may send a continuation too, but it has no advantage over
 * new requests: a client could call all its requests continuations. */
static bool resumes(const struct rpc_call *call, const ProtobufCMessage *msg)
{
    return msg->descriptor == &tandem__v1__generate_request__descriptor &&
           ((const Tandem__V1__GenerateRequest *)msg)->continuation &&
           rpc_call_roles(call) & RPC_ROLE_GATEWAY;
}

/* Jobs of one flow run in the order of this time. */
static int64_t rank_of(const struct job *j)
{
    return j->arrived_us + (int64_t)j->place.bytes * LETS_PASS_US;
}

static bool precedes(const struct job *a, const struct job *b)
{
    if (a->place.resumed != b->place.resumed)
        return a->place.resumed;
    return rank_of(a) <= rank_of(b);
}

/* With the lock: removes the jobs that have given way. */
static struct job *remove_displaced(struct verifier_service *s)
{
    struct job *displaced = NULL;
    for (struct job **at = &s->jobs; *at;) {
        if (flows_state(s->job_flows, &(*at)->place) == FLOWS_DISPLACED) {
            struct job *j = remove_at(s, at);
            j->next = displaced;
            displaced = j;
        } else {
            at = &(*at)->next;
        }
    }
    return displaced;
}

/* With the lock. *ret_displaced: the list of jobs that have given way to j. */
static int add_ranked(struct verifier_service *s, struct job *j, struct job **ret_displaced)
{
    if (j->place.bytes > VERIFIER_SERVICE_WAITING_MAX)
        return fail(-EMSGSIZE, "the request takes %zu MiB of memory, at most %u are allowed",
                    j->place.bytes >> 20, VERIFIER_SERVICE_WAITING_MAX >> 20);
    ProtobufCBinaryData flow = flow_of(j->call, j->msg);
    uint32_t n_displaced;
    int err = flows_enter(s->job_flows, &j->place, flow.data,
                          flow.len < FLOWS_MAX_NAME ? flow.len : FLOWS_MAX_NAME, &n_displaced);
    if (err < 0)
        return err;
    *ret_displaced = n_displaced ? remove_displaced(s) : NULL;
    struct job **at = &s->jobs;
    while (*at && precedes(*at, j))
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    s->n_jobs++;
    rpc_call_ref(j->call);
    pthread_cond_broadcast(&s->jobs_changed); // a thread that runs short jobs only may be idle
    return 0;
}

/* 0: the engine is ready, or loading and calls may wait for it. */
static int check_ready(struct verifier_service *s)
{
    if (engine_state(s->engine, NULL) == ENGINE_LOADING && s->options->load_wait_s > 0)
        return 0;
    return verifier_service_not_ready(s);
}

int verifier_service_add_job(struct verifier_service *s, struct rpc_call *call,
                             ProtobufCMessage *msg, size_t bytes, job_fn *run)
{
    struct job *j = malloc(sizeof(*j)), *displaced = NULL;
    int err = j ? check_ready(s) : fail(-ENOMEM, "no memory for a request");
    if (!err) {
        *j = (struct job){.call = call,
                          .msg = msg,
                          .run = run,
                          .place = {.resumed = resumes(call, msg), .bytes = bytes},
                          .arrived_us = clock_us()};
        pthread_mutex_lock(&s->mu);
        err = add_ranked(s, j, &displaced);
        pthread_mutex_unlock(&s->mu);
    }
    while (displaced) {
        struct job *gone = displaced;
        displaced = gone->next;
        verifier_service_refuse(s, gone->call, request_of(gone->msg),
                                fail(-EAGAIN, ENGINE_DISPLACED));
        job_free(gone);
    }
    if (err) {
        free(j);
        protobuf_c_message_free_unpacked(msg, NULL);
    } else if (engine_state(s->engine, NULL) == ENGINE_LOADING) {
        rpc_call_after(call, (unsigned)(s->options->load_wait_s * 1000), load_wait_over);
    }
    return err;
}

void verifier_service_start_job(struct rpc_call *call, struct rpc_msg *in,
                                const ProtobufCMessageDescriptor *type, job_fn *run)
{
    struct verifier_service *s = rpc_call_service(call);
    size_t bytes;
    ProtobufCMessage *msg = rpc_call_unpack_counted(call, type, in, &bytes);
    int err = msg ? verifier_service_add_job(s, call, msg, bytes, run) : 0;
    if (err < 0)
        verifier_service_refuse(s, call, NULL, err);
}

/* With the lock: removes the job whose turn it is among those that a thread may run. Of equal
 * turns, the list's first one is it. NULL: there is none. */
static struct job *remove_next(struct verifier_service *s, size_t max_bytes)
{
    uint32_t n = 0;
    for (struct job *j = s->jobs; j; j = j->next) {
        if (j->place.bytes > max_bytes)
            continue;
        s->turns[n] = (struct flows_turn){.place = &j->place,
                                          .index = n,
                                          .n_tokens = (uint32_t)j->place.bytes,
                                          .first = j->place.resumed};
        n++;
    }
    if (!n)
        return NULL;
    flows_sort(s->job_flows, s->turns, n);
    struct job **at = &s->jobs;
    while (&(*at)->place != s->turns[0].place)
        at = &(*at)->next;
    flows_start(s->job_flows, &(*at)->place, (uint32_t)(*at)->place.bytes);
    return remove_at(s, at);
}

/* Waits for the thread's next job; NULL: the service stops. */
static struct job *next_job(const struct jobs_thread *t)
{
    struct verifier_service *s = t->service;
    struct job *j = NULL;
    pthread_mutex_lock(&s->mu);
    while (!s->stopping) {
        if (engine_state(s->engine, NULL) != ENGINE_LOADING && (j = remove_next(s, t->max_bytes)))
            break;
        pthread_cond_wait(&s->jobs_changed, &s->mu);
    }
    pthread_mutex_unlock(&s->mu);
    return j;
}

void verifier_service_wake_jobs(struct verifier_service *s, bool stop)
{
    pthread_mutex_lock(&s->mu);
    s->stopping |= stop;
    pthread_cond_broadcast(&s->jobs_changed);
    pthread_mutex_unlock(&s->mu);
}

void *verifier_service_jobs_main(void *thread)
{
    const struct jobs_thread *t = thread;
    struct verifier_service *s = t->service;
    for (struct job *j; (j = next_job(t)); job_free(j)) {
        svc_awake();
        if (engine_loaded_model(s->engine))
            j->run(s, j);
        else
            verifier_service_refuse(s, j->call, NULL, verifier_service_not_ready(s));
        svc_asleep();
    }
    return NULL;
}
