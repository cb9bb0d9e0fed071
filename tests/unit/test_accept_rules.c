/* test_accept_rules.c - the rules that test a draft against p: their laws, exactly.
 *
 * A small world is run through every chance there is: what the drafter draws, what the rule flips
 * and draws, and how the generation goes on. So acceptance and the joint law of the tokens come out
 * exact, and the same machinery must see each known way of getting it wrong. What follows one by
 * one is noise keyed by position, which only shows over many steps. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "verifier-svc/accept.h"

#define V 4        // tokens at most
#define N_NODES 16 // of a draft at most
#define N_LAW 256u // V^4: joint laws of up to four tokens
#define EXACT 1e-12

/* ---- laws: weights of the next token behind `before`, whole numbers where q is one ---- */

typedef void law_fn(const uint32_t *before, unsigned n, double w[V]);

#define FLAT_LAW(name, ...)                                                                        \
    static void name(const uint32_t *before, unsigned n, double w[V])                              \
    {                                                                                              \
        (void)before, (void)n;                                                                     \
        memcpy(w, (double[V]){__VA_ARGS__}, V * sizeof(double));                                   \
    }
FLAT_LAW(bin_p, 1, 2)
FLAT_LAW(bin_q, 2, 1)
FLAT_LAW(a_p, 5, 3, 2)
FLAT_LAW(a_q, 6, 1, 3)
FLAT_LAW(a_q_best, 1)       // one-hot
FLAT_LAW(a_q_top2, 6, 0, 3) // cut to its two best
FLAT_LAW(b_p, 4, 2, 1, 1)
FLAT_LAW(b_q, 1, 1, 1, 1)
FLAT_LAW(tilted_p, 7, 3)
FLAT_LAW(even_q, 1, 1)
FLAT_LAW(no_third_p, 5, 3, 0) // a grammar forbids the third token of A

/* Each token's next one. */
static void markov(const double rows[4][V], const uint32_t *before, unsigned n, double w[V])
{
    memcpy(w, rows[n ? before[n - 1] : 3], V * sizeof(*w));
}

static void markov_p(const uint32_t *before, unsigned n, double w[V])
{
    static const double rows[4][V] = {{5, 3, 2}, {1, 0, 9}, {2, 6, 2}, {3, 3, 4}};
    markov(rows, before, n, w);
}

static void markov_q(const uint32_t *before, unsigned n, double w[V])
{
    static const double rows[4][V] = {{6, 1, 3}, {2, 3, 5}, {0, 7, 3}, {5, 4, 1}};
    markov(rows, before, n, w);
}

/* A penalty that no token stands twice for; a drafter that knows of it, and one that does not. */
static void no_repeat(law_fn *law, const uint32_t *before, unsigned n, double w[V])
{
    law(before, n, w);
    for (unsigned i = 0; i < n; i++)
        w[before[i]] = 0;
}

static void penalised_p(const uint32_t *before, unsigned n, double w[V])
{
    no_repeat(b_p, before, n, w);
}

static void penalised_q(const uint32_t *before, unsigned n, double w[V])
{
    no_repeat(b_q, before, n, w);
}

/* ---- every chance ---- */

/* One way through all choices; next() is the next one. */
struct ways {
    unsigned n, at;
    struct {
        unsigned taken, n;
        double p[V];
    } v[32];
    double weight; // of this way
};

static unsigned possible(const double *p, unsigned from, unsigned n)
{
    while (from < n && !(p[from] > 0))
        from++;
    return from;
}

/* One of n, with the chances w[i] over their sum. */
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

/* ---- a world ---- */

enum form { DENSE, SPARSE, ONE_HOT };

struct world {
    enum accept_rule rule;
    double parameter;
    unsigned v, depth, width; // of the draft: each node has `width` children
    law_fn *p, *q;
    bool without_replacement;
    enum form form; // that q is told in
    /* What can go wrong. */
    law_fn *p_told, *q_told; // instead of p and q
    bool one_uniform;        // the same for drawing a token and for accepting it
    unsigned (*judged)(const uint32_t *tokens, unsigned n); // of a chain's n tokens, knowing them
    bool matches_best;                                      // a token stays because it is p's best
};

