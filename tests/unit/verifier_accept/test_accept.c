/* test_accept.c - the own-draw rule: accepted tokens, and the distribution of the output.
 *
 * The target of these tests is a little chain: logits depend on the last token only, so that every
 * expectation is exact. */
#include <math.h>
#include <string.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "model/dist.h"
#include "verifier-svc/accept/accept.h"

#define V 5
#define EOS 4
#define N_OUT 24

/* ---- scripted draws: the walk itself ---- */

struct script {
    const uint32_t *draws; // what the target says, in order
    unsigned n, at;
    uint32_t rows[DRAFT_MAX_NODES + 1]; // which row was asked
};

static bool draw_scripted(void *arg, uint32_t row, uint32_t *ret_token)
{
    struct script *s = arg;
    assert_true(s->at < s->n);
    s->rows[s->at] = row;
    *ret_token = s->draws[s->at++];
    return *ret_token != EOS;
}

static struct draft chain(const uint32_t *tokens, uint32_t n)
{
    struct draft d = {.n = n};
    for (uint32_t i = 0; i < n; i++) {
        d.tokens[i] = tokens[i];
        d.parents[i] = (int32_t)i - 1;
    }
    return d;
}

static struct accept_result walk(const struct draft *t, const uint32_t *draws, unsigned n)
{
    struct script s = {.draws = draws, .n = n};
    struct accept_result r;
    accept_own_draw(t, draw_scripted, &s, &r);
    assert_int_equal(r.n_tokens, s.at);
    for (uint32_t i = 0; i < r.n_accepted; i++) // each accepted token's own row is asked next
        assert_true(i + 1 >= r.n_tokens || s.rows[i + 1] == r.path[i] + 1);
    return r;
}

static void an_empty_draft_gives_one_token_of_the_target(void **state)
{
    (void)state;
    struct draft t = {0};
    struct accept_result r = walk(&t, (uint32_t[]){3}, 1);
    assert_int_equal(r.n_tokens, 1);
    assert_int_equal(r.n_accepted, 0);
    assert_int_equal(r.last, ACCEPT_TARGET);
}

static void a_fully_accepted_draft_brings_a_bonus(void **state)
{
    (void)state;
    struct draft t = chain((uint32_t[]){1, 2, 3}, 3);
    struct accept_result r = walk(&t, (uint32_t[]){1, 2, 3, 0}, 4);
    assert_int_equal(r.n_tokens, 4);
    assert_int_equal(r.n_accepted, 3);
    assert_int_equal(r.last, ACCEPT_BONUS);
}

static void the_first_difference_ends_the_walk_with_a_correction(void **state)
{
    (void)state;
    struct draft t = chain((uint32_t[]){1, 2, 3}, 3);
    struct accept_result r = walk(&t, (uint32_t[]){1, 0}, 2);
    assert_int_equal(r.n_tokens, 2);
    assert_int_equal(r.n_accepted, 1);
    assert_int_equal(r.last, ACCEPT_CORRECTION);
}

static void nothing_accepted_still_gives_the_targets_token(void **state)
{
    (void)state;
    struct draft t = chain((uint32_t[]){1, 2, 3}, 3);
    struct accept_result r = walk(&t, (uint32_t[]){2}, 1);
    assert_int_equal(r.n_tokens, 1);
    assert_int_equal(r.n_accepted, 0);
    assert_int_equal(r.last, ACCEPT_CORRECTION);
}

static void an_end_inside_the_draft_drops_the_rest(void **state)
{
    (void)state;
    struct draft t = chain((uint32_t[]){1, EOS, 2, 3}, 4);
    struct accept_result r = walk(&t, (uint32_t[]){1, EOS}, 2);
    assert_int_equal(r.n_tokens, 2);
    assert_int_equal(r.n_accepted, 2);
    assert_int_equal(r.last, ACCEPT_ACCEPTED);
}

static void an_end_that_was_not_drafted_is_a_correction(void **state)
{
    (void)state;
    struct draft t = chain((uint32_t[]){1, 2}, 2);
    struct accept_result r = walk(&t, (uint32_t[]){1, EOS}, 2);
    assert_int_equal(r.n_accepted, 1);
    assert_int_equal(r.last, ACCEPT_CORRECTION);
}

