/* engine_view.c - gauges after each round: running and waiting sequences, and the contents of the
 * KV pool with its largest holders. */
#include <string.h>
#include "verifier-svc/engine/engine_impl.h"

/* Inserts the sequence: the largest first, then the oldest. */
static void list_holder(struct engine_kv_view *view, const struct seq *s)
{
    uint32_t at = view->n_holders;
    while (at && view->holders[at - 1].n_blocks < s->kv.n_blocks)
        at--;
    if (at == ENGINE_KV_HOLDERS)
        return;
    view->n_holders += view->n_holders < ENGINE_KV_HOLDERS;
    memmove(&view->holders[at + 1], &view->holders[at],
            (view->n_holders - at - 1) * sizeof(view->holders[0]));
    struct engine_kv_holder *h = &view->holders[at];
    memcpy(h->id, s->req->id, sizeof(h->id));
    h->choice = s->choice;
    h->n_tokens = s->n;
    h->n_blocks = s->kv.n_blocks;
}

static void show_kv(struct engine *e)
{
    const struct kv *kv = e->loaded->run.kv;
    const struct kv_figures f = kv_figures(kv);
    struct engine_kv_view *view = &e->kv_view;
    pthread_mutex_lock(&e->kv_mu);
    view->n_blocks = kv_n_blocks(kv);
    view->n_used = view->n_blocks - f.n_empty - f.n_idle;
    view->n_shared = f.n_shared;
    view->n_evictable = f.n_idle;
    view->bytes = view->n_blocks * kv_bytes_block(kv_shape_of(kv));
    view->n_holders = 0;
    for (uint32_t i = 0; i < e->running.n; i++) {
        if (e->running.v[i]->kv.n_blocks)
            list_holder(view, e->running.v[i]);
    }
    pthread_mutex_unlock(&e->kv_mu);

    struct stats *m = e->stats;
    metrics_set(m->kv_used_ratio, (double)view->n_used / view->n_blocks);
    metrics_set(m->kv_blocks, view->n_blocks);
    metrics_set(m->kv_used, view->n_used);
    metrics_set(m->kv_shared, view->n_shared);
    metrics_set(m->kv_evictable, view->n_evictable);
    metrics_set(m->kv_bytes, (double)view->bytes);
    metrics_add(m->evictions, (double)(f.n_evicted - e->n_evicted));
    e->n_evicted = f.n_evicted;
}

static uint64_t n_removed(const struct kv_store_counts *c)
{
    return c->n_expired + c->n_evicted + c->n_damaged;
}

static void show_disk(struct engine *e)
{
    struct stats *m = e->stats;
    const struct kv_disk_counts now = kv_tier_counts(e->tier), *before = &e->disk_shown;
    metrics_set(m->disk_on, now.on);
    metrics_set(m->disk_blocks, (double)now.store.blocks);
    metrics_set(m->disk_bytes, (double)now.store.bytes);
    metrics_set(m->disk_waiting, now.n_waiting);
    metrics_add(m->disk_written, (double)(now.n_written - before->n_written));
    metrics_add(m->disk_restored, (double)(now.n_read - before->n_read));
    metrics_add(m->disk_dropped, (double)(now.n_dropped - before->n_dropped));
    metrics_add(m->disk_failed, (double)(now.n_failed - before->n_failed));
    metrics_add(m->disk_removed, (double)(n_removed(&now.store) - n_removed(&before->store)));
    e->disk_shown = now;
}

static void show_times(struct engine *e)
{
    for (unsigned i = 0; i < PASS_TIME_TIMED; i++) {
        struct pass_time_work pass = {.rows = pass_time_rows_at(i)};
        metrics_set(e->stats->pass_estimate_s[i], pass_time_us(&e->control.pass_time, &pass) / 1e6);
    }
}

void engine_view_update(struct engine *e)
{
    uint32_t n_paused = 0;
    for (uint32_t i = 0; i < e->running.n; i++)
        n_paused += atomic_load_explicit(&e->running.v[i]->req->paused, memory_order_relaxed);
    metrics_set(e->stats->paused, n_paused);
    metrics_set(e->stats->running, e->running.n);
    metrics_set(e->stats->waiting, e->waiting.n);
    show_kv(e);
    show_times(e);
    if (e->tier)
        show_disk(e);
}
