/* upstream_call.c - one Generate call, from one verifier to the next if need be. */
#include <stdio.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "gateway/upstream/upstream_call.h"

#define MAX_LOST 4            // a request that crashes verifiers must not crash them all for ever
#define FIRST_PAUSE_US 100000 // between two tries to find a verifier; doubles
#define LAST_PAUSE_US 1000000
#define LOST_US 500000 // a verifier that was lost so long ago may be back
#define FEW_TOKENS 16  // a leg with fewer has not helped the answer

int upstream_call_init(struct upstream_call *a, unsigned n)
{
    pthread_mutex_init(&a->step_mu, NULL);
    pthread_mutex_init(&a->mu, NULL);
    a->pause_us = FIRST_PAUSE_US;
    return committed_init(&a->committed, n);
}

void upstream_call_done(struct upstream_call *a)
{
    upstream_release(TAKE(a->verifier));
    rpc_msg_free(a->request);
    free(a->prompt);
    committed_done(&a->committed);
    pthread_mutex_destroy(&a->step_mu);
    pthread_mutex_destroy(&a->mu);
}

/* ---- legs; with step_mu ---- */

static bool is_cancelled(struct upstream_call *a)
{
    pthread_mutex_lock(&a->mu);
    bool cancelled = a->cancelled;
    pthread_mutex_unlock(&a->mu);
    return cancelled;
}

static void set_waiting(struct upstream_call *a, int64_t since_us)
{
    pthread_mutex_lock(&a->mu);
    a->waiting_since_us = since_us;
    pthread_mutex_unlock(&a->mu);
}

static struct upstream_leg *free_leg(struct upstream_call *a)
{
    for (int i = 0; i < UPSTREAM_CALL_LEGS; i++) {
        if (!a->legs[i].verifier)
            return &a->legs[i];
    }
    return NULL;
}

static bool has_leg(const struct upstream_call *a)
{
    for (int i = 0; i < UPSTREAM_CALL_LEGS; i++) {
        if (a->legs[i].verifier)
            return true;
    }
    return false;
}

/* Its events are ignored from now on; it is free when it has ended. */
static void leave(struct upstream_leg *leg)
{
    pthread_mutex_lock(&leg->a->mu);
    if (leg->call)
        rpc_stream_cancel(leg->call);
    pthread_mutex_unlock(&leg->a->mu);
}

static void free_ended(struct upstream_leg *leg)
{
    pthread_mutex_lock(&leg->a->mu);
    struct rpc_stream *call = TAKE(leg->call);
    pthread_mutex_unlock(&leg->a->mu);
    rpc_stream_free(call);
    upstream_release(TAKE(leg->verifier));
}

/* No more tries. The call is done when all legs have ended. */
static void finish(struct upstream_call *a)
{
    a->over = true;
    if (a->current)
        leave(TAKE(a->current));
    if (a->next)
        leave(TAKE(a->next));
}

/* Unlocks step_mu. Afterwards the call may not exist any longer. */
static void end_step(struct upstream_call *a)
{
    bool done = a->over && !a->done && !has_leg(a);
    a->done |= done;
    pthread_mutex_unlock(&a->step_mu);
    if (done)
        a->events->on_done(a);
}

/* ---- another verifier; with step_mu ---- */

static void pause_tries(struct upstream_call *a)
{
    a->try_us = clock_us() + a->pause_us;
    a->pause_us = a->pause_us < LAST_PAUSE_US / 2 ? 2 * a->pause_us : LAST_PAUSE_US;
}

/* Older verifiers cannot continue answers. */
static bool can_continue(const struct upstream_call *a)
{
    return a->patience->resume_us > 0 && a->model->info->continues && !a->committed.is_partial;
}

static void on_message(void *user, struct rpc_msg *msg);
static void on_end(void *user, const struct rpc_status *status);

