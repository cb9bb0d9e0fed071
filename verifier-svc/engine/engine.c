/* engine.c - the engine's thread: loads, takes requests in, runs rounds, ends requests. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/svc.h"
#include "verifier-svc/engine/calibrate.h"
#include "verifier-svc/engine/engine_impl.h"

#define STOPPING "the server is stopping"
#define LOADING_SHOW_US 1000000
#define LOADING_EXTEND_US 30000000 // a start-up that shows progress may take this much longer
#define DISK_LOOK_US 1000000       // at blocks that go to disk, for those who watch

/* ---- ending ---- */

static void release(struct engine *e, struct seq *s)
{
    kv_keep(e->served->run.kv, &s->kv, 0, NULL, 0);
    if (e->drafts)
        drafts_close(e->drafts, s->id, true);
    seq_list_remove(&e->running, s);
    seq_list_remove(&e->waiting, s);
    e->n_started -= s->started;
    s->state = SEQ_ENDED;
}

void engine_fail_request(struct engine *e, struct request *r, int error, const char *text)
{
    if (!r->seqs[0]->started)
        atomic_fetch_sub(&e->n_queued, 1);
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->seqs[i]->state != SEQ_ENDED)
            release(e, r->seqs[i]);
    }
    struct event *ev = events_add(events_room(e->events, 0), r, 0);
    ev->error = error;
    snprintf(ev->error_text, sizeof(ev->error_text), "%s", text);
    ev->last = true;
    metrics_add(e->stats->failed, 1);
    atomic_fetch_sub(&e->n_requests, 1);
}

static void count_end(struct engine *e, const struct seq *s, enum seq_end end)
{
    struct stats *m = e->stats;
    metrics_add(m->ended[end], 1);
    if (!s->first_us)
        return; // a Verify stream closed without a draft
    metrics_observe(m->e2e_s, (double)(s->last_us - s->req->arrived_us) / 1e6);
    metrics_observe(m->decode_s, (double)(s->last_us - s->first_us) / 1e6);
    metrics_observe(m->generated_length, seq_generated(s));
}

static uint32_t most_k(const struct engine *e, const struct request *r)
{
    uint32_t k = e->speculates ? e->control.options.k : 0;
    return r->k_max < k ? r->k_max : k;
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
                                       .k = most_k(e, s->req)};
    if (s->first_us)
        ev->usage.prompt_us = s->first_us - s->admitted_us;
    memcpy(ev->usage.accepted_histogram, s->accepted_histogram, sizeof(s->accepted_histogram));
    memcpy(ev->usage.proposer, s->last_proposer, sizeof(s->last_proposer));
    count_end(e, s, end);
    if (!s->started)
        atomic_fetch_sub(&e->n_queued, 1);
    release(e, s);
    ev->last = --s->req->n_open == 0;
    if (ev->last)
        atomic_fetch_sub(&e->n_requests, 1);
}

/* Choices that have not begun wait for the first one's prompt: they come and go with it. */
static void send_back_unbranched(struct engine *e, const struct request *r)
{
    for (uint32_t i = 1; i < r->n; i++) {
        if (r->seqs[i]->state == SEQ_BRANCH)
            seq_list_remove(&e->running, r->seqs[i]);
    }
}

void engine_preempt(struct engine *e, struct seq *s)
{
    kv_keep(e->served->run.kv, &s->kv, 0, NULL, 0);
    if (e->drafts)
        drafts_close(e->drafts, s->id, false); // its place there is for those who run
    seq_list_remove(&e->running, s);
    s->state = SEQ_WAITING;
    s->leaving = false;
    s->restore = SEQ_RESTORE_NEW;
    s->restore_until_us = 0;
    s->passed = (struct sched_passed){0};
    s->asked_us = s->ahead_us = s->held_until_us = 0;
    control_unread(&s->control);
    if (s->choice == 0)
        send_back_unbranched(e, s->req);
    seq_list_add(&e->waiting, s);
    metrics_add(e->stats->preemptions, 1);
}

/* ---- speculation ---- */

/* Puts a change to work. */
static void take_speculation(struct engine *e)
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

/* ---- what comes in ---- */

