/* completion.c - one request for tokens: the calls of its prompts, its answer, its end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "gateway/http/answer.h"
#include "gateway/serve/completion.h"
#include "gateway/upstream/generate_wire.h"

#define ANSWER_MAX (256u << 20) // bytes of an answer without a stream
/* The memory of an answer is charged in such steps, the begun one not. So short answers are never
 * refused, and 1,024 requests have at most 64 MiB that are not charged. */
#define ANSWER_STEP (64u << 10)
/* Bytes of the end of an answer beside what it repeats: names, counts, times. */
#define END_SPACE 4096
/* Bytes of token ids that are charged before a request begins: 16,384 tokens. Few answers are
 * longer, and 1,024 requests then charge 64 MiB of the 256 MiB by default. */
#define RESERVED_MAX (64u << 10)

/* ---- begin and end ---- */

static void unlink_completion(struct completion *x)
{
    struct completions *g = x->g;
    pthread_mutex_lock(&g->mu);
    if (x->prev)
        x->prev->next = x->next;
    else
        g->all = x->next;
    if (x->next)
        x->next->prev = x->prev;
    pthread_mutex_unlock(&g->mu);
}

void completion_unref(struct completion *x)
{
    if (atomic_fetch_sub(&x->n_refs, 1) != 1)
        return;
    unlink_completion(x);
    for (unsigned i = 0; i < x->n_calls; i++)
        upstream_call_done(&x->calls[i]);
    prompt_places_leave(&x->g->places, &x->place);
    free(x->calls);
    free(x->prompt);
    upstream_model_unref(x->model);
    openai_reply_done(&x->reply);
    openai_request_done(&x->q);
    http_unref(x->http);
    pthread_mutex_destroy(&x->answer_mu);
    pthread_mutex_destroy(&x->mu);
    free(x);
}

/* Releases the verifier of the first prompt if its call was not made. */
static void release_verifier(struct completion *x)
{
    upstream_release(TAKE(x->verifier));
}

static void log_end(struct completion *x, int status)
{
    struct openai_text none = {"", 0};
    access_log_end(&x->log, x->http, x->model ? generate_wire_text(x->model->info->name) : none,
                   &x->reply, status);
}

/* Charges so much memory of the answer, in whole steps. Errors are those of http_charge(). */
static int charge_answer(struct completion *x, size_t bytes)
{
    bytes -= bytes % ANSWER_STEP;
    if (bytes == x->answer_bytes)
        return 0;
    int rc = http_charge(x->http, http_charged(x->http) - x->answer_bytes + bytes);
    x->answer_bytes = rc == 0 ? bytes : x->answer_bytes;
    return rc;
}

void completion_fail(struct completion *x, int status, const char *text, const char *param)
{
    struct buf event;
    release_verifier(x);
    buf_init(&event, ANSWER_MAX);
    if (x->refused_status)
        openai_reply_drop(&x->reply); // there is no memory to repeat it
    if (x->streaming)
        openai_reply_fail(&x->reply, status, text, &event); // of a response: repeats its items
    openai_reply_drop(&x->reply);
    charge_answer(x, 0); // the event takes its place
    if (x->streaming) {
        http_write(x->http, event.data, event.len);
        http_end(x->http);
    } else {
        answer_error(x->http, status, text, param);
    }
    buf_done(&event);
    log_end(x, status);
}

/* Ends the request of a client that has disconnected. */
static void end_silently(struct completion *x)
{
    release_verifier(x);
    log_end(x, 499); // nginx's status for a closed client
}

bool completion_is_live(struct completion *x)
{
    pthread_mutex_lock(&x->mu);
    bool closed = x->closed, aborted = x->aborted;
    pthread_mutex_unlock(&x->mu);
    if (closed)
        end_silently(x);
    else if (aborted)
        completion_fail(x, 503, COMPLETION_STOPPING, "");
    return !closed && !aborted;
}

void completion_cancel(struct completion *x)
{
    for (unsigned i = 0; i < x->n_calls; i++)
        upstream_call_cancel(&x->calls[i]);
}

