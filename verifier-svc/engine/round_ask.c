/* round_ask.c - requests drafts from proposers, decides how long to wait, takes the answers. */
#include <math.h>
#include "base/clock.h"
#include "base/minmax.h"
#include "verifier-svc/engine/decide.h"
#include "verifier-svc/engine/round_impl.h"

/* ---- requesting ---- */

static bool may_draft(const struct engine *e, const struct seq *s)
{
    return e->speculates && round_is_decoding(s) && !s->req->verify &&
           !atomic_load_explicit(&s->req->paused, memory_order_relaxed) &&
           round_draft_allowed(e, s) > 0;
}

static void fill_wish(const struct seq *s, uint32_t max_nodes, uint32_t max_depth,
                      struct drafts_wish *w)
{
    const struct request *r = s->req;
    *w = (struct drafts_wish){.seq = s->id,
                              .context = s->tokens,
                              .base_len = s->n,
                              .prompt_len = s->n_prompt,
                              .max_nodes = max_nodes,
                              .max_depth = max_depth,
                              .q_mode = decide_q_mode(s),
                              .draw_key = s->key,
                              .p_min = r->p_min,
                              .sampling = r->params,
                              .ban = r->ban,
                              .ignore_eos = r->ignore_eos,
                              .id = r->id,
                              .trace = r->trace,
                              .tenant = r->tenant,
                              .tenant_len = r->tenant_len,
                              .hint = r->hint,
                              .n_hint = (uint32_t)r->n_hint};
}

/* ---- drafting ahead ---- */

/* True: while the coming pass verifies the draft, a proposer can draft what may follow it. */
static bool may_draft_ahead(const struct seq *s)
{
    enum draft_q_mode mode = decide_q_mode(s);
    return s->proposer != SEQ_NO_PROPOSER && s->kv.len > s->n && seq_n_draft(s) &&
           !s->draft->tree && seq_left(s) > s->draft->n + 1 &&
           (mode == DRAFT_POINT || mode == DRAFT_COUPLED);
}

static void request_ahead(struct engine *e, unsigned p, int64_t now_us)
{
    uint32_t n = 0, budget_us = (uint32_t)e->decode_us;
    for (uint32_t i = 0; i < e->n_pass; i++) {
        struct seq *s = e->pass[i];
        if (!may_draft_ahead(s) || (unsigned)s->proposer != p)
            continue;
        uint32_t left = seq_left(s) - s->draft->n - 1, k = s->requested_k + 1; // and the bonus
        fill_wish(s, DRAFT_MAX_NODES, min_u32(left, k), &e->wishes[n]);
        e->wishes[n].verifying = s->draft->tokens;
        e->wishes[n].n_verifying = s->draft->n;
        e->wish_seqs[n++] = s;
    }
    if (n)
        drafts_ask(e->drafts, p, e->wishes, n, budget_us, now_us);
    for (uint32_t i = 0; i < n; i++) {
        if (!e->wishes[i].p90_us)
            continue;
        e->wish_seqs[i]->ahead_us = now_us;
        e->wish_seqs[i]->ahead_until_us = now_us + budget_us + e->wishes[i].p90_us;
    }
}

void round_ask_ahead(struct engine *e)
{
    if (!e->drafts || !e->options->draft_ahead || !e->decode_us)
        return;
    int64_t now_us = clock_us();
    for (unsigned p = 0; p < DRAFT_MAX_PROPOSERS; p++)
        request_ahead(e, p, now_us);
}

/* ---- drafting ---- */

/* The sequence cannot request a draft while its draft ahead is outstanding: waits for that one. */
static void await_ahead(struct seq *s, double most_us, int64_t now_us)
{
    int64_t await_us = s->ahead_until_us - now_us;
    if (!s->ahead_us || await_us <= 0)
        return;
    s->requested_us = now_us;
    s->await_us = (int64_t)fmin((double)await_us, most_us);
}

/* Estimate of the positions that the proposer reads before drafting. The proposer is assumed to
 * have cached the same prefix as this service. */
static uint32_t positions_to_read(const struct seq *s, const struct drafts_wish *w)
{
    return min_u32(w->to_read, round_unread(s));
}

/* Requests the drafts of proposer p: those of the n items that belong to p. Waiting for these
 * drafts pays for at most wait_us. */
static void request_from(struct engine *e, unsigned p, uint32_t n_items, double wait_us,
                         int64_t now_us)
{
    uint32_t n = 0, budget_us = (uint32_t)e->options->proposer_budget_ms * 1000;
    for (uint32_t i = 0; i < n_items; i++) {
        if (e->items[i].proposer != p || !e->items[i].nodes)
            continue;
        fill_wish(e->item_seqs[i], e->items[i].nodes, e->items[i].depth, &e->wishes[n]);
        e->wish_seqs[n++] = e->item_seqs[i];
    }
    if (!n)
        return;
    drafts_ask(e->drafts, p, e->wishes, n, budget_us, now_us);
    double most_us = fmin(wait_us, budget_us);
    uint32_t n_sent = 0;
    for (uint32_t i = 0; i < n; i++)
        n_sent += e->wishes[i].p90_us > 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct drafts_wish *w = &e->wishes[i];
        if (w->p90_us || w->to_read) // or only context is sent
            control_asked(&e->wish_seqs[i]->control, p, positions_to_read(e->wish_seqs[i], w),
                          n_sent);
        if (!w->p90_us) {
            await_ahead(e->wish_seqs[i], most_us, now_us);
            continue;
        }
        e->wish_seqs[i]->ahead_us = 0;
        e->wish_seqs[i]->requested_us = now_us;
        e->wish_seqs[i]->requested_k = w->max_nodes;
        e->wish_seqs[i]->await_us = (int64_t)fmin(2.0 * w->p90_us, most_us);
        /* Continuing without a drawn draft may favour some tokens, as drawing them may take
         * longer. */
        if (w->q_mode == DRAFT_SPARSE || w->q_mode == DRAFT_DENSE)
            e->wish_seqs[i]->held_until_us = now_us + budget_us;
    }
}