static void take_request(struct engine *e, struct request *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        r->seqs[i]->id = ++e->next_id;
        r->seqs[i]->order = ++e->next_order;
    }
    seq_list_add(&e->waiting, r->seqs[0]);
}

static void take_verify(struct engine *e, const struct inbox_item *item)
{
    char text[REQUEST_MAX_ERROR];
    struct seq *s = item->req->seqs[0];
    atomic_store(&item->req->draft_pending, false);
    if (s->state == SEQ_ENDED)
        return;
    if (s->has_draft) {
        engine_fail_request(e, s->req, -ESTALE, "the last draft is still being verified");
    } else if (item->base_len != s->n) {
        snprintf(text, sizeof(text), "the draft continues a length of %u, %u tokens are committed",
                 item->base_len, s->n);
        engine_fail_request(e, s->req, -ESTALE, text);
    } else {
        struct seq_draft draft = {item->tokens, item->parents, item->survival,
                                  NULL,         item->n,       SEQ_NO_PROPOSER};
        seq_take_draft(s, &draft);
        s->idle_us = 0;
    }
}

static void forget_proposer(struct seq_list *l, int proposer)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->v[i]->proposer == proposer)
            seq_drop_draft(l->v[i]);
        control_seq_forget(&l->v[i]->control, (unsigned)proposer);
    }
}

/* What is left is of one that had this place before. */
static void take_proposer(struct engine *e, const struct inbox_item *item)
{
    forget_proposer(&e->running, item->proposer);
    forget_proposer(&e->waiting, item->proposer);
    control_forget(&e->control, (unsigned)item->proposer);
    e->stats->proposers[item->proposer] = item->counts;
}

static void take_item(struct engine *e, struct inbox_item *item)
{
    switch (item->kind) {
    case INBOX_REQUEST:
        take_request(e, item->req); // its hold stays with the engine
        break;
    case INBOX_VERIFY:
        take_verify(e, item);
        request_drop(item->req);
        break;
    case INBOX_DRAFT:
        round_take_draft(e, item);
        free(item->q);
        break;
    case INBOX_PROPOSER:
        take_proposer(e, item);
        break;
    case INBOX_FETCHED:
        kv_tier_take(e->tier, item->fetch, seq_list_find(&e->waiting, item->fetch->owner));
        break;
    }
    free(item);
}

void engine_take_inbox(struct engine *e, int64_t wait_us)
{
    struct inbox_item *item = queue_pop(e->inbox, wait_us);
    for (; item; item = queue_pop(e->inbox, 0))
        take_item(e, item);
}

/* ---- the loop ---- */

/* When a Verify stream will have waited too long for its draft; INT64_MAX: it does not wait. */
static int64_t idles_out_us(const struct engine *e, const struct seq *s)
{
    return s->idle_us && !s->has_draft ? s->idle_us + (int64_t)(e->options->verify_timeout_s * 1e6)
                                       : INT64_MAX;
}

/* The client sends no more drafts and has its answer to the last one. */
static bool is_done_with(const struct seq *s)
{
    const struct request *r = s->req;
    return atomic_load(&r->closing) && !s->has_draft && !atomic_load(&r->draft_pending);
}

/* Ends a sequence that nobody wants any more. False: somebody does. */
static bool end_unwanted(struct engine *e, struct seq *s, int64_t now_us)
{
    char text[REQUEST_MAX_ERROR];
    if (atomic_load_explicit(&s->req->cancelled, memory_order_relaxed)) {
        engine_fail_request(e, s->req, -ECANCELED, "cancelled");
    } else if (is_done_with(s)) {
        engine_end_seq(e, s, SEQ_CLOSED, events_add(events_room(e->events, 0), s->req, s->choice));
    } else if (now_us >= idles_out_us(e, s)) {
        snprintf(text, sizeof(text), "no draft came for %g s", e->options->verify_timeout_s);
        engine_fail_request(e, s->req, -ETIMEDOUT, text);
    } else {
        return false;
    }
    return true;
}

static void reap(struct engine *e, struct seq_list *l)
{
    int64_t now_us = clock_us();
    for (uint32_t i = 0; i < l->n;)
        i = end_unwanted(e, l->v[i], now_us) ? 0 : i + 1; // the list has changed
}