static void send_leg(struct upstream_leg *leg, struct verifier *v, struct rpc_msg *request)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    struct upstream_call *a = leg->a;
    *leg = (struct upstream_leg){.a = a, .verifier = v};
    a->target = upstream_target(v);
    a->tried |= 1u << upstream_index(v); // until it begins
    struct rpc_stream *s =
        rpc_stream_new(upstream_client(v), "/tandem.v1.Verifier/Generate", NULL, &events, leg);
    rpc_stream_send(s, request);
    rpc_stream_close(s);
    pthread_mutex_lock(&a->mu);
    leg->call = s;
    if (a->cancelled) // before leg->call was set
        rpc_stream_cancel(s);
    pthread_mutex_unlock(&a->mu);
}

static uint32_t bit_of(const struct upstream_leg *leg)
{
    return 1u << upstream_index(leg->verifier);
}

/* A verifier with the same model, but none of these. NULL: none can be asked now. */
static struct verifier *take_verifier(const struct upstream_call *a, uint32_t except)
{
    const struct upstream_want want = {
        .prompt = a->prompt, .like = a->model, .continues = a->begun, .except = except};
    const struct upstream_model *model;
    struct verifier *v;
    if (upstream_take(a->upstream, &want, &v, &model) < 0)
        return NULL;
    upstream_model_unref(model); // same name and fingerprint as a->model
    return v;
}

/* Those that the call has lost within the last LOST_US. */
static uint32_t just_lost(const struct upstream_call *a)
{
    uint32_t bits = 0;
    for (unsigned i = 0; i < UPSTREAM_MAX; i++)
        bits |= clock_us() - a->lost_at_us[i] < LOST_US ? a->lost & 1u << i : 0;
    return bits;
}

/* Another verifier than that of `from`, if possible one that was not lost, or not just now. NULL:
 * as above. */
static struct verifier *choose_verifier(const struct upstream_call *a,
                                        const struct upstream_leg *from)
{
    uint32_t except = a->tried | a->unable | (from ? bit_of(from) : 0);
    struct verifier *v = take_verifier(a, except | a->lost);
    v = v ? v : take_verifier(a, except | just_lost(a));
    return v ? v : take_verifier(a, except);
}

static struct rpc_msg *next_request(struct upstream_call *a)
{
    if (!a->begun)
        return rpc_msg_share(a->request);
    struct rpc_msg *rest = committed_pack(&a->committed, a->model->info->fingerprint);
    struct rpc_msg *request = rest ? rpc_msg_joined(a->request, rest) : NULL;
    rpc_msg_free(rest);
    return request;
}

/* The verifier that the call leaves. a->why has the reason. */
static const char *left_target(const struct upstream_call *a)
{
    return a->current ? upstream_target(a->current->verifier) : a->lost_target;
}

/* The leg of a call that has not begun and has no verifier is its current one. */
static void set_leg(struct upstream_call *a, struct upstream_leg *leg)
{
    if (a->begun || a->current)
        a->next = leg;
    else
        a->current = leg;
}

/* Asks another verifier than that of `from`. false: none can be asked now. */
static bool ask_next(struct upstream_call *a, const struct upstream_leg *from)
{
    struct upstream_leg *leg = free_leg(a);
    const char *left = left_target(a);
    struct verifier *v = leg ? choose_verifier(a, from) : NULL;
    struct rpc_msg *request = v ? next_request(a) : NULL;
    if (!request) {
        upstream_release(v);
        a->tried = 0; // each may be asked again
        pause_tries(a);
        return false;
    }
    leg->a = a;
    if (a->begun && !a->current)
        set_waiting(a, clock_us());
    set_leg(a, leg);
    if (!a->begun && left && !a->full)
        a->events->on_retry(a, left, upstream_target(v), a->why);
    a->full = false;
    send_leg(leg, v, request);
    return true;
}

/* The next leg has not begun. The call stays where it is, and another verifier is asked later. */
static void drop_next(struct upstream_call *a)
{
    leave(TAKE(a->next));
    pause_tries(a);
}