/*        context
 *        /     \
 *      1(0)    2(1)
 *      / \       \
 *   1(2)  3(3)   1(4)
 *          |
 *         2(5)           */
static const struct draft tree = {
    .n = 6, .tokens = {1, 2, 1, 3, 1, 2}, .parents = {-1, -1, 0, 0, 1, 3}, .tree = true};

static void every_path_of_a_tree_can_be_accepted(void **state)
{
    (void)state;
    for (uint32_t leaf = 0; leaf < tree.n; leaf++) {
        uint32_t path[8], draws[8], n = 0;
        for (int32_t i = (int32_t)leaf; i >= 0; i = tree.parents[i])
            path[n++] = (uint32_t)i;
        for (uint32_t i = 0; i < n; i++)
            draws[i] = tree.tokens[path[n - 1 - i]];
        draws[n] = 0; // no node's child
        struct accept_result r = walk(&tree, draws, n + 1);
        assert_int_equal(r.n_accepted, n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(r.path[i], path[n - 1 - i]);
        bool is_leaf = leaf == 2 || leaf == 4 || leaf == 5;
        assert_int_equal(r.last, is_leaf ? ACCEPT_BONUS : ACCEPT_CORRECTION);
    }
}

/* ---- keyed draws: output and its distribution ---- */

struct target {
    struct dist *dist;
    const float (*logits)[V]; // by the last token
    struct dist_params params;
    uint64_t key;
    uint32_t out[N_OUT + DRAFT_MAX_NODES], n; // committed; out[0] is the prompt
};

static bool draw_keyed(void *arg, uint32_t row, uint32_t *ret_token)
{
    struct target *t = arg;
    (void)row; // the row's context is the committed tokens
    dist_set(t->dist, t->logits[t->out[t->n - 1]], &t->params, NULL, NULL);
    *ret_token = t->out[t->n] = dist_draw(t->dist, t->key, t->n);
    t->n++;
    return *ret_token != EOS;
}

enum proposer { NO_DRAFT, POINT, COUPLED, RANDOM, RANDOM_TREE };

/* What proposers do: always token 0; the target's own noise on other logits; anything. */
static void make_draft(struct target *t, enum proposer kind, uint64_t *random, struct draft *ret)
{
    static const float other[V] = {.3F, .2F, -.1F, .1F, -2}; // the proposer's own opinion
    uint32_t n = kind == NO_DRAFT ? 0 : 4;
    for (uint32_t i = 0; i < n; i++) {
        *random = rng_splitmix64(*random);
        ret->parents[i] = (int32_t)i - 1;
        ret->tokens[i] = 0;
        if (kind == COUPLED) {
            dist_set(t->dist, other, &t->params, NULL, NULL);
            ret->tokens[i] = dist_draw(t->dist, t->key, t->n + i);
        } else if (kind >= RANDOM) {
            ret->tokens[i] = (uint32_t)(*random >> 33) % V;
        }
        if (kind == RANDOM_TREE)
            ret->parents[i] = (int32_t)((*random >> 8) % (i + 1)) - 1;
    }
    ret->n = n;
}

static void generate(struct target *t, enum proposer kind, uint64_t seed, unsigned *ret_accepted)
{
    uint64_t random = seed;
    t->key = rng_key((int64_t)seed, 0);
    t->n = 1;
    t->out[0] = 0;
    while (t->n < N_OUT) {
        struct draft draft;
        struct accept_result r;
        make_draft(t, kind, &random, &draft);
        accept_own_draw(&draft, draw_keyed, t, &r);
        *ret_accepted += r.n_accepted;
        if (t->out[t->n - 1] == EOS)
            return;
    }
}

static struct dist *must_dist(void)
{
    const struct kernel *kernel;
    struct dist *d;
    assert_int_equal(kernel_init(&kernel), 0);
    assert_int_equal(dist_new(V, kernel, &d), 0);
    return d;
}

static const float markov[V][V] = {
    {.1F, 1.2F, .3F, -.5F, -3}, {1, .2F, .9F, .4F, -2}, {.5F, .5F, .5F, .5F, -2.5F},
    {-1, 2, .1F, .3F, -2},      {0, 0, 0, 0, 0},
};

static void any_draft_leaves_the_committed_tokens_as_they_are(void **state)
{
    (void)state;
    AUTO(dist_free) struct dist *dist = must_dist();
    struct target plain = {.dist = dist, .logits = markov}, drafted = plain;
    unsigned accepted[RANDOM_TREE + 1] = {0};
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        plain.params = (struct dist_params){
            .temperature = seed % 3 ? 0.8F : 0, .top_p = seed % 2 ? 1 : 0.9F, .repetition = 1};
        drafted.params = plain.params;
        generate(&plain, NO_DRAFT, seed, &accepted[NO_DRAFT]);
        for (enum proposer kind = POINT; kind <= RANDOM_TREE; kind++) {
            generate(&drafted, kind, seed, &accepted[kind]);
            uint32_t n = plain.n < drafted.n ? plain.n : drafted.n; // the last round may overshoot
            assert_true(n >= N_OUT || (plain.n == drafted.n && plain.out[n - 1] == EOS));
            assert_memory_equal(plain.out, drafted.out, n * sizeof(uint32_t));
        }
    }
    for (enum proposer kind = POINT; kind <= RANDOM_TREE; kind++)
        assert_true(accepted[kind] > 0); // or the test would show nothing
    assert_true(accepted[COUPLED] > 2 * accepted[RANDOM]);
}

