/* round.c - one round: share out rows, run the pass, accept, tell the clients, ask for drafts. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "verifier-svc/engine/engine_impl.h"

/* ---- what there is to do ---- */

static bool is_decoding(const struct seq *s)
{
    return s->state == SEQ_RUNNING && s->n - s->kv.len == 1;
}

static bool is_paused(const struct seq *s)
{
    return atomic_load_explicit(&s->req->paused, memory_order_relaxed);
}

bool round_has_work(const struct engine *e)
{
    for (uint32_t i = 0; i < e->running.n; i++) {
        if (seq_todo(e->running.v[i]))
            return true;
    }
    return false;
}

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
        n_others += s->has_draft ? s->proposer == SEQ_NO_PROPOSER : !s->asked_us;
        if (!s->has_draft && s->asked_us && s->asked_us + s->await_us > until)
            until = s->asked_us + s->await_us;
    }
    return n_others && n > e->n_reckoned ? 0 : until;
}

/* Draft tokens that the request and its limits allow: the target's own token is one of those left.
 */
static uint32_t draft_tokens_allowed(const struct seq *s)
{
    uint32_t left = seq_left(s) - 1, most = s->req->verify ? ACCEPT_MAX : s->req->k_max;
    most = most < ACCEPT_MAX ? most : ACCEPT_MAX;
    return left < most ? left : most;
}

/* What the coming pass runs without any draft; prompts are taken to get what they got last. */
static struct control_round round_without_drafts(const struct engine *e)
{
    struct control_round r = {.n_running = e->running.n};
    uint32_t n_prompts = 0;
    for (uint32_t i = 0; i < e->running.n; i++) {
        const struct seq *s = e->running.v[i];
        uint32_t todo = seq_todo(s);
        n_prompts += todo > 1;
        if (!todo || !is_decoding(s))
            continue;
        r.n_decoding++;
        r.n_fixed += s->req->fixed && s->req->k_max;
        pass_time_add(&r.pass, 1, s->n);
    }
    r.pass.rows += n_prompts ? e->prompt_rows : 0;
    r.draft_rows = sched_draft_rows(&e->sched, e->running.n, r.n_decoding, n_prompts);
    return r;
}

/* ---- plan ---- */

/* What a drafter has to read that has not seen the sequence: what this service had to. */
static uint32_t unread_of(const struct seq *s)
{
    return s->n - s->n_cached;
}

static struct control_item item_of(struct seq *s, uint32_t n)
{
    return (struct control_item){.s = &s->control,
                                 .proposer = (unsigned)s->proposer,
                                 .context = s->n,
                                 .unread = unread_of(s),
                                 .left = seq_left(s),
                                 .n = n,
                                 .parents = s->parents,
                                 .said = s->survival,
                                 .drawn = s->q != NULL,
                                 .fixed = s->req->fixed};
}

/* Drafts are cut to what is allowed, and those of proposers to what pays. */
static void cut_drafts(struct engine *e)
{
    struct control_round r = round_without_drafts(e);
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        if (!s->n_draft || !is_decoding(s) || !seq_todo(s))
            continue;
        seq_trim_draft(s, draft_tokens_allowed(s), seq_left(s) - 1);
        if (s->proposer == SEQ_NO_PROPOSER)
            continue; // the client's own
        e->items[n] = item_of(s, s->n_held);
        e->item_seqs[n++] = s;
    }
    control_cut(&e->control, &r, e->items, n);
    for (uint32_t i = 0; i < n; i++)
        e->item_seqs[i]->n_draft = e->items[i].k;
}

static void plan(struct engine *e)
{
    cut_drafts(e);
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        struct sched_grant *share = &e->shares[i];
        *share = (struct sched_grant){.todo = seq_todo(s)};
        if (share->todo == 1 && is_decoding(s))
            share->draft = s->n_draft;
    }
    sched_grant_rows(&e->sched, e->shares, e->running.n);
}

