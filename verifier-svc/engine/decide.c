/* decide.c - one step of one sequence. */
#include <errno.h>
#include <math.h>
#include "base/err.h"
#include "verifier-svc/engine/decide.h"

struct step {
    struct accept_keyed keyed; // first: accept_keyed_flip() and _draw() take it as their argument
    const struct forward *forward;
    struct dist *dist;
    struct seq *s;
    uint32_t ahead[DRAFT_MAX_NODES]; // draft tokens that count uncommitted, the last of them first
    uint32_t n_ahead;
};

/* ---- choosing ---- */

/* Counts the draft tokens on the path to `node` for penalties, and no others. */
static void count_path(struct step *d, int32_t node)
{
    struct seq *s = d->s;
    for (uint32_t i = 0; i < d->n_ahead && s->counts; i++)
        dist_counts_take_back(s->counts, d->ahead[i]);
    constraint_rewind(s->constraint, d->n_ahead);
    d->n_ahead = 0;
    for (int32_t i = node; i >= 0; i = s->draft->parents[i])
        d->ahead[d->n_ahead++] = s->draft->tokens[i];
    for (uint32_t i = d->n_ahead; i-- > 0;) { // in the order of the text
        if (s->counts)
            dist_counts_add(s->counts, d->ahead[i], true);
        constraint_advance(s->constraint, d->ahead[i]);
    }
}

/* Sets d->dist to the distribution after a row. */
static void set_dist(struct step *d, uint32_t row)
{
    struct seq *s = d->s;
    count_path(d, (int32_t)row - 1);
    dist_set(d->dist, forward_logits(d->forward, s->last_row + row), &s->req->params, s->counts,
             constraint_mask(s->constraint));
}

/* accept_draw_fn: draws the target's own token after a row. */
static bool draw_after(void *arg, uint32_t row, uint32_t *ret_token)
{
    struct step *d = arg;
    set_dist(d, row);
    *ret_token = dist_draw(d->dist, d->s->key, d->s->n + d->n_ahead);
    return true;
}

static struct dist_weights p_after(void *arg, uint32_t row)
{
    struct step *d = arg;
    set_dist(d, row);
    return dist_weights(d->dist);
}

static void accept_by_rule(struct step *d, const struct draft *draft, struct accept_result *ret)
{
    const struct request *r = d->s->req;
    struct accept_chance chance = {p_after, accept_keyed_flip, accept_keyed_draw, d};
    struct accept_q q[DRAFT_MAX_NODES];
    for (uint32_t i = 0; i < draft->n; i++)
        q[i] = accept_q_of(draft, i);
    accept_judge(r->rule, r->rule_parameter, draft, q, &chance, ret);
}

void decide_tokens(const struct forward *f, struct dist *dist, struct seq *s)
{
    static const struct draft none;
    const struct draft *draft = s->draft ? s->draft : &none;
    struct step d = {{s->key, s->n_rounds}, .forward = f, .dist = dist, .s = s};
    if (s->req->rule == ACCEPT_OWN_DRAW)
        accept_own_draw(draft, draw_after, &d, &s->chosen);
    else
        accept_by_rule(&d, draft, &s->chosen);
    count_path(&d, -1);
}

/* ---- committing ---- */

struct commit {
    const struct forward *forward;
    struct dist *dist;
    struct seq *s;
    struct event_batch *b;
    enum seq_end end;
};

/* False: the generation ends with this token. */
static bool commit_token(struct commit *c, uint32_t row, uint32_t token)
{
    struct seq *s = c->s;
    const float *logits = forward_logits(c->forward, s->last_row + row);
    if (isnan(logits[token])) {
        fail(-EIO, "the model computed NaN logits");
        c->end = SEQ_FAILED;
        return false;
    }
    uint32_t i = c->b->n_tokens++;
    struct event_token *t = &c->b->tokens[i];
    *t = (struct event_token){.id = token, .text_at = (uint32_t)c->b->text.len};
    if (s->req->logprobs) {
        t->n_held = detok_n_held(&s->detok);
        dist_logprobs(c->dist, logits, token, s->req->n_top, &t->logprob,
                      &c->b->tops[(size_t)i * DIST_MAX_TOP]);
    }
    c->end = seq_commit(s, token, &c->b->text);
    t->text_len = (uint32_t)c->b->text.len - t->text_at;
    return c->end == SEQ_CONTINUES;
}

/* Commits the accepted tokens and the last one; fewer if the generation ends inside the draft. */
static void commit_chosen(struct commit *c, struct accept_result *r)
{
    uint32_t row = 0, i = 0;
    bool continues = true;
    for (; i < r->n_accepted && continues; i++) {
        continues = commit_token(c, row, c->s->draft->tokens[r->path[i]]);
        row = r->path[i] + 1;
    }
    if (continues) {
        commit_token(c, row, r->token);
    } else {
        r->n_accepted = r->n_tokens = i;
        r->last = ACCEPT_ACCEPTED;
    }
}

enum seq_end decide_commit(const struct forward *f, struct dist *dist, struct seq *s,
                           struct event_batch *b, struct event *ev)
{
    struct accept_result *r = &s->chosen;
    struct commit c = {f, dist, s, b, SEQ_CONTINUES};
    commit_chosen(&c, r);
    if (c.end == SEQ_STOP || c.end == SEQ_LENGTH) {
        ev->text_at = (uint32_t)b->text.len;
        c.end = seq_flush(s, &b->text) < 0 ? SEQ_FAILED : c.end;
        ev->text_len = (uint32_t)b->text.len - ev->text_at;
    }
    ev->n_tokens = b->n_tokens - ev->first;
    ev->base_len = s->n;
    ev->n_accepted = r->n_accepted;
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        b->tokens[ev->first + i].origin = i < r->n_accepted ? ACCEPT_ACCEPTED : r->last;
    return c.end;
}

enum draft_q_mode decide_q_mode(const struct seq *s)
{
    const struct request *r = s->req;
    if (!(r->params.temperature > 0))
        return DRAFT_POINT; // p is one-hot: drawing changes nothing
    if (!accept_rules[r->rule].tests_q)
        return DRAFT_COUPLED;
    return r->dense_q ? DRAFT_DENSE : DRAFT_SPARSE;
}
