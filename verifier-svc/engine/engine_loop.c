/* engine_loop.c - the engine thread: ends and preempts sequences, runs rounds. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/minmax.h"
#include "base/svc.h"
#include "verifier-svc/engine/engine_impl.h"

#define DISK_POLL_US 1000000 // how often the metrics follow blocks that are being written to disk

/* ---- the end of sequences and requests ---- */

/* Releases everything that the engine holds for a sequence. */
static void release_seq(struct engine *e, struct seq *s)
{
    kv_release(e->loaded->run.kv, &s->kv);
    if (e->drafts)
        drafts_close(e->drafts, s->id, true);
    seq_list_remove(&e->running, s);
    seq_list_remove(&e->waiting, s);
    s->state = SEQ_ENDED;
}

void engine_count_started(struct engine *e, struct request *r)
{
    bool started = false, open = false;
    r->n_started = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        started |= r->seqs[i]->started;
        open |= r->seqs[i]->state != SEQ_ENDED;
        r->n_started += r->seqs[i]->started && r->seqs[i]->state != SEQ_ENDED;
    }
    e->n_started -= r->n_places;
    r->n_places = started && open ? max_u32(r->n_started, 1) : 0;
    e->n_started += r->n_places;
}

void engine_fail_request(struct engine *e, struct request *r, int error, const char *text)
{
    flows_leave(e->flows, &r->place);
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->seqs[i]->state != SEQ_ENDED)
            release_seq(e, r->seqs[i]);
    }
    engine_count_started(e, r);
    struct event *ev = events_add(events_reserve(e->events, 0), r, 0);
    ev->error = error;
    snprintf(ev->error_text, sizeof(ev->error_text), "%s", text);
    ev->last = true;
    metrics_add(error == -EAGAIN ? e->stats->refused : e->stats->failed, 1);
    atomic_fetch_sub(&e->n_requests, 1);
}

void engine_fail_displaced(struct engine *e, struct request *r)
{
    engine_fail_request(e, r, -EAGAIN, ENGINE_DISPLACED);
}

static void count_end(struct engine *e, const struct seq *s, enum seq_end end)
{
    struct stats *m = e->stats;
    metrics_add(m->ended[end], 1);
    if (!s->first_us)
        return; // a Verify stream that was closed before its first draft
    metrics_observe(m->e2e_s, (double)(s->last_us - s->req->arrived_us) / 1e6);
    metrics_observe(m->decode_s, (double)(s->last_us - s->first_us) / 1e6);
    metrics_observe(m->generated_length, seq_generated(s));
}

/* Draft tokens per round that the settings and the request allow. */
static uint32_t k_allowed(const struct engine *e, const struct request *r)
{
    return e->speculates ? min_u32(r->k_max, e->control.options.k) : 0;
}

void engine_end_seq(struct engine *e, struct seq *s, enum seq_end end, struct event *ev)
{
    ev->end = end;
    ev->stop = s->stop;
    ev->usage = (struct request_usage){.n_prompt = s->n_prompt,
                                       .n_generated = seq_generated(s),
                                       .n_rounds = s->n_rounds,
                                       .n_drafted_rounds = s->n_drafted_rounds,
                                       .n_drafted = s->n_drafted,
                                       .n_accepted = s->n_accepted,
                                       .n_bonus = s->n_bonus,
                                       .queue_us = s->admitted_us - s->req->arrived_us,
                                       .decode_us = s->last_us - s->first_us,
                                       .k = k_allowed(e, s->req)};
    if (s->first_us)
        ev->usage.prompt_us = s->first_us - s->admitted_us;
    memcpy(ev->usage.accepted_histogram, s->accepted_histogram, sizeof(s->accepted_histogram));
    memcpy(ev->usage.proposer, s->last_proposer, sizeof(s->last_proposer));
    count_end(e, s, end);
    release_seq(e, s);
    engine_count_started(e, s->req);
    ev->last = --s->req->n_open == 0;
    if (ev->last) {
        flows_leave(e->flows, &s->req->place);
        atomic_fetch_sub(&e->n_requests, 1);
    }
}