struct seq *round_victim(const struct engine *e, struct seq *s)
{
    struct seq *youngest = s;
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *v = e->running.v[i];
        if (!v->kv.n_blocks)
            continue;
        if (!e->shares[i].todo && !v->held_until_us)
            return v;
        if (v->order > youngest->order)
            youngest = v;
    }
    return youngest;
}

/* Room for the rows that running sequence i must have. False: it was preempted itself. */
static bool grow_or_preempt(struct engine *e, uint32_t i)
{
    struct seq *s = e->running.v[i];
    while (kv_grow(e->served->run.kv, &s->kv, e->shares[i].rows) < 0) {
        struct seq *v = round_victim(e, s);
        for (uint32_t k = 0; k < e->running.n; k++) {
            if (e->running.v[k] == v)
                e->shares[k] = (struct sched_grant){0};
        }
        v->leaving = true; // stays in the list until the loop over it is done
        kv_keep(e->served->run.kv, &v->kv, 0, NULL, 0);
        if (v == s)
            return false;
    }
    return true;
}

/* Cuts the draft to the rows granted; without blocks for them there is none. */
static void take_draft_blocks(struct engine *e, struct seq *s, uint32_t rows)
{
    if (!s->n_draft || s->n_rows != 1 || s->kv.len != s->n)
        return; // none, or its time has not come
    s->n_draft = rows < s->n_draft ? rows : s->n_draft;
    if (s->n_draft && kv_grow(e->served->run.kv, &s->kv, s->n_draft) < 0)
        s->n_draft = 0;
}

/* Rows first, for everybody; then drafts, as far as there are blocks left. */
static void take_blocks(struct engine *e)
{
    e->n_pass = 0;
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        s->n_rows = 0;
        if (e->shares[i].rows && grow_or_preempt(e, i))
            s->n_rows = e->shares[i].rows; // read again: growing may have changed it
    }
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        if (!s->n_rows)
            continue;
        e->pass[e->n_pass++] = s;
        take_draft_blocks(e, s, e->shares[i].draft_rows);
    }
    for (uint32_t i = 0; i < e->running.n;) {
        struct seq *s = e->running.v[i];
        if (s->leaving)
            engine_preempt(e, s);
        else
            i++;
    }
}

/* ---- pack ---- */

static_assert(ACCEPT_MAX <= FORWARD_MAX_DEPTH, "a draft may be one chain");

static void pack_draft(struct engine *e, const struct seq *s)
{
    uint32_t depth[ACCEPT_MAX] = {0}, first = e->n_rows;
    for (uint32_t i = 0; i < s->n_draft; i++) {
        int32_t parent = s->parents[i];
        depth[i] = parent < 0 ? 0 : depth[parent] + 1;
        struct forward_row *row = &e->rows[e->n_rows++];
        *row = (struct forward_row){.seq = &s->kv,
                                    .token = s->draft[i],
                                    .pos = s->n + depth[i],
                                    .index = s->n + i,
                                    .parent = -1,
                                    .wants_logits = true};
        if (s->draft_is_tree)
            row->parent = (int32_t)first + parent; // parent -1: the last committed token's row
    }
}

static void pack(struct engine *e)
{
    e->n_rows = 0;
    for (uint32_t p = 0; p < e->n_pass; p++) {
        struct seq *s = e->pass[p];
        uint32_t from = s->kv.len - (s->kv.len > s->n ? s->n_draft : 0) - s->n_rows;
        s->first_row = e->n_rows;
        for (uint32_t i = from; i < from + s->n_rows; i++)
            e->rows[e->n_rows++] = (struct forward_row){.seq = &s->kv,
                                                        .token = s->tokens[i],
                                                        .pos = i,
                                                        .index = i,
                                                        .parent = -1,
                                                        .wants_logits = i + 1 == s->n};
        if (s->kv.len > s->n)
            pack_draft(e, s);
    }
}

/* ---- accept ---- */

