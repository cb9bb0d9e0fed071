/* test_policy_goodput.c - how many draft tokens the policy goodput requests and verifies. */
#include "lib/oracles/control_world.h"
#include "lib/lib.h"

/* The k with the most tokens per second if every token is accepted with probability alpha. */
static uint32_t best_k(double alpha, double first_us, double row_us, double per_k_us)
{
    uint32_t best = 0;
    double rate = 1 / first_us, tokens = 1, path = 1;
    for (uint32_t k = 1; k <= 16; k++) {
        tokens += path *= alpha;
        double us = first_us + k * (row_us + per_k_us);
        if (tokens / us > rate) {
            rate = tokens / us;
            best = k;
        }
    }
    return best;
}

static double rate_with(uint32_t k, double alpha, double first_us, double row_us, double per_k_us)
{
    double tokens = 1, path = 1;
    for (uint32_t i = 0; i < k; i++)
        tokens += path *= alpha;
    return tokens / (first_us + k * (row_us + per_k_us));
}

static void the_best_length_is_found_for_every_acceptance(void **state)
{
    (void)state;
    static const double alphas[] = {.1, .2, .3, .4, .5, .6, .7, .8, .9, .95};
    static const double row_us[] = {1, 5, 20, 50};
    for (unsigned a = 0; a < 10; a++) {
        for (unsigned c = 0; c < 4; c++) {
            struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, row_us[c]);
            world_feed(w, 0, alphas[a], 16, 2000);
            world_feed(w, 0, alphas[a], 4, 20);
            w->seqs[0].accepted = w->seqs[0].expected = 0; // F = 1
            for (uint32_t k = 1; k <= 16; k++)             // 3 us per token
                world_answer(w, 0, k, 3.0 * k);
            uint32_t best = best_k(alphas[a], 100, row_us[c], 3);
            uint32_t k = world_asked(w, 1, 64);
            double got = rate_with(k, alphas[a], 100, row_us[c], 3);
            double most = rate_with(best, alphas[a], 100, row_us[c], 3);
            assert_true(got >= 0.98 * most); // drafts must promise 2 % more than none
        }
    }
}

static void k_limits_the_draft(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= CONTROL_K_MAX; k++) {
        struct control_world *w = world_of(CONTROL_GOODPUT, k, 0, 100, 0.1);
        world_feed(w, 0, 1, 16, 300);
        assert_int_equal(world_asked(w, 1, 64), k);
    }
}

static void without_pass_times_nothing_is_requested(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    w->c.pass_time = (struct pass_time){0};
    for (unsigned i = 0; i < 2000; i++) {
        pass_time_seen(&w->c.pass_time, &(struct pass_time_work){.rows = 1}, 100);
        assert_int_equal(world_asked(w, 2, 64), 0);
    }
    assert_true(w->c.pass_time.scale == 0);
}

static void a_sequence_with_a_higher_factor_gets_more_tokens(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 20);
    for (unsigned i = 0; i < 100; i++) {
        world_feed(w, 0, 0.9, 4, 1);
        world_feed(w, 1, 0.1, 4, 1);
    }
    world_asked(w, 2, 64);
    assert_true(w->items[0].nodes > w->items[1].nodes);
}

static void one_rejected_draft_changes_little(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 3);
    for (unsigned i = 0; i < 100; i++)
        world_see(w, &w->seqs[1], 16, i % 16);
    uint32_t before = world_asked(w, 1, 64);
    world_see(w, &w->seqs[0], 4, 0);
    assert_true(world_asked(w, 1, 64) >= before - before / 3);
}

static void a_slow_proposer_gets_requests_for_more_tokens_or_none(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 10);
    world_feed(w, 0, 0.8, 16, 300);
    for (unsigned i = 0; i < 50; i++)
        world_answer(w, 0, 1 + i % 8, 1);
    world_answer(w, 1, 4, 1e6); // not counted: its context is read first
    world_answer(w, 0, 4, 1e6); // capped: one delayed answer
    uint32_t fast = world_asked(w, 1, 64);
    for (unsigned i = 0; i < 200; i++)
        world_answer(w, 0, 1 + i % 8, 60);
    uint32_t slow = world_asked(w, 1, 64);
    assert_true(slow > fast);
    for (unsigned i = 0; i < 200; i++)
        world_answer(w, 0, 1 + i % 8, 5000);
    assert_int_equal(world_asked(w, 1, 64), 0);
}

static void the_wait_is_worth_the_tokens_of_the_draft(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 4, 0, 100, 0);
    struct control_round r = {
        .n_decoding = 1, .draft_rows = 1000, .n_running = 1, .pass = {.rows = 1}};
    w->items[0] = (struct control_item){.s = &w->seqs[0], .max_nodes = 4, .max_depth = 4};
    world_feed(w, 0, 1, 4, 500);
    double us = control_ask(&w->c, &r, w->items, 1);
    assert_int_equal(w->items[0].nodes, 4);
    assert_true(us > 350 && us < 400); // five tokens in a pass that takes as long as for one
}