static void set_malformed(struct upstream_call *a, bool malformed)
{
    pthread_mutex_lock(&a->mu);
    a->malformed = malformed;
    pthread_mutex_unlock(&a->mu);
}

/* The current leg has begun. */
static void end_search(struct upstream_call *a)
{
    a->tried = 0;
    a->n_tokens = 0;
    a->pause_us = FIRST_PAUSE_US;
    set_waiting(a, 0);
    set_malformed(a, false);
}

/* The next leg has begun and becomes the current one. false: it cannot; its events are ignored. */
static bool adopt(struct upstream_call *a)
{
    const char *from = left_target(a);
    if (!a->exact && committed_has_more(&a->committed)) { // the next tokens may differ from these
        drop_next(a);
        return false;
    }
    if (a->current)
        leave(a->current);
    a->current = TAKE(a->next);
    committed_continued(&a->committed);
    end_search(a);
    if (a->begun)
        a->events->on_resume(a, from, upstream_target(a->current->verifier), a->why);
    return true;
}

/* ---- the verifier's events; with step_mu ---- */

static void mark_begun(struct upstream_call *a, const Tandem__V1__Started *s)
{
    a->begun = true;
    a->committed.seed = s->seed;
    a->committed.max_tokens = s->max_tokens;
    free(TAKE(a->prompt));
    end_search(a);
    if (a->next) // it would draw another seed
        leave(TAKE(a->next));
}

static bool is_possible(const struct upstream_call *a, const Tandem__V1__Started *s)
{
    return s->max_tokens <= a->max_tokens &&
           s->prompt_tokens <= rpc_msg_len(a->request) + UPSTREAM_CALL_ADDED_MAX &&
           s->cached_tokens <= s->prompt_tokens;
}

static bool take_started(struct upstream_leg *leg, const Tandem__V1__GenerateEvent *e)
{
    struct upstream_call *a = leg->a;
    struct committed_choice *c = &a->committed.choices[e->choice];
    leg->begun = true;
    if (++leg->n_started > a->committed.n || !is_possible(a, e->started))
        return false;
    if (!a->begun)
        mark_begun(a, e->started);
    if (c->started) // by another verifier
        return true;
    c->started = true;
    a->events->on_event(a, e);
    return true;
}

static bool hold(void *user, size_t bytes)
{
    struct upstream_call *a = user;
    return a->events->on_hold(a, bytes);
}

/* Another verifier could not continue an answer with other tokens. A verifier may leave n_vocab
 * out. */
static bool has_known_tokens(const struct upstream_call *a, const Tandem__V1__TokenRun *run)
{
    uint32_t n_vocab = a->model->info->n_vocab;
    bool known = true;
    for (size_t i = 0; i < run->n_tokens && n_vocab; i++)
        known &= run->tokens[i]->id < n_vocab;
    return known;
}

/* Whether the choice has at most as many tokens afterwards as the request permits. */
static bool is_within_limit(const struct upstream_call *a, const struct committed_choice *c,
                            size_t n)
{
    return c->n - c->skip + n <= a->max_tokens;
}

static bool take_run(struct upstream_call *a, const Tandem__V1__GenerateEvent *e)
{
    struct committed_choice *c = &a->committed.choices[e->choice];
    Tandem__V1__TokenRun run = *e->run;
    Tandem__V1__GenerateEvent fresh = *e;
    fresh.run = &run;
    if (c->finished)
        return true;
    bool could_continue = can_continue(a);
    if (!has_known_tokens(a, &run) || !is_within_limit(a, c, run.n_tokens) ||
        committed_take(&a->committed, e->choice, &run, hold, a) < 0)
        return false;
    a->n_tokens += run.n_tokens;
    if (could_continue && a->committed.is_partial)
        a->events->on_lost_ids(a);
    if (run.n_tokens)
        a->events->on_event(a, &fresh);
    return true;
}

static bool take_finished(struct upstream_call *a, const Tandem__V1__GenerateEvent *e)
{
    struct committed_choice *c = &a->committed.choices[e->choice];
    if (c->finished)
        return true;
    c->finished = true;
    a->events->on_event(a, e);
    return true;
}

