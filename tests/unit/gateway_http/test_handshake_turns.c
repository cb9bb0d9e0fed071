/* test_handshake_turns.c - addresses share the time of handshakes. */
#include <string.h>
#include "gateway/http/handshake_turns.h"
#include "lib/lib.h"

#define COST 1000 // us of a signature

static struct handshake_turns turns;
static struct handshake_turn v[600];
static unsigned n;

static int reset(void **state)
{
    (void)state;
    turns = (struct handshake_turns){.secret = 7};
    n = 0;
    return 0;
}

/* Returns the number of the turn. */
static unsigned enter(const char *address)
{
    struct address a;
    assert_true(address_parse(address, strlen(address), &a));
    handshake_turns_enter(&turns, &v[n], &a);
    return n++;
}

static unsigned next(int64_t took_us)
{
    struct handshake_turn *turn = handshake_turns_next(&turns);
    assert_non_null(turn);
    handshake_turns_end(&turns, turn, took_us);
    return (unsigned)(turn - v);
}

static void those_of_one_address_keep_their_order(void **state)
{
    (void)state;
    assert_null(handshake_turns_next(&turns));
    for (unsigned i = 0; i < 5; i++)
        enter("192.0.2.1");
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(next(COST), i);
    assert_null(handshake_turns_next(&turns));
}

/* One of each other address is first at most, however many they have. */
static void an_address_with_one_does_not_wait_for_all(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        enter("192.0.2.1");
        enter("192.0.2.2");
    }
    for (unsigned i = 0; i < 20; i++)
        next(COST);
    unsigned own = enter("192.0.2.3"), n_before = 0;
    while (next(COST) != own)
        n_before++;
    assert_in_range(n_before, 0, 2);
}

static void addresses_get_the_same_time(void **state)
{
    (void)state;
    int64_t got_us[2] = {0};
    for (unsigned i = 0; i < 300; i++) {
        enter("192.0.2.1");
        enter("2001:db8:1:100::1");
    }
    for (unsigned i = 0; i < 200; i++) {
        struct handshake_turn *turn = handshake_turns_next(&turns);
        bool second = (turn - v) % 2;
        int64_t took_us = second ? 4 * COST : COST;
        handshake_turns_end(&turns, turn, took_us);
        got_us[second] += took_us;
    }
    assert_in_range(got_us[0], got_us[1] - 5 * COST, got_us[1] + 5 * COST);
}

/* Its networks of IPv6 are one client. What it did before does not count. */
static void idle_time_gives_no_credit(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 100; i++)
        enter("2001:db8:1:100::1");
    for (unsigned i = 0; i < 100; i++)
        next(COST);
    unsigned first = enter("2001:db8:1:1ff::2"), other = enter("192.0.2.1");
    assert_int_equal(next(COST), other); // the first ends its last turn
    assert_int_equal(next(COST), first);
    unsigned quiet[] = {enter("192.0.2.9"), enter("192.0.2.9"), enter("192.0.2.9")};
    unsigned busy = enter("192.0.2.1");
    assert_int_equal(next(COST), quiet[0]);
    assert_int_equal(next(COST), busy);
    assert_int_equal(next(COST), quiet[1]);
    assert_int_equal(next(COST), quiet[2]);
}

static void turns_that_take_no_time_cost_something(void **state)
{
    (void)state;
    unsigned own[100];
    for (unsigned i = 0; i < 100; i++)
        own[i] = enter("192.0.2.1");
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(next(0), own[i]);
    unsigned other = enter("192.0.2.2");
    assert_int_equal(next(0), other);
}

/* A client that holds many of them before their signature, by a retry, gains nothing. */
static void handshakes_that_continue_wait_as_new_ones(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 100; i++)
        enter("192.0.2.1");
    for (unsigned i = 0; i < 100; i++)
        next(0); // each was asked for another hello
    for (unsigned i = 0; i < 100; i++)
        enter("192.0.2.1");
    next(COST);
    unsigned other = enter("192.0.2.2");
    assert_int_equal(next(COST), other);
}

static void one_may_leave(void **state)
{
    (void)state;
    unsigned a = enter("192.0.2.1"), b = enter("192.0.2.1"), c = enter("192.0.2.1");
    handshake_turns_leave(&turns, &v[b]);
    handshake_turns_leave(&turns, &v[b]); // it no longer waits
    assert_int_equal(next(COST), a);
    handshake_turns_leave(&turns, &v[a]);
    assert_int_equal(next(COST), c);
    assert_null(handshake_turns_next(&turns));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(those_of_one_address_keep_their_order, reset),
        cmocka_unit_test_setup(an_address_with_one_does_not_wait_for_all, reset),
        cmocka_unit_test_setup(addresses_get_the_same_time, reset),
        cmocka_unit_test_setup(idle_time_gives_no_credit, reset),
        cmocka_unit_test_setup(turns_that_take_no_time_cost_something, reset),
        cmocka_unit_test_setup(handshakes_that_continue_wait_as_new_ones, reset),
        cmocka_unit_test_setup(one_may_leave, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
