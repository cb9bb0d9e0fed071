/* chances.c - enumerates every random outcome of an acceptance rule. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "lib/oracles/chances.h"
#include "lib/lib.h"
#include "base/mem.h"

/* ---- distributions ---- */

#define FLAT(name, ...)                                                                            \
    void name(const uint32_t *before, unsigned n, double w[V])                                     \
    {                                                                                              \
        (void)before, (void)n;                                                                     \
        memcpy(w, (double[V]){__VA_ARGS__}, V * sizeof(double));                                   \
    }
FLAT(chances_bin_p, 1, 2)
FLAT(chances_bin_q, 2, 1)
FLAT(chances_a_p, 5, 3, 2)
FLAT(chances_a_q, 6, 1, 3)
FLAT(chances_a_q_best, 1)       // one-hot
FLAT(chances_a_q_top2, 6, 0, 3) // cut to its two best
FLAT(chances_b_p, 4, 2, 1, 1)
FLAT(chances_b_q, 1, 1, 1, 1)
FLAT(chances_tilted_p, 7, 3)
FLAT(chances_even_q, 1, 1)
FLAT(chances_no_third_p, 5, 3, 0) // a grammar forbids the third token of A

/* The distribution depends on the previous token only. Row 3 is for the first token. */
static void markov(const double rows[4][V], const uint32_t *before, unsigned n, double w[V])
{
    memcpy(w, rows[n ? before[n - 1] : 3], V * sizeof(*w));
}

void chances_markov_p(const uint32_t *before, unsigned n, double w[V])
{
    static const double rows[4][V] = {{5, 3, 2}, {1, 0, 9}, {2, 6, 2}, {3, 3, 4}};
    markov(rows, before, n, w);
}

void chances_markov_q(const uint32_t *before, unsigned n, double w[V])
{
    static const double rows[4][V] = {{6, 1, 3}, {2, 3, 5}, {0, 7, 3}, {5, 4, 1}};
    markov(rows, before, n, w);
}

/* A penalty that excludes repeated tokens. */
static void no_repeat(chances_weights_fn *weights, const uint32_t *before, unsigned n, double w[V])
{
    weights(before, n, w);
    for (unsigned i = 0; i < n; i++)
        w[before[i]] = 0;
}

void chances_penalised_p(const uint32_t *before, unsigned n, double w[V])
{
    no_repeat(chances_b_p, before, n, w);
}

void chances_penalised_q(const uint32_t *before, unsigned n, double w[V])
{
    no_repeat(chances_b_q, before, n, w);
}

/* ---- every outcome ---- */

/* One sequence of outcomes of all choices; next_way() advances to the next sequence. */
struct ways {
    unsigned n, at;
    struct {
        unsigned taken, n;
        double p[V];
    } v[32];
    double weight; // its probability
};

static unsigned possible(const double *p, unsigned from, unsigned n)
{
    while (from < n && !(p[from] > 0))
        from++;
    return from;
}

/* Chooses one of n with probability weights[i] over their sum. */
static unsigned choose(struct ways *w, const double *weights, unsigned n)
{
    unsigned i = w->at++;
    assert_true(i < ARRAY_LEN(w->v));
    if (i == w->n) {
        double sum = 0;
        for (unsigned k = 0; k < n; k++)
            sum += weights[k];
        for (unsigned k = 0; k < n; k++)
            w->v[i].p[k] = weights[k] / sum;
        w->v[i].n = n;
        w->v[i].taken = possible(w->v[i].p, 0, n);
        assert_true(w->v[i].taken < n);
        w->n++;
    }
    w->weight *= w->v[i].p[w->v[i].taken];
    return w->v[i].taken;
}

static bool next_way(struct ways *w)
{
    for (; w->n > 0; w->n--) {
        unsigned i = w->n - 1;
        w->v[i].taken = possible(w->v[i].p, w->v[i].taken + 1, w->v[i].n);
        if (w->v[i].taken < w->v[i].n)
            break;
    }
    w->at = 0;
    w->weight = 1;
    return w->n > 0;
}

/* ---- a way through a world ---- */

