/* draft_model_ahead.c - drafts after tokens that are still being verified: a tree. Its branches
 * begin after the last of these tokens, and where one of them may be rejected. Each branch shares
 * the sequence's rows. */
#include <math.h>
#include <stdlib.h>
#include "base/clock.h"
#include "proposer-svc/draftmodel/draft_model_impl.h"

#define BRANCHES_TOP 3 // likeliest tokens of a row that may begin a branch

/* A token that may begin a branch. */
struct candidate {
    uint32_t token;
    int32_t parent; // as in the draft
    float prob;     // the model's probability of the token after its parent
    float score;    // prob, times the probability that all tokens up to the parent are accepted
};

void draft_model_ahead_drop(struct draft_model *d, struct draft_model_seq *s)
{
    for (uint32_t i = 0; s->branches && i < BRANCHES_MAX; i++) {
        kv_release(d->run.kv, &s->branches->v[i].kv);
        s->branches->v[i].is_open = false;
    }
    if (s->branches)
        s->branches->begun = false;
}

void draft_model_ahead_done(struct draft_model *d, struct draft_model_seq *s)
{
    for (uint32_t i = 0; s->branches && i < BRANCHES_MAX; i++)
        kv_seq_done(d->run.kv, &s->branches->v[i].kv);
    free(s->branches);
}

/* Whether another pass ends before the ask's time is up. */
static bool has_time(const struct draft_model *d, const struct prop_ask *ask)
{
    return clock_us() + d->pass_us <= ask->until_us;
}

/* Prepares an ask: an empty tree, branches without rows, and the rows of the committed context.
 * False: there is no draft ahead, or too many rows are missing. */
static bool prepare_ahead(struct draft_model *d, struct prop_ask *ask)
{
    struct draft_model_seq *s = ask->seq;
    uint32_t n = ask->context.n, base = n - ask->context.n_verifying;
    ask->to->n = 0;
    ask->to->tree = true;
    ask->to->q_mode = ask->q_mode == DRAFT_COUPLED ? DRAFT_COUPLED : DRAFT_POINT;
    if (base == 0 || n + ask->max_depth >= d->run.context ||
        ask->context.n_verifying >= GROUP_MAX || s->is_foreign || !has_time(d, ask) ||
        !draft_model_rows_touch(d, s))
        return false;
    if (!s->branches && !(s->branches = calloc(1, sizeof(*s->branches))))
        return false;
    for (uint32_t i = 0; i < BRANCHES_MAX; i++) {
        struct kv_seq *kv = &s->branches->v[i].kv;
        if (!kv->blocks && kv_seq_init(kv, d->run.context) < 0)
            return false;
    }
    draft_model_rows_keep(d, s, base - 1);
    return base - s->kv.len <= CATCH_UP;
}

/* Inserts a candidate into the n best by score, of which there may be `max`. The first one always
 * stays first. Returns the new number. */
static uint32_t add_candidate(struct candidate *best, uint32_t n, uint32_t max,
                              const struct candidate *c)
{
    if (n == max && (n == 1 || c->score <= best[n - 1].score))
        return n;
    uint32_t at = n < max ? n++ : n - 1;
    for (; at > 1 && best[at - 1].score < c->score; at--)
        best[at] = best[at - 1];
    best[at] = *c;
    return n;
}

/* The first candidate is the token that the draft continues with. The others are the model's
 * likeliest other tokens, where a token may be rejected and after the last one. first: the row of
 * the last committed token. Returns the number of candidates, at most max. */
