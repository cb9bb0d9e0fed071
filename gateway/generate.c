/* generate.c - the life of a request for tokens. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "gateway/answer.h"
#include "gateway/auth.h"
#include "gateway/generate.h"
#include "gateway/jsonw.h"
#include "gateway/openai_reply.h"
#include "gateway/record.h"
#include "gateway/wire.h"

#define ANSWER_MAX (256u << 20) // bytes of a gathered answer
#define MAX_TRIES 3             // verifiers one after the other
#define STOPPING "the server is shutting down"

struct generator {
    struct upstream *upstream;
    struct template *template;
    const char *tool_format; // "auto": the template's
    int64_t load_wait_us, queue_wait_us;
    atomic_bool draining;

    pthread_mutex_t mu; // for what follows
    bool stopping;      // no step begins any more
    struct generation *all;
};

/* One request. Steps follow one another; only `mu` guards what hang-ups and aborts touch. */
struct generation {
    struct generator *g;
    struct generation *prev, *next; // in g->all, with g's lock
    atomic_uint n_refs;             // the connection's, and the current step's
    struct http_request *http;
    struct openai_request q;
    struct openai_reply reply;
    struct verifier *verifier;
    const struct upstream_model *model;
    struct rpc_msg *request;        // until the verifier has begun with it
    struct affinity_prompt *prompt; // how it begins, until then
    uint32_t tried;                 // upstream_index()s, a bit each
    bool waited, streaming;
    struct record record;
    struct rpc_status end; // of the call

    pthread_mutex_t mu; // for what follows
    bool gone;          // nobody reads the answer
    bool aborted;       // the server stops
    bool malformed;     // the verifier says what it must not
    bool overdue;       // it has not begun in time
    bool sending, over; // the call
    int64_t asked_us;   // since when it is to begin; 0: it has, or was not asked
    struct rpc_stream *call;
};

/* ---- begin and end ---- */

static void leave(struct generation *x)
{
    struct generator *g = x->g;
    pthread_mutex_lock(&g->mu);
    if (x->prev)
        x->prev->next = x->next;
    else
        g->all = x->next;
    if (x->next)
        x->next->prev = x->prev;
    pthread_mutex_unlock(&g->mu);
}

static void unref(struct generation *x)
{
    if (atomic_fetch_sub(&x->n_refs, 1) != 1)
        return;
    leave(x);
    if (x->call)
        rpc_stream_free(x->call);
    rpc_msg_free(x->request);
    free(x->prompt);
    upstream_model_unref(x->model);
    openai_reply_done(&x->reply);
    openai_request_done(&x->q);
    http_unref(x->http);
    pthread_mutex_destroy(&x->mu);
    free(x);
}

/* Gives the verifier back; the request is over for it. */
static void release(struct generation *x)
{
    upstream_release(TAKE(x->verifier));
}

static void ended(struct generation *x, int status)
{
    struct openai_text none = {"", 0};
    record_end(&x->record, x->http, x->model ? wire_text(x->model->info->name) : none, &x->reply,
               status);
}

/* Ends the request with an error, as a status or, once events have left, as an event. */
static void end_error(struct generation *x, int status, const char *text, const char *param)
{
    release(x);
    if (x->streaming) {
        struct buf event;
        buf_init(&event, 16384);
        openai_reply_fail(&x->reply, status, text, &event);
        http_write(x->http, event.data, event.len);
        http_end(x->http);
        buf_done(&event);
    } else {
        answer_error(x->http, status, text, param);
    }
    ended(x, status);
}

/* Nobody is there to be told. */
static void end_silently(struct generation *x)
{
    release(x);
    ended(x, 499); // nginx's number for a client that closed
}

/* Whether the next step may begin. Otherwise the request has been ended. */
static bool goes_on(struct generation *x)
{
    pthread_mutex_lock(&x->mu);
    bool gone = x->gone, aborted = x->aborted;
    pthread_mutex_unlock(&x->mu);
    if (gone)
        end_silently(x);
    else if (aborted)
        end_error(x, 503, STOPPING, "");
    return !gone && !aborted;
}

/* The connection is done with us: answered, or gone. */
static void on_close(void *user)
{
    struct generation *x = user;
    pthread_mutex_lock(&x->mu);
    x->gone = true;
    if (x->call)
        rpc_stream_cancel(x->call); // harmless when it has ended
    pthread_mutex_unlock(&x->mu);
    unref(x);
}

