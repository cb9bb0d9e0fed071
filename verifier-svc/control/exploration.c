/* exploration.c - tries within a budget of time. docs/controller.md, "Exploration". */
#include <math.h>
#include "verifier-svc/control/exploration.h"
#include "base/minmax.h"

#define TRY_SHARE 0.004   // of the time: budget of the kinds "all" and "one", each
#define TRY_MIN_ROUNDS 16 // between tries
#define TRY_MAX_US 600e6  // between tries, at most: tries may have become cheaper
#define TRY_K 2           // tokens of a try by an item that has none
#define FIRST_TRIES 8     // rounds with tries in which a proposer is new
#define LESS_SHARE 0.002  // of the time: budget of the kind "less", or one round of LESS_MAX_ROUNDS
#define LESS_MIN_ROUNDS 4
#define LESS_MAX_ROUNDS 64

void exploration_begin_round(struct control *c)
{
    c->since_one++;
    c->since_all++;
}

/* Rounds from one try to the next if a round takes round_us and a try extra_us more. */
static uint32_t rounds_between(double extra_us, double round_us)
{
    double apart_us = fmin(extra_us / TRY_SHARE, TRY_MAX_US);
    return (uint32_t)fmax(apart_us / round_us, TRY_MIN_ROUNDS);
}

static bool has_new_proposer(const struct control *c, const struct control_item *v)
{
    return c->proposers[v->proposer].n_tries < FIRST_TRIES;
}

/* The wait for a try: its answer may come with or without tokens. */
static double try_wait_us(const struct control *c, unsigned p, uint32_t k)
{
    return fmax(control_state_latency_us(c, p, k, 1), c->proposers[p].empty_us);
}

static bool any_being_read(const struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= prefill_price_running(&v[i].s->prefill);
    return any;
}

/* ---- less ---- */

/* Due after max((t0 - n U / T) / (0.002 U), 4) rounds with drafts, and after at most 64. t0: the
 * pass time without drafts. The maximum limits the harm of a wrong t0, which only such rounds
 * correct. */
static bool less_is_due(struct control *c, const struct control_round *r,
                        const struct row_budget *g)
{
    double lost_us = pass_time_us(&c->pass_time, &r->pass) - r->n_decoding * g->us / g->tokens;
    double rounds = fmax(lost_us / (LESS_SHARE * g->us), LESS_MIN_ROUNDS);
    return !r->n_fixed && ++c->since_less >= fmin(rounds, LESS_MAX_ROUNDS);
}

bool exploration_less(struct control *c, const struct control_round *r, struct control_item *v,
                      uint32_t n, uint32_t limit, const struct row_budget *g)
{
    if (any_being_read(v, n) || !less_is_due(c, r, g))
        return false;
    unsigned turn = c->n_less++ % 3;
    uint32_t k = turn == 0 ? 0 : turn == 1 ? row_budget_limit_below(limit) : limit / 2;
    c->since_less = 0;
    for (uint32_t i = 0; i < n; i++) {
        v[i].nodes = min_u32(k, v[i].nodes);
        v[i].s->trying = v[i].nodes > 0;
    }
    c->expected_wait_us = row_budget_wait_us(c, v, n);
    return true;
}

/* ---- all ---- */

/* Cost of a try: its time, less the time in which rounds without drafts commit as many tokens. */
static bool all_is_due(const struct control *c, const struct control_round *r,
                       const struct control_item *v, uint32_t n, const struct row_budget *g)
{
    bool any = false;
    double wait_us = g->wait_us;
    for (uint32_t i = 0; i < n; i++) {
        bool tries = !v[i].fixed && v[i].nodes;
        if (tries && has_new_proposer(c, &v[i]))
            return true;
        wait_us = tries ? fmax(wait_us, try_wait_us(c, v[i].proposer, v[i].nodes)) : wait_us;
        any |= tries;
    }
    double none_us = g->tokens * control_state_none_us(c, r);
    double lost_us = fmax(g->us - g->wait_us + wait_us - none_us, 0);
    return any && c->since_all >= rounds_between(lost_us, pass_time_us(&c->pass_time, &r->pass));
}