static uint32_t find_candidates(struct draft_model *d, const struct prop_ask *ask, uint32_t first,
                                uint32_t max, struct candidate *best)
{
    uint32_t m = ask->context.n_verifying, n = 1;
    const uint32_t *verifying = ask->context.tokens + ask->context.n - m;
    float reach = 1;
    for (uint32_t i = 0; i <= m; i++) {
        struct dist_top top[BRANCHES_TOP];
        int32_t parent = (int32_t)i - (int32_t)m - 1;
        const float *logits = draft_model_draw_logits(d, ask, first + i, parent);
        float logprob;
        /* A padding token, for which the row has no logit. */
        bool unused = i < m && verifying[i] >= d->run.opt.n_vocab;
        dist_logprobs(d->run.dists[0], logits, i < m && !unused ? verifying[i] : 0, BRANCHES_TOP,
                      &logprob, top);
        uint32_t drafted = i < m ? verifying[i] : top[0].token;
        if (i == m && ask->q_mode == DRAFT_COUPLED) {
            draft_model_draw_dist(d, ask, logits);
            drafted = dist_draw(d->run.dists[0], ask->draw_key, ask->context.n);
        }
        for (uint32_t t = 0; t < BRANCHES_TOP; t++) {
            struct candidate c = {top[t].token, parent, expf(top[t].logprob), 0};
            c.score = reach * c.prob;
            if (c.token != drafted)
                n = add_candidate(best, n, max, &c);
        }
        reach *= unused ? 0 : expf(logprob);
        best[0] = (struct candidate){drafted, -1, expf(top[0].logprob), 0};
    }
    return n;
}

static void add_node(const struct draft_model *d, struct prop_ask *ask, struct branch *b,
                     uint32_t token, int32_t parent, float survival)
{
    struct draft *to = ask->to;
    b->node = to->n++;
    b->n++;
    to->tokens[b->node] = token;
    to->parents[b->node] = parent;
    to->survival[b->node] = survival;
    b->is_open = b->n < ask->max_depth && !draft_model_draw_ends(d, ask, token);
}

/* Adds the rows of the tokens that are being verified to the pass. False: no draft ahead. */
static bool add_verifying(struct draft_model *d, struct prop_ask *ask)
{
    struct draft_model_seq *s = ask->seq;
    draft_model_ahead_drop(d, s);
    if (!prepare_ahead(d, ask))
        return false;
    uint32_t from = s->kv.len;
    if (!draft_model_rows_grow(d, s, ask->context.n - from))
        return false;
    draft_model_rows_add(d, s, from);
    struct pass_plan *plan = &d->run.plan;
    for (uint32_t i = 0; i <= ask->context.n_verifying; i++)
        plan->rows[plan->n_rows - 1 - i].wants_logits = true;
    return true;
}

/* Begins as many branches as can all have max_depth nodes, but at most max. first: the row of the
 * last committed token. */
static void add_first_nodes(struct draft_model *d, struct prop_ask *ask, uint32_t first,
                            uint32_t max)
{
    struct draft_model_seq *s = ask->seq;
    struct candidate best[BRANCHES_MAX];
    uint32_t fit = ask->max_nodes / ask->max_depth;
    uint32_t n_best = find_candidates(d, ask, first, fit < 1 ? 1 : fit < max ? fit : max, best);
    for (uint32_t i = 0; i < n_best; i++) {
        struct branch *b = &s->branches->v[i];
        uint32_t n = (uint32_t)((int32_t)ask->context.n + best[i].parent + 1);
        b->n = 0;
        if (draft_model_draw_trusts(d, ask, best[i].prob) &&
            kv_fork(d->run.kv, &s->kv, n, &b->kv) == 0)
            add_node(d, ask, b, best[i].token, best[i].parent, best[i].prob);
    }
    s->branches->begun = ask->to->n > 0;
    ask->done = !s->branches->begun;
}

static bool is_begun(const struct prop_ask *ask)
{
    const struct draft_model_seq *s = ask->seq;
    return s->branches && s->branches->begun;
}

static bool is_open_ahead(const struct prop_ask *ask)
{
    return ask->context.n_verifying && !ask->done;
}

/* Runs one pass over the tokens that are being verified, for as many asks as fit into it. Then
 * begins the branches of these asks, at most max per ask. False: no ask is to begin. */
static bool begin_ahead(struct draft_model *d, struct prop_ask *const *asks, uint32_t n,
                        uint32_t max)
{
    struct prop_ask *begun[GROUP_MAX];
    uint32_t first[GROUP_MAX], n_begun = 0, n_logits = 0;
    pass_plan_clear(&d->run.plan);
    for (uint32_t i = 0; i < n; i++) {
        struct prop_ask *ask = asks[i];
        if (!is_open_ahead(ask) || is_begun(ask))
            continue;
        if (n_begun && n_logits + ask->context.n_verifying + 1 > GROUP_MAX)
            break;
        ask->done = !add_verifying(d, ask);
        if (ask->done)
            continue;
        n_logits += ask->context.n_verifying + 1;
        first[n_begun] = d->run.plan.n_rows - 1 - ask->context.n_verifying;
        begun[n_begun++] = ask;
    }
    if (!n_begun)
        return false;
    draft_model_rows_pass(d);
    for (uint32_t i = 0; i < n_begun; i++)
        add_first_nodes(d, begun[i], first[i], max);
    return true;
}