/* Lists the sequences that may have a draft and have none, each with a usable proposer. */
static uint32_t list_requesting(struct engine *e, int64_t now_us)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        s->wants_draft = may_draft(e, s);
        if (!s->wants_draft || seq_n_draft(s) || s->requested_us)
            continue;
        const char *name = *s->req->proposer ? s->req->proposer : e->proposer;
        uint32_t k_max, allowed = round_draft_allowed(e, s);
        int p = drafts_pick(e->drafts, name, s->id, s->n, now_us, &k_max);
        if (p < 0)
            continue;
        e->items[n] = round_item(s, min_u32(allowed, k_max));
        e->items[n].proposer = (unsigned)p;
        e->item_seqs[n++] = s;
    }
    return n;
}

void round_ask(struct engine *e)
{
    e->request_again = false;
    int64_t now_us = clock_us();
    uint32_t n = list_requesting(e, now_us), k_sum = 0;
    struct control_round r = round_without_drafts(e);
    double wait_us = control_ask(&e->control, &r, e->items, n);
    e->n_wait_counted = isinf(wait_us) ? 0 : r.n_decoding;
    for (uint32_t i = 0; i < n; i++) {
        e->item_seqs[i]->wants_draft = e->items[i].nodes > 0;
        k_sum += e->items[i].nodes;
    }
    if (r.n_decoding)
        metrics_set(e->stats->k_now, (double)k_sum / r.n_decoding);
    for (unsigned p = 0; p < DRAFT_MAX_PROPOSERS; p++)
        request_from(e, p, n, wait_us, now_us);
}

/* ---- waiting ---- */

int64_t round_release(struct engine *e, int64_t now_us)
{
    int64_t next_us = INT64_MAX;
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        if (s->held_until_us <= now_us)
            s->held_until_us = 0;
        else if (s->held_until_us < next_us)
            next_us = s->held_until_us;
    }
    return next_us;
}

int64_t round_wait_until_us(const struct engine *e)
{
    int64_t until = 0;
    uint32_t n = 0, n_others = 0; // others: no proposer drafts for them now
    for (uint32_t i = 0; i < e->running.n; i++) {
        const struct seq *s = e->running.v[i];
        uint32_t todo = seq_todo(s);
        if (todo > 1)
            return 0; // a prompt has rows to run
        if (!todo)
            continue;
        n++;
        n_others += s->draft ? s->proposer == SEQ_NO_PROPOSER : !s->requested_us;
        if (!s->draft && s->requested_us && s->requested_us + s->await_us > until)
            until = s->requested_us + s->await_us;
    }
    return n_others && n > e->n_wait_counted ? 0 : until;
}

/* ---- answers ---- */

/* Records the latency, and scores a late draft against the tokens committed since. */
static void record_answer(struct engine *e, struct seq *s, const struct draft_answer *a)
{
    const struct draft *d = a->draft;
    if (a->unread)
        control_still_reading(&s->control, a->proposer, a->unread);
    else if (s->requested_k)
        control_answered(&e->control, &s->control, a->proposer, s->requested_k, a->rtt_us, d->n);
    control_seen(&e->control, &s->control, a->proposer, d, d->n, s->tokens + a->base_len,
                 s->n - a->base_len);
}

/* A draft ahead is used if it has nodes after the tokens committed since. */
static void count_ahead(struct engine *e, struct seq *s, const struct draft_answer *a, int32_t root)
{
    bool hit = false;
    for (uint32_t i = 0; i < a->draft->n && root != -2 && a->base_len < s->n; i++)
        hit = hit || a->draft->parents[i] == root;
    s->ahead_us = 0;
    s->requested_us = 0; // the round may have waited for this draft
    e->request_again = e->request_again || !hit;
    metrics_add(e->stats->ahead, 1);
    metrics_add(e->stats->ahead_used, hit);
}

void round_take_draft(struct engine *e, struct draft_answer *a)
{
    struct seq *s = seq_list_find(&e->running, a->seq);
    struct draft *d = a->draft;
    if (!s || a->base_len > s->n || a->base_len < s->n_prompt)
        return;
    int32_t root = draft_follow(d, s->tokens + a->base_len, s->n - a->base_len);
    if (a->ahead)
        count_ahead(e, s, a, root);
    else
        record_answer(e, s, a);
    if (root == -2)
        return; // late, and other tokens were committed since
    if (d->q && a->base_len != s->n)
        return; // the q of the other nodes depends on tokens that are no longer in the draft
    draft_descend(d, root);
    if (a->ahead)
        draft_keep_likeliest(d);
    if (d->n || a->base_len == s->n)
        seq_take_draft(s, TAKE(a->draft), (int)a->proposer);
}
