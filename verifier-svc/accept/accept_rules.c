/* accept_rules.c - the rules that test a draft's tokens against p.
 *
 * Rejection: Leviathan, Kalman, Matias 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318.
 * Over siblings: Miao et al. 2023, arXiv:2305.09781; without replacement: Jeon et al. 2024,
 * arXiv:2402.14160. Block: Sun et al. 2024, arXiv:2403.10444. Typical: Cai et al. 2024,
 * arXiv:2401.10774. */
#include <math.h>
#include "verifier-svc/accept/accept.h"

const struct accept_rule_info accept_rules[ACCEPT_N_RULES] = {
    [ACCEPT_OWN_DRAW] = {"own-draw", true, false, 0},
    [ACCEPT_REJECTION] = {"rejection", true, true, 0},
    [ACCEPT_BLOCK] = {"block", true, true, 0},
    [ACCEPT_RECURSIVE] = {"recursive", true, true, 0},
    [ACCEPT_THRESHOLD] = {"threshold", false, false, 0.1},
    [ACCEPT_TYPICAL] = {"typical", false, false, 0.09},
    [ACCEPT_LENIENCE] = {"lenience", false, true, 0.8},
};

/* ---- chances ---- */

bool accept_keyed_flip(void *arg, uint32_t row, double probability)
{
    const struct accept_keyed *k = arg;
    return rng_uniform(rng_u64(k->key, RNG_ACCEPT, k->step, row, 0)) < probability;
}

uint32_t accept_keyed_draw(void *arg, uint32_t row, const struct dist_weights *from)
{
    const struct accept_keyed *k = arg;
    double left = rng_uniform(rng_u64(k->key, RNG_RESIDUAL, k->step, row, 0)) * from->sum;
    uint32_t token = from->kept[0];
    for (uint32_t i = 0; i < from->n_kept && left >= 0; i++) {
        double weight = from->weights[from->kept[i]];
        if (weight > 0)
            token = from->kept[i]; // the last possible one, in case rounding leaves a rest
        left -= weight;
    }
    return token;
}

/* ---- p against q ---- */

static struct accept_q q_of(const struct draft *t, const struct accept_q *q, uint32_t i)
{
    static const float certain = 1;
    return q[i].n ? q[i] : (struct accept_q){1, &t->tokens[i], &certain, 1};
}

static double q_prob(const struct accept_q *q, uint32_t token)
{
    if (!q->ids)
        return (double)q->weights[token] / q->sum;
    uint32_t i = 0;
    while (i < q->n && q->ids[i] != token)
        i++;
    return i < q->n ? (double)q->weights[i] / q->sum : 0;
}

/* min(1, scale p(x)/q(x)); 1 where q gives x no probability. */
static double ratio(const struct dist_weights *p, const struct accept_q *q, uint32_t token,
                    double scale)
{
    double of_p = scale * p->weights[token] / p->sum, of_q = q_prob(q, token);
    return of_p < of_q ? of_p / of_q : 1;
}

/* p <- max(scale p - q, 0), whose sum is not 1. */
static void subtract(struct dist_weights *p, const struct accept_q *q, double scale)
{
    double unit = p->sum / (scale * q->sum);
    for (uint32_t i = 0; i < q->n; i++) {
        double *weight = &p->weights[q->ids ? q->ids[i] : i];
        double rest = *weight - (double)q->weights[i] * unit;
        *weight = rest > 0 ? rest : 0;
    }
    p->sum = 0;
    for (uint32_t i = 0; i < p->n_kept; i++)
        p->sum += p->weights[p->kept[i]];
}

/* Sum of max(scale p - q, 0): what lies outside q, and what exceeds it inside. */
static double excess(const struct dist_weights *p, const struct accept_q *q, double scale)
{
    double inside = 0, above = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        double of_p = p->weights[q->ids ? q->ids[i] : i] / p->sum;
        double rest = scale * of_p - (double)q->weights[i] / q->sum;
        inside += of_p;
        above += rest > 0 ? rest : 0;
    }
    double outside = 1 - inside;
    if (outside < 1e-12) // rounding
        outside = 0;
    return scale * outside + above;
}

/* ---- paths ---- */

static int32_t next_child(const struct draft *t, int32_t node, int32_t after)
{
    for (uint32_t i = (uint32_t)(after + 1); i < t->n; i++)
        if (t->parents[i] == node)
            return (int32_t)i;
    return -1;
}

static void finish(const struct draft *t, int32_t node, const struct dist_weights *from,
                   const struct accept_chance *c, struct accept_result *ret)
{
    ret->token = c->draw(c->arg, (uint32_t)(node + 1), from);
    ret->n_tokens = ret->n_accepted + 1;
    if (next_child(t, node, node) >= 0)
        ret->last = ACCEPT_CORRECTION;
    else
        ret->last = t->n ? ACCEPT_BONUS : ACCEPT_TARGET;
}