/* ---- the verifier's events ---- */

/* The verifier waits while the reader is behind; it may preempt the sequence meanwhile. */
static void hold_back(struct generation *x)
{
    pthread_mutex_lock(&x->mu);
    if (x->call && !x->gone)
        rpc_stream_pause(x->call);
    if (x->call && (x->gone || !http_is_behind(x->http))) // it has caught up in between
        rpc_stream_resume(x->call);
    pthread_mutex_unlock(&x->mu);
}

static void on_drain(void *user)
{
    struct generation *x = user;
    pthread_mutex_lock(&x->mu);
    if (x->call)
        rpc_stream_resume(x->call);
    pthread_mutex_unlock(&x->mu);
}

static void flush(struct generation *x, struct buf *to)
{
    int rc = x->streaming && to->len ? http_write(x->http, to->data, to->len) : 0;
    if (rc == -EAGAIN)
        hold_back(x);
    else if (rc == -ENOBUFS)
        log_warn("request id=%s dropped: its reader is too slow", http_id(x->http));
    buf_done(to);
}

static void on_started(struct generation *x, unsigned choice, const Tandem__V1__Started *s,
                       struct buf *to)
{
    rpc_msg_free(TAKE(x->request));
    free(TAKE(x->prompt));
    http_let_go(x->http);
    pthread_mutex_lock(&x->mu);
    x->asked_us = 0;
    pthread_mutex_unlock(&x->mu);
    if (x->reply.stream && !x->streaming) {
        x->streaming = true;
        http_stream(x->http);
    }
    wire_started(&x->reply, choice, s, to);
}

static void on_run(struct generation *x, unsigned choice, const Tandem__V1__TokenRun *run,
                   struct buf *to)
{
    wire_run(&x->reply, choice, run, to);
    record_tokens(&x->record, x->http, choice, run->n_tokens);
}

/* A stream begins with its first event: until then an error still has a status of its own.
 * false: the event must not be. */
static bool on_event(struct generation *x, const Tandem__V1__GenerateEvent *e, struct buf *to)
{
    if (e->choice >= x->reply.n)
        return false;
    switch (e->event_case) {
    case TANDEM__V1__GENERATE_EVENT__EVENT_STARTED:
        on_started(x, e->choice, e->started, to);
        return true;
    case TANDEM__V1__GENERATE_EVENT__EVENT_RUN:
        if (x->reply.stream && !x->streaming)
            return false;
        on_run(x, e->choice, e->run, to);
        return true;
    case TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED:
        wire_finished(&x->reply, e->choice, e->finished, to);
        return true;
    default: // of a newer verifier
        return true;
    }
}

static void on_message(void *user, struct rpc_msg *msg)
{
    struct generation *x = user;
    ProtobufCMessage *m = rpc_unpack(&tandem__v1__generate_event__descriptor, msg);
    struct buf to;
    buf_init(&to, ANSWER_MAX);
    bool ok = m && on_event(x, (Tandem__V1__GenerateEvent *)m, &to);
    flush(x, &to);
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
    if (ok)
        return;
    pthread_mutex_lock(&x->mu);
    x->malformed = true;
    if (x->call)
        rpc_stream_cancel(x->call);
    pthread_mutex_unlock(&x->mu);
}

static void end_well(struct generation *x)
{
    struct buf to;
    buf_init(&to, ANSWER_MAX);
    int rc = openai_reply_end(&x->reply, &to);
    if (rc < 0) {
        end_error(x, 500,
                  rc == -ENOMEM
                      ? "no memory for the answer"
                      : "the answer is too large: at most 64 MiB for a choice, 256 MiB for all",
                  "");
    } else if (x->streaming) {
        http_write(x->http, to.data, to.len);
        http_end(x->http);
        ended(x, 200);
    } else {
        answer_json(x->http, 200, &to);
        ended(x, 200);
    }
    buf_done(&to);
    release(x);
}

static void end_unavailable(struct generation *x, const char *text)
{
    bool begun = !x->request;
    upstream_suspect(x->verifier);
    log_warn("request lost id=%s target=%s: %s", http_id(x->http), upstream_target(x->verifier),
             text);
    end_error(x, 503,
              begun ? "the verifier stopped before the answer was whole" : UPSTREAM_UNREACHED, "");
}

static void end_overdue(struct generation *x)
{
    char why[FAIL_TEXT_MAX];
    snprintf(why, sizeof(why),
             "the request has waited %g s for its turn, which is all it may; try again later",
             (double)x->g->queue_wait_us / 1e6);
    end_error(x, 429, why, "");
}