static void count_draft(struct engine *e, struct seq *s, const struct accept_result *r)
{
    bool bonus = r->last == ACCEPT_BONUS;
    s->n_drafted_rounds++;
    s->n_drafted += s->n_draft;
    s->n_accepted += r->n_accepted;
    s->n_bonus += bonus;
    s->accepted_histogram[r->n_accepted]++;
    if (s->proposer == SEQ_NO_PROPOSER)
        return; // the client's own
    control_verified(&e->control, s->n_draft, r->n_accepted);
    metrics_set(e->stats->acceptance_ema, e->control.acceptance_ema);
    metrics_add(e->stats->proposed, s->n_draft);
    metrics_add(e->stats->accepted, r->n_accepted);
    metrics_add(e->stats->bonus, bonus);
    drafts_accepted(e->drafts, (unsigned)s->proposer, r->n_accepted);
    struct stats_drafts *d = &e->stats->proposers[s->proposer];
    memcpy(s->last_proposer, d->name, sizeof(s->last_proposer));
    metrics_add(d->drafts, 1);
    metrics_add(d->tokens, s->n_draft);
    metrics_add(d->accepted, r->n_accepted);
    for (uint32_t i = 0; i < r->n_accepted && i < STATS_MAX_POSITIONS; i++)
        metrics_add(d->accepted_at[i], 1);
}

static void count_tokens(struct engine *e, struct seq *s, uint32_t n, int64_t now_us)
{
    struct stats *m = e->stats;
    stats_committed(m, n, now_us);
    if (!s->first_us) {
        s->first_us = s->last_us = now_us;
        metrics_observe(m->ttft_s, (double)(now_us - s->req->arrived_us) / 1e6);
        metrics_observe(m->prefill_s, (double)(now_us - s->admitted_us) / 1e6);
        n--; // the first token has no token before it
    }
    for (uint32_t i = 0; i < n; i++)
        metrics_observe(m->inter_token_s, (double)(now_us - s->last_us) / 1e6 / n);
    s->last_us = now_us;
}

/* What was committed since `base` tells how good the draft was, also what was not verified of it.
 */
static void learn(struct engine *e, struct seq *s, uint32_t base)
{
    if (!s->n_held || s->proposer == SEQ_NO_PROPOSER)
        return;
    struct control_item draft = item_of(s, s->n_held);
    control_seen(&e->control, &s->control, &draft, s->draft, s->tokens + base, s->n - base);
}

static void count_step(struct engine *e, struct seq *s, const struct accept_result *r)
{
    s->n_rounds++;
    metrics_add(e->stats->steps, 1);
    if (s->n_draft)
        count_draft(e, s, r);
    else if (s->wants_draft)
        metrics_add(e->stats->fallback_steps, 1);
}

static void tell_round(const struct seq *s, struct event *ev)
{
    ev->round = s->n_rounds;
    ev->n_draft = s->n_draft;
    if (s->n_draft && s->proposer != SEQ_NO_PROPOSER)
        memcpy(ev->proposer, s->last_proposer, sizeof(ev->proposer));
}

/* What has run of its committed tokens can be found by others from now on, drafts cannot. */
static void enter_rows(struct engine *e, struct seq *s)
{
    struct kv_root root = seq_root(s);
    uint32_t n = s->kv.len < s->n ? s->kv.len : s->n;
    kv_enter(e->served->run.kv, &s->kv, &root, s->tokens, n);
}

/* One step of a sequence whose last committed token is row `last_row` of the pass. */
static void accept_seq(struct engine *e, struct seq *s, uint32_t last_row, int64_t now_us)
{
    struct accept_result result;
    struct event_batch *b = events_room(e->events, s->n_draft + 1);
    struct event *ev = events_add(b, s->req, s->choice);
    uint32_t base = s->n;
    enum seq_end end = decide(e, s, last_row, b, ev, &result);
    if (end == SEQ_FAILED) {
        snprintf(s->req->error_text, sizeof(s->req->error_text), "%s", fail_text());
        s->req->error = -EIO; // ended when the loop over the pass is done
        return;
    }
    learn(e, s, base);
    count_step(e, s, &result);
    tell_round(s, ev);
    count_tokens(e, s, ev->n_tokens, now_us);
    for (uint32_t i = 0; i < result.n_accepted; i++)
        result.path[i] += base;
    kv_keep(e->served->run.kv, &s->kv, base, result.path, result.n_accepted);
    enter_rows(e, s);
    if (end != SEQ_GOES_ON) {
        engine_end_seq(e, s, end, ev);
        return;
    }
    seq_drop_draft(s);
    if (s->req->verify)
        s->idle_us = now_us;
}

