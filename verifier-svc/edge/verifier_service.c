/* verifier_service.c - Generate and Verify: requests go to the engine. */
#include <errno.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"
#include "verifier-svc/edge/verifier_service_impl.h"

#define REFUSALS_LOGGED 200 // in LOG_BURST_US

int verifier_service_not_ready(struct verifier_service *s)
{
    float progress;
    switch (engine_state(s->engine, &progress)) {
    case ENGINE_READY:
        return 0;
    case ENGINE_LOADING:
        return fail(-EPIPE, "the model is being loaded (%d %%)", (int)(progress * 100));
    case ENGINE_FAILED:
        return fail(-EPIPE, "the model could not be loaded: %s", engine_error(s->engine));
    default:
        return fail(-EPIPE, "the server is stopping");
    }
}

/* The metrics count all refusals; so many lines would fill the disk. */
static bool refusal_has_line(struct verifier_service *s)
{
    uint64_t left_out;
    pthread_mutex_lock(&s->mu);
    bool has = log_burst_take(&s->refusals, REFUSALS_LOGGED, clock_us(), &left_out);
    pthread_mutex_unlock(&s->mu);
    if (left_out)
        log_info("refusals not logged n=%llu", (unsigned long long)left_out);
    return has;
}

static void log_refusal(const Tandem__V1__GenerateRequest *msg, int err)
{
    char id[REQUEST_MAX_ID + 1] = "", trace[TRACE_ID_LEN + 1] = "", why[FAIL_TEXT_MAX];
    if (msg) {
        request_id(msg, id);
        trace_id(msg->traceparent.data, msg->traceparent.len, trace);
    }
    log_info("request refused id=%s%s%s code=%s: %s", id, *trace ? " trace=" : "", trace,
             rpc_code_name(rpc_code_of(err)), log_unquoted(fail_text(), why, sizeof(why)));
}

void verifier_service_refuse(struct verifier_service *s, struct rpc_call *call,
                             const Tandem__V1__GenerateRequest *msg, int err)
{
    metrics_add(s->stats->refused, 1);
    if (refusal_has_line(s))
        log_refusal(msg, err);
    rpc_call_fail(call, err);
}

bool verifier_service_may_name(const struct rpc_call *call)
{
    return rpc_call_roles(call) & (RPC_ROLE_GATEWAY | RPC_ROLE_OPERATOR);
}

static void set_user(struct verifier_service *s, struct rpc_call *call, struct request *r)
{
    pthread_mutex_lock(&s->mu);
    rpc_call_set_user(call, r);
    pthread_mutex_unlock(&s->mu);
}

static void cancel(struct verifier_service *s, struct request *r)
{
    atomic_store(&r->cancelled, true);
    engine_wake(s->engine);
}

/* Checks a request and submits it. The call and the engine hold one reference each. */
static int submit(struct verifier_service *s, const struct job *j,
                  const Tandem__V1__GenerateRequest *msg, bool verify)
{
    const struct loaded_model *m = engine_loaded_model(s->engine);
    struct request_limits limits = {m->tok,         m->name,
                                    m->run.context, (uint32_t)s->options->max_sequences,
                                    m->fingerprint, verifier_service_may_name(j->call)};
    AUTO(request_drop) struct request *r = NULL;
    int err = request_read(msg, &limits, &r);
    if (!err && verify && r->n > 1)
        err = fail(-EINVAL, "n is %u, a Verify stream has one choice", r->n);
    if (!err && verify && r->continued)
        err = fail(-EINVAL, "a Verify stream cannot continue another verifier's answer");
    if (!err && r->k_max)
        err = drafts_check_name(engine_drafts(s->engine), r->proposer);
    if (!err)
        err = request_open(r, m->tok);
    if (err < 0)
        return err;
    r->verify = verify;
    r->place.resumed = j->place.resumed;
    r->arrived_us = j->arrived_us;
    r->call = j->call;
    rpc_call_ref(r->call);
    set_user(s, r->call, r);
    err = engine_submit(s->engine, r);
    if (err < 0) {
        set_user(s, r->call, NULL);
        rpc_call_unref(r->call);
        return err;
    }
    struct request *held = TAKE(r);
    if (rpc_call_cancelled(j->call)) // perhaps before set_user()
        cancel(s, held);
    return 0;
}

/* ---- Generate ---- */

static void run_generate(struct verifier_service *s, const struct job *j)
{
    const Tandem__V1__GenerateRequest *msg = (const Tandem__V1__GenerateRequest *)j->msg;
    int err = submit(s, j, msg, false);
    if (err < 0)
        verifier_service_refuse(s, j->call, msg, err);
}