struct outcome {
    double accepted;   // expected
    double law[N_LAW]; // of the first depth + 1 tokens
    double first[V];   // of the first alone
};

struct run {
    const struct world *world;
    struct ways ways;
    unsigned n;
    uint32_t tokens[N_NODES], ids[N_NODES][V], kept[V];
    int32_t parents[N_NODES];
    float weights[N_NODES][V];
    struct accept_q q[N_NODES];
    double low[N_NODES], high[N_NODES]; // between these was the uniform that drew the token
    double p[V];
};

/* The tokens on the way to a node, itself included; -1: none. */
static unsigned path_to(const struct run *r, int32_t node, uint32_t path[N_NODES])
{
    if (node < 0)
        return 0;
    unsigned n = path_to(r, r->parents[node], path);
    path[n] = r->tokens[node];
    return n + 1;
}

static void tell_q(struct run *r, unsigned i, const double w[V])
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
    const struct world *w = r->world;
    uint32_t path[N_NODES];
    double law[V], sum = 0;
    r->parents[i] = (int32_t)(i / w->width) - 1;
    unsigned n = path_to(r, r->parents[i], path);
    w->q(path, n, law);
    drop_siblings(r, i, law);
    r->tokens[i] = choose(&r->ways, law, w->v);
    for (unsigned k = 0; k < w->v; k++)
        sum += law[k];
    r->low[i] = 0;
    for (unsigned k = 0; k < r->tokens[i]; k++)
        r->low[i] += law[k] / sum;
    r->high[i] = r->low[i] + law[r->tokens[i]] / sum;
    (w->q_told ? w->q_told : w->q)(path, n, law);
    drop_siblings(r, i, law);
    tell_q(r, i, law);
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

static struct dist_law p_behind(void *arg, uint32_t row)
{
    struct run *r = arg;
    const struct world *w = r->world;
    uint32_t path[N_NODES];
    unsigned n = path_to(r, (int32_t)row - 1, path);
    struct dist_law law = {.n_vocab = w->v, .weights = r->p, .kept = r->kept};
    (w->p_told ? w->p_told : w->p)(path, n, r->p);
    for (uint32_t k = 0; k < w->v; k++) {
        if (r->p[k] > 0)
            r->kept[law.n_kept++] = k;
        law.sum += r->p[k];
    }
    return law;
}

static bool flip(void *arg, uint32_t row, double probability)
{
    struct run *r = arg;
    assert_true(probability >= 0 && probability <= 1 && row >= 1 && row <= r->n);
    if (r->world->one_uniform) { // it is known to lie between low and high
        double low = r->low[row - 1], high = r->high[row - 1];
        probability = fmin(fmax((probability - low) / (high - low), 0), 1);
    }
    return choose(&r->ways, (double[]){probability, 1 - probability}, 2) == 0;
}

static uint32_t draw(void *arg, uint32_t row, const struct dist_law *law)
{
    struct run *r = arg;
    double weights[V] = {0}, sum = 0;
    assert_true(row <= r->n);
    for (uint32_t i = 0; i < law->n_kept; i++)
        sum += weights[law->kept[i]] = law->weights[law->kept[i]];
    assert_true(fabs(sum - law->sum) < EXACT);
    return choose(&r->ways, weights, law->n_vocab);
}

/* The mistake of a rule that the library does not have. */
static void match_best(struct run *r, struct accept_result *ret)
{
    *ret = (struct accept_result){.n_tokens = 1};
    struct dist_law law = p_behind(r, 0);
    uint32_t best = 0;
    for (uint32_t k = 1; k < r->world->v; k++)
        best = law.weights[k] > law.weights[best] ? k : best;
    ret->token = r->tokens[0] == best ? best : draw(r, 0, &law);
}

static void judge(struct run *r, struct accept_result *ret)
{
    struct accept_tree t = {r->n, r->tokens, r->parents};
    struct accept_chance c = {p_behind, flip, draw, r};
    if (r->world->matches_best)
        match_best(r, ret);
    else
        accept_judge(r->world->rule, r->world->parameter, &t, r->q, &c, ret);
    assert_int_equal(ret->n_tokens, ret->n_accepted + 1);
}