/* false: the event is not valid. */
static bool take_event(struct upstream_leg *leg, const Tandem__V1__GenerateEvent *e)
{
    struct upstream_call *a = leg->a;
    if (e->choice >= a->committed.n)
        return false;
    if (e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_STARTED)
        return take_started(leg, e);
    if (!leg->begun)
        return false;
    if (e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_RUN)
        return take_run(a, e);
    if (e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED)
        return take_finished(a, e);
    return true; // of a newer verifier
}

/* Whether this may be the first event of a leg. */
static bool is_start(const struct upstream_call *a, const Tandem__V1__GenerateEvent *e)
{
    return e && e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_STARTED &&
           e->choice < a->committed.n;
}

/* The event in the message; NULL: it is not valid. */
static Tandem__V1__GenerateEvent *unpack_event(const struct rpc_msg *msg)
{
    Tandem__V1__GenerateEvent *e =
        (Tandem__V1__GenerateEvent *)rpc_unpack(&tandem__v1__generate_event__descriptor, msg);
    if (!e || e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_STARTED)
        return e;
    bool run = e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_RUN;
    if (rpc_msg_len(msg) <= UPSTREAM_CALL_EVENT_MAX &&
        (!run || e->run->n_tokens <= UPSTREAM_CALL_RUN_MAX))
        return e;
    tandem__v1__generate_event__free_unpacked(e, NULL);
    return NULL;
}

/* ---- the end of a leg; with step_mu ---- */

/* Whether the error is the request's own, so that other verifiers would end it, too. An answer that
 * has begun has none. */
static bool is_final(const struct upstream_call *a, enum rpc_code code)
{
    return !a->begun && (code == RPC_INVALID_ARGUMENT || code == RPC_OUT_OF_RANGE ||
                         code == RPC_NOT_FOUND || code == RPC_FAILED_PRECONDITION);
}

/* Whether another verifier may do better than the last one. */
static bool may_move(struct upstream_call *a, enum rpc_code code)
{
    return !is_cancelled(a) && a->n_lost <= MAX_LOST && (!a->begun || can_continue(a)) &&
           !is_final(a, code);
}

/* Whether there is another verifier that was not asked, and not lost just now. */
static bool has_other(const struct upstream_call *a, const struct upstream_leg *leg)
{
    struct verifier *v = take_verifier(a, a->tried | a->unable | just_lost(a) | bit_of(leg));
    upstream_release(v);
    return v;
}

/* `leg` has ended with this code: its queue is full, and no other verifier can be asked but lost
 * ones. These are asked again after a pause, since they may lose the call again and again. */
static bool waits_for_place(struct upstream_call *a, const struct upstream_leg *leg,
                            enum rpc_code code)
{
    a->full = code == RPC_RESOURCE_EXHAUSTED && !has_other(a, leg) && a->events->on_full(a);
    if (!a->full)
        return false;
    a->waited = true;
    a->tried = 0;
    pause_tries(a);
    return true;
}

/* The call has no verifier now: `leg`, the last one, has ended with this code. A full queue is no
 * loss. */
static void take_loss(struct upstream_call *a, const struct upstream_leg *leg, enum rpc_code code)
{
    if (!may_move(a, code))
        finish(a);
    else if (a->next) // it was asked to continue the answer, and may have queued it
        set_waiting(a, clock_us());
    else if (!waits_for_place(a, leg, code) && !ask_next(a, leg) && !a->lost_us)
        finish(a);
}

/* A call that has waited for a place waits as long as others, whatever a verifier does that it has
 * lost before. But none may begin the answer again and again for nothing. */
static void count_loss(struct upstream_call *a, const struct upstream_leg *leg)
{
    bool in_vain = leg->begun && a->n_tokens < FEW_TOKENS;
    a->n_lost += in_vain || !a->waited || !(a->lost & bit_of(leg));
    if (in_vain && a->waited && a->n_lost <= MAX_LOST) // others may be back later
        a->pause_us = FIRST_PAUSE_US << a->n_lost;
    a->lost |= bit_of(leg);
    a->lost_us = clock_us();
    a->lost_at_us[upstream_index(leg->verifier)] = a->lost_us;
}