/* Adds the next node of a branch, from its row of the pass. */
static void extend_branch(struct draft_model *d, struct prop_ask *ask, struct branch *b)
{
    struct draft *to = ask->to;
    const float *logits = draft_model_draw_logits(d, ask, b->row, (int32_t)b->node);
    struct dist_top top;
    float logprob;
    dist_logprobs(d->run.dists[0], logits, 0, 1, &logprob, &top);
    float prob = expf(top.logprob);
    b->is_open = draft_model_draw_trusts(d, ask, prob); // all branches fit into max_nodes
    if (!b->is_open)
        return;
    if (ask->q_mode == DRAFT_COUPLED) {
        draft_model_draw_dist(d, ask, logits);
        top.token = dist_draw(d->run.dists[0], ask->draw_key, b->kv.len);
    }
    add_node(d, ask, b, top.token, (int32_t)b->node, prob * to->survival[b->node]);
}

/* Adds the rows of an ask's branches to the pass. */
static void add_branches(struct draft_model *d, const struct prop_ask *ask)
{
    const struct draft_model_seq *s = ask->seq;
    for (struct branch *b = s->branches->v; b < s->branches->v + BRANCHES_MAX; b++) {
        b->is_open = b->is_open && kv_grow(d->run.kv, &b->kv, 1) == 0;
        if (!b->is_open)
            continue;
        uint32_t pos = b->kv.len - 1;
        b->row = d->run.plan.n_rows;
        pass_plan_add_chain(&d->run.plan, pass_plan_add_seq(&d->run.plan, &b->kv, 0),
                            &ask->to->tokens[b->node], pos, 1, 1);
    }
}

static uint32_t n_open_branches(const struct prop_ask *ask)
{
    const struct draft_model_seq *s = ask->seq;
    uint32_t n = 0;
    for (unsigned i = 0; i < BRANCHES_MAX; i++)
        n += s->branches->v[i].is_open;
    return n;
}

/* Runs one pass over the branches of as many asks as fit into it. */
static void step_ahead(struct draft_model *d, struct prop_ask *const *asks, uint32_t n)
{
    uint32_t end = 0;
    pass_plan_clear(&d->run.plan);
    for (; end < n; end++) {
        if (!is_open_ahead(asks[end]))
            continue;
        if (d->run.plan.n_rows + n_open_branches(asks[end]) > GROUP_MAX)
            break;
        add_branches(d, asks[end]);
    }
    if (d->run.plan.n_rows)
        draft_model_rows_pass(d);
    for (uint32_t i = 0; i < end; i++) {
        const struct draft_model_seq *s = asks[i]->seq;
        if (!is_open_ahead(asks[i]))
            continue;
        for (struct branch *b = s->branches->v; b < s->branches->v + BRANCHES_MAX; b++)
            if (b->is_open)
                extend_branch(d, asks[i], b);
    }
}

void draft_model_ahead_draft(struct draft_model *d, struct prop_ask *const *asks, uint32_t n)
{
    uint32_t n_open = 0;
    for (uint32_t i = 0; i < n; i++)
        n_open += is_open_ahead(asks[i]);
    if (!n_open)
        return;
    uint32_t per_ask = GROUP_MAX / n_open;
    per_ask = per_ask < 1 ? 1 : per_ask > BRANCHES_MAX ? BRANCHES_MAX : per_ask;
    if (!begin_ahead(d, asks, n, per_ask))
        step_ahead(d, asks, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!asks[i]->context.n_verifying)
            continue;
        if (!asks[i]->done && is_begun(asks[i]))
            asks[i]->done = !n_open_branches(asks[i]) || !has_time(d, asks[i]);
        if (asks[i]->done)
            draft_model_ahead_drop(d, asks[i]->seq);
        d->is_ahead = d->is_ahead || !asks[i]->done;
    }
}