/* What one way yields: the committed tokens, and those of p behind them. */
static void run_way(struct run *r, struct outcome *to)
{
    struct accept_result result;
    uint32_t out[N_NODES];
    double law[V];
    unsigned n = 0, at = 0;
    draw_draft(r);
    judge(r, &result);
    for (; n < result.n_accepted; n++)
        out[n] = r->tokens[result.path[n]];
    out[n++] = result.token;
    for (; n < r->world->depth + 1; n++) {
        r->world->p(out, n, law);
        out[n] = choose(&r->ways, law, r->world->v);
    }
    for (unsigned i = 0; i < r->world->depth + 1; i++)
        at = at * V + out[i];
    to->accepted += r->ways.weight * result.n_accepted;
    to->law[at] += r->ways.weight;
    to->first[out[0]] += r->ways.weight;
}

static struct outcome outcome_of(const struct world *w)
{
    struct outcome o = {0};
    struct run r = {.world = w, .ways = {.weight = 1}};
    do
        run_way(&r, &o);
    while (next_way(&r.ways));
    return o;
}

/* The joint law of p itself; the largest difference. */
static double law_error(const struct world *w, const struct outcome *o)
{
    double worst = 0, law[V];
    for (unsigned at = 0; at < N_LAW >> (6 - 2 * w->depth); at++) {
        uint32_t out[4];
        double weight = 1;
        for (unsigned i = 0, left = at; i <= w->depth; i++, left /= V)
            out[w->depth - i] = left % V;
        for (unsigned i = 0; i <= w->depth && weight > 0; i++) {
            double sum = 0;
            w->p(out, i, law);
            for (unsigned k = 0; k < V; k++)
                sum += law[k];
            weight *= law[out[i]] / sum;
        }
        worst = fmax(worst, fabs(o->law[at] - weight));
    }
    return worst;
}

static void assert_near(double a, double b, double within)
{
    if (!(fabs(a - b) <= within))
        fail_msg("%.15g is not %.15g", a, b);
}

static double first_error(const struct outcome *o, const double *law, unsigned n)
{
    double worst = 0;
    for (unsigned k = 0; k < n; k++)
        worst = fmax(worst, fabs(o->first[k] - law[k]));
    return worst;
}

/* Acceptance as said, in each form that can tell this q, and the joint law that of p. */
static void assert_exact(struct world w, double accepted)
{
    for (w.form = DENSE; w.form <= SPARSE; w.form++) {
        struct outcome o = outcome_of(&w);
        assert_near(o.accepted, accepted, EXACT);
        assert_near(law_error(&w, &o), 0, EXACT);
    }
}

#define BIN .v = 2, .p = bin_p, .q = bin_q
#define A .v = 3, .p = a_p, .q = a_q
#define B .v = 4, .p = b_p, .q = b_q

/* ---- chains ---- */

static void rejection_accepts_what_p_and_q_share(void **state)
{
    (void)state;
    static const double expected[3][3] = {
        {2. / 3, 10. / 9, 38. / 27}, {4. / 5, 36. / 25, 244. / 125}, {3. / 4, 21. / 16, 111. / 64}};
    for (unsigned g = 1; g <= 3; g++) {
        enum accept_rule rule = ACCEPT_REJECTION;
        assert_exact((struct world){rule, 0, BIN, .depth = g, .width = 1}, expected[0][g - 1]);
        assert_exact((struct world){rule, 0, A, .depth = g, .width = 1}, expected[1][g - 1]);
        assert_exact((struct world){rule, 0, B, .depth = g, .width = 1}, expected[2][g - 1]);
    }
}

static void block_verification_accepts_more(void **state)
{
    (void)state;
    static const double expected[3][3] = {
        {2. / 3, 11. / 9, 5. / 3}, {4. / 5, 73. / 50, 1011. / 500}, {3. / 4, 11. / 8, 61. / 32}};
    for (unsigned g = 1; g <= 3; g++) {
        enum accept_rule rule = ACCEPT_BLOCK;
        assert_exact((struct world){rule, 0, BIN, .depth = g, .width = 1}, expected[0][g - 1]);
        assert_exact((struct world){rule, 0, A, .depth = g, .width = 1}, expected[1][g - 1]);
        assert_exact((struct world){rule, 0, B, .depth = g, .width = 1}, expected[2][g - 1]);
    }
}