static void end_current(struct upstream_call *a, const struct upstream_leg *leg,
                        const struct rpc_status *status)
{
    a->current = a->begun ? NULL : TAKE(a->next);
    if (!a->begun) // no verifier that drains has the request: a refusal is final now
        a->unable = 0;
    a->lost_target = upstream_target(leg->verifier);
    a->status = *status;
    a->why = a->status.text;
    if (status->code == RPC_UNAVAILABLE || a->begun)
        count_loss(a, leg);
    if (committed_is_whole(&a->committed)) {
        a->status.code = RPC_OK;
        set_malformed(a, false);
        finish(a);
    } else if (!a->current) {
        take_loss(a, leg, status->code);
    }
}

/* The current leg has sent an event that is not valid. */
static void end_malformed(struct upstream_call *a, struct upstream_leg *leg)
{
    static const struct rpc_status lost = {RPC_UNAVAILABLE, "the verifier's answer is malformed"};
    set_malformed(a, true);
    leave(leg);
    end_current(a, leg, &lost);
}

static void take_message(struct upstream_leg *leg, const Tandem__V1__GenerateEvent *e)
{
    struct upstream_call *a = leg->a;
    if (leg == a->next && !is_start(a, e)) {
        drop_next(a);
        return;
    }
    if (leg == a->next && !adopt(a))
        return;
    a->heard_us = clock_us();
    if (!e || !take_event(leg, e))
        end_malformed(a, leg);
}

static void on_message(void *user, struct rpc_msg *msg)
{
    struct upstream_leg *leg = user;
    struct upstream_call *a = leg->a;
    pthread_mutex_lock(&a->step_mu);
    if (leg == a->current || leg == a->next) {
        Tandem__V1__GenerateEvent *e = unpack_event(msg);
        take_message(leg, e);
        tandem__v1__generate_event__free_unpacked(e, NULL);
    }
    end_step(a);
}

/* The current leg has not begun, and its verifier does not answer. A verifier that drains does, and
 * may begin the request. */
static bool is_stuck(const struct upstream_call *a)
{
    return !a->begun && upstream_stay(a->current->verifier, a->patience->stall_us, clock_us()) ==
                            UPSTREAM_SILENT;
}

/* The next leg has ended and has not begun. With these codes, the request is wrong, or the
 * verifier's limits are too small for it, for example its context. It is not asked again. */
static void end_next(struct upstream_call *a, const struct upstream_leg *leg,
                     const struct rpc_status *status)
{
    bool refused = status->code == RPC_INVALID_ARGUMENT || status->code == RPC_OUT_OF_RANGE;
    bool final = refused && is_stuck(a);
    if (refused)
        a->unable |= bit_of(leg);
    if (final)
        a->status = *status;
    drop_next(a);
    if (final || is_cancelled(a))
        finish(a);
}

static void take_end(struct upstream_leg *leg, const struct rpc_status *status)
{
    struct upstream_call *a = leg->a;
    if (status->code == RPC_UNAVAILABLE && !is_cancelled(a))
        upstream_suspect(leg->verifier);
    if (leg == a->current) {
        set_malformed(a, false); // this verifier has sent nothing malformed
        end_current(a, leg, status);
    } else if (leg == a->next) {
        end_next(a, leg, status);
    }
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct upstream_leg *leg = user;
    struct upstream_call *a = leg->a;
    pthread_mutex_lock(&a->step_mu);
    take_end(leg, status);
    free_ended(leg);
    end_step(a);
}

/* ---- the call ---- */