static void end_all(struct engine *e)
{
    queue_close(e->inbox); // what comes later is told by engine_submit()
    engine_take_inbox(e, 0);
    while (e->running.n)
        engine_fail_request(e, e->running.v[0]->req, -EPIPE, STOPPING);
    while (e->waiting.n)
        engine_fail_request(e, e->waiting.v[0]->req, -EPIPE, STOPPING);
}

/* How long an engine without work may sleep: for the watchdog, for drafts that will be late at
 * `until`, for blocks that do not come from disk or go there, and for Verify streams that idle out.
 * -1: until something comes. */
static int64_t idle_wait_us(const struct engine *e, int64_t until)
{
    int64_t now_us = clock_us(), wait = svc_watchdog_interval_us();
    const struct seq_list *lists[] = {&e->running, &e->waiting};
    until = e->restore_until_us < until ? e->restore_until_us : until;
    if (e->disk_shown.n_waiting && now_us + DISK_LOOK_US < until)
        until = now_us + DISK_LOOK_US;
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

/* Whether the coming pass is held back for drafts; waits for what comes then. */
static bool hold_back(struct engine *e)
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

static void loop(struct engine *e)
{
    while (!atomic_load(&e->stop)) {
        svc_watchdog();
        take_speculation(e);
        engine_take_inbox(e, 0);
        reap(e, &e->running);
        reap(e, &e->waiting);
        admit_waiting(e);
        engine_view_update(e);
        int64_t late_us = round_release(e, clock_us());
        if (!round_has_work(e)) {
            e->held_us = 0;
            events_send(e->events);
            engine_take_inbox(e, idle_wait_us(e, late_us));
            continue;
        }
        if (e->ask_again)
            round_ask(e);
        if (!hold_back(e))
            round_run(e);
    }
    end_all(e);
    events_send(e->events);
    kv_tier_free(e->tier); // in which fetches that are under way come back
    e->tier = NULL;
}

/* ---- loading ---- */

static bool show_progress(void *arg, float done)
{
    struct engine *e = arg;
    int64_t now_us = clock_us();
    atomic_store(&e->progress, done);
    if (now_us >= e->show_us) {
        svc_extend(LOADING_EXTEND_US);
        svc_status("loading the model: %d %%", (int)(done * 100));
        log_info("loading the model percent=%d", (int)(done * 100));
        e->show_us = now_us + LOADING_SHOW_US;
    }
    return !atomic_load(&e->stop);
}

static int push_item(struct engine *e, const struct inbox_item *from)
{
    struct inbox_item *item = malloc(sizeof(*item));
    if (!item)
        return fail(-ENOMEM, "no memory for a request");
    *item = *from;
    int err = queue_push(e->inbox, item);
    if (!err)
        return 0;
    free(item);
    return fail(err, err == -EPIPE ? STOPPING : "the engine's queue is full");
}

static void draft_arrived(void *user, struct draft_answer *d)
{
    struct engine *e = user;
    struct inbox_item *item = malloc(sizeof(*item));
    if (!item)
        return;
    *item = (struct inbox_item){.kind = INBOX_DRAFT,
                                .seq = d->seq,
                                .base_len = d->base_len,
                                .n = d->n,
                                .rtt_us = d->rtt_us,
                                .unread = d->unread,
                                .ahead = d->ahead,
                                .proposer = (int)d->proposer};
    item->q = TAKE(d->q);
    static_assert(DRAFT_MAX_NODES <= ACCEPT_MAX, "a draft fits into an inbox item");
    memcpy(item->tokens, d->tokens, d->n * sizeof(*d->tokens));
    memcpy(item->parents, d->parents, d->n * sizeof(*d->parents));
    memcpy(item->survival, d->survival, d->n * sizeof(*d->survival));
    if (queue_push(e->inbox, item) == 0)
        return;
    free(item->q); // a draft may always be lost
    free(item);
}

/* On the disk's thread. */
static void blocks_arrived(void *owner, struct kv_disk_fetch *f)
{
    struct engine *e = owner;
    struct inbox_item item = {.kind = INBOX_FETCHED, .fetch = f};
    if (push_item(e, &item) < 0)
        kv_tier_take(e->tier, f, NULL); // who waits for them goes on without
}

/* Its figures are registered off the engine's thread: a round allocates nothing. */
static int proposer_named(void *user, unsigned i, const char *name)
{
    struct speculation s;
    engine_speculation(user, &s);
    if (*s.proposer && !drafts_is_called(name, s.proposer))
        log_info("proposer is asked by name only name=%s default_proposer=%s", name, s.proposer);
    struct inbox_item item = {.kind = INBOX_PROPOSER, .proposer = (int)i};
    stats_drafts_init(&item.counts, name);
    return push_item(user, &item);
}

static int open_drafts(struct engine *e)
{
    const struct loaded_model *m = e->served;
    const struct speculation *s = &e->speculation; // nobody changes it meanwhile
    struct drafts_config c = {.n_targets = s->n_targets,
                              .model = m->name,
                              .n_vocab = tok_n_vocab(m->tok),
                              .vocab_digest = tok_digest(m->tok),
                              .max_sequences = (uint32_t)e->options->max_sequences,
                              .arrived = draft_arrived,
                              .named = proposer_named,
                              .user = e};
    memcpy(c.targets, s->targets, sizeof(c.targets));
    int err = drafts_new(&c, &e->drafts);
    atomic_store(&e->proposers, e->drafts);
    return err;
}

/* By them goodput decides. That may be chosen at any time, and timing them then would hold up what
 * runs. */
static void time_passes(struct engine *e, struct pass_time *ret)
{
    *ret = (struct pass_time){0};
    if (calibrate(&e->served->run, ret) < 0) {
        log_warn("passes were not timed, so the policy goodput drafts nothing: %s", fail_text());
        return;
    }
    log_info("passes timed rows=1 ms=%.2f rows=8 ms=%.2f",
             pass_time_us(ret, &(struct pass_time_work){.rows = 1}) / 1e3,
             pass_time_us(ret, &(struct pass_time_work){.rows = 8}) / 1e3);
}

static int open_speculation(struct engine *e)
{
    struct pass_time cost;
    time_passes(e, &cost);
    control_init(&e->control, &(struct control_options){0}, &cost);
    pthread_mutex_lock(&e->changing_mu);
    int err = open_drafts(e);
    pthread_mutex_unlock(&e->changing_mu);
    return err;
}

static int load(struct engine *e)
{
    int64_t start_us = clock_us();
    e->show_us = start_us + LOADING_SHOW_US;
    svc_extend(LOADING_EXTEND_US);
    svc_status("loading the model");
    int err = loaded_model_open(e->options, &e->served);
    if (!err)
        err = loaded_model_load(e->served, e->options, show_progress, e);
    if (!err)
        err = events_fit(e->events, e->served->tok);
    if (!err)
        err = kv_tier_new(e->options, e->served, blocks_arrived, e, &e->tier);
    if (!err)
        err = open_speculation(e);
    if (err < 0)
        return err;
    const struct loaded_model *m = e->served;
    struct sched_limits limits = {(uint32_t)e->options->max_batch_rows, m->run.max_logits,
                                  (uint32_t)e->options->prefill_chunk,
                                  e->options->max_pass_ms * 1000};
    sched_init(&e->sched, &limits);
    log_info("model ready name=%s arch=%s type=%s weights_mib=%zu kv_positions=%u context=%u "
             "kernel=%s threads=%u s=%.1f",
             m->name, m->run.model->params.architecture, m->weight_type, m->run.model->bytes >> 20,
             kv_n_blocks(m->run.kv) * KV_BLOCK, m->run.context, m->run.kernel->name,
             pool_threads(m->run.pool), (double)(clock_us() - start_us) / 1e6);
    return 0;
}

static void *engine_main(void *arg)
{
    struct engine *e = arg;
    kernel_thread_init();
    if (load(e) < 0) {
        snprintf(e->error, sizeof(e->error), "%s", fail_text());
        atomic_store(&e->state, ENGINE_FAILED);
    } else {
        atomic_store(&e->ready, e->served);
        int loading = ENGINE_LOADING;
        atomic_compare_exchange_strong(&e->state, &loading, ENGINE_READY);
        events_wake(e->events);
        loop(e);
        atomic_store(&e->state, ENGINE_ENDED);
    }
    events_close(e->events);
    return NULL;
}

/* ---- for others ---- */

static int open_round(struct engine *e)
{
    uint32_t seqs = (uint32_t)e->options->max_sequences;
    uint32_t queued = (uint32_t)e->options->queue_length;
    e->max_started = seqs + queued;
    int err = seq_list_init(&e->running, seqs);
    if (!err)
        err = seq_list_init(&e->waiting, e->max_started + queued);
    if (err < 0)
        return err;
    e->waits = calloc(e->waiting.max, sizeof(*e->waits));
    e->shares = calloc(seqs, sizeof(*e->shares));
    e->pass = calloc(seqs, sizeof(*e->pass));
    e->rows = calloc((size_t)e->options->max_batch_rows, sizeof(*e->rows));
    e->kv_seqs = calloc(seqs, sizeof(*e->kv_seqs));
    e->wishes = calloc(seqs, sizeof(*e->wishes));
    e->wishing = calloc(seqs, sizeof(*e->wishing));
    e->items = calloc(seqs, sizeof(*e->items));
    e->item_seqs = calloc(seqs, sizeof(*e->item_seqs));
    if (!e->waits || !e->shares || !e->pass || !e->rows || !e->kv_seqs || !e->wishes ||
        !e->wishing || !e->items || !e->item_seqs)
        return fail(-ENOMEM, "no memory for an engine");
    return 0;
}

int engine_new(const struct verifier_options *o, struct stats *stats, struct engine **ret)
{
    uint32_t seqs = (uint32_t)o->max_sequences, queued = (uint32_t)o->queue_length;
    AUTO(engine_free) struct engine *e = calloc(1, sizeof(*e));
    if (!e)
        return fail(-ENOMEM, "no memory for an engine");
    e->options = o;
    e->speculation = o->speculation;
    e->speculation_changed = true;
    e->stats = stats;
    pthread_mutex_init(&e->changing_mu, NULL);
    pthread_mutex_init(&e->speculation_mu, NULL);
    pthread_mutex_init(&e->kv_mu, NULL);
    /* Requests, a draft per sequence from each side, and some in between. */
    int err = queue_new(queued + 4 * seqs + 64, &e->inbox);
    if (!err)
        err = events_new(4 * seqs + 64, (uint32_t)o->max_batch_rows + seqs + ACCEPT_MAX + 1,
                         &e->events);
    if (!err)
        err = open_round(e);
    if (err < 0)
        return err;
    *ret = TAKE(e);
    return 0;
}

int engine_start(struct engine *e)
{
    int err = pool_thread(engine_main, e, &e->thread);
    return err < 0 ? fail(err, "cannot start the engine's thread") : 0;
}

void engine_stop(struct engine *e)
{
    atomic_store(&e->stop, true);
    queue_wake(e->inbox);
    if (e->thread)
        pthread_join(e->thread, NULL);
    e->thread = 0;
}

void engine_free(struct engine *e)
{
    if (!e)
        return;
    drafts_free(e->drafts); // nothing arrives after it
    for (struct inbox_item *item; e->inbox && (item = queue_pop(e->inbox, 0)); free(item)) {
        request_drop(item->req);
        free(item->q);
    }
    queue_free(e->inbox);
    events_free(e->events);
    kv_tier_free(e->tier);
    seq_list_done(&e->running);
    seq_list_done(&e->waiting);
    free(e->waits);
    free(e->shares);
    free(e->pass);
    free(e->rows);
    free(e->kv_seqs);
    free(e->wishes);
    free(e->wishing);
    free(e->items);
    free(e->item_seqs);
    pthread_mutex_destroy(&e->changing_mu);
    pthread_mutex_destroy(&e->speculation_mu);
    pthread_mutex_destroy(&e->kv_mu);
    loaded_model_free(e->served);
    free(e);
}

enum engine_state engine_state(struct engine *e, float *ret_progress)
{
    if (ret_progress)
        *ret_progress = atomic_load(&e->ready) ? 1 : atomic_load(&e->progress);
    return (enum engine_state)atomic_load(&e->state);
}

const char *engine_error(struct engine *e)
{
    return e->error;
}

const struct loaded_model *engine_served(struct engine *e)
{
    return atomic_load(&e->ready);
}

struct drafts *engine_drafts(struct engine *e)
{
    return atomic_load(&e->proposers);
}

void engine_speculation(struct engine *e, struct speculation *ret)
{
    pthread_mutex_lock(&e->speculation_mu);
    *ret = e->speculation;
    pthread_mutex_unlock(&e->speculation_mu);
}

/* Nothing is changed if it fails. */
static int change_proposers(struct engine *e, const struct speculation *s)
{
    struct drafts *d = engine_drafts(e);
    int err = speculation_check_default(s, d);
    if (err < 0 || !d)
        return err; // while it loads: load() will find them
    return drafts_set(d, s->targets, s->n_targets);
}

static void publish(struct engine *e, const struct speculation *s)
{
    pthread_mutex_lock(&e->speculation_mu);
    e->speculation = *s;
    e->speculation_changed = true;
    pthread_mutex_unlock(&e->speculation_mu);
    queue_wake(e->inbox);
    struct control_options o = speculation_control(s);
    log_info("speculation changed on=%d policy=%s k=%u disable_batch_size=%u proposers=%u "
             "proposer=%s",
             s->on, speculation_policy(s), o.k, o.disable_batch_size, s->n_targets, s->proposer);
}

int engine_speculate(struct engine *e, const struct speculation_change *c, struct speculation *ret)
{
    pthread_mutex_lock(&e->changing_mu);
    struct speculation s = speculation_after(&e->speculation, c);
    int err = c->has ? change_proposers(e, &s) : 0;
    if (!err && c->has)
        publish(e, &s);
    pthread_mutex_unlock(&e->changing_mu);
    if (!err)
        *ret = s;
    return err;
}

struct events *engine_events(struct engine *e)
{
    return e->events;
}

void engine_kv(struct engine *e, struct engine_kv_view *ret)
{
    pthread_mutex_lock(&e->kv_mu);
    *ret = e->kv_view;
    pthread_mutex_unlock(&e->kv_mu);
}

int engine_submit(struct engine *e, struct request *r)
{
    uint32_t max = (uint32_t)e->options->queue_length;
    if (atomic_fetch_add(&e->n_queued, 1) >= max) {
        atomic_fetch_sub(&e->n_queued, 1);
        return fail(-EAGAIN, "the queue is full: %u requests wait already", max);
    }
    atomic_fetch_add(&e->n_requests, 1);
    request_hold(r);
    struct inbox_item item = {.kind = INBOX_REQUEST, .req = r};
    int err = push_item(e, &item);
    if (err < 0) {
        atomic_fetch_sub(&e->n_queued, 1);
        atomic_fetch_sub(&e->n_requests, 1);
        request_drop(r);
    }
    return err;
}

int engine_verify(struct engine *e, struct request *r, uint32_t base_len,
                  const struct accept_tree *draft)
{
    if (draft->n > ACCEPT_MAX)
        return fail(-EINVAL, "the draft has %u tokens, at most %d are allowed", draft->n,
                    ACCEPT_MAX);
    if (!accept_valid(draft, tok_n_vocab(engine_served(e)->tok)))
        return fail(-EINVAL, "the draft names a token that the vocabulary has not, or a parent "
                             "that does not come before its child");
    if (atomic_exchange(&r->draft_pending, true))
        return fail(-ESTALE, "the last draft is still being verified");
    struct inbox_item item = {.kind = INBOX_VERIFY, .req = r, .base_len = base_len, .n = draft->n};
    for (uint32_t i = 0; i < draft->n; i++) {
        item.tokens[i] = draft->tokens[i];
        item.parents[i] = draft->parents[i];
        item.survival[i] = 1;
    }
    request_hold(r);
    int err = push_item(e, &item);
    if (err < 0)
        request_drop(r);
    return err;
}

void engine_wake(struct engine *e)
{
    queue_wake(e->inbox);
}

void engine_drain(struct engine *e)
{
    int ready = ENGINE_READY;
    atomic_compare_exchange_strong(&e->state, &ready, ENGINE_DRAINING);
}

uint32_t engine_n_requests(struct engine *e)
{
    return atomic_load(&e->n_requests);
}
