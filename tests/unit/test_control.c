/* test_control.c - how many draft tokens are wanted. */
#include "lib/lib.h"
#include "verifier-svc/control.h"

static struct control of(uint32_t k, uint32_t off_from)
{
    struct control c;
    control_init(&c, &(struct control_options){k, off_from});
    return c;
}

static void k_is_fixed_while_few_sequences_run(void **state)
{
    (void)state;
    struct control c = of(5, 8);
    assert_int_equal(control_k(&c, 1, UINT32_MAX, 100), 5);
    assert_int_equal(control_k(&c, 7, UINT32_MAX, 100), 5);
}

static void many_sequences_switch_drafting_off(void **state)
{
    (void)state;
    struct control c = of(5, 8), never = of(5, 0);
    assert_int_equal(control_k(&c, 8, UINT32_MAX, 100), 0);
    assert_int_equal(control_k(&never, 1000, UINT32_MAX, 100), 5);
}

static void the_request_may_want_less_or_nothing(void **state)
{
    (void)state;
    struct control c = of(5, 8);
    assert_int_equal(control_k(&c, 1, 2, 100), 2);
    assert_int_equal(control_k(&c, 1, 0, 100), 0);
    assert_int_equal(control_k(&c, 1, 50, 100), 5);
}

static void a_draft_leaves_room_for_the_targets_own_token(void **state)
{
    (void)state;
    struct control c = of(5, 8);
    assert_int_equal(control_k(&c, 1, UINT32_MAX, 6), 5);
    assert_int_equal(control_k(&c, 1, UINT32_MAX, 4), 3);
    assert_int_equal(control_k(&c, 1, UINT32_MAX, 1), 0);
    assert_int_equal(control_k(&c, 1, UINT32_MAX, 0), 0);
}

static void the_average_follows_what_was_accepted(void **state)
{
    (void)state;
    struct control c = of(5, 8);
    assert_true(c.acceptance_ema == 0.7);
    control_seen(&c, 0, 0); // no draft says nothing
    assert_true(c.acceptance_ema == 0.7);
    control_seen(&c, 4, 4);
    assert_true(c.acceptance_ema > 0.7299 && c.acceptance_ema < 0.7301);
    for (int i = 0; i < 100; i++)
        control_seen(&c, 5, 0);
    assert_true(c.acceptance_ema < 0.001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(k_is_fixed_while_few_sequences_run),
        cmocka_unit_test(many_sequences_switch_drafting_off),
        cmocka_unit_test(the_request_may_want_less_or_nothing),
        cmocka_unit_test(a_draft_leaves_room_for_the_targets_own_token),
        cmocka_unit_test(the_average_follows_what_was_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
