/* round_accept.c - after the pass: accepts draft tokens, commits, counts, fills the events. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "base/minmax.h"
#include "verifier-svc/engine/decide.h"
#include "verifier-svc/engine/round_impl.h"
#include "verifier-svc/engine/snapshots.h"

/* ---- counting ---- */

static void count_draft(struct engine *e, struct seq *s, const struct accept_result *r)
{
    bool bonus = r->last == ACCEPT_BONUS;
    uint32_t n_draft = s->draft->n;
    s->n_drafted_rounds++;
    s->n_drafted += n_draft;
    s->n_accepted += r->n_accepted;
    s->n_bonus += bonus;
    s->accepted_histogram[r->n_accepted]++;
    if (s->proposer == SEQ_NO_PROPOSER)
        return; // the client's own draft
    control_verified(&e->control, n_draft, r->n_accepted);
    metrics_set(e->stats->acceptance_ema, e->control.acceptance_ema);
    metrics_add(e->stats->proposed, n_draft);
    metrics_add(e->stats->accepted, r->n_accepted);
    metrics_add(e->stats->bonus, bonus);
    drafts_accepted(e->drafts, (unsigned)s->proposer, r->n_accepted);
    struct stats_drafts *d = &e->stats->proposers[s->proposer];
    memcpy(s->last_proposer, d->name, sizeof(s->last_proposer));
    metrics_add(d->drafts, 1);
    metrics_add(d->tokens, n_draft);
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

/* Scores the draft against the tokens committed since `base`, also the part that was not
 * verified. */
static void learn_from_tokens(struct engine *e, struct seq *s, uint32_t base)
{
    if (!s->n_uncut || s->proposer == SEQ_NO_PROPOSER)
        return;
    control_seen(&e->control, &s->control, (unsigned)s->proposer, s->draft, s->n_uncut,
                 s->tokens + base, s->n - base);
}

static void count_step(struct engine *e, struct seq *s, const struct accept_result *r)
{
    s->n_rounds++;
    metrics_add(e->stats->steps, 1);
    if (seq_n_draft(s))
        count_draft(e, s, r);
    else if (s->wants_draft)
        metrics_add(e->stats->fallback_steps, 1);
}

static void describe_round(const struct seq *s, struct event *ev)
{
    ev->round = s->n_rounds;
    ev->n_draft = seq_n_draft(s);
    if (ev->n_draft && s->proposer != SEQ_NO_PROPOSER)
        memcpy(ev->proposer, s->last_proposer, sizeof(ev->proposer));
}

/* ---- committing ---- */

/* Enters the rows of committed tokens into the prefix index. Rows of drafts stay out of it. */
static void index_rows(struct engine *e, struct seq *s)
{
    struct kv_root root = seq_root(s);
    kv_enter(e->loaded->run.kv, &s->kv, &root, s->tokens, min_u32(s->kv.len, s->n));
    snapshots_keep(e, s);
}

/* Commits what was chosen for a sequence. */
static void accept_seq(struct engine *e, struct seq *s, int64_t now_us)
{
    struct accept_result *result = &s->chosen;
    struct event_batch *b = events_reserve(e->events, seq_n_draft(s) + 1);
    struct event *ev = events_add(b, s->req, s->choice);
    uint32_t base = s->n;
    enum seq_end end = decide_commit(e->loaded->run.forward, e->loaded->run.dists[0], s, b, ev);
    if (end == SEQ_FAILED) {
        snprintf(s->req->error_text, sizeof(s->req->error_text), "%s", fail_text());
        s->req->error = -EIO; // ended after the loop over the pass
        return;
    }
    learn_from_tokens(e, s, base);
    count_step(e, s, result);
    describe_round(s, ev);
    count_tokens(e, s, ev->n_tokens, now_us);
    flows_serve(e->flows, &s->req->place, ev->n_tokens);
    for (uint32_t i = 0; i < result->n_accepted; i++)
        result->path[i] += base;
    kv_keep(e->loaded->run.kv, &s->kv, base, result->path, result->n_accepted);
    index_rows(e, s);
    if (end != SEQ_CONTINUES) {
        engine_end_seq(e, s, end, ev);
        return;
    }
    seq_drop_draft(s);
    if (s->req->verify)
        s->idle_us = now_us;
}

/* The first choice has run the prompt: the others share its rows. Each runs the prompt's last token
 * as its first row. So choices that begin take turns with other sequences, as all that decode. */
static void start_branches(struct engine *e, const struct seq *first)
{
    for (uint32_t i = 1; i < first->req->n; i++) {
        struct seq *s = first->req->seqs[i];
        if (s->state != SEQ_BRANCH || !s->started)
            continue;
        if (kv_fork(e->loaded->run.kv, &first->kv, first->n_prompt - 1, &s->kv) < 0) {
            engine_preempt(e, s); // runs the prompt itself, later
            continue;
        }
        s->state = SEQ_RUNNING;
        s->n_cached = s->n_prompt;
    }
}

void round_accept(struct engine *e, int64_t now_us)
{
    for (uint32_t p = 0; p < e->n_pass; p++) {
        struct seq *s = e->pass[p];
        index_rows(e, s); // before it branches: its choices then share blocks with other requests
        if (!round_has_logits(e, s))
            continue; // a piece of a prompt
        if (s->choice == 0 && s->n == s->n_prompt)
            start_branches(e, s);
        accept_seq(e, s, now_us);
    }
}