static void generate_start(struct rpc_call *call, struct rpc_msg *in)
{
    verifier_service_start_job(call, in, &tandem__v1__generate_request__descriptor, run_generate);
}

static void call_cancelled(struct rpc_call *call)
{
    struct verifier_service *s = rpc_call_service(call);
    verifier_service_drop_job(s, call);
    pthread_mutex_lock(&s->mu);
    struct request *r = rpc_call_user(call);
    if (r)
        cancel(s, r);
    pthread_mutex_unlock(&s->mu);
}

static void call_drained(struct rpc_call *call)
{
    struct verifier_service *s = rpc_call_service(call);
    pthread_mutex_lock(&s->mu);
    struct request *r = rpc_call_user(call);
    if (r) {
        atomic_fetch_add(&r->n_drains, 1);
        atomic_store(&r->paused, false);
        engine_wake(s->engine);
    }
    pthread_mutex_unlock(&s->mu);
}

static void call_ended(struct rpc_call *call)
{
    request_drop(rpc_call_user(call));
}

/* ---- Verify ---- */

static int submit_draft(struct verifier_service *s, struct request *r,
                        const Tandem__V1__VerifyDraft *d)
{
    if (d->n_tokens > DRAFT_MAX_NODES)
        return fail(-EINVAL, "the draft has %zu tokens, at most %d are allowed", d->n_tokens,
                    DRAFT_MAX_NODES);
    if (d->n_parents && d->n_parents != d->n_tokens)
        return fail(-EINVAL, "the draft has %zu tokens and %zu parents", d->n_tokens, d->n_parents);
    struct draft *draft = draft_new();
    if (!draft)
        return fail(-ENOMEM, "no memory for a draft");
    draft->n = (uint32_t)d->n_tokens;
    for (uint32_t i = 0; i < draft->n; i++) {
        draft->tokens[i] = d->tokens[i];
        draft->parents[i] = d->n_parents ? d->parents[i] : (int32_t)i - 1;
        draft->survival[i] = 1;
    }
    return engine_verify(s->engine, r, d->base_len, draft);
}

static void run_open(struct verifier_service *s, const struct job *j)
{
    const Tandem__V1__GenerateRequest *msg = ((const Tandem__V1__VerifyRequest *)j->msg)->open;
    int err = submit(s, j, msg, true);
    if (err < 0)
        verifier_service_refuse(s, j->call, msg, err);
    else
        rpc_call_unpause(j->call);
}

/* The engine ends the request, after the commit of a draft that is in the inbox. */
static void close_verify(struct verifier_service *s, struct request *r)
{
    atomic_store(&r->closing, true);
    engine_wake(s->engine);
}

/* Takes msg. The next message is read when the stream is open. */
static int open_verify(struct verifier_service *s, struct rpc_call *call, ProtobufCMessage *msg,
                       size_t bytes)
{
    rpc_call_pause(call);
    return verifier_service_add_job(s, call, msg, bytes, run_open);
}

/* Takes msg. */
static int take_verify(struct verifier_service *s, struct rpc_call *call,
                       Tandem__V1__VerifyRequest *msg, size_t bytes)
{
    struct request *r = rpc_call_user(call);
    int err;
    if (msg->message_case == TANDEM__V1__VERIFY_REQUEST__MESSAGE_OPEN) {
        if (!r)
            return open_verify(s, call, &msg->base, bytes);
        err = fail(-ESTALE, "this stream is already open");
    } else if (msg->message_case == TANDEM__V1__VERIFY_REQUEST__MESSAGE_DRAFT) {
        err = r ? submit_draft(s, r, msg->draft)
                : fail(-ESTALE, "a draft came before `open`: this stream has no sequence yet");
    } else {
        err = fail(-EINVAL, "the message is neither `open` nor `draft`");
    }
    tandem__v1__verify_request__free_unpacked(msg, NULL);
    return err;
}

/* Of verify_timeout, at most VERIFIER_SERVICE_OPEN_S. */
static double open_timeout_s(const struct verifier_service *s)
{
    double most = s->options->verify_timeout_s;
    return most < VERIFIER_SERVICE_OPEN_S ? most : VERIFIER_SERVICE_OPEN_S;
}

static void open_overdue(struct rpc_call *call)
{
    struct verifier_service *s = rpc_call_service(call);
    if (rpc_call_received(call))
        return; // the engine limits its further waits
    verifier_service_refuse(s, call, NULL,
                            fail(-ETIMEDOUT, "no `open` arrived for %g s", open_timeout_s(s)));
}