/* The first child that passes min(1, scale p/q). After each child that fails, p becomes the
 * residual. */
static int32_t reject_siblings(const struct draft *t, int32_t node, const struct accept_q *q,
                               double scale, struct dist_weights *p, const struct accept_chance *c)
{
    int32_t child = next_child(t, node, node);
    for (; child >= 0; child = next_child(t, node, child)) {
        struct accept_q qi = q_of(t, q, (uint32_t)child);
        double chance = ratio(p, &qi, t->tokens[child], scale);
        if (c->flip(c->arg, (uint32_t)child + 1, chance))
            break;
        subtract(p, &qi, scale);
        if (!(p->sum > 0))
            break; // no other token is possible: only rounding kept the ratio below 1
    }
    return child;
}

/* The first child at least as probable as `least`; p does not change. */
static int32_t probable_child(const struct draft *t, int32_t node, double least,
                              const struct dist_weights *p)
{
    int32_t child = next_child(t, node, node);
    while (child >= 0 && p->weights[t->tokens[child]] / p->sum < least)
        child = next_child(t, node, child);
    return child;
}

static double entropy(const struct dist_weights *p)
{
    double sum = 0;
    for (uint32_t i = 0; i < p->n_kept; i++) {
        double of_p = p->weights[p->kept[i]] / p->sum;
        sum -= of_p > 0 ? of_p * log(of_p) : 0;
    }
    return sum;
}

/* min(epsilon, delta exp(-H)) with delta = sqrt(epsilon): 0.3 for 0.09. */
static double typical(const struct dist_weights *p, double epsilon)
{
    return fmin(epsilon, sqrt(epsilon) * exp(-entropy(p)));
}

static void accept_path(enum accept_rule rule, double parameter, const struct draft *t,
                        const struct accept_q *q, const struct accept_chance *c,
                        struct accept_result *ret)
{
    for (int32_t node = -1;;) {
        struct dist_weights p = c->p(c->arg, (uint32_t)(node + 1));
        int32_t child;
        if (next_child(t, node, node) < 0)
            child = -1;
        else if (rule == ACCEPT_THRESHOLD)
            child = probable_child(t, node, parameter, &p);
        else if (rule == ACCEPT_TYPICAL)
            child = probable_child(t, node, typical(&p, parameter), &p);
        else
            child = reject_siblings(t, node, q, rule == ACCEPT_LENIENCE ? 1 / parameter : 1, &p, c);
        if (child < 0) {
            finish(t, node, &p, c, ret);
            return;
        }
        ret->path[ret->n_accepted++] = (uint32_t)child;
        node = child;
    }
}

/* ---- block verification ---- */

/* Accepts the longest prefix of a chain that passes. P_i is the probability of x_1 .. x_i under p
 * divided by that under q, cut to 1 at each token. h_i is the probability that the prefix of length
 * i is accepted if no longer one is. */
static void accept_block(const struct draft *t, const struct accept_q *q,
                         const struct accept_chance *c, struct accept_result *ret)
{
    double path = 1, accepted = 1; // P_i, and P of the accepted prefix
    uint32_t i = 0, n = 0;
    for (; i < t->n && path > 0; i++) {
        struct accept_q qi = q_of(t, q, i);
        struct dist_weights p = c->p(c->arg, i);
        double rest = excess(&p, &qi, path);
        if (i > 0 && rest > 0 && c->flip(c->arg, i, rest / (rest + (1 - path)))) {
            n = i;
            accepted = path;
        }
        path = ratio(&p, &qi, t->tokens[i], path);
    }
    if (i == t->n && path > 0 && c->flip(c->arg, i, path))
        n = i;
    for (ret->n_accepted = 0; ret->n_accepted < n; ret->n_accepted++)
        ret->path[ret->n_accepted] = ret->n_accepted;
    struct dist_weights p = c->p(c->arg, n);
    if (n < t->n) {
        struct accept_q qn = q_of(t, q, n);
        subtract(&p, &qn, accepted);
        if (!(p.sum > 0)) // only rounding kept the whole draft from being accepted
            p = c->p(c->arg, n);
    }
    finish(t, (int32_t)n - 1, &p, c, ret);
}

void accept_judge(enum accept_rule rule, double parameter, const struct draft *t,
                  const struct accept_q *q, const struct accept_chance *c,
                  struct accept_result *ret)
{
    ret->n_accepted = 0;
    if (rule == ACCEPT_BLOCK && t->n && !draft_branches(t))
        accept_block(t, q, c, ret);
    else
        accept_path(rule, parameter, t, q, c, ret);
}