static bool moves(struct generation *x);

/* The call is over and nobody touches it any more. Takes the step's reference. */
static void on_over(struct generation *x)
{
    const struct rpc_status *status = &x->end;
    pthread_mutex_lock(&x->mu);
    bool gone = x->gone, aborted = x->aborted, malformed = x->malformed, overdue = x->overdue;
    pthread_mutex_unlock(&x->mu);
    if (!gone && !aborted && !malformed && !overdue && moves(x))
        return;
    if (malformed)
        end_error(x, 502, "the verifier's answer is malformed", "");
    else if (status->code == RPC_OK && openai_reply_complete(&x->reply))
        end_well(x);
    else if (gone)
        end_silently(x);
    else if (aborted)
        end_error(x, 503, STOPPING, "");
    else if (overdue)
        end_overdue(x);
    else if (status->code == RPC_OK)
        end_error(x, 502, "the verifier ended the answer too early", "");
    else if (status->code == RPC_UNAVAILABLE)
        end_unavailable(x, status->text);
    else
        end_error(x, answer_status_of(status->code), status->text,
                  status->code == RPC_NOT_FOUND ? "model" : "");
    unref(x);
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct generation *x = user;
    x->end = *status;
    pthread_mutex_lock(&x->mu);
    x->over = true;
    bool sending = x->sending;
    pthread_mutex_unlock(&x->mu);
    if (!sending)
        on_over(x);
}

/* Sends the request to its verifier. Takes the step's reference along. */
static void call_verifier(struct generation *x)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    x->tried |= 1u << upstream_index(x->verifier);
    pthread_mutex_lock(&x->mu);
    x->sending = true;
    x->over = false;
    pthread_mutex_unlock(&x->mu);
    struct rpc_stream *call = rpc_stream_new(upstream_client(x->verifier),
                                             "/tandem.v1.Verifier/Generate", NULL, &events, x);
    rpc_stream_send(call, rpc_msg_share(x->request));
    rpc_stream_close(call);
    pthread_mutex_lock(&x->mu);
    x->call = call;
    x->sending = false;
    bool over = x->over;
    if (x->gone || x->aborted || x->malformed ||
        x->overdue) // while there was nothing to cancel yet
        rpc_stream_cancel(call);
    pthread_mutex_unlock(&x->mu);
    if (over)
        on_over(x);
}

/* A verifier that is gone or full before it has begun: an equal one may do it. true: it was asked,
 * and has the step's reference. */
static bool moves(struct generation *x)
{
    const struct upstream_want want = {.prompt = x->prompt, .like = x->model, .except = x->tried};
    const struct upstream_model *model;
    struct verifier *next;
    bool gone = x->end.code == RPC_UNAVAILABLE, full = x->end.code == RPC_RESOURCE_EXHAUSTED;
    if (!x->request || !(gone || full) || __builtin_popcount(x->tried) == MAX_TRIES)
        return false;
    if (gone)
        upstream_suspect(x->verifier);
    if (upstream_take(x->g->upstream, &want, &next, &model) < 0)
        return false;
    upstream_model_unref(model); // like x->model
    record_moved(&x->record, x->http, upstream_target(x->verifier), upstream_target(next),
                 x->end.text);
    release(x);
    x->verifier = next;
    pthread_mutex_lock(&x->mu);
    struct rpc_stream *call = TAKE(x->call);
    pthread_mutex_unlock(&x->mu);
    rpc_stream_free(call);
    call_verifier(x);
    return true;
}

/* ---- the steps before ---- */

/* How the answer's text is split: as the request wants and the model's template shows. */
static void make_rules(const struct generation *x, const char *prompt, size_t len,
                       struct parts_rules *ret)
{
    const ProtobufCBinaryData *source = &x->model->info->chat_template;
    *ret = (struct parts_rules){0};
    if (x->q.separate_reasoning && prompt)
        ret->thinking = parts_thinking_of((char *)source->data, source->len);
    if (x->q.tools)
        ret->format = strcmp(x->g->tool_format, "auto") != 0
                          ? tool_format_named(x->g->tool_format)
                          : tool_format_of((char *)source->data, source->len);
    parts_rules_prompt(ret, prompt, len);
}