static double accepted_of(struct world w)
{
    struct outcome o = outcome_of(&w);
    assert_near(law_error(&w, &o), 0, EXACT);
    return o.accepted;
}

static void laws_that_depend_on_the_tokens_before_are_kept(void **state)
{
    (void)state;
    for (unsigned g = 1; g <= 3; g++) {
        struct world w = {ACCEPT_REJECTION, .v = 3, .depth = g, .width = 1};
        w.p = markov_p;
        w.q = markov_q;
        double by_token = accepted_of(w);
        w.rule = ACCEPT_BLOCK;
        assert_true(accepted_of(w) >= by_token - EXACT);
    }
}

static void a_draft_that_was_chosen_stays_with_the_chance_p_gives_it(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct world w = {rules[i], A, .depth = 2, .width = 1};
        w.q = a_q_best;
        w.form = ONE_HOT;
        assert_near(accepted_of(w), .5 + .25, EXACT);
    }
}

static void without_a_draft_the_token_is_one_of_p(void **state)
{
    (void)state;
    for (enum accept_rule rule = ACCEPT_REJECTION; rule < ACCEPT_N_RULES; rule++)
        assert_exact((struct world){rule, .5, A, .depth = 0, .width = 1}, 0);
}

static void a_draft_as_good_as_p_stays_whole(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct world w = {rules[i], .v = 3, .p = markov_p, .q = markov_p, .depth = 3, .width = 1};
        assert_exact(w, 3);
    }
}

static void a_token_that_p_forbids_never_stays(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct world w = {rules[i], A, .depth = 3, .width = 1};
        w.p = no_third_p;
        accepted_of(w);
    }
}

/* ---- trees ---- */

static void recursive_rejection_of_siblings(void **state)
{
    (void)state;
    static const double expected[2][2][3] = {
        {{4. / 5, 41. / 50, 419. / 500}, {4. / 5, 47. / 56, 1}},
        {{3. / 4, 13. / 16, 55. / 64}, {3. / 4, 5. / 6, 11. / 12}}};
    for (unsigned k = 1; k <= 3; k++)
        for (unsigned without = 0; without < 2; without++) {
            struct world a = {ACCEPT_RECURSIVE, A, .depth = 1, .width = k},
                         b = {ACCEPT_RECURSIVE, B};
            a.without_replacement = b.without_replacement = without;
            b.depth = 1;
            b.width = k;
            assert_exact(a, expected[0][without][k - 1]);
            assert_exact(b, expected[1][without][k - 1]);
        }
}

static void a_tree_of_drawn_tokens_keeps_the_law(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct world w = {rules[i], .v = 3, .p = markov_p, .q = markov_q, .depth = 2, .width = 2};
        double with = accepted_of(w);
        w.without_replacement = true;
        assert_true(accepted_of(w) > with);
        w.width = 1;
        assert_true(accepted_of(w) < with);
    }
}

FLAT_LAW(first_then_third, 6, 0, 3)

/* The two best of q as children that were chosen: p of both. */
static void chosen_siblings_stay_with_the_chance_p_gives_them_all(void **state)
{
    (void)state;
    struct world w = {ACCEPT_RECURSIVE, A, .depth = 1, .width = 2};
    w.q = first_then_third;
    w.without_replacement = true;
    w.form = ONE_HOT;
    assert_near(accepted_of(w), .7, EXACT);
}

/* ---- lossy rules ---- */