/* A of notes on speculation: p = (.5, .3, .2). The same at every position. */
static const double target_p[3] = {.5, .3, .2};
static float flat[V][V];

static double chi_square(const uint64_t count[3])
{
    double n = (double)(count[0] + count[1] + count[2]), sum = 0;
    for (int i = 0; i < 3; i++) {
        double d = (double)count[i] - n * target_p[i];
        sum += d * d / (n * target_p[i]);
    }
    return sum;
}

#define CHI_SQUARE_MAX 23.0 // 2 degrees of freedom: passed by chance once in 1e5

/* The error the chi-square must see: the target redraws where it does not agree with the draft, so
 * a drafted token has two chances. */
static bool redraw_on_rejection;

static bool draw_or_redraw(void *arg, uint32_t row, uint32_t *ret_token)
{
    bool goes_on = draw_keyed(arg, row, ret_token);
    struct target *t = arg;
    if (redraw_on_rejection && *ret_token != 0)
        *ret_token = t->out[t->n - 1] = dist_draw(t->dist, ~t->key, t->n - 1);
    return goes_on;
}

static double chi2_of(enum proposer kind, uint64_t n_wanted)
{
    AUTO(dist_free) struct dist *dist = must_dist();
    struct target t = {.dist = dist, .logits = (const float(*)[V])flat};
    t.params = (struct dist_params){.temperature = 1, .top_p = 1, .repetition = 1};
    uint64_t count[3] = {0}, n = 0;
    for (uint64_t seed = 1; n < n_wanted; seed++) {
        uint64_t random = seed;
        t.key = rng_key((int64_t)seed, 7);
        t.n = 1;
        t.out[0] = 0;
        while (t.n < N_OUT) {
            uint32_t from = t.n;
            struct draft draft;
            struct accept_result r;
            make_draft(&t, kind, &random, &draft);
            accept_own_draw(&draft, draw_or_redraw, &t, &r);
            for (; from < t.n; from++, n++)
                count[t.out[from]]++;
        }
    }
    return chi_square(count);
}

static int prepare_flat(void **state)
{
    (void)state;
    for (int i = 0; i < V; i++) {
        for (int k = 0; k < V; k++)
            flat[i][k] = k < 3 ? (float)log(target_p[k]) : -INFINITY;
    }
    return 0;
}

static void the_distribution_is_the_targets_for_every_proposer(void **state)
{
    (void)state;
    const enum proposer kinds[] = {POINT, COUPLED, RANDOM_TREE};
    uint64_t n = lib_amount(50000, 1000000, 10000000);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        double x = chi2_of(kinds[i], n);
        if (x > CHI_SQUARE_MAX)
            fail_msg("proposer %d: chi-square %.1f", kinds[i], x);
    }
}