/* The first choice has run the prompt: the others share its rows and draw from the same logits. */
static void branch(struct engine *e, struct seq *first, uint32_t last_row, int64_t now_us)
{
    for (uint32_t i = 1; i < first->req->n; i++) {
        struct seq *s = first->req->seqs[i];
        if (s->state != SEQ_BRANCH)
            continue;
        if (kv_fork(e->served->run.kv, &first->kv, first->n_prompt, &s->kv) < 0) {
            engine_preempt(e, s); // runs the prompt itself, later
            continue;
        }
        s->state = SEQ_RUNNING;
        s->n_cached = s->n_prompt;
        accept_seq(e, s, last_row, now_us);
    }
}

static void accept_pass(struct engine *e, int64_t now_us)
{
    for (uint32_t p = 0; p < e->n_pass; p++) {
        struct seq *s = e->pass[p];
        uint32_t last_row = s->first_row + s->n_rows - 1;
        enter_rows(e, s); // before it branches: its choices share what others have, too
        if (!e->rows[last_row].wants_logits)
            continue; // a piece of a prompt
        if (s->choice == 0 && s->n == s->n_prompt && s->req->n > 1)
            branch(e, s, last_row, now_us);
        accept_seq(e, s, last_row, now_us);
    }
}

/* ---- ask ---- */

static bool may_draft(const struct engine *e, const struct seq *s)
{
    return e->speculates && is_decoding(s) && !s->req->verify && !is_paused(s) &&
           draft_tokens_allowed(s) > 0;
}

static void wish_of(const struct seq *s, uint32_t k, struct drafts_wish *w)
{
    const struct request *r = s->req;
    *w = (struct drafts_wish){.seq = s->id,
                              .context = s->tokens,
                              .base_len = s->n,
                              .prompt_len = s->n_prompt,
                              .k = k,
                              .q_mode = decide_q_mode(s),
                              .draw_key = s->key,
                              .p_min = r->p_min,
                              .sampling = r->params,
                              .ban = r->ban,
                              .ignore_eos = r->ignore_eos,
                              .tenant = r->tenant,
                              .tenant_len = r->tenant_len,
                              .hint = r->hint,
                              .n_hint = (uint32_t)r->n_hint};
}

/* Can what may follow the draft that the coming pass verifies be drafted meanwhile? */
static bool may_draft_ahead(const struct seq *s)
{
    enum draft_q_mode mode = decide_q_mode(s);
    return s->proposer != SEQ_NO_PROPOSER && s->kv.len > s->n && s->n_draft && !s->draft_is_tree &&
           seq_left(s) > s->n_draft + 1 && (mode == DRAFT_POINT || mode == DRAFT_COUPLED);
}

static void ask_ahead_of(struct engine *e, unsigned p, int64_t now_us)
{
    uint32_t n = 0, budget_us = (uint32_t)e->decode_us;
    for (uint32_t i = 0; i < e->n_pass; i++) {
        struct seq *s = e->pass[i];
        if (!may_draft_ahead(s) || (unsigned)s->proposer != p)
            continue;
        uint32_t left = seq_left(s) - s->n_draft - 1, k = s->asked_k + 1; // and the bonus
        wish_of(s, left < k ? left : k, &e->wishes[n]);
        e->wishes[n].verifying = s->draft;
        e->wishes[n].n_verifying = s->n_draft;
        e->wishing[n++] = s;
    }
    if (n)
        drafts_ask(e->drafts, p, e->wishes, n, budget_us, now_us);
    for (uint32_t i = 0; i < n; i++) {
        if (!e->wishes[i].p90_us)
            continue;
        e->wishing[i]->ahead_us = now_us;
        e->wishing[i]->ahead_until_us = now_us + budget_us + e->wishes[i].p90_us;
    }
}