/* Choices that wait for the prompt of the first one leave the running list with it. */
static void send_back_unbranched(struct engine *e, const struct request *r)
{
    for (uint32_t i = 1; i < r->n; i++) {
        if (r->seqs[i]->state == SEQ_BRANCH)
            seq_list_remove(&e->running, r->seqs[i]);
    }
}

void engine_preempt(struct engine *e, struct seq *s)
{
    kv_release(e->loaded->run.kv, &s->kv);
    if (e->drafts)
        drafts_close(e->drafts, s->id, false); // running sequences need the place
    seq_list_remove(&e->running, s);
    s->state = SEQ_WAITING;
    s->leaving = false;
    s->restore = SEQ_RESTORE_NEW;
    s->restore_until_us = 0;
    s->passed = (struct sched_passed){0};
    s->requested_us = s->ahead_us = s->held_until_us = 0;
    control_unread(&s->control);
    if (s->choice == 0)
        send_back_unbranched(e, s->req);
    seq_list_add(&e->waiting, s);
    metrics_add(e->stats->preemptions, 1);
}

/* ---- settings ---- */

/* Applies the settings that another thread has changed. */
static void apply_speculation(struct engine *e)
{
    pthread_mutex_lock(&e->speculation_mu);
    struct speculation s = e->speculation;
    bool changed = e->speculation_changed;
    e->speculation_changed = false;
    pthread_mutex_unlock(&e->speculation_mu);
    if (!changed)
        return;
    e->speculates = s.on && s.n_targets > 0;
    e->control.options = speculation_control(&s);
    memcpy(e->proposer, s.proposer, sizeof(e->proposer));
    if (!e->speculates)
        metrics_set(e->stats->k_now, 0);
}

/* ---- the loop ---- */

/* When a Verify stream has waited too long for its draft; INT64_MAX: it does not wait. */
static int64_t idles_out_us(const struct engine *e, const struct seq *s)
{
    return s->idle_us && !s->draft ? s->idle_us + (int64_t)(e->options->verify_timeout_s * 1e6)
                                   : INT64_MAX;
}

/* The client sends no more drafts and has the answer to its last one. */
static bool is_closed(const struct seq *s)
{
    const struct request *r = s->req;
    return atomic_load(&r->closing) && !s->draft && !atomic_load(&r->draft_pending);
}

/* Ends a sequence that was cancelled, closed or idle for too long. False: it continues. */
static bool end_unwanted(struct engine *e, struct seq *s, int64_t now_us)
{
    char text[REQUEST_MAX_ERROR];
    if (atomic_load_explicit(&s->req->cancelled, memory_order_relaxed)) {
        engine_fail_request(e, s->req, -ECANCELED, "cancelled");
    } else if (!s->started && flows_state(e->flows, &s->req->place) == FLOWS_DISPLACED) {
        engine_fail_displaced(e, s->req);
    } else if (is_closed(s)) {
        engine_end_seq(e, s, SEQ_CLOSED,
                       events_add(events_reserve(e->events, 0), s->req, s->choice));
    } else if (now_us >= idles_out_us(e, s)) {
        snprintf(text, sizeof(text), "no draft came for %g s", e->options->verify_timeout_s);
        engine_fail_request(e, s->req, -ETIMEDOUT, text);
    } else {
        return false;
    }
    return true;
}

static void end_all_unwanted(struct engine *e, struct seq_list *l)
{
    int64_t now_us = clock_us();
    for (uint32_t i = 0; i < l->n;)
        i = end_unwanted(e, l->v[i], now_us) ? 0 : i + 1; // the list has changed: start again
}