struct run {
    const struct chances_world *world;
    struct ways ways;
    unsigned n;
    uint32_t tokens[N_NODES], ids[N_NODES][V], kept[V];
    int32_t parents[N_NODES];
    float weights[N_NODES][V];
    struct accept_q q[N_NODES];
    double low[N_NODES], high[N_NODES]; // range of the uniform number that drew the token
    double p[V];
};

/* The tokens from the root to a node, including it. node -1: none. Returns their number. */
static unsigned path_to(const struct run *r, int32_t node, uint32_t path[N_NODES])
{
    if (node < 0)
        return 0;
    unsigned n = path_to(r, r->parents[node], path);
    path[n] = r->tokens[node];
    return n + 1;
}

static void report_q(struct run *r, unsigned i, const double w[V])
{
    struct accept_q *q = &r->q[i];
    *q = (struct accept_q){.weights = r->weights[i]};
    for (unsigned k = r->world->v; k-- > 0;) { // sparse: not in the order of ids
        if (r->world->form == SPARSE && !(w[k] > 0))
            continue;
        unsigned at = r->world->form == SPARSE ? q->n : k;
        r->ids[i][at] = k;
        r->weights[i][at] = (float)w[k];
        q->sum += w[k];
        q->n++;
    }
    q->ids = r->world->form == SPARSE ? r->ids[i] : NULL;
    if (r->world->form == ONE_HOT)
        q->n = 0;
}

static void drop_siblings(const struct run *r, unsigned i, double w[V])
{
    for (unsigned k = 0; r->world->without_replacement && k < i; k++)
        if (r->parents[k] == r->parents[i])
            w[r->tokens[k]] = 0;
}

static void draw_node(struct run *r, unsigned i)
{
    const struct chances_world *w = r->world;
    uint32_t path[N_NODES];
    double weights[V], sum = 0;
    r->parents[i] = (int32_t)(i / w->width) - 1;
    unsigned n = path_to(r, r->parents[i], path);
    w->q(path, n, weights);
    drop_siblings(r, i, weights);
    r->tokens[i] = choose(&r->ways, weights, w->v);
    for (unsigned k = 0; k < w->v; k++)
        sum += weights[k];
    r->low[i] = 0;
    for (unsigned k = 0; k < r->tokens[i]; k++)
        r->low[i] += weights[k] / sum;
    r->high[i] = r->low[i] + weights[r->tokens[i]] / sum;
    (w->q_told ? w->q_told : w->q)(path, n, weights);
    drop_siblings(r, i, weights);
    report_q(r, i, weights);
}

static void draw_draft(struct run *r)
{
    unsigned n = 0, level = 1;
    for (unsigned d = 0; d < r->world->depth; d++)
        n += level *= r->world->width;
    assert_true(n <= N_NODES);
    for (r->n = 0; r->n < n; r->n++)
        draw_node(r, r->n);
    if (r->world->judged)
        r->n = r->world->judged(r->tokens, r->n);
}

static struct dist_weights p_after(void *arg, uint32_t row)
{
    struct run *r = arg;
    const struct chances_world *w = r->world;
    uint32_t path[N_NODES];
    unsigned n = path_to(r, (int32_t)row - 1, path);
    struct dist_weights p = {.n_vocab = w->v, .weights = r->p, .kept = r->kept};
    (w->p_told ? w->p_told : w->p)(path, n, r->p);
    for (uint32_t k = 0; k < w->v; k++) {
        if (r->p[k] > 0)
            r->kept[p.n_kept++] = k;
        p.sum += r->p[k];
    }
    return p;
}

static bool flip(void *arg, uint32_t row, double probability)
{
    struct run *r = arg;
    assert_true(probability >= 0 && probability <= 1 && row >= 1 && row <= r->n);
    if (r->world->one_uniform) { // the uniform number lies between low and high
        double low = r->low[row - 1], high = r->high[row - 1];
        probability = fmin(fmax((probability - low) / (high - low), 0), 1);
    }
    return choose(&r->ways, (double[]){probability, 1 - probability}, 2) == 0;
}

