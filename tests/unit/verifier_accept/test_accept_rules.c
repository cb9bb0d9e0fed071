/* test_accept_rules.c - the rules that test a draft against p: their exact distributions. */
#include <math.h>
#include "lib/oracles/chances.h"
#include "lib/lib.h"
#include "base/mem.h"

/* ---- chains ---- */

static void rejection_accepts_what_p_and_q_share(void **state)
{
    (void)state;
    static const double expected[3][3] = {
        {2. / 3, 10. / 9, 38. / 27}, {4. / 5, 36. / 25, 244. / 125}, {3. / 4, 21. / 16, 111. / 64}};
    for (unsigned g = 1; g <= 3; g++) {
        enum accept_rule rule = ACCEPT_REJECTION;
        assert_exact((struct chances_world){rule, 0, BIN, .depth = g, .width = 1},
                     expected[0][g - 1]);
        assert_exact((struct chances_world){rule, 0, A, .depth = g, .width = 1},
                     expected[1][g - 1]);
        assert_exact((struct chances_world){rule, 0, B, .depth = g, .width = 1},
                     expected[2][g - 1]);
    }
}

static void block_verification_accepts_more(void **state)
{
    (void)state;
    static const double expected[3][3] = {
        {2. / 3, 11. / 9, 5. / 3}, {4. / 5, 73. / 50, 1011. / 500}, {3. / 4, 11. / 8, 61. / 32}};
    for (unsigned g = 1; g <= 3; g++) {
        enum accept_rule rule = ACCEPT_BLOCK;
        assert_exact((struct chances_world){rule, 0, BIN, .depth = g, .width = 1},
                     expected[0][g - 1]);
        assert_exact((struct chances_world){rule, 0, A, .depth = g, .width = 1},
                     expected[1][g - 1]);
        assert_exact((struct chances_world){rule, 0, B, .depth = g, .width = 1},
                     expected[2][g - 1]);
    }
}

static void distributions_that_depend_on_earlier_tokens_are_kept(void **state)
{
    (void)state;
    for (unsigned g = 1; g <= 3; g++) {
        struct chances_world w = {ACCEPT_REJECTION, .v = 3, .depth = g, .width = 1};
        w.p = chances_markov_p;
        w.q = chances_markov_q;
        double by_token = chances_accepted(w);
        w.rule = ACCEPT_BLOCK;
        assert_true(chances_accepted(w) >= by_token - EXACT);
    }
}

static void a_chosen_token_is_accepted_with_its_probability_under_p(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct chances_world w = {rules[i], A, .depth = 2, .width = 1};
        w.q = chances_a_q_best;
        w.form = ONE_HOT;
        assert_near(chances_accepted(w), .5 + .25, EXACT);
    }
}

static void without_a_draft_the_token_is_one_of_p(void **state)
{
    (void)state;
    for (enum accept_rule rule = ACCEPT_REJECTION; rule < ACCEPT_N_RULES; rule++)
        assert_exact((struct chances_world){rule, .5, A, .depth = 0, .width = 1}, 0);
}

static void a_draft_drawn_from_p_is_accepted_whole(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct chances_world w = {
            rules[i], .v = 3, .p = chances_markov_p, .q = chances_markov_p, .depth = 3, .width = 1};
        assert_exact(w, 3);
    }
}

static void a_token_that_p_forbids_is_never_accepted(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct chances_world w = {rules[i], A, .depth = 3, .width = 1};
        w.p = chances_no_third_p;
        chances_accepted(w);
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
            struct chances_world a = {ACCEPT_RECURSIVE, A, .depth = 1, .width = k},
                                 b = {ACCEPT_RECURSIVE, B};
            a.without_replacement = b.without_replacement = without;
            b.depth = 1;
            b.width = k;
            assert_exact(a, expected[0][without][k - 1]);
            assert_exact(b, expected[1][without][k - 1]);
        }
}

static void a_tree_of_drawn_tokens_keeps_the_distribution(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct chances_world w = {
            rules[i], .v = 3, .p = chances_markov_p, .q = chances_markov_q, .depth = 2, .width = 2};
        double with = chances_accepted(w);
        w.without_replacement = true;
        assert_true(chances_accepted(w) > with);
        w.width = 1;
        assert_true(chances_accepted(w) < with);
    }
}