void upstream_call_begin(struct upstream_call *a)
{
    pthread_mutex_lock(&a->step_mu);
    struct verifier *v = a->verifier ? TAKE(a->verifier) : choose_verifier(a, NULL);
    set_waiting(a, clock_us());
    if (v) {
        a->legs[0].a = a;
        a->current = &a->legs[0];
        send_leg(a->current, v, rpc_msg_share(a->request));
    } else { // of a later prompt: the first one has found a verifier
        a->status.code = RPC_UNAVAILABLE;
        snprintf(a->status.text, sizeof(a->status.text), "%s", fail_text());
        a->lost_us = clock_us();
        a->over = is_cancelled(a);
    }
    end_step(a);
}

/* ---- any thread ---- */

/* With mu. */
static void cancel_locked(struct upstream_call *a)
{
    a->cancelled = true;
    for (int i = 0; i < UPSTREAM_CALL_LEGS; i++) {
        if (a->legs[i].call)
            rpc_stream_cancel(a->legs[i].call); // harmless if it has ended
    }
}

void upstream_call_cancel(struct upstream_call *a)
{
    pthread_mutex_lock(&a->mu);
    cancel_locked(a);
    pthread_mutex_unlock(&a->mu);
}

void upstream_call_expire(struct upstream_call *a, int64_t late_us)
{
    pthread_mutex_lock(&a->mu);
    if (a->waiting_since_us && a->waiting_since_us < late_us && !a->cancelled) {
        a->overdue = true;
        cancel_locked(a);
    }
    pthread_mutex_unlock(&a->mu);
}

/* With step_mu. Whether the call should not stay at the verifier that runs it; sets a->why. A drain
 * is no reason to change bits, and neither is silence while tokens arrive. */
static bool leaves(struct upstream_call *a, int64_t now_us)
{
    switch (upstream_stay(a->current->verifier, a->patience->stall_us, now_us)) {
    case UPSTREAM_STAYS:
        return false;
    case UPSTREAM_LEAVES:
        a->why = "it drains";
        return !a->begun || (a->exact && can_continue(a));
    default: // UPSTREAM_SILENT
        a->why = "it is silent";
        return !a->begun ||
               (can_continue(a) && (a->exact || now_us - a->heard_us > a->patience->stall_us));
    }
}

/* With step_mu. The call has no verifier. */
static void tick_search(struct upstream_call *a, int64_t now_us)
{
    if (is_cancelled(a) || (!a->full && now_us - a->lost_us >= a->patience->resume_us))
        finish(a);
    else if (now_us < a->try_us || (a->full && !a->events->may_retry(a)))
        return;
    else if (!ask_next(a, NULL) && a->full) { // it has lost the verifier whose queue was full
        a->full = false;
        a->lost_us = now_us;
    }
}

/* With step_mu. */
static void tick(struct upstream_call *a, int64_t now_us)
{
    if (a->next) {
        if (upstream_stay(a->next->verifier, a->patience->stall_us, now_us) == UPSTREAM_SILENT)
            drop_next(a);
    } else if (a->current) {
        if (now_us >= a->try_us && leaves(a, now_us))
            ask_next(a, a->current);
    } else {
        tick_search(a, now_us);
    }
}

void upstream_call_tick(struct upstream_call *a, int64_t now_us)
{
    pthread_mutex_lock(&a->step_mu);
    if ((a->current || a->lost_us || a->full) && !a->over)
        tick(a, now_us);
    end_step(a);
}

void upstream_call_pause(struct upstream_call *a)
{
    pthread_mutex_lock(&a->mu);
    for (int i = 0; i < UPSTREAM_CALL_LEGS && !a->cancelled; i++) {
        if (a->legs[i].call)
            rpc_stream_pause(a->legs[i].call);
    }
    pthread_mutex_unlock(&a->mu);
}

void upstream_call_unpause(struct upstream_call *a)
{
    pthread_mutex_lock(&a->mu);
    for (int i = 0; i < UPSTREAM_CALL_LEGS; i++) {
        if (a->legs[i].call)
            rpc_stream_unpause(a->legs[i].call);
    }
    pthread_mutex_unlock(&a->mu);
}
