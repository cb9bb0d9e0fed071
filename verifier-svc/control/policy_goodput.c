/* policy_goodput.c - drafts as many tokens as make the most committed tokens per second.
 *
 *     goodput = T / U     T: expected committed tokens of the round
 *                         U: time of the pass, plus the wait for drafts
 * A decoding sequence contributes 1 to T. Draft token i contributes h_i, its probability of
 * survival: that of its parent times clamp(F r). F is the factor of the sequence, and r the
 * acceptance rate of its proposer. row_budget.c distributes the rows by h, and exploration.c
 * tests estimates that no draft would correct. docs/controller.md, "Decision", lists all steps. */
#include <math.h>
#include "base/minmax.h"
#include "verifier-svc/control/exploration.h"
#include "verifier-svc/control/policy.h"
#include "verifier-svc/control/row_budget.h"

#define MARGIN 1.02     // drafts must promise 2 % more than none: all estimates are noisy
#define SEQ_TRUST 40.0f // weight of the proposer's rates against A and E of a sequence, in tokens
#define LEFT_MAX 512    // assumed remaining tokens, at most: most answers end before their limit
#define CLAMP_MIN 0.01  // no token is certain or impossible
#define CLAMP_MAX 0.99

/* ---- probability of survival ---- */

/* F = (A + 40) / (E + 40) */
static double seq_factor(const struct control_seq *s)
{
    return (s->accepted + SEQ_TRUST) / (s->expected + SEQ_TRUST);
}

static float clamp(double rate)
{
    return (float)(rate < CLAMP_MIN ? CLAMP_MIN : rate > CLAMP_MAX ? CLAMP_MAX : rate);
}

/* Of a present draft: h_i = h_parent * clamp(F r(depth, s)) */
static void fill_survival_of_draft(const struct control *c, struct control_item *v)
{
    const struct accept_rate *rates = &c->proposers[v->proposer].accept_rate;
    const struct draft *d = v->draft;
    double factor = seq_factor(v->s);
    for (uint32_t i = 0; i < v->allowed; i++) {
        int32_t parent = d->parents[i];
        double alone = accept_rate_alone(d, i);
        double rate = accept_rate_predicted(rates, v->token_depth[i] - 1u, alone);
        v->survival[i] = clamp(rate * factor) * (parent < 0 ? 1 : v->survival[parent]);
    }
}

/* Of a draft to request, a chain: h_i = g * product over j <= i of clamp(F r(j)) */
static void fill_survival_of_request(const struct control *c, struct control_item *v)
{
    const struct accept_rate *rates = &c->proposers[v->proposer].accept_rate;
    double factor = seq_factor(v->s), path = control_state_granted(c, v->proposer, v->s);
    for (uint32_t i = 0; i < v->allowed; i++)
        v->survival[i] = (float)(path *= clamp(accept_rate_at(rates, i) * factor));
}

/* ---- requesting ---- */

/* T * none > 1.02 U */
static bool drafts_pay(const struct control *c, const struct control_round *r,
                       const struct row_budget *g)
{
    return g->tokens * control_state_none_us(c, r) > MARGIN * g->us;
}

static bool exclude_item(struct control_item *v)
{
    bool was_considered = v->considered > 0;
    v->considered = 0;
    return was_considered;
}

/* Excludes items whose prefill costs more than their remaining tokens save. g: a round with drafts.
 * Returns whether there were any. */
static bool exclude_costly(const struct control *c, const struct control_round *r,
                           struct control_item *v, uint32_t n, const struct row_budget *g)
{
    double saved_us = control_state_none_us(c, r) / MARGIN - g->us / g->tokens; // per token
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        double cost_us = control_state_prefill_us(c, &v[i]);
        if (!v[i].fixed && cost_us > saved_us * min_u32(v[i].left, LEFT_MAX))
            any |= exclude_item(&v[i]);
    }
    return any;
}

/* Excludes items whose context was not read. Returns whether there were any. */
static bool exclude_unread(struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        if (!v[i].fixed && prefill_price_is_unread(&v[i].s->prefill, v[i].proposer))
            any |= exclude_item(&v[i]);
    }
    return any;
}

/* Distributes rows among the items that are worth their prefill. If drafts do not pay, distributes
 * them among the items that may try them. Returns the limit per item, as row_budget_best(). */
static uint32_t distribute_rows(struct control *c, const struct control_round *r,
                                struct control_item *v, uint32_t n, struct row_budget *ret)
{
    uint32_t limit = row_budget_best(c, r, v, n, ret);
    if (limit && drafts_pay(c, r, ret) && exclude_costly(c, r, v, n, ret))
        limit = row_budget_best(c, r, v, n, ret);
    if (limit && !drafts_pay(c, r, ret) && exclude_unread(v, n))
        limit = row_budget_best(c, r, v, n, ret);
    return limit;
}

static void request_none(struct control *c, struct control_item *v, uint32_t n)
{
    c->expected_wait_us = 0;
    for (uint32_t i = 0; i < n; i++)
        v[i].nodes = 0;
}

/* False: passes were not timed, so no goodput can be calculated. */
static bool passes_were_timed(const struct control *c)
{
    return pass_time_us(&c->pass_time, &(struct pass_time_work){.rows = 1}) > 0;
}

static double goodput_ask(struct control *c, const struct control_round *r, struct control_item *v,
                          uint32_t n)
{
    if (!n || !r->n_decoding || !passes_were_timed(c))
        return 0;
    for (uint32_t i = 0; i < n; i++)
        fill_survival_of_request(c, &v[i]);
    struct row_budget g;
    uint32_t limit = distribute_rows(c, r, v, n, &g);
    bool pay = limit && drafts_pay(c, r, &g);
    exploration_begin_round(c);
    if (pay && exploration_less(c, r, v, n, limit, &g))
        return c->expected_wait_us > 0 ? EXPLORATION_WAIT_US : 0;
    if (limit && !pay && exploration_all(c, r, v, n, &g))
        return EXPLORATION_WAIT_US;
    struct control_item *next = exploration_next(c, v, n, pay);
    if (!pay)
        request_none(c, v, n);
    double round_us = pay ? g.us : pass_time_us(&c->pass_time, &r->pass);
    exploration_one(c, r, v, n, next, round_us);
    if (!pay)
        return exploration_is_awaited(v, n) ? EXPLORATION_WAIT_US : 0;
    return g.tokens * control_state_none_us(c, r) - (g.us - c->expected_wait_us);
}

/* ---- verifying ---- */

static bool any_drawn(const struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= v[i].draft->q != NULL;
    return any;
}

/* Drafts tested against q end at the first drop of goodput (DSpark, Algorithm 1). A search over
 * bends would let later drawn tokens decide whether an earlier one is verified, which is not
 * lossless. Drafts of a try are verified completely, whatever their tokens promise. */
static void goodput_cut(const struct control *c, const struct control_round *r,
                        struct control_item *v, uint32_t n)
{
    if (!n || !passes_were_timed(c))
        return;
    for (uint32_t i = 0; i < n; i++)
        fill_survival_of_draft(c, &v[i]);
    row_budget_drafts(c, r, v, n, !any_drawn(v, n));
    for (uint32_t i = 0; i < n; i++)
        v[i].nodes = v[i].s->trying ? v[i].allowed : v[i].nodes;
}

const struct policy_ops policy_goodput = {
    .name = "goodput", .k = 16, .ask = goodput_ask, .cut = goodput_cut};
