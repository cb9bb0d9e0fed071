/* test_prefill_price.c - what it costs that contexts are read, and how long that is an excuse. */
#include "lib/lib.h"
#include "verifier-svc/control/prefill_price.h"

/* Proposer 1 reads 100 positions beside two passes that take 50 us longer each. */
static void read_100(struct prefill_price_seq *r, struct prefill_price *price)
{
    prefill_price_requested(r, 1, 100);
    for (unsigned i = 0; i < 2; i++)
        assert_true(prefill_price_passed(r, price, 50));
    prefill_price_answered(r, price);
}

static void what_passes_take_longer_is_the_price_of_the_positions(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq r = {0}, other = {0};
    assert_true(prefill_price_us(&other, &price, 1, 500) == 0); // not known
    read_100(&r, &price);
    assert_true(prefill_price_us(&other, &price, 1, 500) == 500);
    prefill_price_requested(&other, 1, 500);
    assert_true(prefill_price_us(&other, &price, 1, 500) == 0); // it is being paid
    assert_true(prefill_price_us(&r, &price, 1, 500) == 0);
    assert_true(prefill_price_us(&r, &price, 2, 500) == 500); // another proposer has not read it
}

static void the_pass_that_runs_as_it_is_answered_counts(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq r = {0};
    read_100(&r, &price);
    assert_true(prefill_price_passed(&r, &price, 900));
    assert_true(prefill_price_us(&(struct prefill_price_seq){0}, &price, 1, 10) == 100);
}

static void what_nobody_waits_for_has_no_price(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq r = {0};
    prefill_price_requested(&r, 1, 100);
    prefill_price_passed(&r, &price, 1e6);
    prefill_price_abandoned(&r);
    assert_false(prefill_price_running(&r));
    prefill_price_passed(&r, &price, 1e6); // it was left as this pass ran
    prefill_price_answered(&r, &price);
    assert_true(r.done && price.us == 0 && price.positions == 0);
}

static void a_context_that_was_lost_is_read_once_more(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq r = {0};
    read_100(&r, &price);
    prefill_price_requested(&r, 1, 0);
    assert_false(prefill_price_running(&r));
    prefill_price_requested(&r, 1, 150);
    assert_true(prefill_price_running(&r) && !r.done);
    prefill_price_requested(&r, 2, 0); // one that knows it already
    assert_true(r.done && !prefill_price_running(&r));
}

static void reading_is_an_excuse_for_so_many_passes_as_it_may_take(void **state)
{
    (void)state;
    struct prefill_price price = {0};
    struct prefill_price_seq r = {0};
    unsigned n = 0;
    prefill_price_requested(&r, 1, 160);
    for (; prefill_price_passed(&r, &price, 1); n++) {
        assert_true(prefill_price_running(&r));
        prefill_price_requested(&r, 1, 161 + n); // it grows meanwhile
    }
    assert_int_equal(n, 16 + 10);
    prefill_price_abandoned(&r); // it is not tried anew, as if nothing had been
    prefill_price_requested(&r, 1, 200);
    assert_false(prefill_price_running(&r));
    prefill_price_answered(&r, &price);
    assert_true(r.done && price.positions == 0); // who knows what took so long
    prefill_price_requested(&r, 1, 300);
    assert_true(prefill_price_running(&r));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_passes_take_longer_is_the_price_of_the_positions),
        cmocka_unit_test(the_pass_that_runs_as_it_is_answered_counts),
        cmocka_unit_test(what_nobody_waits_for_has_no_price),
        cmocka_unit_test(a_context_that_was_lost_is_read_once_more),
        cmocka_unit_test(reading_is_an_excuse_for_so_many_passes_as_it_may_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
