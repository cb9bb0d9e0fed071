/* draft_model_draw.c - from the logits of a row to the next token of a draft, and its q.
 *
 * Penalties, bias and mask apply to all drafted tokens. Temperature, top-k, top-p and min-p apply
 * to drawn tokens only. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include "base/rng.h"
#include "proposer-svc/draftmodel/draft_model_impl.h"

#define DENSE_MAX (224u << 10) // probabilities of a dense q: 896 KiB

/* The next 64 random bits. */
static uint64_t random_bits(struct draft_model *d)
{
    uint64_t n = d->n_draws++;
    return rng_u64(d->key, RNG_PROPOSER, (uint32_t)n, (uint32_t)(n >> 32), 0);
}

/* The `width` likeliest tokens of the distribution, in descending order; on a tie the lowest id
 * first. If the distribution has fewer tokens, others with probability 0 follow. */
static void find_likeliest(const struct dist_weights *from, uint32_t width, uint32_t *ids)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < from->n_kept; k++) {
        uint32_t id = from->kept[k], at;
        double w = from->weights[id];
        if (n == width && !(w > from->weights[ids[n - 1]]))
            continue;
        n += n < width;
        at = n - 1;
        for (; at && (w > from->weights[ids[at - 1]] ||
                      (w == from->weights[ids[at - 1]] && id < ids[at - 1]));
             at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
    for (uint32_t id = 0, n_from = n; n < width; id++) {
        uint32_t i = 0;
        while (i < n_from && ids[i] != id)
            i++;
        if (i == n_from)
            ids[n++] = id;
    }
}

/* Rounds the distribution to integers of at least 1 that sum to 65536. Writes these integers to the
 * row of q, and draws a token from them. */
static uint32_t draw_sparse(struct draft_model *d, const struct dist_weights *from,
                            const struct draft_q *q, uint32_t row)
{
    uint32_t *ids = q->ids + (size_t)row * q->width;
    uint16_t *probs = q->probs + (size_t)row * q->width;
    uint32_t left = 65536 - q->width, pick = random_bits(d) >> 48;
    double sum = 0;
    find_likeliest(from, q->width, ids);
    for (uint32_t i = 0; i < q->width; i++)
        sum += from->weights[ids[i]];
    for (uint32_t i = q->width - 1; i > 0; i--) {
        probs[i] = (uint16_t)(from->weights[ids[i]] / sum * (65536 - q->width));
        left -= probs[i];
    }
    probs[0] = (uint16_t)left;
    for (uint32_t i = 0; i < q->width; i++) {
        if (pick <= probs[i])
            return ids[i];
        pick -= probs[i] + 1u;
    }
    return ids[0]; // not reached
}

/* Writes the distribution to the row of q, and draws a token from the rounded values. */
static uint32_t draw_dense(struct draft_model *d, const struct dist_weights *from,
                           const struct draft_q *q, uint32_t row)
{
    float *probs = q->weights + (size_t)row * q->width;
    double sum = 0;
    uint32_t token = 0;
    for (uint32_t i = 0; i < q->width; i++) {
        probs[i] = (float)(from->weights[i] / from->sum);
        sum += (double)probs[i];
    }
    double pick = rng_uniform(random_bits(d)) * sum;
    for (uint32_t i = 0; i < q->width && pick >= 0; i++) {
        if (probs[i] > 0)
            token = i;
        pick -= (double)probs[i];
    }
    return token;
}

/* ---- the target's sampling parameters ---- */

void draft_model_draw_cut(struct draft_model_seq *s, uint32_t keep)
{
    if (keep && keep >= s->n_counted)
        return;
    dist_counts_free(s->counts);
    s->counts = NULL;
    s->n_counted = 0;
}

static uint32_t n_committed(const struct prop_ask *ask)
{
    return ask->context.n - ask->context.n_verifying;
}

/* Makes the counts large enough for the context and a draft. False: no memory. They grow by at
 * least a quarter, so that a context is rarely counted again. */
static bool reserve_counts(const struct draft_model *d, struct draft_model_seq *s, uint32_t n)
{
    uint32_t n_vocab = d->run.model->params.n_vocab, need = n + DRAFT_MAX_NODES;
    if (s->counts && (s->counts_capacity >= need || s->counts_capacity >= n_vocab))
        return true;
    draft_model_draw_cut(s, 0);
    need += need / 4;
    s->counts_capacity = need < n_vocab ? need : n_vocab;
    return dist_counts_new(s->counts_capacity, &s->counts) == 0;
}

/* Counts the tokens of the committed context. If the prompt's length is unknown, no token counts as
 * generated. False: no memory. */
static bool count_context(const struct draft_model *d, const struct prop_ask *ask)
{
    struct draft_model_seq *s = ask->seq;
    const struct prop_context *c = &ask->context;
    uint32_t n_prompt = c->n_prompt ? c->n_prompt : UINT32_MAX;
    if (s->counted_prompt != n_prompt)
        draft_model_draw_cut(s, 0);
    s->counted_prompt = n_prompt;
    if (!reserve_counts(d, s, c->n))
        return false;
    for (; s->n_counted < n_committed(ask); s->n_counted++)
        dist_counts_add(s->counts, c->tokens[s->n_counted], s->n_counted >= n_prompt);
    return true;
}

/* The uncommitted tokens on the path to `parent`, from `parent` backwards. Returns their number,
 * which is at most DRAFT_MAX_NODES: a draft and the tokens that are being verified together have no
 * more. */
static uint32_t find_path(const struct prop_ask *ask, int32_t parent, uint32_t *path)
{
    const struct draft *to = ask->to;
    uint32_t n = 0;
    for (; parent >= 0; parent = to->tree ? to->parents[parent] : parent - 1) {
        assert(n < DRAFT_MAX_NODES);
        path[n++] = to->tokens[parent];
    }
    uint32_t end = (uint32_t)((int32_t)ask->context.n + parent + 1);
    while (end > n_committed(ask)) {
        assert(n < DRAFT_MAX_NODES);
        path[n++] = ask->context.tokens[--end];
    }
    return n;
}

/* The mask of the token after the committed context and a path. The path is stored last token
 * first. */
static const uint64_t *mask_after(struct draft_model *d, const struct prop_ask *ask,
                                  const uint32_t *path, uint32_t n)
{
    const struct constraint_ban *ban = &ask->sampling.ban;
    struct constraint_ban_state s;
    constraint_ban_init(&s, d->ban_mask, ban->until, n_committed(ask));
    for (uint32_t i = n; i-- > 0;)
        constraint_advance(&s.constraint, path[i]);
    const uint64_t *mask = constraint_mask(&s.constraint);
    if (mask)
        dist_mask_ban(d->ban_mask, d->run.opt.n_vocab, ban->tokens, ban->n);
    return mask;
}

/* Applies dist_adjust(). The n tokens of `path` count as if they were committed. */
static void adjust_logits(struct draft_model *d, const struct prop_ask *ask, const float *logits,
                          const struct dist_params *p, const uint32_t *path, uint32_t n)
{
    struct draft_model_seq *s = ask->seq;
    bool counted = dist_penalises(p) && count_context(d, ask);
    for (uint32_t i = n; i-- > 0 && counted;)
        dist_counts_add(s->counts, path[i], true);
    dist_adjust(logits, d->run.opt.n_vocab, p, counted ? s->counts : NULL,
                mask_after(d, ask, path, n), d->adjusted);
    for (uint32_t i = 0; i < n && counted; i++)
        dist_counts_take_back(s->counts, path[i]);
}

const float *draft_model_draw_logits(struct draft_model *d, const struct prop_ask *ask,
                                     uint32_t row, int32_t parent)
{
    const float *logits = forward_logits(d->run.forward, row);
    struct dist_params p = ask->sampling.params;
    if (!ask->sampling.ban.n && !p.n_bias && !dist_penalises(&p))
        return logits;
    uint32_t path[DRAFT_MAX_NODES], n = find_path(ask, parent, path);
    adjust_logits(d, ask, logits, &p, path, n);
    return d->adjusted;
}

void draft_model_draw_dist(struct draft_model *d, const struct prop_ask *ask, const float *logits)
{
    struct dist_params p = ask->sampling.params;
    p.n_bias = 0;
    dist_set(d->run.dists[0], logits, &p, NULL, NULL);
}

/* ---- a draft ---- */

/* Draws the draft's next token, in the ask's q mode. */
static uint32_t draw_token(struct draft_model *d, const struct prop_ask *ask, const float *logits)
{
    uint32_t n = ask->to->n;
    draft_model_draw_dist(d, ask, logits);
    if (ask->q_mode == DRAFT_COUPLED)
        return dist_draw(d->run.dists[0], ask->draw_key, ask->context.n + n);
    struct dist_weights from = dist_weights(d->run.dists[0]);
    return ask->q_mode == DRAFT_SPARSE ? draw_sparse(d, &from, ask->to->q, n)
                                       : draw_dense(d, &from, ask->to->q, n);
}

bool draft_model_draw_ends(const struct draft_model *d, const struct prop_ask *ask, uint32_t token)
{
    uint32_t i = 0;
    while (i < d->n_eos && d->eos[i] != token)
        i++;
    return i < d->n_eos && !ask->sampling.ignore_eos;
}

bool draft_model_draw_trusts(const struct draft_model *d, const struct prop_ask *ask,
                             float confidence)
{
    return confidence >= d->p_min && confidence >= ask->p_min; // false for NaN
}

bool draft_model_draw_next(struct draft_model *d, struct prop_ask *ask, const float *logits)
{
    struct draft *to = ask->to;
    struct dist_top best;
    float logprob;
    dist_logprobs(d->run.dists[0], logits, 0, 1, &logprob, &best);
    float confidence = expf(best.logprob);
    if (!draft_model_draw_trusts(d, ask, confidence))
        return false;
    uint32_t token = ask->q_mode == DRAFT_POINT ? best.token : draw_token(d, ask, logits);
    to->tokens[to->n] = token;
    to->survival[to->n] = confidence * (to->n ? to->survival[to->n - 1] : 1);
    to->n++;
    return to->n < ask->max_depth && !draft_model_draw_ends(d, ask, token);
}

bool draft_model_draw_space(const struct draft_model *d, struct prop_ask *ask)
{
    bool sparse = ask->q_mode == DRAFT_SPARSE;
    uint32_t width = d->run.opt.n_vocab;
    if (sparse && width > d->sparse_k)
        width = d->sparse_k;
    if (!sparse && ask->max_depth > DENSE_MAX / width)
        ask->max_depth = DENSE_MAX / width ? DENSE_MAX / width : 1;
    size_t n = (size_t)ask->max_depth * width;
    size_t entry = sparse ? sizeof(uint32_t) + sizeof(uint16_t) : sizeof(float);
    struct draft_q *q = malloc(sizeof(*q) + n * entry);
    if (!q)
        return false;
    *q = (struct draft_q){.width = width};
    if (sparse) {
        q->ids = (uint32_t *)(q + 1);
        q->probs = (uint16_t *)(q->ids + n);
    } else {
        q->weights = (float *)(q + 1);
    }
    ask->to->q = q;
    return true;
}