bool exploration_all(struct control *c, const struct control_round *r, struct control_item *v,
                     uint32_t n, const struct row_budget *g)
{
    if (any_being_read(v, n) || !all_is_due(c, r, v, n, g))
        return false;
    bool tried[DRAFT_MAX_PROPOSERS] = {false};
    c->since_all = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct control_seq *s = v[i].s;
        s->trying = !v[i].fixed && v[i].nodes;
        s->since_try = s->trying ? 0 : s->since_try + 1;
        tried[v[i].proposer] |= s->trying;
    }
    for (unsigned p = 0; p < DRAFT_MAX_PROPOSERS; p++)
        c->proposers[p].n_tries += tried[p];
    return true;
}

/* ---- one ---- */

/* Tokens of a try by this item alone. */
static uint32_t try_tokens(const struct control_item *v)
{
    return min_u32(v->nodes ? 2 * v->nodes : TRY_K, v->allowed);
}

/* Time of a round in which only this item has a draft, of k tokens. */
static double round_alone_us(const struct control *c, const struct control_round *r,
                             const struct control_item *v, uint32_t k)
{
    struct pass_time_work pass = r->pass;
    pass.rows += k;
    pass.attended += (double)k * v->context;
    return pass_time_us(&c->pass_time, &pass) + (k ? try_wait_us(c, v->proposer, k) : 0);
}

/* Whether a is tried before b. A new proposer is first. Next is a context that was read, because
 * its try costs less. Next is the longest time since the last try. */
static bool tries_before(const struct control *c, const struct control_item *a,
                         const struct control_item *b)
{
    if (has_new_proposer(c, a) != has_new_proposer(c, b))
        return has_new_proposer(c, a);
    const struct control_seq *s = a->s, *t = b->s;
    return s->prefill.done != t->prefill.done ? s->prefill.done : s->since_try > t->since_try;
}

struct control_item *exploration_next(const struct control *c, struct control_item *v, uint32_t n,
                                      bool pay)
{
    struct control_item *next = NULL;
    for (uint32_t i = 0; i < n; i++) {
        bool may = !v[i].fixed && (pay || !v[i].nodes) && try_tokens(&v[i]) > v[i].nodes;
        if (may && (!next || tries_before(c, &v[i], next)))
            next = &v[i];
    }
    return next;
}

static bool one_is_due(const struct control *c, const struct control_round *r,
                       const struct control_item *v, double round_us)
{
    if (!v->nodes && has_new_proposer(c, v))
        return true;
    double extra_us = round_alone_us(c, r, v, try_tokens(v)) - round_alone_us(c, r, v, v->nodes);
    extra_us += control_state_prefill_us(c, v);
    return c->since_one >= rounds_between(extra_us, round_us);
}

static void make_try(struct control_item *v)
{
    v->nodes = try_tokens(v);
    v->s->trying = v->nodes > 0;
}

/* Repeats the request of each try until its context is read. True: there is such a try. */
static bool continue_tries(struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct control_seq *s = v[i].s;
        s->since_try++;
        s->trying &= prefill_price_running(&s->prefill);
        if (s->trying)
            make_try(&v[i]);
        any |= s->trying;
    }
    return any;
}

void exploration_one(struct control *c, const struct control_round *r, struct control_item *v,
                     uint32_t n, struct control_item *next, double round_us)
{
    if (continue_tries(v, n) || !next || !one_is_due(c, r, next, round_us))
        return;
    c->since_one = next->s->since_try = 0;
    make_try(next);
    c->proposers[next->proposer].n_tries++;
}

bool exploration_is_awaited(const struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= v[i].s->trying && !prefill_price_running(&v[i].s->prefill);
    return any;
}