static uint32_t draw(void *arg, uint32_t row, const struct dist_weights *p)
{
    struct run *r = arg;
    double weights[V] = {0}, sum = 0;
    assert_true(row <= r->n);
    for (uint32_t i = 0; i < p->n_kept; i++)
        sum += weights[p->kept[i]] = p->weights[p->kept[i]];
    assert_true(fabs(sum - p->sum) < EXACT);
    return choose(&r->ways, weights, p->n_vocab);
}

/* A wrong rule: accepts the first token where it is the best of p. */
static void match_best(struct run *r, struct accept_result *ret)
{
    *ret = (struct accept_result){.n_tokens = 1};
    struct dist_weights p = p_after(r, 0);
    uint32_t best = 0;
    for (uint32_t k = 1; k < r->world->v; k++)
        best = p.weights[k] > p.weights[best] ? k : best;
    ret->token = r->tokens[0] == best ? best : draw(r, 0, &p);
}

static void judge(struct run *r, struct accept_result *ret)
{
    struct draft t = {.n = r->n};
    memcpy(t.tokens, r->tokens, r->n * sizeof(*t.tokens));
    memcpy(t.parents, r->parents, r->n * sizeof(*t.parents));
    struct accept_chance c = {p_after, flip, draw, r};
    if (r->world->matches_best)
        match_best(r, ret);
    else
        accept_judge(r->world->rule, r->world->parameter, &t, r->q, &c, ret);
    assert_int_equal(ret->n_tokens, ret->n_accepted + 1);
}

/* Runs one sequence of outcomes: the committed tokens, and tokens from p after them. */
static void run_way(struct run *r, struct outcome *to)
{
    struct accept_result result;
    uint32_t out[N_NODES];
    double weights[V];
    unsigned n = 0, at = 0;
    draw_draft(r);
    judge(r, &result);
    for (; n < result.n_accepted; n++)
        out[n] = r->tokens[result.path[n]];
    out[n++] = result.token;
    for (; n < r->world->depth + 1; n++) {
        r->world->p(out, n, weights);
        out[n] = choose(&r->ways, weights, r->world->v);
    }
    for (unsigned i = 0; i < r->world->depth + 1; i++)
        at = at * V + out[i];
    to->accepted += r->ways.weight * result.n_accepted;
    to->joint[at] += r->ways.weight;
    to->first[out[0]] += r->ways.weight;
}

struct outcome chances_outcome(const struct chances_world *w)
{
    struct outcome o = {0};
    struct run r = {.world = w, .ways = {.weight = 1}};
    do
        run_way(&r, &o);
    while (next_way(&r.ways));
    return o;
}

/* Compares with the joint distribution of p. */
double chances_joint_error(const struct chances_world *w, const struct outcome *o)
{
    double worst = 0, weights[V];
    for (unsigned at = 0; at < CHANCES_N_JOINT >> (6 - 2 * w->depth); at++) {
        uint32_t out[4];
        double weight = 1;
        for (unsigned i = 0, left = at; i <= w->depth; i++, left /= V)
            out[w->depth - i] = left % V;
        for (unsigned i = 0; i <= w->depth && weight > 0; i++) {
            double sum = 0;
            w->p(out, i, weights);
            for (unsigned k = 0; k < V; k++)
                sum += weights[k];
            weight *= weights[out[i]] / sum;
        }
        worst = fmax(worst, fabs(o->joint[at] - weight));
    }
    return worst;
}

void assert_near(double a, double b, double within)
{
    if (!(fabs(a - b) <= within))
        fail_msg("%.15g is not %.15g", a, b);
}

double chances_first_error(const struct outcome *o, const double *p, unsigned n)
{
    double worst = 0;
    for (unsigned k = 0; k < n; k++)
        worst = fmax(worst, fabs(o->first[k] - p[k]));
    return worst;
}

double chances_accepted(struct chances_world w)
{
    struct outcome o = chances_outcome(&w);
    assert_near(chances_joint_error(&w, &o), 0, EXACT);
    return o.accepted;
}

void assert_exact(struct chances_world w, double accepted)
{
    for (w.form = DENSE; w.form <= SPARSE; w.form++) {
        struct outcome o = chances_outcome(&w);
        assert_near(o.accepted, accepted, EXACT);
        assert_near(chances_joint_error(&w, &o), 0, EXACT);
    }
}