static void verify_start(struct rpc_call *call, struct rpc_msg *in)
{
    (void)in; // a stream has no first message
    rpc_call_after(call, (unsigned)(open_timeout_s(rpc_call_service(call)) * 1000), open_overdue);
}

static void verify_message(struct rpc_call *call, struct rpc_msg *in)
{
    struct verifier_service *s = rpc_call_service(call);
    struct request *r = rpc_call_user(call);
    if (!in) { // the client has no more drafts
        if (r)
            close_verify(s, r);
        else
            rpc_call_finish(call, RPC_OK, NULL);
        return;
    }
    size_t bytes;
    Tandem__V1__VerifyRequest *msg = (Tandem__V1__VerifyRequest *)rpc_call_unpack_counted(
        call, &tandem__v1__verify_request__descriptor, in, &bytes);
    int err = msg ? take_verify(s, call, msg, bytes) : 0;
    if (err < 0)
        verifier_service_refuse(s, call, NULL, err);
    if ((!msg || err < 0) && r)
        cancel(s, r);
}

/* ---- the service ---- */

static const struct rpc_method generate = {
    .path = "/" VERIFIER_SERVICE_NAME "/Generate",
    .roles = VERIFIER_SERVICE_CALLERS,
    .drain_mark = VERIFIER_SERVICE_UNREAD_MAX,
    .on_start = generate_start,
    .on_drain = call_drained,
    .on_cancel = call_cancelled,
    .on_end = call_ended,
};

static const struct rpc_method verify = {
    .path = "/" VERIFIER_SERVICE_NAME "/Verify",
    .roles = VERIFIER_SERVICE_CALLERS,
    .reads_stream = true,
    .on_start = verify_start,
    .drain_mark = VERIFIER_SERVICE_UNREAD_MAX,
    .on_message = verify_message,
    .on_drain = call_drained,
    .on_cancel = call_cancelled,
    .on_end = call_ended,
};

int verifier_service_new(const struct verifier_options *o, struct engine *e, struct stats *stats,
                         struct verifier_service **ret)
{
    struct flows_limits limits = {.waiting = (uint32_t)o->queue_length,
                                  .resumed = engine_max_resumed(o),
                                  .bytes = VERIFIER_SERVICE_WAITING_MAX};
    AUTO(flows_free) struct flows *job_flows = NULL;
    int err = flows_new(&limits, &job_flows);
    if (err < 0)
        return err;
    AUTO(mem_free)
    struct flows_turn *turns = calloc(limits.waiting + limits.resumed, sizeof(*turns));
    struct verifier_service *s = calloc(1, sizeof(*s));
    if (!s || !turns) {
        free(s);
        return fail(-ENOMEM, "no memory for the service");
    }
    s->job_flows = TAKE(job_flows);
    s->turns = TAKE(turns);
    s->options = o;
    s->engine = e;
    s->stats = stats;
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->jobs_changed, NULL);
    *ret = s;
    return 0;
}

void verifier_service_add(struct verifier_service *s, struct rpc_server *server)
{
    const struct rpc_method *methods[] = {&generate,
                                          &verify,
                                          &verifier_service_get_model,
                                          &verifier_service_tokenize,
                                          &verifier_service_detokenize,
                                          &verifier_service_set_speculation};
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        rpc_server_add(server, methods[i], s);
    rpc_server_limit(server, &verify, (unsigned)s->options->verify_streams);
}

int verifier_service_start(struct verifier_service *s)
{
    int err = thread_start(verifier_service_out_main, s, 0, &s->sender_thread);
    for (size_t i = 0; !err && i < ARRAY_LEN(s->jobs_threads); i++) {
        struct jobs_thread *t = &s->jobs_threads[i];
        t->service = s;
        t->max_bytes = i ? VERIFIER_SERVICE_SHORT_JOB : SIZE_MAX;
        err = thread_start(verifier_service_jobs_main, t, 0, &t->thread);
    }
    return err;
}

void verifier_service_stop(struct verifier_service *s)
{
    verifier_service_wake_jobs(s, true);
    for (size_t i = 0; i < ARRAY_LEN(s->jobs_threads); i++) {
        if (s->jobs_threads[i].thread)
            pthread_join(s->jobs_threads[i].thread, NULL);
        s->jobs_threads[i].thread = 0;
    }
    if (s->sender_thread)
        pthread_join(s->sender_thread, NULL);
    s->sender_thread = 0;
}

void verifier_service_free(struct verifier_service *s)
{
    if (!s)
        return;
    flows_free(s->job_flows);
    free(s->turns);
    pthread_cond_destroy(&s->jobs_changed);
    pthread_mutex_destroy(&s->mu);
    free(s);
}