static void lenience_has_the_law_it_says(void **state)
{
    (void)state;
    struct world w = {ACCEPT_LENIENCE, .8, A, .depth = 1, .width = 1};
    struct outcome o = outcome_of(&w);
    assert_near(o.accepted, 19. / 20, EXACT);
    assert_near(first_error(&o, (double[]){29. / 48, 7. / 48, 1. / 4}, 3), 0, EXACT);
    double distance = 0;
    for (int k = 0; k < 3; k++)
        distance += fabs(o.first[k] - (double[]){.5, .3, .2}[k]) / 2;
    assert_near(distance, 37. / 240, EXACT);

    w.parameter = .5;
    o = outcome_of(&w);
    assert_near(o.accepted, 1, EXACT);
    assert_near(first_error(&o, (double[]){.6, .1, .3}, 3), 0, EXACT);

    w.parameter = 1; // then it is rejection
    o = outcome_of(&w);
    assert_near(law_error(&w, &o), 0, EXACT);
}

static void threshold_keeps_what_is_probable_and_corrects_by_p(void **state)
{
    (void)state;
    struct world w = {ACCEPT_THRESHOLD, .25, A, .depth = 1, .width = 1};
    struct outcome o = outcome_of(&w); // tokens 0 and 1 stay, 2 is replaced by one of p
    assert_near(o.accepted, .7, EXACT);
    assert_near(first_error(&o, (double[]){.6 + .15, .1 + .09, .06}, 3), 0, EXACT);
    w.parameter = .1;
    o = outcome_of(&w);
    assert_near(o.accepted, 1, EXACT);
}

static void typical_follows_the_entropy(void **state)
{
    (void)state;
    double h = .5 * log(2) + .3 * log(10. / 3) + .2 * log(5); // exp(-h) = .357
    struct world w = {ACCEPT_TYPICAL, .09, A, .depth = 1, .width = 1};
    assert_near(outcome_of(&w).accepted, 1, EXACT); // min(.09, .3 x .357) < .2
    w.parameter = .5;                               // min(.5, .707 x .357 = .252)
    assert_true(sqrt(.5) * exp(-h) > .2 && sqrt(.5) * exp(-h) < .3);
    assert_near(outcome_of(&w).accepted, .7, EXACT);
}

/* ---- ways of getting it wrong, each of which must show ---- */

static void assert_wrong(const struct world *w)
{
    struct outcome o = outcome_of(w);
    assert_true(law_error(w, &o) > 1e-3);
}

static void q_must_be_what_was_drawn_from(void **state)
{
    (void)state;
    struct world w = {ACCEPT_REJECTION, A, .depth = 1, .width = 1};
    w.q = a_q_top2;
    assert_exact(w, .7);
    w.q_told = a_q;
    struct outcome o = outcome_of(&w);
    assert_near(first_error(&o, (double[]){5. / 9, 2. / 9, 2. / 9}, 3), 0, EXACT);
    assert_wrong(&w);
    w.rule = ACCEPT_BLOCK;
    w.depth = 3;
    assert_wrong(&w);
}

static void drawing_and_accepting_must_be_independent(void **state)
{
    (void)state;
    struct world w = {ACCEPT_REJECTION, BIN, .depth = 1, .width = 1, .one_uniform = true};
    struct outcome o = outcome_of(&w);
    assert_near(first_error(&o, (double[]){.5, .5}, 2), 0, EXACT);
    assert_wrong(&w);
}

/* The chooser of DSpark's appendix A: rows by what they are expected to bring, at these speeds. */
static const double speed[] = {1, .5, .45};

static unsigned search_all(const uint32_t *tokens, unsigned n)
{
    double a[2] = {.8, tokens[0] == 0 ? .8 * .9 : 0}, sum = 1, best = speed[0];
    unsigned kept = 0;
    for (unsigned i = 0; i < n; i++) {
        sum += a[i];
        if (sum * speed[i + 1] > best) {
            best = sum * speed[i + 1];
            kept = i + 1;
        }
    }
    return kept;
}

static unsigned stop_at_the_first_drop(const uint32_t *tokens, unsigned n)
{
    (void)tokens; // row 1 is judged before its token is looked at
    return n && (1 + .8) * speed[1] > speed[0] ? search_all(tokens, n) : 0;
}

static unsigned drop_low_q(const uint32_t *tokens, unsigned n)
{
    unsigned kept = 0;
    while (kept < n && tokens[kept] != 1) // of which q is .1
        kept++;
    return kept;
}

