/* decide.c - one step of one sequence: which tokens are committed, by its request's rule.
 *
 * own-draw commits each token as it is drawn. The other rules (accept.h) look at p behind draft
 * tokens that are not committed yet; for the while those count for penalties and min_tokens. */
#include <errno.h>
#include <math.h>
#include "base/err.h"
#include "verifier-svc/engine/engine_impl.h"

struct step {
    struct accept_keyed keyed; // first: chances take it as their argument
    struct engine *e;
    struct seq *s;
    struct event_batch *b;
    uint32_t last_row;          // of the pass: the last committed token's
    uint32_t ahead[ACCEPT_MAX]; // draft tokens that count uncommitted, the last of them first
    uint32_t n_ahead;
    enum seq_end end;
};

static const float *logits_behind(const struct step *d, uint32_t row)
{
    return forward_logits(d->e->served->run.forward, d->last_row + row);
}

static void set_dist(struct step *d, uint32_t row)
{
    struct seq *s = d->s;
    dist_set(d->e->served->run.dist, logits_behind(d, row), &s->req->params, s->counts,
             constraint_mask(s->constraint));
}

/* False: the generation ends with it. */
static bool commit(struct step *d, uint32_t row, uint32_t token)
{
    struct seq *s = d->s;
    const float *logits = logits_behind(d, row);
    if (isnan(logits[token])) {
        fail(-EIO, "the model gave no usable logits");
        d->end = SEQ_FAILED;
        return false;
    }
    uint32_t i = d->b->n_tokens++;
    struct event_token *t = &d->b->tokens[i];
    *t = (struct event_token){.id = token, .text_at = (uint32_t)d->b->text.len};
    if (s->req->logprobs) {
        t->n_held = detok_n_held(&s->detok);
        dist_logprobs(d->e->served->run.dist, logits, token, s->req->n_top, &t->logprob,
                      &d->b->tops[(size_t)i * DIST_MAX_TOP]);
    }
    d->end = seq_commit(s, token, &d->b->text);
    t->text_len = (uint32_t)d->b->text.len - t->text_at;
    return d->end == SEQ_GOES_ON;
}

/* accept_draw_fn: the target's own token behind a row, committed at once. */
static bool draw_and_commit(void *arg, uint32_t row, uint32_t *ret_token)
{
    struct step *d = arg;
    set_dist(d, row);
    *ret_token = dist_draw(d->e->served->run.dist, d->s->key, d->s->n);
    return commit(d, row, *ret_token);
}

/* Makes the draft's tokens up to `node` count, and no others. */
static void look_behind(struct step *d, int32_t node)
{
    struct seq *s = d->s;
    for (uint32_t i = 0; i < d->n_ahead && s->counts; i++)
        dist_counts_take_back(s->counts, d->ahead[i]);
    constraint_rewind(s->constraint, d->n_ahead);
    d->n_ahead = 0;
    for (int32_t i = node; i >= 0; i = s->parents[i])
        d->ahead[d->n_ahead++] = s->draft[i];
    for (uint32_t i = d->n_ahead; i-- > 0;) { // in the order of the text
        if (s->counts)
            dist_counts_add(s->counts, d->ahead[i], true);
        constraint_advance(s->constraint, d->ahead[i]);
    }
}

static struct dist_weights p_behind(void *arg, uint32_t row)
{
    struct step *d = arg;
    look_behind(d, (int32_t)row - 1);
    set_dist(d, row);
    return dist_weights(d->e->served->run.dist);
}

static void judge(struct step *d, const struct accept_tree *tree, struct accept_result *ret)
{
    const struct seq *s = d->s;
    struct accept_chance chance = {p_behind, accept_keyed_flip, accept_keyed_draw, d};
    struct accept_q q[ACCEPT_MAX];
    for (uint32_t i = 0; i < tree->n; i++)
        q[i] = s->q ? s->q[s->q_row[i]] : (struct accept_q){0};
    accept_judge(s->req->rule, s->req->rule_parameter, tree, q, &chance, ret);
    look_behind(d, -1);
}

/* Commits what was judged; less of it if the generation ends inside the draft. */
static void commit_judged(struct step *d, struct accept_result *r)
{
    uint32_t row = 0, i = 0;
    bool goes_on = true;
    for (; i < r->n_accepted && goes_on; i++) {
        goes_on = commit(d, row, d->s->draft[r->path[i]]);
        row = r->path[i] + 1;
    }
    if (goes_on) {
        commit(d, row, r->token);
    } else {
        r->n_accepted = r->n_tokens = i;
        r->last = ACCEPT_ACCEPTED;
    }
}

enum seq_end decide(struct engine *e, struct seq *s, uint32_t last_row, struct event_batch *b,
                    struct event *ev, struct accept_result *ret)
{
    struct accept_tree tree = {s->n_draft, s->draft, s->parents};
    struct step d = {{s->key, s->n_rounds}, .e = e, .s = s, .b = b, .last_row = last_row};
    if (s->req->rule == ACCEPT_OWN_DRAW) {
        accept_own_draw(&tree, draw_and_commit, &d, ret);
    } else {
        judge(&d, &tree, ret);
        commit_judged(&d, ret);
    }
    if (d.end == SEQ_STOP || d.end == SEQ_LENGTH) {
        ev->text_at = (uint32_t)b->text.len;
        d.end = seq_flush(s, &b->text) < 0 ? SEQ_FAILED : d.end;
        ev->text_len = (uint32_t)b->text.len - ev->text_at;
    }
    ev->n_tokens = b->n_tokens - ev->first;
    ev->base_len = s->n;
    ev->n_accepted = ret->n_accepted;
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        b->tokens[ev->first + i].origin = i < ret->n_accepted ? ACCEPT_ACCEPTED : ret->last;
    return d.end;
}

enum draft_q_mode decide_q_mode(const struct seq *s)
{
    const struct request *r = s->req;
    if (!(r->params.temperature > 0))
        return DRAFT_POINT; // p is one-hot: nothing is gained by drawing
    if (!accept_rules[r->rule].tests_q)
        return DRAFT_COUPLED;
    return r->dense_q ? DRAFT_DENSE : DRAFT_SPARSE;
}