static int init_reply(struct generation *x, const struct parts_rules *rules)
{
    const Tandem__V1__ModelInfo *info = x->model->info;
    const struct openai_request *q = &x->q;
    struct openai_reply_head head = {.kind = q->kind,
                                     .stream = q->stream,
                                     .logprobs = q->logprobs,
                                     .echo = q->echo,
                                     .include_usage = q->include_usage,
                                     .include_tokens = q->include_tokens,
                                     .has_prediction = q->prediction != NULL,
                                     .hides_reasoning = !q->include_reasoning,
                                     .one_call = !q->parallel_calls,
                                     .rules = *rules,
                                     .noise = (uint64_t)clock_us(),
                                     .id = http_id(x->http),
                                     .model = wire_text(info->name),
                                     .fingerprint = wire_text(info->fingerprint),
                                     .created = clock_unix_s(),
                                     .n = openai_request_choices(q)};
    head.tools = TAKE(x->q.tools);
    head.echoed = TAKE(x->q.echoed);
    return openai_reply_init(&x->reply, &head);
}

/* Takes the step's reference along. */
static void ask_verifier(struct generation *x, const char *text, size_t len)
{
    struct parts_rules rules;
    make_rules(x, text, len, &rules);
    if (init_reply(x, &rules) < 0 ||
        wire_pack(&x->q, http_id(x->http), x->record.traceparent, &x->model->info->name, text, len,
                  &rules, &x->request) < 0) {
        end_error(x, 500, fail_text(), "");
        unref(x);
        return;
    }
    openai_request_done(&x->q); // it is in the message
    pthread_mutex_lock(&x->mu);
    x->asked_us = clock_us();
    pthread_mutex_unlock(&x->mu);
    call_verifier(x);
}

static void on_rendered(void *user, int err, const char *text, size_t len)
{
    struct generation *x = user;
    if (err == 0 && goes_on(x)) {
        ask_verifier(x, text, len);
        return;
    }
    char why[FAIL_TEXT_MAX];
    snprintf(why, sizeof(why), err == -EINVAL ? "chat template: %.*s" : "%.*s", (int)len, text);
    if (err)
        end_error(x,
                  err == -EINVAL      ? 400
                  : err == -ECANCELED ? 503
                                      : 500,
                  why, err == -EINVAL ? "messages" : "");
    unref(x);
}

/* The request's variables with the model's own: {"bos_token":...,"eos_token":...,<the rest> */
static void render(struct generation *x)
{
    const Tandem__V1__ModelInfo *info = x->model->info;
    AUTO(buf_done) struct buf vars;
    if (!info->chat_template.len) {
        end_error(x, 400, "the model has no chat template; use /v1/completions", "model");
        unref(x);
        return;
    }
    buf_init(&vars, TEMPLATE_MAX_REQUEST);
    buf_puts(&vars, "{\"bos_token\":");
    jsonw_text(&vars, info->bos_text.data, info->bos_text.len);
    buf_puts(&vars, ",\"eos_token\":");
    jsonw_text(&vars, info->eos_text.data, info->eos_text.len);
    buf_puts(&vars, ",");
    buf_puts(&vars, x->q.template_vars + 1);
    free(TAKE(x->q.template_vars));
    int rc = buf_error(&vars);
    rc = rc < 0 ? rc
                : template_render(x->g->template, info->chat_template.data, info->chat_template.len,
                                  vars.data, -1, on_rendered, x);
    if (rc < 0) {
        end_error(x,
                  rc == -EAGAIN || rc == -EPIPE ? 503
                  : rc == -EMSGSIZE             ? 413
                                                : 500,
                  fail_text(), "");
        unref(x);
    }
}

static void advance(struct generation *x);

static void on_loaded(void *user)
{
    struct generation *x = user;
    x->waited = true;
    if (goes_on(x))
        advance(x);
    else
        unref(x);
}

/* How its prompt begins: NULL when it is short, or there is no memory. */
static struct affinity_prompt *prompt_of(const struct openai_request *q)
{
    const char *text = q->template_vars ? q->template_vars : q->prompt;
    size_t len = q->ids ? q->n_ids * sizeof(*q->ids) : strlen(text);
    struct affinity_prompt *p = len < AFFINITY_PIECE ? NULL : malloc(sizeof(*p));
    if (p)
        affinity_of(q->cache_salt ? q->cache_salt : "", q->ids ? (void *)q->ids : text, len, p);
    return p;
}