/* The request is answered, or its client has disconnected. */
static void on_close(void *user)
{
    struct completion *x = user;
    pthread_mutex_lock(&x->mu);
    x->closed = true;
    bool renders = x->renders, loads = x->loads;
    completion_cancel(x);
    pthread_mutex_unlock(&x->mu);
    if (renders)
        template_cancel(x->g->template, x);
    if (loads)
        upstream_wait_end(x->g->upstream, x);
    completion_unref(x);
}

/* A call has failed; the others are useless. */
static void stop_calls(struct completion *x)
{
    pthread_mutex_lock(&x->mu);
    x->failing = true;
    completion_cancel(x);
    pthread_mutex_unlock(&x->mu);
}

/* ---- the verifier's events ---- */

static void on_drain(void *user)
{
    struct completion *x = user;
    for (unsigned i = 0; i < x->n_calls; i++)
        upstream_call_unpause(&x->calls[i]);
}

void completion_watch(struct completion *x)
{
    http_on_close(x->http, on_close, x);
    http_on_drain(x->http, on_drain);
}

/* Pauses the calls while the reader is slow; the verifier may preempt their sequences. */
static void pause_calls(struct completion *x)
{
    for (unsigned i = 0; i < x->n_calls; i++)
        upstream_call_pause(&x->calls[i]);
    if (!http_reader_is_slow(x->http)) // it has caught up meanwhile
        on_drain(x);
}

static void flush_events(struct completion *x, struct buf *to)
{
    bool whole = to->len && !to->error; // after an error openai_reply_end() reports it
    int rc = x->streaming && whole ? http_write(x->http, to->data, to->len) : 0;
    if (rc == -EAGAIN)
        pause_calls(x);
    else if (rc == -ENOBUFS)
        log_warn("request dropped id=%s: its reader is too slow", http_id(x->http));
    buf_done(to);
}

/* A stream begins with its first event. Until then an error can still be an HTTP status. */
static void on_started(struct completion *x, unsigned choice, const Tandem__V1__Started *s,
                       struct buf *to)
{
    http_keep_place(x->http);
    if (x->reply.stream && !x->streaming) {
        x->streaming = true;
        http_stream(x->http);
    }
    generate_wire_started(&x->reply, choice, s, to);
}

static void on_run(struct completion *x, unsigned choice, const Tandem__V1__TokenRun *run,
                   struct buf *to)
{
    generate_wire_run(&x->reply, choice, run, to);
    access_log_tokens(&x->log, x->http, choice, run->n_tokens);
}

/* With answer_mu. The answer has no memory: a is the call that found none. */
static void run_out_of_memory(struct completion *x, const struct upstream_call *a, int rc)
{
    x->failed = a;
    x->refused_status = answer_charge_status(rc);
    snprintf(x->refused, sizeof(x->refused), "%s", fail_text());
}

static void take_event(struct completion *x, unsigned choice, const Tandem__V1__GenerateEvent *e)
{
    struct buf to;
    buf_init(&to, ANSWER_MAX);
    switch (e->event_case) {
    case TANDEM__V1__GENERATE_EVENT__EVENT_STARTED:
        on_started(x, choice, e->started, &to);
        break;
    case TANDEM__V1__GENERATE_EVENT__EVENT_RUN:
        on_run(x, choice, e->run, &to);
        break;
    case TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED:
        generate_wire_finished(&x->reply, choice, e->finished, &to);
        break;
    default: // an event of a newer verifier
        break;
    }
    auth_use(http_attached(x->http), (uint64_t)x->reply.prompt_tokens + x->reply.completion_tokens,
             clock_unix_us());
    flush_events(x, &to);
}

static bool has_more(const struct completion *x)
{
    return !x->closed && !x->aborted && !x->failing && x->n_sent < x->n_calls;
}

/* At the first event of the request. True: the caller of completion_send() may make the calls that
 * waited for it, and counts as running. */