/* While the pass runs that verifies their last drafts, proposers draft what may follow. */
static void ask_ahead(struct engine *e)
{
    if (!e->drafts || !e->options->draft_ahead || !e->decode_us)
        return;
    int64_t now_us = clock_us();
    for (unsigned p = 0; p < DRAFTS_MAX; p++)
        ask_ahead_of(e, p, now_us);
}

/* The sequence cannot be asked for because its draft ahead is still to come: it may be of use. */
static void await_ahead(struct seq *s, double most_us, int64_t now_us)
{
    int64_t await_us = s->ahead_until_us - now_us;
    if (!s->ahead_us || await_us <= 0)
        return;
    s->asked_us = now_us;
    s->await_us = (int64_t)fmin((double)await_us, most_us);
}

/* Positions that the proposer reads before it drafts: it finds again what began alike. */
static uint32_t to_read(const struct seq *s, const struct drafts_wish *w)
{
    return w->to_read < unread_of(s) ? w->to_read : unread_of(s);
}

/* Sends the wishes of the n items that are for proposer p; their drafts are worth waiting for as
 * long as wait_us. */
static void ask_proposer(struct engine *e, unsigned p, uint32_t n_items, double wait_us,
                         int64_t now_us)
{
    uint32_t n = 0, budget_us = (uint32_t)e->options->proposer_budget_ms * 1000;
    for (uint32_t i = 0; i < n_items; i++) {
        if (e->items[i].proposer != p || !e->items[i].k)
            continue;
        wish_of(e->item_seqs[i], e->items[i].k, &e->wishes[n]);
        e->wishing[n++] = e->item_seqs[i];
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
        if (w->p90_us || w->to_read) // or its context goes ahead
            control_asked(&e->wishing[i]->control, p, to_read(e->wishing[i], w), n_sent);
        if (!w->p90_us) {
            await_ahead(e->wishing[i], most_us, now_us);
            continue;
        }
        e->wishing[i]->ahead_us = 0;
        e->wishing[i]->asked_us = now_us;
        e->wishing[i]->asked_k = w->k;
        e->wishing[i]->await_us = (int64_t)fmin(2.0 * w->p90_us, most_us);
        /* Going on without what was drawn may favour some tokens: the time to draw may tell. */
        if (w->q_mode == DRAFT_SPARSE || w->q_mode == DRAFT_DENSE)
            e->wishing[i]->held_until_us = now_us + budget_us;
    }
}

/* Lists the sequences that may have a draft and have none, each with a proposer that is there. */
static uint32_t list_asking(struct engine *e, int64_t now_us)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *s = e->running.v[i];
        s->wants_draft = may_draft(e, s);
        if (!s->wants_draft || s->n_draft || s->asked_us)
            continue;
        const char *name = *s->req->proposer ? s->req->proposer : e->proposer;
        uint32_t k_max, allowed = draft_tokens_allowed(s);
        int p = drafts_pick(e->drafts, name, s->id, s->n, now_us, &k_max);
        if (p < 0)
            continue;
        e->items[n] = item_of(s, allowed < k_max ? allowed : k_max);
        e->items[n].proposer = (unsigned)p;
        e->item_seqs[n++] = s;
    }
    return n;
}

void round_ask(struct engine *e)
{
    e->ask_again = false;
    int64_t now_us = clock_us();
    uint32_t n = list_asking(e, now_us), k_sum = 0;
    struct control_round r = round_without_drafts(e);
    double wait_us = control_ask(&e->control, &r, e->items, n);
    e->n_reckoned = isinf(wait_us) ? 0 : r.n_decoding;
    for (uint32_t i = 0; i < n; i++) {
        e->item_seqs[i]->wants_draft = e->items[i].k > 0;
        k_sum += e->items[i].k;
    }
    if (r.n_decoding)
        metrics_set(e->stats->k_now, (double)k_sum / r.n_decoding);
    for (unsigned p = 0; p < DRAFTS_MAX; p++)
        ask_proposer(e, p, n, wait_us, now_us);
}

