/* test_policy_ema.c - the policy ema. */
#include "lib/oracles/control_world.h"
#include "lib/lib.h"

static uint32_t requested_with_ema(uint32_t k, float ema)
{
    struct control_world *w = world_of(CONTROL_EMA, k, 8, 1, 1);
    w->seqs[0].ema = ema;
    return world_asked(w, 1, 64);
}

static void ema_has_four_bands(void **state)
{
    (void)state;
    assert_int_equal(requested_with_ema(5, 0.81f), 5);
    assert_int_equal(requested_with_ema(5, 0.8f), 3);
    assert_int_equal(requested_with_ema(5, 0.51f), 3);
    assert_int_equal(requested_with_ema(5, 0.5f), 1);
    assert_int_equal(requested_with_ema(5, 0.31f), 1);
    assert_int_equal(requested_with_ema(5, 0.3f), 0);
    assert_int_equal(requested_with_ema(5, 0.0f), 0);
}

static void the_middle_bands_request_at_least_one_token(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 3; k++) {
        assert_int_equal(requested_with_ema(k, 0.6f), 1);
        assert_int_equal(requested_with_ema(k, 0.4f), 1);
        assert_int_equal(requested_with_ema(k, 0.9f), k);
    }
}

static void ema_tries_one_token_every_32_rounds(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_EMA, 5, 8, 1, 1);
    w->seqs[0].ema = 0;
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 1; i < 32; i++)
            assert_int_equal(world_asked(w, 1, 64), 0);
        assert_int_equal(world_asked(w, 1, 64), 1);
    }
}

static void ema_stops_at_its_batch_limit_and_zero_is_no_limit(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_EMA, 5, 8, 1, 1);
    assert_int_equal(world_asked(w, 7, 64), 3);
    assert_int_equal(world_asked(w, 8, 64), 0);
    w = world_of(CONTROL_EMA, 5, 0, 1, 1);
    assert_int_equal(world_asked(w, 60, 64), 3);
}

/* Other sequences do not wait: a try of one token arrives when the next token is committed. */
static void late_drafts_update_ema(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_EMA, 5, 8, 1, 1);
    struct control_seq *s = &w->seqs[0];
    struct draft late = world_draft(3, (const uint32_t[]){7, 8, 9}, NULL);
    s->ema = 0;
    for (unsigned i = 0; i < 20; i++)
        control_seen(&w->c, s, 0, &late, 1, (uint32_t[]){7}, 1);
    assert_int_equal(world_asked(w, 1, 64), 5);
    float before = s->ema;
    control_seen(&w->c, s, 0, &late, 3, (uint32_t[]){7}, 1); // two are still to be verified
    assert_true(s->ema == before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ema_has_four_bands),
        cmocka_unit_test(the_middle_bands_request_at_least_one_token),
        cmocka_unit_test(ema_tries_one_token_every_32_rounds),
        cmocka_unit_test(ema_stops_at_its_batch_limit_and_zero_is_no_limit),
        cmocka_unit_test(late_drafts_update_ema),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