/* The two best of q as children that were chosen: p of both. */
static void chosen_siblings_are_accepted_with_their_joint_probability(void **state)
{
    (void)state;
    struct chances_world w = {ACCEPT_RECURSIVE, A, .depth = 1, .width = 2};
    w.q = chances_a_q_top2;
    w.without_replacement = true;
    w.form = ONE_HOT;
    assert_near(chances_accepted(w), .7, EXACT);
    w.depth = 2; // each node stays with the product of p on its way
    assert_near(chances_accepted(w), .7 + .7 * .7, EXACT);
}

/* ---- lossy rules ---- */

static void lenience_has_its_documented_distribution(void **state)
{
    (void)state;
    struct chances_world w = {ACCEPT_LENIENCE, .8, A, .depth = 1, .width = 1};
    struct outcome o = chances_outcome(&w);
    assert_near(o.accepted, 19. / 20, EXACT);
    assert_near(chances_first_error(&o, (double[]){29. / 48, 7. / 48, 1. / 4}, 3), 0, EXACT);
    double distance = 0, p[] = {.5, .3, .2};
    for (int k = 0; k < 3; k++) {
        distance += fabs(o.first[k] - p[k]) / 2;
        assert_true(o.first[k] <= p[k] / .8 + EXACT);
    }
    assert_near(distance, 37. / 240, EXACT);

    w.parameter = .5;
    o = chances_outcome(&w);
    assert_near(o.accepted, 1, EXACT);
    assert_near(chances_first_error(&o, (double[]){.6, .1, .3}, 3), 0, EXACT);

    w.parameter = 1; // then it is rejection
    o = chances_outcome(&w);
    assert_near(chances_joint_error(&w, &o), 0, EXACT);
}

static void threshold_accepts_probable_tokens_and_corrects_by_p(void **state)
{
    (void)state;
    struct chances_world w = {ACCEPT_THRESHOLD, .25, A, .depth = 1, .width = 1};
    struct outcome o = chances_outcome(&w); // tokens 0 and 1 stay, 2 is replaced by one of p
    assert_near(o.accepted, .7, EXACT);
    assert_near(chances_first_error(&o, (double[]){.6 + .15, .1 + .09, .06}, 3), 0, EXACT);
    w.parameter = .1;
    o = chances_outcome(&w);
    assert_near(o.accepted, 1, EXACT);
    w.parameter = .5; // exactly p of token 0
    o = chances_outcome(&w);
    assert_near(o.accepted, .6, EXACT);
}

static void typical_follows_the_entropy(void **state)
{
    (void)state;
    double h = .5 * log(2) + .3 * log(10. / 3) + .2 * log(5); // exp(-h) = .357
    struct chances_world w = {ACCEPT_TYPICAL, .09, A, .depth = 1, .width = 1};
    assert_near(chances_outcome(&w).accepted, 1, EXACT); // min(.09, .3 x .357) < .2
    w.parameter = .5;                                    // min(.5, .707 x .357 = .252)
    assert_true(sqrt(.5) * exp(-h) > .2 && sqrt(.5) * exp(-h) < .3);
    assert_near(chances_outcome(&w).accepted, .7, EXACT);
}

/* ---- the table, and keyed chances ---- */

static void the_table_says_what_each_rule_is(void **state)
{
    (void)state;
    static const struct accept_rule_info expected[ACCEPT_N_RULES] = {
        {"own-draw", true, false, 0},    {"rejection", true, true, 0},
        {"block", true, true, 0},        {"recursive", true, true, 0},
        {"threshold", false, false, .1}, {"typical", false, false, .09},
        {"lenience", false, true, .8}};
    for (unsigned i = 0; i < ACCEPT_N_RULES; i++) {
        const struct accept_rule_info *rule = &accept_rules[i];
        assert_string_equal(rule->name, expected[i].name);
        assert_int_equal(rule->lossless, expected[i].lossless);
        assert_int_equal(rule->tests_q, expected[i].tests_q);
        assert_true(rule->parameter == expected[i].parameter);
    }
}

/* All verifiers draw the same: another one may continue the answer. */
static void a_keyed_flip_is_the_same_everywhere(void **state)
{
    (void)state;
    struct accept_keyed k = {.key = 12345};
    for (k.step = 0; k.step < 3; k.step++) {
        for (uint32_t row = 0; row < 3; row++) {
            double drawn = rng_uniform(rng_u64(k.key, RNG_ACCEPT, k.step, row, 0));
            assert_false(accept_keyed_flip(&k, row, drawn));
            assert_true(accept_keyed_flip(&k, row, nextafter(drawn, 1)));
        }
    }
}