static bool begin_others(struct completion *x)
{
    pthread_mutex_lock(&x->mu);
    bool others = !x->begun && has_more(x);
    x->begun = true;
    x->n_running += others;
    pthread_mutex_unlock(&x->mu);
    return others;
}

static void on_event(struct upstream_call *a, const Tandem__V1__GenerateEvent *e)
{
    struct completion *x = a->user;
    int rc = 0;
    pthread_mutex_lock(&x->answer_mu);
    if (!x->failed) {
        take_event(x, a->index * x->reply.n_each + e->choice, e);
        if ((rc = charge_answer(x, x->reply.collected_bytes)) < 0)
            run_out_of_memory(x, a, rc);
    }
    pthread_mutex_unlock(&x->answer_mu);
    if (rc < 0)
        stop_calls(x);
    if (begin_others(x))
        completion_send(x);
}

static void on_retry(struct upstream_call *a, const char *from, const char *to, const char *why)
{
    struct completion *x = a->user;
    access_log_retried(&x->log, x->http, from, to, why);
}

static void on_resume(struct upstream_call *a, const char *from, const char *to, const char *why)
{
    struct completion *x = a->user;
    pthread_mutex_lock(&x->answer_mu);
    x->reply.n_resumed++;
    x->reply.may_differ |= !a->exact;
    pthread_mutex_unlock(&x->answer_mu);
    access_log_resumed(&x->log, x->http, from, to, why);
}

static bool on_hold(struct upstream_call *a, size_t bytes)
{
    struct completion *x = a->user;
    pthread_mutex_lock(&x->answer_mu);
    size_t reserved = bytes < x->reserved ? bytes : x->reserved;
    bool held = bytes == reserved || http_hold(x->http, bytes - reserved);
    x->reserved -= held ? reserved : 0;
    pthread_mutex_unlock(&x->answer_mu);
    return held;
}

/* A request that has begun does not end because one more of its prompts finds no place. */
static bool on_full(struct upstream_call *a)
{
    struct completion *x = a->user;
    full_queues_note(&x->g->full, http_payer(x->http), a->model->info->name, a->status.text,
                     clock_us());
    pthread_mutex_lock(&x->mu);
    bool waits = x->begun;
    pthread_mutex_unlock(&x->mu);
    return waits;
}

static bool may_retry(struct upstream_call *a)
{
    struct completion *x = a->user;
    return full_queues_may_retry(&x->g->full, http_payer(x->http), a->model->info->name,
                                 clock_us());
}

static void on_lost_ids(struct upstream_call *a)
{
    (void)a;
    access_log_lost_ids();
}

/* Charges the end of the answer beside what is collected for it. A short end costs nothing. */
static int charge_end(struct completion *x, size_t bytes)
{
    return bytes < ANSWER_STEP ? 0 : charge_answer(x, x->reply.collected_bytes + bytes);
}

/* Writes the end of the answer, or the whole, in one allocation: growth would need three times the
 * bytes. Frees the collected text: a slow reader would keep both for long. Returns 0, or the HTTP
 * status of the error, whose text *ret_why is. */
static int write_end(struct completion *x, struct buf *to, const char **ret_why)
{
    size_t bytes = openai_reply_end_bytes(&x->reply) + END_SPACE;
    int refused = charge_end(x, bytes), rc = 0;
    if (!refused) {
        buf_reserve(to, bytes < to->max ? bytes : to->max);
        rc = openai_reply_end(&x->reply, to);
    }
    openai_reply_drop(&x->reply);
    if (!refused && !rc)
        refused = charge_answer(x, x->streaming ? 0 : to->cap);
    *ret_why = refused         ? fail_text()
               : rc == -ENOMEM ? "no memory for the answer"
                               : "the answer is too large: at most 64 MiB for a choice, 256 MiB "
                                 "for all";
    return refused ? answer_charge_status(refused) : rc ? 500 : 0;
}