static unsigned stop_behind_low_q(const uint32_t *tokens, unsigned n)
{
    unsigned kept = drop_low_q(tokens, n);
    return kept < n ? kept + 1 : n; // the token that caused it stays
}

static unsigned drop_forbidden(const uint32_t *tokens, unsigned n)
{
    unsigned kept = 0;
    while (kept < n && tokens[kept] != 2)
        kept++;
    return kept;
}

static unsigned end_at_forbidden(const uint32_t *tokens, unsigned n)
{
    unsigned kept = drop_forbidden(tokens, n);
    return kept < n ? kept + 1 : n;
}

/* Whether row 2 pays, judged by the token before it, and by its own. */
static unsigned by_the_one_before(const uint32_t *tokens, unsigned n)
{
    return n > 1 && tokens[0] == 2 ? 1 : n;
}

static unsigned by_its_own(const uint32_t *tokens, unsigned n)
{
    return n > 1 && tokens[1] == 2 ? 1 : n;
}

static unsigned late_if_it_starts_with_third(const uint32_t *tokens, unsigned n)
{
    return tokens[0] == 2 ? 0 : n;
}

static void what_is_judged_must_not_depend_on_the_token_itself(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct world w = {rules[i], A, .depth = 2, .width = 1};
        w.judged = stop_behind_low_q;
        accepted_of(w);
        w.judged = by_the_one_before;
        accepted_of(w);
        w.judged = by_its_own;
        assert_wrong(&w);
        w.judged = late_if_it_starts_with_third;
        assert_wrong(&w);
        w.judged = drop_low_q;
        assert_wrong(&w);
        w.depth = 1;
        struct outcome o = outcome_of(&w);
        assert_near(first_error(&o, (double[]){.55, .23, .22}, 3), 0, EXACT);
        w.p = no_third_p;
        w.judged = end_at_forbidden;
        accepted_of(w);
        w.judged = drop_forbidden;
        assert_wrong(&w);
    }
}

static void rows_must_be_chosen_before_their_tokens_are_known(void **state)
{
    (void)state;
    struct world w = {ACCEPT_REJECTION, .v = 2, .p = tilted_p, .q = even_q, .depth = 2, .width = 1};
    w.judged = search_all;
    struct outcome o = outcome_of(&w);
    assert_near(first_error(&o, (double[]){.85, .15}, 2), 0, EXACT);
    assert_wrong(&w);
    w.judged = stop_at_the_first_drop;
    accepted_of(w);
}

/* The better of two drafts, where one of them is a constant: the other one's token decides. */
static unsigned lose_to_another(const uint32_t *tokens, unsigned n)
{
    return tokens[0] == 1 ? 0 : n;
}

static void drawn_drafts_must_not_be_chosen_by_score(void **state)
{
    (void)state;
    struct world w = {ACCEPT_REJECTION, A, .depth = 1, .width = 1, .judged = lose_to_another};
    assert_wrong(&w);
    w.q = a_q_best; // a chosen one may
    w.form = ONE_HOT;
    accepted_of(w);
}

static void being_the_best_is_no_reason_to_stay(void **state)
{
    (void)state;
    struct world w = {ACCEPT_REJECTION, A, .depth = 1, .width = 1, .matches_best = true};
    struct outcome o = outcome_of(&w);
    assert_near(first_error(&o, (double[]){.8, .12, .08}, 3), 0, EXACT);
    assert_wrong(&w);
}

static void penalties_must_count_the_drafts_own_tokens(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct world w = {rules[i], B, .depth = 2, .width = 1};
        w.p = penalised_p;
        accepted_of(w); // of a drafter without penalties
        w.q = penalised_q;
        accepted_of(w);
        w.p_told = b_p;
        assert_wrong(&w);
    }
}

static void lossy_rules_show(void **state)
{
    (void)state;
    assert_wrong(&(struct world){ACCEPT_THRESHOLD, .1, A, .depth = 1, .width = 1});
    assert_wrong(&(struct world){ACCEPT_TYPICAL, .09, A, .depth = 1, .width = 1});
    assert_wrong(&(struct world){ACCEPT_LENIENCE, .8, A, .depth = 1, .width = 1});
}

