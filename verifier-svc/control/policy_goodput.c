/* policy_goodput.c - chances, shared rows (share.h), and tries. */
#include <math.h>
#include "verifier-svc/control/policy_goodput.h"
#include "base/minmax.h"
#include "verifier-svc/control/row_budget.h"

#define MARGIN 1.02     // drafts promise so many times what goes without them
#define SEQ_TRUST 40.0f // tokens that its proposer's rates weigh against its own counts
#define LEFT_MAX 512    // tokens that an answer has left, as most end before they must
#define TRY_SHARE 0.004 // of the time may go into trying
#define TRY_MIN_ROUNDS 16
#define TRY_MAX_US 600e6 // apart, as a try may cost less by now: the share holds for up to 2.4 s
#define LESS_SHARE 0.002 // into drafting less than seems best, or one round of LESS_MAX_ROUNDS
#define LESS_MIN_ROUNDS 4
#define LESS_MAX_ROUNDS 64
#define TRY_K 2
#define FIRST_TRIES 8   // of a proposer, while it seems to bring nothing: they are due at once
#define TRY_WAIT_US 1e9 // as long as the proposer's answers take

/* ---- chances ---- */

/* How much better or worse the sequence fares than the rates say. */
static double luck(const struct control_seq *s)
{
    return (s->kept + SEQ_TRUST) / (s->expected + SEQ_TRUST);
}

static float clamped(double chance)
{
    return (float)(chance < 0.01 ? 0.01 : chance > 0.99 ? 0.99 : chance);
}

/* The chance of each token of a draft that it and all before it are kept. */
static void fill_chances(const struct control *c, struct control_item *v)
{
    const struct accept_rate *chance = &c->proposers[v->proposer].chance;
    uint8_t depth[ACCEPT_MAX];
    double factor = luck(v->s);
    for (uint32_t i = 0; i < v->n; i++) {
        int32_t parent = v->parents[i];
        depth[i] = parent < 0 ? 0 : (uint8_t)(depth[parent] + 1);
        double rate =
            accept_rate_predicted(chance, depth[i], accept_rate_alone(v->parents, v->said, i));
        v->chance[i] = clamped(rate * factor) * (parent < 0 ? 1 : v->chance[parent]);
    }
}

/* The same for tokens that nobody has drafted yet. */
static void fill_hopes(const struct control *c, struct control_item *v)
{
    const struct accept_rate *chance = &c->proposers[v->proposer].chance;
    double factor = luck(v->s), all = control_given(c, v->proposer, v->s);
    for (uint32_t i = 0; i < v->n; i++)
        v->chance[i] = (float)(all *= clamped(accept_rate_at(chance, i) * factor));
}

/* ---- whom to ask ---- */

/* What it costs that the item's proposer reads its context first; 0: it has, or does. */
static double price_us(const struct control *c, const struct control_item *v)
{
    return prefill_price_us(&v->s->reading, &c->proposers[v->proposer].reading, v->proposer,
                            v->unread);
}

/* What a token takes in a round of all without drafts. */
static double none_us(const struct control *c, const struct control_round *r)
{
    return pass_time_us(&c->cost, &r->pass) / r->n_decoding;
}

static bool pays(const struct control *c, const struct control_round *r, const struct row_budget *g)
{
    return g->tokens * none_us(c, r) > MARGIN * g->us;
}

static bool leave_out(struct control_item *v)
{
    bool was_in = v->most > 0;
    v->most = 0;
    return was_in;
}

/* Leaves out those whose tokens will not bring back what it costs to read them. True: there are
 * such. g: what a round of all promises. */
static bool leave_out_dear(const struct control *c, const struct control_round *r,
                           struct control_item *v, uint32_t n, const struct row_budget *g)
{
    double saved_us = none_us(c, r) / MARGIN - g->us / g->tokens;
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        if (!v[i].fixed && price_us(c, &v[i]) > saved_us * min_u32(v[i].left, LEFT_MAX))
            any |= leave_out(&v[i]);
    }
    return any;
}

/* Leaves out those that nobody has read. True: there are such. */
static bool leave_out_unread(struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        if (!v[i].fixed && prefill_price_lacks(&v[i].s->reading, v[i].proposer))
            any |= leave_out(&v[i]);
    }
    return any;
}