static void end_complete(struct completion *x)
{
    struct buf to;
    const char *why;
    buf_init(&to, ANSWER_MAX);
    int status = write_end(x, &to, &why);
    if (status) {
        completion_fail(x, status, why, "");
    } else if (x->streaming) {
        http_write(x->http, to.data, to.len);
        http_end(x->http);
        log_end(x, 200);
    } else {
        answer_json(x->http, 200, &to);
        log_end(x, 200);
    }
    buf_done(&to);
}

/* If there are several prompts, the error names the one that failed. */
static void fail_call(struct completion *x, const struct upstream_call *a, int status,
                      const char *text)
{
    char why[FAIL_TEXT_MAX];
    snprintf(why, sizeof(why), "prompt[%u]: %.400s", a->index, text);
    completion_fail(x, status, x->n_calls > 1 ? why : text, status == 404 ? "model" : "");
}

static void end_unavailable(struct completion *x, const struct upstream_call *a)
{
    const char *target = a->lost_target ? a->lost_target : a->target; // the status is its
    log_warn("request lost id=%s target=%s: %s", http_id(x->http), target ? target : "none",
             a->status.text);
    fail_call(x, a, 503,
              a->begun ? "the verifier stopped before the answer was complete"
                       : UPSTREAM_UNREACHED);
}

static void end_overdue(struct completion *x, const struct upstream_call *a)
{
    char why[FAIL_TEXT_MAX];
    snprintf(
        why, sizeof(why),
        "the request has waited in the queue for the longest time allowed, %g s; try again later",
        (double)x->g->queue_wait_us / 1e6);
    fail_call(x, a, 429, why);
}

/* Verifiers may have computed prompts of calls that were cancelled. They count by their part of the
 * bytes of all. */
static void pay_unbegun(struct completion *x)
{
    uint64_t all = 0, unbegun = 0;
    for (unsigned i = 0; i < x->n_calls; i++) {
        const struct upstream_call *a = &x->calls[i];
        size_t len = rpc_msg_len(a->request);
        all += len;
        unbegun += a->status.code == RPC_CANCELLED && !a->begun && !a->overdue ? len : 0;
    }
    if (unbegun)
        auth_use_prompts(http_attached(x->http),
                         (uint64_t)x->reply.prompt_tokens + x->reply.completion_tokens,
                         (double)unbegun / (double)all, clock_unix_us());
}

/* Whether the error is the request's own. */
static bool is_own_fault(const struct upstream_call *a)
{
    int status = answer_status_of(a->status.code);
    return status >= 400 && status < 429;
}

/* a: the first call that failed; NULL: calls were not made because the request was ended. */
static void end_failed(struct completion *x, const struct upstream_call *a)
{
    pthread_mutex_lock(&x->mu);
    bool closed = x->closed, aborted = x->aborted;
    pthread_mutex_unlock(&x->mu);
    if (closed || (a && is_own_fault(a)))
        pay_unbegun(x);
    if (closed)
        end_silently(x);
    else if (aborted || !a)
        completion_fail(x, 503, COMPLETION_STOPPING, "");
    else if (x->refused_status)
        completion_fail(x, x->refused_status, x->refused, "");
    else if (a->malformed)
        fail_call(x, a, 502, "the verifier's answer is malformed");
    else if (a->overdue && !a->begun)
        end_overdue(x, a);
    else if (a->status.code == RPC_OK)
        fail_call(x, a, 502, "the verifier ended the answer too early");
    else if (a->status.code == RPC_UNAVAILABLE)
        end_unavailable(x, a);
    else if (a->status.code == RPC_RESOURCE_EXHAUSTED)
        fail_call(x, a, 429, a->status.text);
    else
        fail_call(x, a, answer_status_of(a->status.code), a->status.text);
}

/* ---- prompts ---- */

struct affinity_prompt *completion_affinity(const struct completion *x, const void *prompt,
                                            size_t len)
{
    struct affinity_prompt *p =
        upstream_n(x->g->upstream) < 2 || len < AFFINITY_PIECE ? NULL : malloc(sizeof(*p));
    if (p)
        affinity_of(x->q.cache_salt ? x->q.cache_salt : "", prompt, len, p);
    return p;
}