/* ---- keyed noise over many steps ---- */

#define G 3

struct stream {
    struct accept_keyed keyed; // first: it is what accept_keyed_flip() takes
    uint32_t position;
    bool flips_by_position, drafts_by_position, residual_by_position;
    double p[V];
};

static const uint32_t three[] = {0, 1, 2};
static const double of_p[] = {.5, .3, .2};
static const float of_q[] = {39322, 6553, 19661}; // of 65536
#define Q_SUM 65536

static struct dist_law stream_p(void *arg, uint32_t row)
{
    struct stream *s = arg;
    (void)row;
    memcpy(s->p, of_p, sizeof(of_p));
    return (struct dist_law){3, 3, s->p, three, 1};
}

static bool stream_flip(void *arg, uint32_t row, double probability)
{
    struct stream *s = arg;
    struct accept_keyed by_position = {s->keyed.key, s->position + row};
    return s->flips_by_position ? accept_keyed_flip(&by_position, 0, probability)
                                : accept_keyed_flip(arg, row, probability);
}

static uint32_t stream_draw(void *arg, uint32_t row, const struct dist_law *law)
{
    struct stream *s = arg;
    struct accept_keyed by_position = {s->keyed.key, s->position + row};
    return s->residual_by_position ? accept_keyed_draw(&by_position, 0, law)
                                   : accept_keyed_draw(arg, row, law);
}

static uint32_t stream_draft(const struct stream *s, uint32_t i)
{
    uint32_t at = s->drafts_by_position ? s->position + i : s->keyed.step, token = 0;
    uint64_t w = rng_u64(s->keyed.key, RNG_PROPOSER, at, s->drafts_by_position ? 0 : i, 0);
    float left = (float)(w >> 48); // one of the 65536
    for (; token < 2 && left >= of_q[token]; token++)
        left -= of_q[token];
    return token;
}

/* Shares of the tokens, and of drafts accepted per step. */
static double run_stream(struct stream *s, enum accept_rule rule, uint64_t n, double shares[3])
{
    static const int32_t parents[G] = {-1, 0, 1};
    struct accept_chance c = {stream_p, stream_flip, stream_draw, s};
    struct accept_q q[G];
    uint64_t count[3] = {0}, n_accepted = 0;
    for (int i = 0; i < G; i++)
        q[i] = (struct accept_q){3, three, of_q, Q_SUM};
    while (s->position < n) {
        uint32_t tokens[G];
        struct accept_result r;
        for (uint32_t i = 0; i < G; i++)
            tokens[i] = stream_draft(s, i);
        accept_judge(rule, 0, &(struct accept_tree){G, tokens, parents}, q, &c, &r);
        for (uint32_t i = 0; i < r.n_accepted; i++)
            count[tokens[i]]++;
        count[r.token]++;
        n_accepted += r.n_accepted;
        s->position += r.n_tokens;
        s->keyed.step++;
    }
    for (int k = 0; k < 3; k++)
        shares[k] = (double)count[k] / (double)s->position;
    return (double)n_accepted / s->keyed.step;
}

static double chi_square(const double shares[3], uint64_t n)
{
    double sum = 0;
    for (int k = 0; k < 3; k++)
        sum += (shares[k] - of_p[k]) * (shares[k] - of_p[k]) / of_p[k];
    return sum * (double)n;
}

#define CHI_SQUARE_MAX 23.0 // 2 degrees of freedom: passed by chance once in 1e5

static uint64_t n_tokens(void)
{
    return LIB_SANITIZED ? 100000 : getenv("TANDEM_TEST_LONG") ? 20000000 : 1000000;
}

static void keyed_noise_keeps_the_law_over_many_steps(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    const double accepted[] = {244. / 125, 1011. / 500, 244. / 125};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct stream s = {.keyed = {.key = rng_key(11, i)}};
        double shares[3], per_step = run_stream(&s, rules[i], n_tokens(), shares);
        double x = chi_square(shares, s.position);
        if (x > CHI_SQUARE_MAX)
            fail_msg("%s: chi-square %.1f", accept_rules[rules[i]].name, x);
        assert_near(per_step, accepted[i], 10 / sqrt((double)s.position));
    }
}