/* Shares among those that are worth asking for, or, if it does not pay, that may try. */
static uint32_t choose(struct control *c, const struct control_round *r, struct control_item *v,
                       uint32_t n, struct row_budget *ret)
{
    uint32_t limit = row_budget_best(c, r, v, n, ret);
    if (limit && pays(c, r, ret) && leave_out_dear(c, r, v, n, ret))
        limit = row_budget_best(c, r, v, n, ret);
    if (limit && !pays(c, r, ret) && leave_out_unread(v, n))
        limit = row_budget_best(c, r, v, n, ret);
    return limit;
}

/* ---- tries ---- */

/* What the item would try: more than seemed best. */
static uint32_t try_k(const struct control_item *v)
{
    return min_u32(v->k ? 2 * v->k : TRY_K, v->n);
}

/* What a try waits: its answer may have tokens or none. */
static double try_wait_us(const struct control *c, unsigned p, uint32_t k)
{
    return fmax(control_answer_us(c, p, k, 1), c->proposers[p].empty_us);
}

/* What a pass takes in which only the item has a draft, of k tokens, and what that takes. */
static double alone_us(const struct control *c, const struct control_round *r,
                       const struct control_item *v, uint32_t k)
{
    struct pass_time_work pass = r->pass;
    pass.rows += k;
    pass.sees += (double)k * v->context;
    return pass_time_us(&c->cost, &pass) + (k ? try_wait_us(c, v->proposer, k) : 0);
}

/* Rounds, which take us, from one try to the next if that costs extra_us. */
static uint32_t rounds_between(double extra_us, double us)
{
    double apart_us = fmin(extra_us / TRY_SHARE, TRY_MAX_US);
    return (uint32_t)fmax(apart_us / us, TRY_MIN_ROUNDS);
}

static bool is_new(const struct control *c, const struct control_item *v)
{
    return c->proposers[v->proposer].n_tries < FIRST_TRIES;
}

/* One of a new proposer, then one that was read, as it costs least, then the one that has not for
 * longest. */
static bool tries_before(const struct control *c, const struct control_item *a,
                         const struct control_item *b)
{
    if (is_new(c, a) != is_new(c, b))
        return is_new(c, a);
    const struct control_seq *s = a->s, *t = b->s;
    return s->reading.done != t->reading.done ? s->reading.done : s->since_try > t->since_try;
}

static void let_try(struct control_item *v)
{
    v->k = try_k(v);
    v->s->trying = v->k > 0;
}

/* A try of which the context is still being read goes on. True: one does. */
static bool go_on(struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct control_seq *s = v[i].s;
        s->since_try++;
        s->trying &= prefill_price_continues(&s->reading);
        if (s->trying)
            let_try(&v[i]);
        any |= s->trying;
    }
    return any;
}

/* drafts: who drafts may try more, else who has a draft here tries with all others. */
static struct control_item *next_to_try(const struct control *c, struct control_item *v, uint32_t n,
                                        bool drafts)
{
    struct control_item *next = NULL;
    for (uint32_t i = 0; i < n; i++) {
        bool may = !v[i].fixed && (drafts || !v[i].k) && try_k(&v[i]) > v[i].k;
        if (may && (!next || tries_before(c, &v[i], next)))
            next = &v[i];
    }
    return next;
}

/* Is it time? us: what the round takes without. */
static bool try_is_due(const struct control *c, const struct control_round *r,
                       const struct control_item *v, double us)
{
    if (!v->k && is_new(c, v))
        return true;
    double extra_us = alone_us(c, r, v, try_k(v)) - alone_us(c, r, v, v->k);
    return c->since_try >= rounds_between(extra_us + price_us(c, v), us);
}

static void try_one(struct control *c, struct control_item *v)
{
    c->since_try = v->s->since_try = 0;
    let_try(v);
    c->proposers[v->proposer].n_tries++;
}

/* A round in which all try what would be best if they drafted costs what that falls short of none
 * at all. */
static bool all_are_due(const struct control *c, const struct control_round *r,
                        const struct control_item *v, uint32_t n, const struct row_budget *g)
{
    bool any = false;
    double wait_us = g->beside_us;
    for (uint32_t i = 0; i < n; i++) {
        bool tries = !v[i].fixed && v[i].k;
        if (tries && is_new(c, &v[i]))
            return true;
        wait_us = tries ? fmax(wait_us, try_wait_us(c, v[i].proposer, v[i].k)) : wait_us;
        any |= tries;
    }
    double lost_us = fmax(g->us - g->beside_us + wait_us - g->tokens * none_us(c, r), 0);
    return any && c->since_all >= rounds_between(lost_us, pass_time_us(&c->cost, &r->pass));
}

