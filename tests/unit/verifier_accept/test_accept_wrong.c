/* test_accept_wrong.c - ways of getting a rule wrong, each of which must show. */
#include <math.h>
#include "lib/oracles/chances.h"
#include "lib/lib.h"
#include "base/mem.h"

static void assert_wrong(const struct chances_world *w)
{
    struct outcome o = chances_outcome(w);
    assert_true(chances_joint_error(w, &o) > 1e-3);
}

static void q_must_be_what_was_drawn_from(void **state)
{
    (void)state;
    struct chances_world w = {ACCEPT_REJECTION, A, .depth = 1, .width = 1};
    w.q = chances_a_q_top2;
    assert_exact(w, .7);
    w.q_told = chances_a_q;
    struct outcome o = chances_outcome(&w);
    assert_near(chances_first_error(&o, (double[]){5. / 9, 2. / 9, 2. / 9}, 3), 0, EXACT);
    assert_wrong(&w);
    w.rule = ACCEPT_BLOCK;
    w.depth = 3;
    assert_wrong(&w);
}

static void drawing_and_accepting_must_be_independent(void **state)
{
    (void)state;
    struct chances_world w = {ACCEPT_REJECTION, BIN, .depth = 1, .width = 1, .one_uniform = true};
    struct outcome o = chances_outcome(&w);
    assert_near(chances_first_error(&o, (double[]){.5, .5}, 2), 0, EXACT);
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
    return kept < n ? kept + 1 : n; // the token that caused it is kept
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

static void the_verified_part_must_not_depend_on_the_token_itself(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct chances_world w = {rules[i], A, .depth = 2, .width = 1};
        w.judged = stop_behind_low_q;
        chances_accepted(w);
        w.judged = by_the_one_before;
        chances_accepted(w);
        w.judged = by_its_own;
        assert_wrong(&w);
        w.judged = late_if_it_starts_with_third;
        assert_wrong(&w);
        w.judged = drop_low_q;
        assert_wrong(&w);
        w.depth = 1;
        struct outcome o = chances_outcome(&w);
        assert_near(chances_first_error(&o, (double[]){.55, .23, .22}, 3), 0, EXACT);
        w.p = chances_no_third_p;
        w.judged = end_at_forbidden;
        chances_accepted(w);
        w.judged = drop_forbidden;
        assert_wrong(&w);
    }
}

static void rows_must_be_chosen_before_their_tokens_are_known(void **state)
{
    (void)state;
    struct chances_world w = {ACCEPT_REJECTION,    .v = 2,     .p = chances_tilted_p,
                              .q = chances_even_q, .depth = 2, .width = 1};
    w.judged = search_all;
    struct outcome o = chances_outcome(&w);
    assert_near(chances_first_error(&o, (double[]){.85, .15}, 2), 0, EXACT);
    assert_wrong(&w);
    w.judged = stop_at_the_first_drop;
    chances_accepted(w);
}

/* The better of two drafts, where one of them is a constant: the other one's token decides. */
static unsigned lose_to_another(const uint32_t *tokens, unsigned n)
{
    return tokens[0] == 1 ? 0 : n;
}

static void drawn_drafts_must_not_be_chosen_by_score(void **state)
{
    (void)state;
    struct chances_world w = {ACCEPT_REJECTION, A, .depth = 1, .width = 1,
                              .judged = lose_to_another};
    assert_wrong(&w);
    w.q = chances_a_q_best; // a chosen token may
    w.form = ONE_HOT;
    chances_accepted(w);
}

static void being_the_most_probable_is_no_reason_to_accept(void **state)
{
    (void)state;
    struct chances_world w = {ACCEPT_REJECTION, A, .depth = 1, .width = 1, .matches_best = true};
    struct outcome o = chances_outcome(&w);
    assert_near(chances_first_error(&o, (double[]){.8, .12, .08}, 3), 0, EXACT);
    assert_wrong(&w);
}

static void penalties_must_count_the_drafts_own_tokens(void **state)
{
    (void)state;
    const enum accept_rule rules[] = {ACCEPT_REJECTION, ACCEPT_BLOCK, ACCEPT_RECURSIVE};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct chances_world w = {rules[i], B, .depth = 2, .width = 1};
        w.p = chances_penalised_p;
        chances_accepted(w); // of a proposer without penalties
        w.q = chances_penalised_q;
        chances_accepted(w);
        w.p_told = chances_b_p;
        assert_wrong(&w);
    }
}

static void lossy_rules_are_detected(void **state)
{
    (void)state;
    assert_wrong(&(struct chances_world){ACCEPT_THRESHOLD, .1, A, .depth = 1, .width = 1});
    assert_wrong(&(struct chances_world){ACCEPT_TYPICAL, .09, A, .depth = 1, .width = 1});
    assert_wrong(&(struct chances_world){ACCEPT_LENIENCE, .8, A, .depth = 1, .width = 1});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q_must_be_what_was_drawn_from),
        cmocka_unit_test(drawing_and_accepting_must_be_independent),
        cmocka_unit_test(the_verified_part_must_not_depend_on_the_token_itself),
        cmocka_unit_test(rows_must_be_chosen_before_their_tokens_are_known),
        cmocka_unit_test(drawn_drafts_must_not_be_chosen_by_score),
        cmocka_unit_test(being_the_most_probable_is_no_reason_to_accept),
        cmocka_unit_test(penalties_must_count_the_drafts_own_tokens),
        cmocka_unit_test(lossy_rules_are_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