static void fail_all(struct engine *e)
{
    queue_close(e->inbox); // from here on engine_submit() fails
    engine_take_inbox(e, 0);
    while (e->running.n)
        engine_fail_request(e, e->running.v[0]->req, -EPIPE, ENGINE_STOPPING);
    while (e->waiting.n)
        engine_fail_request(e, e->waiting.v[0]->req, -EPIPE, ENGINE_STOPPING);
}

/* How long an engine without work may sleep; -1: until something arrives. It does not sleep while
 * it replays tokens of continued answers. The engine wakes up for:
 * - the watchdog,
 * - drafts that are late at `until`,
 * - blocks that are read from disk or written to disk,
 * - Verify streams that have waited too long for a draft. */
static int64_t idle_wait_us(const struct engine *e, int64_t until)
{
    int64_t now_us = clock_us(), wait = svc_watchdog_interval_us();
    const struct seq_list *lists[] = {&e->running, &e->waiting};
    if (e->replays)
        return 0;
    until = e->restore_until_us < until ? e->restore_until_us : until;
    if (e->disk_shown.n_waiting && now_us + DISK_POLL_US < until)
        until = now_us + DISK_POLL_US;
    for (unsigned l = 0; l < 2; l++) {
        for (uint32_t i = 0; i < lists[l]->n; i++) {
            int64_t at_us = idles_out_us(e, lists[l]->v[i]);
            until = at_us < until ? at_us : until;
        }
    }
    if (until == INT64_MAX)
        return wait ? wait : -1;
    int64_t left = until > now_us ? until - now_us : 0;
    return wait && wait < left ? wait : left;
}

/* Waits for drafts if the coming pass is to wait for them. True: it waited, and things may have
 * changed. */
static bool wait_for_drafts(struct engine *e)
{
    int64_t now_us = clock_us(), wait_us = round_wait_until_us(e) - now_us;
    if (wait_us > 0) {
        e->held_us = e->held_us ? e->held_us : now_us;
        events_send(e->events);
        engine_take_inbox(e, wait_us);
        return true;
    }
    if (e->held_us)
        metrics_observe(e->stats->draft_wait_s, (double)(now_us - e->held_us) / 1e6);
    e->held_us = 0;
    return false;
}

/* Sleeps while there is nothing to do. */
static void wait_for_work(struct engine *e, int64_t until)
{
    e->held_us = 0;
    events_send(e->events);
    atomic_store(&e->turn_us, 0);
    engine_take_inbox(e, idle_wait_us(e, until));
}

static void run_rounds(struct engine *e)
{
    while (!atomic_load(&e->stop)) {
        atomic_store(&e->turn_us, clock_us());
        svc_watchdog();
        apply_speculation(e);
        engine_take_inbox(e, 0);
        end_all_unwanted(e, &e->running);
        end_all_unwanted(e, &e->waiting);
        admit_waiting(e);
        engine_view_update(e);
        int64_t late_us = round_release(e, clock_us());
        if (!round_has_work(e)) {
            wait_for_work(e, late_us);
            continue;
        }
        if (e->request_again)
            round_ask(e);
        if (!wait_for_drafts(e))
            round_run(e);
    }
    fail_all(e);
    events_send(e->events);
    kv_tier_free(e->tier); // fetches under way come back during it
    e->tier = NULL;
}

void *engine_loop_main(void *arg)
{
    struct engine *e = arg;
    kernel_thread_init();
    if (engine_load(e) < 0) {
        snprintf(e->error, sizeof(e->error), "%s", fail_text());
        atomic_store(&e->state, ENGINE_FAILED);
    } else {
        atomic_store(&e->ready, e->loaded);
        int loading = ENGINE_LOADING;
        atomic_compare_exchange_strong(&e->state, &loading, ENGINE_READY);
        events_wake(e->events);
        run_rounds(e);
        atomic_store(&e->state, ENGINE_ENDED);
    }
    events_close(e->events);
    return NULL;
}