/* ---- coupled drafts ---- */

/* How often a token drawn from q is accepted, with the target's noise or with independent noise. */
static double kept_share(const double p[V], const double q[V], bool own_noise, uint64_t n)
{
    AUTO(dist_free) struct dist *dist = must_dist();
    struct target t = {.dist = dist, .logits = (const float(*)[V])flat};
    t.params = (struct dist_params){.temperature = 1, .top_p = 1, .repetition = 1};
    float proposers[V];
    uint64_t n_kept = 0;
    for (int k = 0; k < V; k++) {
        proposers[k] = (float)log(q[k]);
        for (int i = 0; i < V; i++)
            flat[i][k] = (float)log(p[k]);
    }
    for (uint64_t i = 0; i < n; i++) {
        struct accept_result r;
        t.n = 1;
        t.key = rng_key((int64_t)i, 0);
        dist_set(dist, proposers, &t.params, NULL, NULL);
        uint32_t token = dist_draw(dist, own_noise ? ~t.key : t.key, t.n);
        accept_own_draw(&(struct draft){.n = 1, .tokens = {token}, .parents = {-1}}, draw_keyed, &t,
                        &r);
        n_kept += r.n_accepted;
    }
    return (double)n_kept / (double)n;
}

/* sum_i 1 / sum_j max(p_j/p_i, q_j/q_i) (Daliri, Musco, Suresh 2024, arXiv:2408.07978). */
static double coupled_share(const double p[V], const double q[V])
{
    double share = 0;
    for (int i = 0; i < V; i++) {
        double sum = 0;
        for (int j = 0; j < V && p[i] > 0; j++)
            sum += fmax(p[j] / p[i], q[j] / q[i]);
        share += p[i] > 0 ? 1 / sum : 0;
    }
    return share;
}

static void coupled_drafts_are_accepted_as_often_as_the_formula_says(void **state)
{
    (void)state;
    static const struct {
        double p[V], q[V], coupled, independent;
    } v[] = {{{1. / 3, 2. / 3}, {2. / 3, 1. / 3}, 2. / 3, 4. / 9},
             {{.5, .3, .2}, {.6, .1, .3}, 163. / 210, .39},
             {{.5, .25, .125, .125}, {.25, .25, .25, .25}, .7, .25}};
    uint64_t n = lib_amount(20000, 50000, 10000000);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        double within = 2.5 / sqrt((double)n); // five deviations at most
        assert_true(fabs(coupled_share(v[i].p, v[i].q) - v[i].coupled) < 1e-12);
        assert_true(fabs(kept_share(v[i].p, v[i].q, false, n) - v[i].coupled) < within);
        assert_true(fabs(kept_share(v[i].p, v[i].q, true, n) - v[i].independent) < within);
    }
}

static void the_chi_square_sees_a_wrong_rule(void **state)
{
    (void)state;
    redraw_on_rejection = true;
    double x = chi2_of(POINT, 50000);
    redraw_on_rejection = false;
    assert_true(x > 100 * CHI_SQUARE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_draft_gives_one_token_of_the_target),
        cmocka_unit_test(a_fully_accepted_draft_brings_a_bonus),
        cmocka_unit_test(the_first_difference_ends_the_walk_with_a_correction),
        cmocka_unit_test(nothing_accepted_still_gives_the_targets_token),
        cmocka_unit_test(an_end_inside_the_draft_drops_the_rest),
        cmocka_unit_test(an_end_that_was_not_drafted_is_a_correction),
        cmocka_unit_test(every_path_of_a_tree_can_be_accepted),
        cmocka_unit_test(any_draft_leaves_the_committed_tokens_as_they_are),
        cmocka_unit_test_setup(the_distribution_is_the_targets_for_every_proposer, prepare_flat),
        cmocka_unit_test_setup(the_chi_square_sees_a_wrong_rule, prepare_flat),
        cmocka_unit_test(coupled_drafts_are_accepted_as_often_as_the_formula_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
