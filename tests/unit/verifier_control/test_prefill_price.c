/* test_prefill_price.c - the price of a prefill, and its pass limit. */
#include "lib/lib.h"
#include "verifier-svc/control/prefill_price.h"

/* Proposer 1 reads 100 positions during two passes that take 50 us longer each. */
static void read_100(struct prefill_price_seq *s, struct prefill_price *price)
{
    prefill_price_requested(s, 1, 100);
    for (unsigned i = 0; i < 2; i++)
        assert_true(prefill_price_passed(s, price, 50));
    prefill_price_answered(s, price);
}

static void the_excess_of_passes_is_the_price_of_the_positions(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq s = {0}, other = {0};
    assert_true(prefill_price_us(&other, &price, 1, 500) == 0); // unknown
    read_100(&s, &price);
    assert_true(prefill_price_us(&other, &price, 1, 500) == 500);
    prefill_price_requested(&other, 1, 500);
    assert_true(prefill_price_us(&other, &price, 1, 500) == 0); // the prefill has begun
    assert_true(prefill_price_us(&s, &price, 1, 500) == 0);
    assert_true(prefill_price_us(&s, &price, 2, 500) == 500); // another proposer
}

static void the_pass_in_which_the_answer_arrives_counts(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq s = {0};
    read_100(&s, &price);
    assert_true(prefill_price_passed(&s, &price, 900));
    assert_true(prefill_price_us(&(struct prefill_price_seq){0}, &price, 1, 10) == 100);
}

static void an_abandoned_prefill_has_no_price(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq s = {0};
    prefill_price_requested(&s, 1, 100);
    prefill_price_passed(&s, &price, 1e6);
    prefill_price_abandoned(&s);
    assert_false(prefill_price_running(&s));
    prefill_price_passed(&s, &price, 1e6); // abandoned while this pass ran
    prefill_price_answered(&s, &price);
    assert_true(s.done && price.us == 0 && price.positions == 0);
}

static void a_lost_context_is_read_again(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq s = {0};
    read_100(&s, &price);
    prefill_price_requested(&s, 1, 0);
    assert_false(prefill_price_running(&s));
    prefill_price_requested(&s, 1, 150);
    assert_true(prefill_price_running(&s) && !s.done);
    prefill_price_requested(&s, 2, 0); // a proposer that has read it
    assert_true(s.done && !prefill_price_running(&s));
}

static void a_prefill_explains_slow_passes_up_to_its_limit(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq s = {0};
    unsigned n = 0;
    prefill_price_requested(&s, 1, 160);
    for (; prefill_price_passed(&s, &price, 1); n++) {
        assert_true(prefill_price_running(&s));
        prefill_price_requested(&s, 1, 161 + n); // the sequence grows meanwhile
    }
    assert_int_equal(n, 16 + 10);
    prefill_price_abandoned(&s); // does not restart the count
    prefill_price_requested(&s, 1, 200);
    assert_false(prefill_price_running(&s));
    prefill_price_answered(&s, &price);
    assert_true(s.done && price.positions == 0); // beyond the limit: no price
    prefill_price_requested(&s, 1, 300);
    assert_true(prefill_price_running(&s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_excess_of_passes_is_the_price_of_the_positions),
        cmocka_unit_test(the_pass_in_which_the_answer_arrives_counts),
        cmocka_unit_test(an_abandoned_prefill_has_no_price),
        cmocka_unit_test(a_lost_context_is_read_again),
        cmocka_unit_test(a_prefill_explains_slow_passes_up_to_its_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