static void a_draft_is_cut_where_predictions_are_low(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 20);
    const float predicted[] = {.95f, .9f, .09f, .08f, .07f};
    assert_int_equal(world_cut(w, predicted, 5), 2);
}

/* The first draft row is expensive, later ones are not. */
static void a_bend_in_the_times_ends_only_drafts_tested_against_q(void **state)
{
    (void)state;
    struct pass_time_measured m = {.us = {100, 160, 161, 162, 163, 164}};
    struct draft draft = world_draft(5, NULL, (const float[]){.5f, .48f, .46f, .44f, .42f});
    struct draft_q q = {0};
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 20);
    pass_time_init(&w->c.pass_time, &m);
    for (unsigned drawn = 0; drawn < 2; drawn++) {
        struct control_round r = {
            .n_decoding = 1, .draft_rows = 1000, .n_running = 1, .pass = {.rows = 1}};
        w->items[0] = (struct control_item){
            .s = &w->seqs[0], .max_nodes = 5, .max_depth = 5, .draft = &draft};
        draft.q = drawn ? &q : NULL;
        control_cut(&w->c, &r, w->items, 1);
        assert_int_equal(w->items[0].nodes, drawn ? 0 : 5);
    }
}

static void a_try_is_verified_completely(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 60);
    const float unlikely[] = {.01f, .01f};
    w->seqs[0].trying = true;
    assert_int_equal(world_cut(w, unlikely, 2), 2);
}

static void draft_rows_limit_all_drafts_together(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 0);
    struct control_round r = {
        .n_decoding = 2, .n_running = 2, .draft_rows = 5, .pass = {.rows = 2}};
    struct draft draft = world_draft(16, NULL, NULL);
    for (unsigned i = 0; i < 2; i++)
        w->items[i] = (struct control_item){
            .s = &w->seqs[i], .max_nodes = 16, .max_depth = 16, .draft = &draft};
    for (unsigned cut = 0; cut < 2; cut++) {
        if (cut)
            control_cut(&w->c, &r, w->items, 2);
        else
            control_ask(&w->c, &r, w->items, 2);
        assert_int_equal(w->items[0].nodes + w->items[1].nodes, 5);
    }
}

/* The wait is part of U in both decisions. */
static void a_requested_draft_is_verified_completely(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 30);
    world_feed(w, 1, 0.9, 8, 200);
    for (unsigned i = 0; i < 50; i++)
        world_answer(w, 1, 1 + i % 8, 100 + 1.0 * (i % 8));
    uint32_t k = world_asked(w, 1, 64);
    assert_true(k > 2);
    assert_int_equal(world_cut(w, NULL, k), k);
}

static void drafted_scale_does_not_count_against_a_present_draft(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    const float predicted[] = {.97f, .95f, .93f};
    w->c.pass_time.drafted_scale = 2;
    assert_int_equal(world_cut(w, predicted, 3), 3);
}

static void predictions_are_corrected_by_acceptance(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 20);
    const float too_high[] = {.97f, .94f, .91f};
    struct draft draft = world_draft(3, (const uint32_t[]){1, 2, 3}, too_high);
    assert_int_equal(world_cut(w, too_high, 3), 3);
    for (unsigned i = 0; i < 200; i++)
        control_seen(&w->c, &w->seqs[1], 0, &draft, 3, (uint32_t[]){4}, 1);
    assert_int_equal(world_cut(w, too_high, 3), 0);
}

/* Tokens predicted with 0.15 are always accepted: known from the first token, used for all. */
static void a_correction_holds_at_every_depth(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 10);
    const float too_low[] = {.15f, .0225f, .003375f, .00050625f};
    struct draft draft = world_draft(1, (const uint32_t[]){1}, too_low);
    assert_int_equal(world_cut(w, too_low, 4), 1);
    for (unsigned i = 0; i < 20; i++)
        control_seen(&w->c, &w->seqs[1], 0, &draft, 1, (uint32_t[]){1, 4}, 2);
    assert_int_equal(world_cut(w, too_low, 4), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_length_is_found_for_every_acceptance),
        cmocka_unit_test(k_limits_the_draft),
        cmocka_unit_test(without_pass_times_nothing_is_requested),
        cmocka_unit_test(a_sequence_with_a_higher_factor_gets_more_tokens),
        cmocka_unit_test(one_rejected_draft_changes_little),
        cmocka_unit_test(a_slow_proposer_gets_requests_for_more_tokens_or_none),
        cmocka_unit_test(the_wait_is_worth_the_tokens_of_the_draft),
        cmocka_unit_test(a_draft_is_cut_where_predictions_are_low),
        cmocka_unit_test(a_bend_in_the_times_ends_only_drafts_tested_against_q),
        cmocka_unit_test(a_try_is_verified_completely),
        cmocka_unit_test(draft_rows_limit_all_drafts_together),
        cmocka_unit_test(a_requested_draft_is_verified_completely),
        cmocka_unit_test(drafted_scale_does_not_count_against_a_present_draft),
        cmocka_unit_test(predictions_are_corrected_by_acceptance),
        cmocka_unit_test(a_correction_holds_at_every_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