static void try_all(struct control *c, struct control_item *v, uint32_t n)
{
    bool tried[DRAFTS_MAX] = {false};
    c->since_all = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct control_seq *s = v[i].s;
        s->trying = !v[i].fixed && v[i].k;
        s->since_try = s->trying ? 0 : s->since_try + 1;
        tried[v[i].proposer] |= s->trying;
    }
    for (unsigned p = 0; p < DRAFTS_MAX; p++)
        c->proposers[p].n_tries += tried[p];
}

static void give_none(struct control *c, struct control_item *v, uint32_t n)
{
    c->beside_us = 0;
    for (uint32_t i = 0; i < n; i++)
        v[i].k = 0;
}

/* While a context is read there is nothing to wait for. */
static bool awaits_try(const struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= v[i].s->trying && !prefill_price_continues(&v[i].s->reading);
    return any;
}

static bool any_being_read(const struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= prefill_price_continues(&v[i].s->reading);
    return any;
}

/* While all rounds draft the same, no pass shows what they would take with less: now and then one
 * has less, not less often if that seems to cost much, for that may be wrong. g: what the round
 * promises. */
static bool less_is_due(struct control *c, const struct control_round *r,
                        const struct row_budget *g)
{
    double lost_us = pass_time_us(&c->cost, &r->pass) - r->n_decoding * g->us / g->tokens;
    double rounds = fmax(lost_us / (LESS_SHARE * g->us), LESS_MIN_ROUNDS);
    return !r->n_fixed && ++c->since_less >= fmin(rounds, LESS_MAX_ROUNDS);
}

/* By turns nothing, the next limit below and half. */
static void try_less(struct control *c, struct control_item *v, uint32_t n, uint32_t limit)
{
    unsigned turn = c->n_less++ % 3;
    uint32_t k = turn == 0 ? 0 : turn == 1 ? row_budget_limit_below(limit) : limit / 2;
    c->since_less = 0;
    for (uint32_t i = 0; i < n; i++) {
        v[i].k = min_u32(k, v[i].k);
        v[i].s->trying = v[i].k > 0;
    }
    c->beside_us = row_budget_beside_us(c, v, n);
}

/* ---- the policy ---- */

/* Nobody has a token yet. False: passes were not timed, so nothing can be chosen by it. */
static bool begin(const struct control *c, struct control_item *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        v[i].k = 0;
    return pass_time_us(&c->cost, &(struct pass_time_work){.rows = 1}) > 0;
}

double policy_goodput_ask(struct control *c, const struct control_round *r, struct control_item *v,
                          uint32_t n)
{
    if (!begin(c, v, n) || !n || !r->n_decoding)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        fill_hopes(c, &v[i]);
    struct row_budget g;
    uint32_t limit = choose(c, r, v, n, &g);
    bool drafts = limit && pays(c, r, &g), any_read = any_being_read(v, n);
    c->since_try++;
    c->since_all++;
    if (drafts && !any_read && less_is_due(c, r, &g)) {
        try_less(c, v, n, limit);
        return c->beside_us > 0 ? TRY_WAIT_US : 0;
    }
    if (limit && !drafts && !any_read && all_are_due(c, r, v, n, &g)) {
        try_all(c, v, n);
        return TRY_WAIT_US;
    }
    struct control_item *next = next_to_try(c, v, n, drafts);
    if (!drafts)
        give_none(c, v, n);
    double us = drafts ? g.us : pass_time_us(&c->cost, &r->pass);
    if (!go_on(v, n) && next && try_is_due(c, r, next, us))
        try_one(c, next);
    if (!drafts)
        return awaits_try(v, n) ? TRY_WAIT_US : 0;
    return g.tokens * none_us(c, r) - (g.us - c->beside_us);
}

/* Looking over a bend lets what comes behind a token decide whether it is verified, which it must
 * not where tokens are tested against the law that they were drawn from. */
static bool any_drawn(const struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= v[i].drawn;
    return any;
}

/* The wait for the drafts is over, but the next round has one, too: a time that is to bring most
 * tokens is that of a whole round. */
void policy_goodput_cut(const struct control *c, const struct control_round *r,
                        struct control_item *v, uint32_t n)
{
    if (!n || !begin(c, v, n))
        return;
    for (uint32_t i = 0; i < n; i++) {
        v[i].most = v[i].n;
        fill_chances(c, &v[i]);
    }
    row_budget_drafts(c, r, v, n, !any_drawn(v, n));
    for (uint32_t i = 0; i < n; i++)
        v[i].k = v[i].s->trying ? v[i].n : v[i].k;
}
