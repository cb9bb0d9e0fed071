/* engine.c - what other threads call: start, stop, submit, settings, statistics. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "verifier-svc/engine/engine_impl.h"

/* As many as a verifier with the same settings can have started. */
uint32_t engine_max_resumed(const struct verifier_options *o)
{
    return (uint32_t)o->max_sequences + (uint32_t)o->queue_length;
}

/* Memory for a round, so that none is allocated in one. */
static int alloc_round(struct engine *e)
{
    uint32_t seqs = (uint32_t)e->options->max_sequences;
    uint32_t queued = (uint32_t)e->options->queue_length;
    e->max_started = seqs + queued;
    struct flows_limits limits = {queued, engine_max_resumed(e->options), e->max_started, SIZE_MAX};
    int err = seq_list_init(&e->running, seqs);
    if (!err) // started ones, the next choices of these, queued requests, displaced, resumed ones
        err = seq_list_init(&e->waiting, 2 * e->max_started + 2 * queued + limits.resumed);
    if (!err)
        err = flows_new(&limits, &e->flows);
    if (err < 0)
        return err;
    e->waits = calloc(e->waiting.max, sizeof(*e->waits));
    e->turns = calloc(e->waiting.max, sizeof(*e->turns));
    e->counts = calloc(flows_max(e->flows), sizeof(*e->counts));
    e->grants = calloc(seqs, sizeof(*e->grants));
    e->pass = calloc(seqs, sizeof(*e->pass));
    e->kv_seqs = calloc(seqs, sizeof(*e->kv_seqs));
    e->wishes = calloc(seqs, sizeof(*e->wishes));
    e->wish_seqs = calloc(seqs, sizeof(*e->wish_seqs));
    e->items = calloc(seqs, sizeof(*e->items));
    e->item_seqs = calloc(seqs, sizeof(*e->item_seqs));
    if (!e->waits || !e->turns || !e->counts || !e->grants || !e->pass || !e->kv_seqs ||
        !e->wishes || !e->wish_seqs || !e->items || !e->item_seqs)
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
    /* Requests, displaced ones and resumed ones, a draft per sequence from each side, and some in
     * between. */
    int err = queue_new(2 * queued + engine_max_resumed(o) + 4 * seqs + 64, &e->inbox);
    if (!err)
        err = events_new(4 * seqs + 64, (uint32_t)o->max_batch_rows + seqs + DRAFT_MAX_NODES + 1,
                         &e->events);
    if (!err)
        err = alloc_round(e);
    if (err < 0)
        return err;
    *ret = TAKE(e);
    return 0;
}

int engine_start(struct engine *e)
{
    int err = pool_thread(engine_loop_main, e, &e->thread);
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
    engine_free_inbox(e);
    events_free(e->events);
    kv_tier_free(e->tier);
    seq_list_done(&e->running);
    seq_list_done(&e->waiting);
    flows_free(e->flows);
    free(e->waits);
    free(e->turns);
    free(e->counts);
    free(e->grants);
    free(e->pass);
    free(e->kv_seqs);
    free(e->wishes);
    free(e->wish_seqs);
    free(e->items);
    free(e->item_seqs);
    pthread_mutex_destroy(&e->changing_mu);
    pthread_mutex_destroy(&e->speculation_mu);
    pthread_mutex_destroy(&e->kv_mu);
    loaded_model_free(e->loaded);
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

const struct loaded_model *engine_loaded_model(struct engine *e)
{
    return atomic_load(&e->ready);
}

struct drafts *engine_drafts(struct engine *e)
{
    return atomic_load(&e->proposers);
}

/* ---- settings ---- */

void engine_speculation(struct engine *e, struct speculation *ret)
{
    pthread_mutex_lock(&e->speculation_mu);
    *ret = e->speculation;
    pthread_mutex_unlock(&e->speculation_mu);
}

/* On failure nothing is changed. */
static int change_proposers(struct engine *e, const struct speculation *s)
{
    struct drafts *d = engine_drafts(e);
    int err = speculation_check_default(s, d);
    if (err < 0 || !d)
        return err; // still loading: engine_load() opens the new ones
    return drafts_set(d, s->targets, s->n_targets);
}

/* "NAME=TARGET,TARGET"; "none" without targets. */
static void list_targets(const struct speculation *s, char *to, size_t size)
{
    size_t len = 0;
    snprintf(to, size, "none");
    for (unsigned i = 0; i < s->n_targets && len < size; i++)
        len +=
            (size_t)snprintf(to + len, size - len, "%s%s%s%s", len ? "," : "", s->targets[i].name,
                             *s->targets[i].name ? "=" : "", s->targets[i].target);
}

static void publish(struct engine *e, const struct speculation *s)
{
    char targets[512];
    pthread_mutex_lock(&e->speculation_mu);
    e->speculation = *s;
    e->speculation_changed = true;
    pthread_mutex_unlock(&e->speculation_mu);
    queue_wake(e->inbox);
    struct control_options o = speculation_control(s);
    list_targets(s, targets, sizeof(targets));
    log_info("speculation changed on=%d policy=%s k=%u disable_batch_size=%u proposers=%u "
             "targets=%s proposer=%s",
             s->on, speculation_policy(s), o.k, o.disable_batch_size, s->n_targets, targets,
             s->proposer);
}

int engine_speculate(struct engine *e, const struct speculation_change *c, struct speculation *ret)
{
    pthread_mutex_lock(&e->changing_mu);
    struct speculation s = speculation_after(&e->speculation, c);
    int err = speculation_check_allowed(&e->speculation, c);
    if (!err && c->has)
        err = change_proposers(e, &s);
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

/* ---- requests and drafts ---- */

int engine_submit(struct engine *e, struct request *r)
{
    uint32_t n_displaced; // the engine thread ends them
    int err = flows_enter(e->flows, &r->place, r->flow, r->flow_len, &n_displaced);
    if (err < 0)
        return err;
    atomic_fetch_add(&e->n_requests, 1);
    request_hold(r);
    struct inbox_item item = {.kind = INBOX_REQUEST, .req = r};
    err = engine_push(e, &item);
    if (err < 0) {
        flows_leave(e->flows, &r->place);
        atomic_fetch_sub(&e->n_requests, 1);
        request_drop(r);
    }
    return err;
}

int engine_verify(struct engine *e, struct request *r, uint32_t base_len, struct draft *draft)
{
    AUTO(draft_free) struct draft *d = draft;
    if (!draft_valid(d, tok_n_vocab(engine_loaded_model(e)->tok)))
        return fail(-EINVAL, "the draft has a token outside the vocabulary, or a parent that "
                             "does not precede its child");
    if (atomic_exchange(&r->draft_pending, true))
        return fail(-ESTALE, "the last draft is still being verified");
    request_hold(r);
    struct inbox_item item = {.kind = INBOX_VERIFY, .req = r, .base_len = base_len, .draft = d};
    int err = engine_push(e, &item);
    if (err < 0)
        request_drop(r);
    else
        d = NULL; // the item's
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

int64_t engine_turn_us(struct engine *e)
{
    int64_t from_us = atomic_load(&e->turn_us);
    return from_us ? clock_us() - from_us : 0;
}