/* Follows the tokens committed since the draft was asked for down its tree. The node reached, -1
 * for the root, or -2 if they left the tree. */
static int32_t walk(const struct seq *s, const struct inbox_item *d)
{
    int32_t node = -1;
    for (uint32_t len = d->base_len; len < s->n; len++) {
        uint32_t i = (uint32_t)(node + 1);
        while (i < d->n && (d->parents[i] != node || d->tokens[i] != s->tokens[len]))
            i++;
        if (i == d->n)
            return -2;
        node = (int32_t)i;
    }
    return node;
}

/* What it was asked for took so long; and a draft that comes late shows by what was committed since
 * how good it was. */
static void judge_draft(struct engine *e, struct seq *s, const struct inbox_item *d)
{
    struct control_item draft = {
        .proposer = (unsigned)d->proposer, .n = d->n, .parents = d->parents, .said = d->survival};
    if (d->unread)
        control_put_off(&s->control, draft.proposer, d->unread);
    else if (s->asked_k)
        control_answered(&e->control, &s->control, draft.proposer, s->asked_k, d->rtt_us, d->n);
    control_seen(&e->control, &s->control, &draft, d->tokens, s->tokens + d->base_len,
                 s->n - d->base_len);
}

/* A draft ahead is of use if something hangs below what was committed since. */
static void note_ahead(struct engine *e, struct seq *s, const struct inbox_item *d, int32_t root)
{
    bool hit = false;
    for (uint32_t i = 0; i < d->n && root != -2 && d->base_len < s->n; i++)
        hit = hit || d->parents[i] == root;
    s->ahead_us = 0;
    s->asked_us = 0; // it may have been waited for
    e->ask_again = e->ask_again || !hit;
    metrics_add(e->stats->ahead, 1);
    metrics_add(e->stats->ahead_used, hit);
}

/* Of a tree the way that is likeliest to be accepted, in place; its length. */
static uint32_t keep_likeliest(uint32_t *tokens, int32_t *parents, float *survival, uint32_t n)
{
    uint32_t n_kept = 0;
    for (int32_t node = -1;; n_kept++) {
        int32_t next = -1;
        for (uint32_t i = (uint32_t)(node + 1); i < n; i++)
            if (parents[i] == node && (next < 0 || survival[i] > survival[next]))
                next = (int32_t)i;
        if (next < 0)
            break;
        tokens[n_kept] = tokens[next];
        survival[n_kept] = survival[next];
        node = next;
    }
    for (uint32_t i = 0; i < n_kept; i++)
        parents[i] = (int32_t)i - 1;
    return n_kept;
}

void round_take_draft(struct engine *e, struct inbox_item *d)
{
    struct seq *s = seq_list_find(&e->running, d->seq);
    if (!s || d->base_len > s->n || d->base_len < s->n_prompt)
        return;
    int32_t root = walk(s, d);
    if (d->ahead)
        note_ahead(e, s, d, root);
    else
        judge_draft(e, s, d);
    if (root == -2)
        return; // late, and what was committed since is something else
    if (d->q && d->base_len != s->n)
        return; // what is left of it was drawn with what is gone
    int32_t moved_to[ACCEPT_MAX] = {0}, parents[ACCEPT_MAX];
    uint32_t tokens[ACCEPT_MAX], n = 0;
    float survival[ACCEPT_MAX], above = root < 0 ? 1 : d->survival[root];
    for (uint32_t i = (uint32_t)(root + 1); i < d->n; i++) {
        bool below =
            d->parents[i] == root || (d->parents[i] > root && moved_to[d->parents[i]] >= 0);
        moved_to[i] = below ? (int32_t)n : -1;
        if (!below)
            continue;
        parents[n] = d->parents[i] == root ? -1 : moved_to[d->parents[i]];
        survival[n] = above > 0 ? d->survival[i] / above : 0;
        tokens[n++] = d->tokens[i];
    }
    n = d->ahead ? keep_likeliest(tokens, parents, survival, n) : n;
    struct seq_draft draft = {tokens, parents, survival, d->q, n, d->proposer};
    if (!n && d->base_len != s->n)
        return;
    d->q = NULL;
    seq_take_draft(s, &draft);
}