static void noise_keyed_by_position_shows_in_block_verification(void **state)
{
    (void)state;
    const struct {
        bool flips, drafts, residual;
        double shares[3];
    } wrong[] = {{true, true, true, {.4968, .2945, .2087}},
                 {true, false, false, {.4959, .3059, .1982}},
                 {false, true, false, {.5015, .2885, .2100}}};
    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        struct stream s = {.keyed = {.key = rng_key(12, i)},
                           .flips_by_position = wrong[i].flips,
                           .drafts_by_position = wrong[i].drafts,
                           .residual_by_position = wrong[i].residual};
        double shares[3];
        run_stream(&s, ACCEPT_BLOCK, n_tokens(), shares);
        for (int k = 0; k < 3; k++)
            assert_near(shares[k], wrong[i].shares[k], 1e-4 + 2.5 / sqrt((double)s.position));
        assert_true(LIB_SANITIZED || chi_square(shares, s.position) > 2 * CHI_SQUARE_MAX);
    }
}

static void a_draw_stays_within_what_can_come(void **state)
{
    (void)state;
    double weights[] = {0, 1e-300, 0, 0};
    uint32_t kept[] = {3, 1, 0, 2};
    struct dist_law law = {4, 4, weights, kept, 1e-300};
    for (uint32_t step = 0; step < 100; step++)
        assert_int_equal(accept_keyed_draw(&(struct accept_keyed){1, step}, 0, &law), 1);
    law.sum = 2; // more than there is: the last that can come
    for (uint32_t step = 0; step < 100; step++)
        assert_int_equal(accept_keyed_draw(&(struct accept_keyed){1, step}, 0, &law), 1);
}

static void certain_flips_are_certain(void **state)
{
    (void)state;
    for (uint32_t step = 0; step < 1000; step++) {
        struct accept_keyed k = {rng_splitmix64(step), step};
        assert_true(accept_keyed_flip(&k, 0, 1));
        assert_false(accept_keyed_flip(&k, 0, 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rejection_accepts_what_p_and_q_share),
        cmocka_unit_test(block_verification_accepts_more),
        cmocka_unit_test(laws_that_depend_on_the_tokens_before_are_kept),
        cmocka_unit_test(a_draft_that_was_chosen_stays_with_the_chance_p_gives_it),
        cmocka_unit_test(without_a_draft_the_token_is_one_of_p),
        cmocka_unit_test(a_draft_as_good_as_p_stays_whole),
        cmocka_unit_test(a_token_that_p_forbids_never_stays),
        cmocka_unit_test(recursive_rejection_of_siblings),
        cmocka_unit_test(a_tree_of_drawn_tokens_keeps_the_law),
        cmocka_unit_test(chosen_siblings_stay_with_the_chance_p_gives_them_all),
        cmocka_unit_test(lenience_has_the_law_it_says),
        cmocka_unit_test(threshold_keeps_what_is_probable_and_corrects_by_p),
        cmocka_unit_test(typical_follows_the_entropy),
        cmocka_unit_test(q_must_be_what_was_drawn_from),
        cmocka_unit_test(drawing_and_accepting_must_be_independent),
        cmocka_unit_test(what_is_judged_must_not_depend_on_the_token_itself),
        cmocka_unit_test(rows_must_be_chosen_before_their_tokens_are_known),
        cmocka_unit_test(drawn_drafts_must_not_be_chosen_by_score),
        cmocka_unit_test(being_the_best_is_no_reason_to_stay),
        cmocka_unit_test(penalties_must_count_the_drafts_own_tokens),
        cmocka_unit_test(lossy_rules_show),
        cmocka_unit_test(keyed_noise_keeps_the_law_over_many_steps),
        cmocka_unit_test(noise_keyed_by_position_shows_in_block_verification),
        cmocka_unit_test(a_draw_stays_within_what_can_come),
        cmocka_unit_test(certain_flips_are_certain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