/* Finds a verifier, or waits for one that loads. */
static void advance(struct generation *x)
{
    const struct upstream_want want = {.model = x->q.model, .prompt = x->prompt};
    int rc = upstream_take(x->g->upstream, &want, &x->verifier, &x->model);
    if (rc == -EAGAIN && !x->waited && x->g->load_wait_us > 0) {
        rc = upstream_wait(x->g->upstream, x->q.model, x->g->load_wait_us, on_loaded, x);
        if (rc == 0)
            return;
    }
    if (rc < 0) {
        end_error(x, rc == -ENOENT ? 404 : 503, fail_text(), rc == -ENOENT ? "model" : "");
        unref(x);
    } else if (x->q.template_vars) {
        render(x);
    } else {
        ask_verifier(x, NULL, 0);
    }
}

/* ---- outside ---- */

static struct generation *generation_new(struct generator *g, struct http_request *r)
{
    struct generation *x = calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    x->g = g;
    x->http = http_ref(r);
    atomic_init(&x->n_refs, 2); // the connection's and the first step's
    pthread_mutex_init(&x->mu, NULL);
    pthread_mutex_lock(&g->mu);
    x->aborted = g->stopping;
    x->next = g->all;
    if (x->next)
        x->next->prev = x;
    g->all = x;
    pthread_mutex_unlock(&g->mu);
    return x;
}

static void refuse(struct http_request *r, const struct record *c, const struct openai_fault *fault)
{
    answer_fault(r, fault);
    record_refused(c, r, fault);
}

void generate(struct generator *g, struct http_request *r, enum openai_kind kind)
{
    struct openai_fault fault;
    size_t len;
    const char *body = http_body(r, &len);
    struct record record = {0};
    record_begin(&record, r, kind);
    if (atomic_load(&g->draining)) {
        refuse(r, &record, &(struct openai_fault){.status = 503, .text = STOPPING});
        return;
    }
    struct generation *x = generation_new(g, r);
    if (!x) {
        refuse(r, &record,
               &(struct openai_fault){.status = 500, .text = "no memory for this request"});
        return;
    }
    x->record = record;
    http_on_close(r, on_close, x);
    http_on_drain(r, on_drain);
    int rc = openai_request_parse(kind, body, len, &x->q, &fault);
    http_free_body(r);
    rc = rc < 0 ? rc : auth_bind(http_carried(r), &x->q, &fault);
    if (rc < 0) {
        refuse(r, &x->record, &fault);
        unref(x);
    } else if (goes_on(x)) {
        x->prompt = upstream_n(g->upstream) > 1 ? prompt_of(&x->q) : NULL;
        advance(x);
    } else {
        unref(x);
    }
}

int generator_new(struct upstream *u, struct template *t, int64_t load_wait_us,
                  int64_t queue_wait_us, const char *tool_format, struct generator **ret)
{
    struct generator *g = calloc(1, sizeof(*g));
    if (!g)
        return fail(-ENOMEM, "generate: no memory");
    g->upstream = u;
    g->template = t;
    g->tool_format = tool_format;
    g->load_wait_us = load_wait_us;
    g->queue_wait_us = queue_wait_us;
    pthread_mutex_init(&g->mu, NULL);
    record_init();
    *ret = g;
    return 0;
}

void generator_tend(struct generator *g)
{
    pthread_mutex_lock(&g->mu);
    int64_t late_us = clock_us() - g->queue_wait_us;
    for (struct generation *x = g->all; x; x = x->next) {
        pthread_mutex_lock(&x->mu);
        if (x->call && x->asked_us && x->asked_us < late_us) {
            x->overdue = true;
            rpc_stream_cancel(x->call);
        }
        pthread_mutex_unlock(&x->mu);
    }
    pthread_mutex_unlock(&g->mu);
}

void generator_drain(struct generator *g)
{
    atomic_store(&g->draining, true);
}

void generator_abort(struct generator *g)
{
    pthread_mutex_lock(&g->mu);
    g->stopping = true;
    for (struct generation *x = g->all; x; x = x->next) {
        pthread_mutex_lock(&x->mu);
        x->aborted = true;
        if (x->call)
            rpc_stream_cancel(x->call);
        pthread_mutex_unlock(&x->mu);
    }
    pthread_mutex_unlock(&g->mu);
    template_stop(g->template);
    upstream_stop(g->upstream);
}

void generator_free(struct generator *g)
{
    if (!g)
        return;
    pthread_mutex_destroy(&g->mu);
    free(g);
}