/* ---- the round ---- */

static void fail_broken(struct engine *e)
{
    for (uint32_t p = 0; p < e->running.n;) {
        struct request *r = e->running.v[p]->req;
        if (r->error) {
            engine_fail_request(e, r, r->error, r->error_text);
            p = 0; // the list has changed
        } else {
            p++;
        }
    }
}

/* What the pass has run of those that decode; what it ran of prompts is kept beside that. */
static struct pass_time_work pass_run(struct engine *e)
{
    struct pass_time_work pass = {0};
    e->prompt_rows = 0;
    for (uint32_t p = 0; p < e->n_pass; p++) {
        const struct seq *s = e->pass[p];
        uint32_t n_draft = s->kv.len > s->n ? s->n_draft : 0;
        pass_time_add(&pass, 1 + n_draft, s->n);
        pass.drafted |= n_draft > 0;
        e->prompt_rows += s->n_rows - 1;
    }
    return pass;
}

/* A sequence whose context a proposer reads before it drafts for it; NULL: there is none. */
static const struct seq *being_read(const struct engine *e)
{
    for (uint32_t i = 0; i < e->running.n; i++) {
        if (prefill_price_continues(&e->running.v[i]->control.reading))
            return e->running.v[i];
    }
    return NULL;
}

/* A round of this pass took us, while the context of sequence *beside was read. */
static void note_pass(struct engine *e, const struct pass_time_work *pass, int64_t us,
                      const uint64_t *beside)
{
    struct seq *s = beside ? seq_list_find(&e->running, *beside) : NULL;
    if (e->prompt_rows || (beside && !s))
        return; // it shows what prompts take, or what a sequence took that has ended
    control_passed(&e->control, pass, (double)us, s ? &s->control : NULL);
}

#ifdef NDEBUG
static void check_kv(struct engine *e)
{
    (void)e;
}
#else
/* Those who wait hold no blocks. */
static void check_kv(struct engine *e)
{
    for (uint32_t i = 0; i < e->running.n; i++)
        e->kv_seqs[i] = &e->running.v[i]->kv;
    if (!kv_check(e->served->run.kv, e->kv_seqs, e->running.n)) {
        log_error("%s", fail_text());
        abort();
    }
}
#endif

void round_run(struct engine *e)
{
    plan(e);
    take_blocks(e);
    if (!e->n_pass)
        return;
    pack(e);
    ask_ahead(e);
    int64_t before_us = clock_us();
    forward_run(e->served->run.forward, e->rows, e->n_rows);
    int64_t now_us = clock_us();
    int64_t pass_us = now_us - before_us;
    sched_pass_done(&e->sched, e->n_rows, pass_us);
    struct pass_time_work pass = pass_run(e);
    const struct seq *reading = being_read(e);
    uint64_t reading_id = reading ? reading->id : 0; // it may end in this round
    const uint64_t *beside = reading ? &reading_id : NULL;
    e->decode_us = e->prompt_rows ? e->decode_us : pass_us;
    metrics_add(e->stats->rounds, 1);
    metrics_observe(e->stats->pass_s, (double)pass_us / 1e6);
    metrics_observe(e->stats->pass_rows, e->n_rows);
    accept_pass(e, now_us);
    fail_broken(e);
    check_kv(e);
    engine_take_inbox(e, 0); // a draft ahead may have come meanwhile
    round_ask(e);
    events_send(e->events);
    note_pass(e, &pass, clock_us() - before_us, beside);
}