struct affinity_prompt *completion_prompt_affinity(const struct completion *x,
                                                   const struct openai_prompt *p)
{
    return p->ids ? completion_affinity(x, p->ids, p->n_ids * sizeof(*p->ids))
                  : completion_affinity(x, p->text, p->len);
}

/* All calls have ended. */
static void finish_request(struct completion *x)
{
    if (!x->failed && x->n_sent == x->n_calls)
        end_complete(x);
    else
        end_failed(x, x->failed);
    completion_unref(x);
}

/* ---- places of prompts; with x's lock ---- */

/* Calls, and other callers of completion_send(). */
static unsigned n_others(const struct completion *x)
{
    return x->n_running - 1 - x->waits;
}

/* Full queues refuse one call of a request, not all: the others wait for its first event. Later
 * they wait for the end of a call while the queue is full for this client. */
static bool runs_alone(struct completion *x)
{
    return !x->begun || full_queues_is_full(&x->g->full, http_payer(x->http),
                                            x->calls->model->info->name, clock_us());
}

/* Whether one more call has a place, or needs none because it is the only one. */
static bool has_place(struct completion *x)
{
    if (n_others(x) && runs_alone(x))
        return false;
    if (x->n_places >= n_others(x))
        return true;
    if (x->waits)
        return false;
    if (prompt_places_take(&x->g->places, &x->place)) {
        x->n_places++;
        return true;
    }
    x->waits = true;
    x->n_running++;
    return false;
}

/* Gives back a place that no other call needs. Returns the request that has it now, or NULL. */
static struct prompt_places_request *give_place(struct completion *x)
{
    if (!x->n_places || x->n_places < n_others(x))
        return NULL;
    x->n_places--;
    return prompt_places_give(&x->g->places, &x->place);
}

/* The caller makes no further call. */
static struct prompt_places_request *stop_sending(struct completion *x)
{
    if (x->waits && !has_more(x) && prompt_places_cancel(&x->g->places, &x->place)) {
        x->waits = false;
        x->n_running--;
    }
    struct prompt_places_request *heir = give_place(x);
    x->n_running--;
    return heir;
}

/* ---- calls ---- */

/* As completion_send(), for one request. Returns the next request that has got a place, or NULL.
 *
 * A caller that finds no further call to make must stop counting as running under the same lock.
 * Otherwise a call that ends in between might also find nothing to do, and nobody would make the
 * next call. */
static struct prompt_places_request *send_calls(struct completion *x)
{
    struct prompt_places_request *heir = NULL;
    struct upstream_call *next;
    bool last;
    do {
        pthread_mutex_lock(&x->mu);
        bool may_send = has_more(x) && n_others(x) < x->max_running && has_place(x);
        next = may_send ? &x->calls[x->n_sent++] : NULL;
        x->n_running += may_send;
        heir = may_send ? NULL : stop_sending(x);
        last = !x->n_running;
        pthread_mutex_unlock(&x->mu);
        if (next)
            upstream_call_begin(next);
    } while (next);
    if (last)
        finish_request(x);
    return heir;
}

/* The requests that have got a place make their calls. The wait of each has counted as a running
 * call; now the caller does. */
static void pass_on(struct prompt_places_request *heir)
{
    while (heir) {
        struct completion *x = OWNER(heir, struct completion, place);
        pthread_mutex_lock(&x->mu);
        x->waits = false;
        x->n_places++;
        pthread_mutex_unlock(&x->mu);
        heir = send_calls(x);
    }
}

void completion_send(struct completion *x)
{
    pass_on(send_calls(x));
}

