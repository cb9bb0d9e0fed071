/* round_plan.c - the pass of a round: rows and KV blocks per sequence, and the packed rows. */
#include <assert.h>
#include "base/minmax.h"
#include "verifier-svc/engine/capacity.h"
#include "verifier-svc/engine/round_impl.h"
#include "verifier-svc/engine/snapshots.h"

/* ---- rows ---- */

/* A recurrent layer has one state, so a tree is verified as a chain. A tree that was drawn cannot
 * be cut by its tokens, so it is left out. */
static void cut_to_chain(struct draft *d)
{
    if (!draft_branches(d))
        return;
    if (d->q)
        d->n = 0;
    else
        draft_keep_likeliest(d);
}

/* Cuts drafts to what the request allows, and drafts of proposers to what pays. */
static void cut_drafts(struct engine *e)
{
    struct control_round r = round_without_drafts(e);
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        if (!seq_n_draft(s) || !round_is_decoding(s) || !seq_todo(s))
            continue;
        if (e->loaded->run.n_states)
            cut_to_chain(s->draft);
        seq_trim_draft(s, round_draft_allowed(e, s), seq_left(s) - 1);
        if (s->proposer == SEQ_NO_PROPOSER)
            continue; // the client's own draft: not the controller's
        e->items[n] = round_item(s, s->n_uncut);
        e->item_seqs[n++] = s;
    }
    control_cut(&e->control, &r, e->items, n);
    for (uint32_t i = 0; i < n; i++)
        e->item_seqs[i]->draft->n = e->items[i].nodes;
}

struct sched_grant round_wanted(const struct seq *s)
{
    const uint32_t todo = seq_todo(s);
    return (struct sched_grant){.todo = todo,
                                .flow = s->req->place.flow,
                                .draft = todo == 1 && round_is_decoding(s) ? seq_n_draft(s) : 0,
                                .own_draft = s->proposer == SEQ_NO_PROPOSER || s->req->fixed,
                                .whole_draft = s->proposer == SEQ_NO_PROPOSER,
                                .waits = seq_waits(s),
                                .ran = s->ran};
}

static void grant_rows(struct engine *e)
{
    cut_drafts(e);
    for (uint32_t i = 0; i < e->running.n; i++)
        e->grants[i] = round_wanted(e->running.v[i]);
    sched_grant_rows(&e->sched, e->grants, e->running.n, round_is_shared(e));
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        s->ran = e->grants[i].ran;
        e->grants[i].rows = min_u32(e->grants[i].rows, snapshots_rows_left(e, s));
    }
}

/* ---- KV blocks ---- */

/* Takes KV blocks for the rows of running sequence i, if necessary from other sequences. False: the
 * sequence lost its own blocks instead. */
static bool grow_or_preempt(struct engine *e, uint32_t i)
{
    struct seq *s = e->running.v[i];
    while (kv_grow(e->loaded->run.kv, &s->kv, e->grants[i].rows) < 0) {
        struct seq *v = capacity_victim(e, s);
        for (uint32_t k = 0; k < e->running.n; k++) {
            if (e->running.v[k] == v)
                e->grants[k] = (struct sched_grant){0};
        }
        v->leaving = true; // stays in the list until the loop over it is done
        v->n_rows = 0;     // it may have had its rows already
        kv_release(e->loaded->run.kv, &v->kv);
        if (v == s)
            return false;
    }
    return true;
}

/* Cuts the draft to the granted rows, and to nothing if there are no blocks for them. */
static void take_draft_blocks(struct engine *e, struct seq *s, uint32_t rows)
{
    struct draft *d = s->draft;
    if (!d || !d->n || s->n_rows != 1 || s->kv.len != s->n)
        return; // no draft, or rows before it are missing
    d->n = min_u32(rows, d->n);
    if (d->n && kv_grow(e->loaded->run.kv, &s->kv, d->n) < 0)
        d->n = 0;
}

/* Committed tokens first, for all sequences; then drafts, if blocks are left. */
static void take_blocks(struct engine *e)
{
    e->n_pass = 0;
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        s->n_rows = 0;
        if (e->grants[i].rows && grow_or_preempt(e, i))
            s->n_rows = e->grants[i].rows; // read again: growing may have changed it
    }
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        if (!s->n_rows)
            continue;
        e->pass[e->n_pass++] = s;
        take_draft_blocks(e, s, e->grants[i].draft_rows);
    }
    for (uint32_t i = 0; i < e->running.n;) {
        struct seq *s = e->running.v[i];
        if (s->leaving)
            engine_preempt(e, s);
        else
            i++;
    }
}

/* ---- packing ---- */

static_assert(DRAFT_MAX_DEPTH <= FORWARD_MAX_DEPTH, "a draft may be one chain");

static void pack_draft(struct pass_plan *to, uint32_t seq, const struct seq *s)
{
    uint32_t depth[DRAFT_MAX_NODES] = {0}, first = to->n_rows;
    const struct draft *d = s->draft;
    for (uint32_t i = 0; i < d->n; i++) {
        int32_t parent = d->parents[i];
        depth[i] = parent < 0 ? 0 : depth[parent] + 1;
        pass_plan_add_row(to, (struct pass_row){.seq = seq,
                                                .token = d->tokens[i],
                                                .pos = s->n + depth[i],
                                                .index = s->n + i,
                                                // -1 in a tree: the last committed token's row
                                                .parent = d->tree ? (int32_t)first + parent : -1,
                                                .wants_logits = true});
    }
}

/* Other choices begin with the prompt's last row, so their states begin before it. */
static bool forks_before_last_row(const struct seq *s)
{
    return s->choice == 0 && s->req->n > 1 && s->n == s->n_prompt;
}

static void pack(struct engine *e)
{
    struct pass_plan *to = &e->loaded->run.plan;
    pass_plan_clear(to);
    for (uint32_t p = 0; p < e->n_pass; p++) {
        struct seq *s = e->pass[p];
        const uint32_t n_draft = s->kv.len > s->n ? seq_n_draft(s) : 0;
        const uint32_t from = s->kv.len - n_draft - s->n_rows;
        const bool forks = from + s->n_rows == s->n && forks_before_last_row(s);
        const uint32_t seq = pass_plan_add_seq(to, &s->kv, n_draft + forks);
        s->last_row = to->n_rows + s->n_rows - 1;
        pass_plan_add_chain(to, seq, s->tokens + from, from, s->n_rows, from + s->n_rows == s->n);
        if (n_draft)
            pack_draft(to, seq, s);
    }
}

bool round_plan(struct engine *e)
{
    grant_rows(e);
    take_blocks(e);
    if (e->n_pass)
        pack(e);
    return e->n_pass > 0;
}