/* Token 2 has weight 0, and the weights need not add up to 1. */
static void a_keyed_draw_is_the_same_everywhere(void **state)
{
    (void)state;
    double weights[] = {1, 2, 0, 3};
    uint32_t kept[] = {3, 2, 1, 0}, n_drawn[4] = {0};
    struct dist_weights from = {.weights = weights, .kept = kept, .n_kept = 4, .sum = 6};
    struct accept_keyed k = {.key = 12345};
    for (k.step = 0; k.step < 30; k.step++) {
        for (uint32_t row = 0; row < 3; row++) {
            double at = 6 * rng_uniform(rng_u64(k.key, RNG_RESIDUAL, k.step, row, 0));
            uint32_t expected = at < 3 ? 3 : at < 5 ? 1 : 0;
            assert_int_equal(accept_keyed_draw(&k, row, &from), expected);
            n_drawn[expected]++;
        }
    }
    assert_true(n_drawn[0] && n_drawn[1] && n_drawn[3]);
    from.sum = 1e9; // rounding leaves a rest: the last possible token
    kept[3] = 2;
    kept[2] = 0;
    kept[1] = 1;
    assert_int_equal(accept_keyed_draw(&k, 0, &from), 0);
}

/* ---- a token without probability under its q ---- */

static double weights_of_p[] = {1, 3};
static const uint32_t kept_of_p[] = {0, 1};
static double asked; // probability of the last flip

static struct dist_weights quarter_p(void *arg, uint32_t row)
{
    (void)arg;
    (void)row;
    return (struct dist_weights){2, 2, weights_of_p, kept_of_p, 4};
}

static bool note_and_accept(void *arg, uint32_t row, double probability)
{
    (void)arg;
    (void)row;
    asked = probability;
    return true;
}

static uint32_t draw_first(void *arg, uint32_t row, const struct dist_weights *from)
{
    (void)arg;
    (void)row;
    return from->kept[0];
}

static void a_token_outside_its_q_is_accepted(void **state)
{
    (void)state;
    const struct accept_chance c = {quarter_p, note_and_accept, draw_first, NULL};
    const struct draft t = {.n = 1, .tokens = {0}, .parents = {-1}};
    const uint32_t ids[] = {1, 0};
    const float weights[] = {1, .5f}; // the second one is beyond the end of q
    const struct accept_q q = {1, ids, weights, 1};
    struct accept_result r;
    accept_judge(ACCEPT_REJECTION, 0, &t, &q, &c, &r);
    assert_true(asked == 1 && r.n_accepted == 1);
    const struct accept_q own = {2, ids, weights, 1.5}; // 1/4 against 1/3
    accept_judge(ACCEPT_REJECTION, 0, &t, &own, &c, &r);
    assert_near(asked, .75, EXACT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rejection_accepts_what_p_and_q_share),
        cmocka_unit_test(block_verification_accepts_more),
        cmocka_unit_test(distributions_that_depend_on_earlier_tokens_are_kept),
        cmocka_unit_test(a_chosen_token_is_accepted_with_its_probability_under_p),
        cmocka_unit_test(without_a_draft_the_token_is_one_of_p),
        cmocka_unit_test(a_draft_drawn_from_p_is_accepted_whole),
        cmocka_unit_test(a_token_that_p_forbids_is_never_accepted),
        cmocka_unit_test(recursive_rejection_of_siblings),
        cmocka_unit_test(a_tree_of_drawn_tokens_keeps_the_distribution),
        cmocka_unit_test(chosen_siblings_are_accepted_with_their_joint_probability),
        cmocka_unit_test(lenience_has_its_documented_distribution),
        cmocka_unit_test(threshold_accepts_probable_tokens_and_corrects_by_p),
        cmocka_unit_test(typical_follows_the_entropy),
        cmocka_unit_test(a_token_outside_its_q_is_accepted),
        cmocka_unit_test(the_table_says_what_each_rule_is),
        cmocka_unit_test(a_keyed_flip_is_the_same_everywhere),
        cmocka_unit_test(a_keyed_draw_is_the_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
