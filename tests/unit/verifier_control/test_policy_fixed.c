/* test_policy_fixed.c - the policy fixed, and requests that are fixed under other policies. */
#include <math.h>
#include "lib/oracles/control_world.h"
#include "lib/lib.h"

static void fixed_requests_k_within_the_limits(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_FIXED, 5, 0, 1, 1);
    assert_int_equal(world_asked(w, 1, 64), 5);
    assert_int_equal(world_asked(w, 1, 3), 3);
    assert_int_equal(world_asked(w, 1, 0), 0);
    assert_int_equal(world_asked(w, 60, 64), 5);
}

static void a_fixed_request_gets_drafts_that_do_not_pay(void **state)
{
    (void)state;
    struct draft draft = world_draft(8, NULL, (const float[8]){0});
    enum control_policy policies[] = {CONTROL_GOODPUT, CONTROL_FIXED, CONTROL_EMA};
    for (unsigned i = 0; i < ARRAY_LEN(policies); i++) {
        struct control_world *w = world_of(policies[i], 5, 0, 100, 100);
        struct control_round r = {
            .pass = {.rows = 2}, .n_decoding = 2, .n_fixed = 1, .draft_rows = 1000, .n_running = 2};
        w->seqs[0].ema = w->seqs[1].ema = 0;
        for (unsigned k = 0; k < 2; k++)
            w->items[k] = (struct control_item){
                .s = &w->seqs[k], .context = 100, .max_nodes = 8, .max_depth = 8, .fixed = k == 0};
        control_ask(&w->c, &r, w->items, 2);
        assert_int_equal(w->items[0].nodes, 5);
        if (policies[i] != CONTROL_FIXED)
            assert_int_equal(w->items[1].nodes, 0); // not fixed
        w->items[0].draft = &draft;
        control_cut(&w->c, &r, w->items, 1);
        assert_int_equal(w->items[0].nodes, 8);
    }
}

/* How long two sequences wait, of which n_fixed are fixed. */
static double wait_us_of_two(struct control_world *w, uint32_t n_fixed)
{
    struct control_round r = {.pass = {.rows = 2},
                              .n_decoding = 2,
                              .n_fixed = n_fixed,
                              .draft_rows = 1000,
                              .n_running = 2};
    for (unsigned i = 0; i < 2; i++)
        w->items[i] = (struct control_item){
            .s = &w->seqs[i], .max_nodes = 4, .max_depth = 4, .fixed = i < n_fixed};
    return control_ask(&w->c, &r, w->items, 2);
}

static void a_fixed_request_does_not_extend_the_wait_of_others(void **state)
{
    (void)state;
    for (unsigned pays = 0; pays < 2; pays++) {
        struct control_world *w = world_of(CONTROL_GOODPUT, 4, 0, 100, 50);
        world_feed(w, 0, pays, 4, 500);
        world_feed(w, 1, pays, 4, 500);
        double us = wait_us_of_two(w, 0);
        assert_true(pays ? us > 0 : us == 0);
        assert_true(wait_us_of_two(w, 1) == us);
        assert_true(isinf(wait_us_of_two(w, 2))); // no other sequence waits
    }
}

static void fixed_and_ema_verify_all_tokens(void **state)
{
    (void)state;
    const float unlikely[] = {.01f, .01f};
    assert_int_equal(world_cut(world_of(CONTROL_FIXED, 5, 0, 1, 9), unlikely, 2), 2);
    assert_int_equal(world_cut(world_of(CONTROL_EMA, 5, 0, 1, 9), unlikely, 2), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_requests_k_within_the_limits),
        cmocka_unit_test(a_fixed_request_gets_drafts_that_do_not_pay),
        cmocka_unit_test(a_fixed_request_does_not_extend_the_wait_of_others),
        cmocka_unit_test(fixed_and_ema_verify_all_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