/* The place of a call that has ended goes to whom it belongs next, before its request asks. */
static void on_done(struct upstream_call *a)
{
    struct completion *x = a->user;
    if (a->status.code == RPC_OK)
        full_queues_ended(&x->g->full, http_payer(x->http), a->model->info->name);
    pthread_mutex_lock(&x->answer_mu);
    bool failed =
        a->status.code != RPC_OK || a->malformed || !openai_reply_complete(&x->reply, a->index);
    bool first = failed && !x->failed;
    if (first)
        x->failed = a;
    pthread_mutex_unlock(&x->answer_mu);
    if (first)
        stop_calls(x);
    pthread_mutex_lock(&x->mu);
    struct prompt_places_request *heir = give_place(x);
    pthread_mutex_unlock(&x->mu);
    completion_send(x);
    pass_on(heir);
}

/* Whether the answer has the same bits at every verifier with this fingerprint. */
static bool has_same_bits(const struct completion *x)
{
    const char *rule = x->q.rule;
    const ProtobufCBinaryData *blas = &x->model->info->float_gemm;
    return (!rule || !*rule || strcmp(rule, "own-draw") == 0) &&
           !(blas->len == 4 && memcmp(blas->data, "blas", 4) == 0);
}

/* The most tokens of a choice by the request; UINT32_MAX: it sets no limit. The contexts of
 * verifiers may differ. */
static uint32_t max_tokens(const struct completion *x)
{
    const struct openai_request *q = &x->q;
    return q->max_tokens.set              ? (uint32_t)q->max_tokens.value
           : q->kind == OPENAI_COMPLETION ? GENERATE_WIRE_COMPLETION_TOKENS
                                          : UINT32_MAX;
}

int completion_prepare(struct completion *x, const struct output_parser_rules *rules)
{
    static const struct upstream_call_events events = {on_event,    on_retry, on_resume, on_hold,
                                                       on_lost_ids, on_full,  may_retry, on_done};
    const struct openai_request *q = &x->q;
    struct rpc_msg *shared;
    int rc = generate_wire_pack(q, http_id(x->http), x->log.traceparent, &x->model->info->name,
                                rules, &shared);
    if (rc < 0)
        return rc;
    struct upstream_call *calls = calloc(q->n_prompts, sizeof(*calls));
    for (unsigned i = 0; calls && i < q->n_prompts; i++) {
        calls[i] =
            (struct upstream_call){.events = &events,
                                   .user = x,
                                   .index = i,
                                   .upstream = x->g->upstream,
                                   .model = x->model,
                                   .patience = &x->g->patience,
                                   .exact = has_same_bits(x),
                                   .max_tokens = max_tokens(x),
                                   .request = generate_wire_pack_prompt(q, &q->prompts[i], shared)};
        calls[i].prompt = i ? completion_prompt_affinity(x, &q->prompts[i]) : TAKE(x->prompt);
        rc = upstream_call_init(&calls[i], openai_request_n(q)) < 0 ? -ENOMEM : rc;
    }
    rpc_msg_free(shared);
    if (!calls)
        return fail(-ENOMEM, "no memory for this request");
    calls[0].verifier = TAKE(x->verifier);
    pthread_mutex_lock(&x->mu);
    x->calls = calls;
    x->n_calls = q->n_prompts;
    x->max_running = q->max_running;
    x->n_running = 1; // the caller of completion_send()
    pthread_mutex_unlock(&x->mu);
    if (rc == 0 && q->n_prompts > 1)
        rc = prompt_places_join(&x->g->places, &x->place, http_payer(x->http));
    return rc;
}

/* Nothing if answers are not continued. */
static size_t ids_to_reserve(const struct completion *x)
{
    if (x->g->patience.resume_us <= 0 || !x->model->info->continues)
        return 0;
    uint32_t context = x->model->info->context_length, most = max_tokens(x);
    size_t bytes = committed_bytes(most < context ? most : context) * openai_request_choices(&x->q);
    return bytes < RESERVED_MAX ? bytes : RESERVED_MAX;
}

int completion_charge(struct completion *x)
{
    size_t ids = ids_to_reserve(x);
    int rc = http_charge(x->http,
                         openai_request_bytes(&x->q) + openai_reply_kept_bytes(&x->reply) + ids);
    x->reserved = rc == 0 ? ids : 0;
    return rc;
}
