/* test_control_prefill.c - contexts that a proposer reads before it drafts. */
#include "lib/oracles/control_world.h"
#include "lib/lib.h"

static void pass_beside(struct control_world *w, struct control_seq *beside, double us)
{
    control_passed(&w->c, &(struct pass_time_work){.rows = 1}, us, beside);
}

/* The proposer reads the 100 positions of a sequence during 10 passes of 200 us instead of 100. */
static void read_beside_passes(struct control_world *w, struct control_seq *s)
{
    control_asked(s, 0, 100, 1);
    for (unsigned i = 0; i < 10; i++)
        pass_beside(w, s, 200);
    control_answered(&w->c, s, 0, 4, 1000, true);
}

static void a_pass_during_prefill_does_not_update_the_pass_time(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    struct pass_time before = w->c.pass_time;
    read_beside_passes(w, &w->seqs[0]);
    assert_memory_equal(&w->c.pass_time, &before, sizeof(before));
    pass_beside(w, NULL, 200);
    assert_true(w->c.pass_time.scale > before.scale);
}

static void a_faster_pass_or_one_beyond_the_pass_limit_updates_it(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    double before = w->c.pass_time.scale;
    control_asked(&w->seqs[0], 0, 100, 1);
    pass_beside(w, &w->seqs[0], 50);
    assert_true(w->c.pass_time.scale < before);
    before = w->c.pass_time.scale;
    for (unsigned i = 0; i < 100; i++) {
        control_asked(&w->seqs[0], 0, 100, 1); // each answer: still reading
        pass_beside(w, &w->seqs[0], 200);
    }
    assert_true(w->c.pass_time.scale > before);
}

/* The answer arrives while the pass runs. */
static void the_pass_in_which_prefill_ends_is_charged(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_ask(&w->seqs[0], 1);
    control_answered(&w->c, &w->seqs[0], 0, 4, 1000, true);
    pass_beside(w, &w->seqs[0], 200);
    assert_true(w->c.proposers[0].prefill_price.us == 100);
}

static void an_interrupted_pass_is_charged_at_most_eight_times(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    world_ask(&w->seqs[1], 1);
    pass_beside(w, &w->seqs[1], 1e8); // the machine was suspended
    control_answered(&w->c, &w->seqs[1], 0, 4, 1000, true);
    assert_true(world_asked_with(w, 1, 64, 1000) > 0);
}

/* The prefill price is 10 us per position. */
static struct control_world *world_with_price(void)
{
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    for (unsigned i = 0; i < 20; i++)
        read_beside_passes(w, &w->seqs[20 + i]);
    control_seq_init(&w->seqs[0]);
    return w;
}

static void a_short_answer_is_not_worth_a_prefill(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    assert_true(world_asked_with(w, 1, 64, 10) > 0); // the price is unknown
    w = world_with_price();
    assert_int_equal(world_asked_with(w, 1, 64, 10), 0);
    assert_true(world_asked_with(w, 1, 64, 1000) > 0);
    control_asked(&w->seqs[0], 0, 100, 1); // the prefill has begun
    assert_true(world_asked_with(w, 1, 64, 10) > 0);
    control_answered(&w->c, &w->seqs[0], 0, 4, 1000, true);
    assert_true(world_asked_with(w, 1, 64, 10) > 0);
    control_unread(&w->seqs[0]);
    assert_int_equal(world_asked_with(w, 1, 64, 10), 0);
}

/* The estimate is 100 positions, the proposer reports ten times as many: each costs 1 us. */
static void the_proposer_reports_what_it_reads(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    for (unsigned i = 20; i < 40; i++) {
        control_asked(&w->seqs[i], 0, 100, 1);
        control_still_reading(&w->seqs[i], 0, 1000);
        for (unsigned k = 0; k < 10; k++)
            pass_beside(w, &w->seqs[i], 200);
        control_still_reading(&w->seqs[i], 0, 200); // progress
        control_answered(&w->c, &w->seqs[i], 0, 4, 1000, true);
    }
    control_seq_init(&w->seqs[0]);
    assert_true(world_asked_with(w, 1, 64, 10) > 0);
}

static void a_sequence_without_prefill_does_not_stop_others(void **state)
{
    (void)state;
    struct control_world *w = world_with_price();
    control_seq_init(&w->seqs[1]);
    read_beside_passes(w, &w->seqs[1]);
    world_asked_with(w, 2, 64, 10);
    assert_true(w->items[0].nodes == 0 && w->items[1].nodes > 0);
}

/* Also not while the price is still unknown. */
static void a_running_prefill_is_not_charged_again(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    for (unsigned i = 0; i < 10; i++) {
        assert_true(world_asked_with(w, 2, 64, 10) > 0);
        control_asked(&w->seqs[0], 0, 100, 1);
        pass_beside(w, &w->seqs[0], 1000);
    }
}

static void an_empty_answer_ends_the_prefill(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    control_asked(&w->seqs[0], 0, 100, 1);
    assert_int_equal(w->seqs[0].prefill.positions, 100);
    control_answered(&w->c, &w->seqs[0], 0, 4, 150, false);
    assert_int_equal(w->seqs[0].prefill.positions, 0);
    control_asked(&w->seqs[0], 0, 0, 1);
    assert_int_equal(w->seqs[0].prefill.positions, 0);
    control_asked(&w->seqs[0], 1, 101, 1); // another proposer
    assert_int_equal(w->seqs[0].prefill.positions, 101);
}

static void without_a_request_the_prefill_is_abandoned(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 110); // no row pays
    control_asked(&w->seqs[0], 0, 100, 1);
    assert_int_equal(world_asked(w, 1, 64), 0);
    assert_int_equal(w->seqs[0].prefill.positions, 0);
}

/* In each of n_rounds the proposer answers a request with "still reading". Returns how often the
 * sequence made one. */
static unsigned requests_put_off(struct control_world *w, unsigned n_rounds)
{
    struct control_seq *s = &w->seqs[0];
    unsigned n_requests = 0;
    for (unsigned i = 0; i < n_rounds; i++) {
        bool requests = world_asked(w, 1, 64) > 0;
        if (requests)
            control_asked(s, 0, 100, 1);
        pass_beside(w, prefill_price_running(&s->prefill) ? s : NULL, 100);
        if (requests)
            control_still_reading(s, 0, 100);
        n_requests += requests;
    }
    return n_requests;
}

static void an_endless_prefill_is_requested_rarely(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    assert_int_equal(requests_put_off(w, 16), 16); // within the pass limit
    requests_put_off(w, 200);
    assert_in_range(requests_put_off(w, 1000), 1, 1000 / 10);
    control_answered(&w->c, &w->seqs[0], 0, 2, 1000, true); // the prefill ends after all
    assert_true(world_asked(w, 1, 64) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pass_during_prefill_does_not_update_the_pass_time),
        cmocka_unit_test(a_faster_pass_or_one_beyond_the_pass_limit_updates_it),
        cmocka_unit_test(the_pass_in_which_prefill_ends_is_charged),
        cmocka_unit_test(an_interrupted_pass_is_charged_at_most_eight_times),
        cmocka_unit_test(a_short_answer_is_not_worth_a_prefill),
        cmocka_unit_test(the_proposer_reports_what_it_reads),
        cmocka_unit_test(a_sequence_without_prefill_does_not_stop_others),
        cmocka_unit_test(a_running_prefill_is_not_charged_again),
        cmocka_unit_test(an_empty_answer_ends_the_prefill),
        cmocka_unit_test(without_a_request_the_prefill_is_abandoned),
        cmocka_unit_test(an_endless_prefill_is_requested_rarely),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
