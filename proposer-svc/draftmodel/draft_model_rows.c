/* draft_model_rows.c - the sequences that the draft model knows, and their KV rows.
 *
 * When a context grows, rows of draft tokens that were committed stay. When the pool is full, the
 * sequence that is idle for the longest time loses its rows. */
#include "base/clock.h"
#include "proposer-svc/draftmodel/draft_model_impl.h"

#define IDLE_CALLS 64 // calls of draft() without an ask; then a sequence may lose its rows

static void unlink_use(struct draft_model *d, struct draft_model_seq *s)
{
    *(s->newer ? &s->newer->older : &d->newest) = s->older;
    *(s->older ? &s->older->newer : &d->oldest) = s->newer;
}

static void link_newest(struct draft_model *d, struct draft_model_seq *s)
{
    s->newer = NULL;
    s->older = d->newest;
    *(d->newest ? &d->newest->newer : &d->oldest) = s;
    d->newest = s;
}

bool draft_model_rows_touch(struct draft_model *d, struct draft_model_seq *s)
{
    if (s->kv.blocks)
        unlink_use(d, s);
    else if (kv_seq_init(&s->kv, d->run.context) < 0)
        return false;
    link_newest(d, s);
    s->used = d->n_calls;
    return true;
}

void draft_model_rows_keep(struct draft_model *d, struct draft_model_seq *s, uint32_t n)
{
    if (s->kv.len > n)
        kv_keep(d->run.kv, &s->kv, n, NULL, 0);
}

bool draft_model_rows_grow(struct draft_model *d, struct draft_model_seq *s, uint32_t n)
{
    struct draft_model_seq *v = d->oldest;
    while (kv_grow(d->run.kv, &s->kv, n) < 0) {
        while (v && (v == s || !v->kv.n_blocks))
            v = v->newer;
        if (!v || v->used + IDLE_CALLS > d->n_calls)
            return false;
        draft_model_ahead_drop(d, v); // branches share its rows
        draft_model_rows_keep(d, v, 0);
        draft_model_draw_cut(v, 0);
    }
    return true;
}

void draft_model_rows_share(struct draft_model *d, struct draft_model_seq *s)
{
    const struct prop_context *c = &s->context;
    struct kv_root root = {c->tenant, c->tenant_len};
    if (!s->kv.len)
        kv_match(d->run.kv, &s->kv, &root, c->tokens, c->n - 1);
    kv_enter(d->run.kv, &s->kv, &root, c->tokens, s->kv.len);
}

static uint32_t token_at(const struct draft_model_seq *s, uint32_t pos)
{
    return pos < s->context.n ? s->context.tokens[pos] : s->ahead[pos - s->ahead_at];
}

void draft_model_rows_add(struct draft_model *d, struct draft_model_seq *s, uint32_t from)
{
    uint32_t seq = pass_plan_add_seq(&d->run.plan, &s->kv, 0);
    for (uint32_t pos = from; pos < s->kv.len; pos++) {
        uint32_t token = token_at(s, pos);
        pass_plan_add_chain(&d->run.plan, seq, &token, pos, 1, 0);
    }
}

void draft_model_rows_pass(struct draft_model *d)
{
    int64_t start_us = clock_us();
    forward_run(d->run.forward, &d->run.plan);
    d->pass_us = clock_us() - start_us;
}

/* ---- functions of struct prop_ops ---- */

void draft_model_rows_seq_done(void *shared, void *seq, const struct prop_context *c)
{
    struct draft_model *d = shared;
    struct draft_model_seq *s = seq;
    (void)c;
    draft_model_feed_stop(d, s);
    draft_model_draw_cut(s, 0);
    if (!s->kv.blocks)
        return;
    unlink_use(d, s);
    kv_seq_done(d->run.kv, &s->kv);
    draft_model_ahead_done(d, s);
}

void draft_model_rows_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    struct draft_model_seq *s = seq;
    (void)c;
    draft_model_ahead_drop(shared, s);
    draft_model_rows_keep(shared, s, keep);
    draft_model_draw_cut(s, keep);
    s->context.n = keep;
    s->is_foreign = s->is_foreign && s->foreign_at < keep;
}

/* Searches new tokens that the draft model does not have. A target may have more tokens; after one
 * of these there are no drafts. */
static void find_foreign(const struct draft_model *d, struct draft_model_seq *s,
                         const struct prop_context *c)
{
    for (uint32_t i = s->context.n; i < c->n && !s->is_foreign; i++) {
        s->is_foreign = c->tokens[i] >= d->run.model->params.n_vocab;
        s->foreign_at = i;
    }
}

/* Keeps the rows of draft tokens that were committed. */
int draft_model_rows_seq_grow(void *shared, void *seq, const struct prop_context *c)
{
    struct draft_model_seq *s = seq;
    uint32_t at = s->context.n;
    find_foreign(shared, s, c);
    draft_model_ahead_drop(shared, s);
    while (at < c->n && at < s->kv.len && s->ahead[at - s->ahead_at] == c->tokens[at])
        at++;
    if (at < c->n)
        draft_model_rows_keep(shared, s, at);
    s->context = *c;
    return 0;
}
