/* test_exploration.c - tries, and what they may cost. */
#include "lib/oracles/control_world.h"
#include "lib/lib.h"

static void drafts_that_never_pay_are_tried_rarely(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 60);
    world_feed(w, 0, 0.05, 8, 200);
    unsigned n_tried = 0, rounds = 5000;
    for (unsigned i = 0; i < rounds; i++)
        n_tried += world_asked(w, 1, 64) > 0;
    assert_in_range(n_tried, 1, rounds / 60); // a row takes 60 % of a pass: at most 1 % of the time
}

/* Four sequences whose context was read. Their drafts have one token, and every other draft is
 * accepted: 1.5 times the tokens in 1.53 times the time. */
static struct control_world *world_where_drafts_almost_pay(void)
{
    struct control_world *w = world_of(CONTROL_GOODPUT, 1, 0, 100, 11);
    for (unsigned i = 0; i < 200; i++) {
        for (unsigned k = 0; k < 4; k++) {
            world_ask(&w->seqs[k], 4);
            control_answered(&w->c, &w->seqs[k], 0, 1, 27, true);
            world_see(w, &w->seqs[k], 1, i % 2);
        }
        control_ask(&w->c, &(struct control_round){.n_decoding = 1}, w->items, 0);
    }
    return w;
}

/* Of n_rounds, those in which sequences 0 to 2 try together. */
static unsigned rounds_of_all(struct control_world *w, unsigned n_rounds, uint32_t k_of_3)
{
    unsigned n_all = 0;
    for (unsigned i = 0; i < n_rounds; i++) {
        uint32_t k = world_asked(w, 4, 64);
        n_all += k;
        for (unsigned s = 0; s < 3; s++)
            assert_true(w->items[s].nodes == k && w->seqs[s].trying == (k > 0));
        assert_int_equal(w->items[3].nodes, k_of_3 && k);
    }
    return n_all;
}

static void drafts_that_almost_pay_are_tried_by_all_that_were_read(void **state)
{
    (void)state;
    struct control_world *w = world_where_drafts_almost_pay();
    assert_in_range(rounds_of_all(w, 340, 1), 16, 22);
    w->c.proposers[0].prefill_price = (struct prefill_price){.us = 1e6, .positions = 100};
    control_unread(&w->seqs[3]);
    assert_in_range(rounds_of_all(w, 340, 0), 16, 22);
}

/* Of n_rounds, those in which a sequence of proposer 1 tries alone. It has 2 of 4 sequences. */
static unsigned tries_of_the_other(struct control_world *w, unsigned n_rounds)
{
    struct control_round r = {.n_decoding = 4, .draft_rows = 1000, .n_running = 4};
    unsigned n_tries = 0;
    for (uint32_t i = 0; i < 4; i++)
        pass_time_add(&r.pass, 1, 100);
    for (unsigned round = 0; round < n_rounds; round++) {
        for (uint32_t i = 0; i < 4; i++)
            w->items[i] = (struct control_item){.s = &w->seqs[i],
                                                .proposer = i / 2,
                                                .context = 100,
                                                .left = 1000,
                                                .max_nodes = 64,
                                                .max_depth = 64};
        control_ask(&w->c, &r, w->items, 4);
        n_tries += w->items[2].nodes || w->items[3].nodes;
    }
    return n_tries;
}

static void a_sequence_outside_the_best_distribution_tries_alone(void **state)
{
    (void)state;
    struct control_world *w = world_where_drafts_almost_pay();
    w->c.proposers[1] = w->c.proposers[0];
    for (unsigned i = 2; i < 4; i++) {
        control_asked(&w->seqs[i], 1, 0, 1);
        w->seqs[i].accepted = 0; // a low factor
        w->seqs[i].expected = 100;
    }
    assert_in_range(tries_of_the_other(w, 400), 5, 20);
    control_forget(&w->c, 1);
    assert_in_range(tries_of_the_other(w, 16), 8, 9); // the first eight immediately
}

static void a_try_of_all_pauses_during_prefill(void **state)
{
    (void)state;
    struct control_world *w = world_where_drafts_almost_pay();
    w->c.proposers[0].n_tries = 0;
    control_unread(&w->seqs[3]);
    control_asked(&w->seqs[3], 0, 100, 1);
    w->seqs[3].trying = true;
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(world_asked(w, 4, 64), 0);
        assert_int_equal(w->items[3].nodes, 1);
    }
    assert_int_equal(w->c.proposers[0].n_tries, 0);
}

static void a_fixed_request_is_no_try(void **state)
{
    (void)state;
    struct control_world *w = world_where_drafts_almost_pay();
    struct control_round r = {
        .pass = {.rows = 2}, .n_decoding = 2, .n_fixed = 1, .draft_rows = 1000, .n_running = 2};
    w->c.proposers[0].n_tries = 0;
    for (unsigned i = 0; i < 50; i++) {
        w->items[0] =
            (struct control_item){.s = &w->seqs[0], .max_nodes = 4, .max_depth = 4, .fixed = true};
        assert_true(control_ask(&w->c, &r, w->items, 1) == 0); // the round does not wait for it
        assert_int_equal(w->items[0].nodes, 1);
    }
}

/* Even if its drafts do not pay, and if it never answers. */
static void a_new_proposer_is_tried_immediately(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 200);
    w->c.proposers[0] = (struct control_proposer){0};
    unsigned n_tried = 0;
    for (unsigned i = 0; i < 50; i++) {
        n_tried += world_asked(w, 2, 64) > 0 || w->items[1].nodes > 0;
        assert_int_equal(n_tried, i < 8 ? i + 1 : 8);
    }
    control_forget(&w->c, 0); // another proposer takes the place
    assert_true(world_asked(w, 2, 64) > 0 || w->items[1].nodes > 0);
}

/* Each of n_rounds takes 5 ms, and the proposer answers each request after us without tokens.
 * Sequences end after n_tokens rounds. Returns the share of time that is not spent on tries. */
static double share_of_time_without_tries(struct control_world *w, double us, unsigned n_rounds,
                                          unsigned n_tokens)
{
    double waited_us = 0;
    for (unsigned i = 0; i < n_rounds; i++) {
        if (i % n_tokens == 0)
            control_seq_init(&w->seqs[0]);
        if (!world_asked(w, 1, 64))
            continue;
        world_ask(&w->seqs[0], 1);
        control_answered(&w->c, &w->seqs[0], 0, w->items[0].nodes, us, false);
        waited_us += us;
    }
    return n_rounds * 5000.0 / (n_rounds * 5000.0 + waited_us);
}

/* For example a remote retrieval service that finds nothing. */
static void slow_empty_answers_make_tries_rare(void **state)
{
    (void)state;
    for (unsigned was_fast = 0; was_fast < 2; was_fast++) {
        struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 5000, 250);
        for (unsigned i = 0; i < 50 * was_fast; i++) // its answers with tokens were fast
            world_answer(w, 0, 1 + i % 8, 200);
        share_of_time_without_tries(w, 15000, 200, 200);
        assert_true(share_of_time_without_tries(w, 15000, 20000, 20000) > 0.99);
    }
}

/* A try takes as long as 50 passes. */
static void slow_tries_stay_within_their_budget(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 1000, 250);
    for (unsigned i = 0; i < 50; i++)
        world_answer(w, 0, 1 + i % 8, 50000);
    unsigned n_tried = 0, n_rounds = 50000;
    for (unsigned i = 0; i < n_rounds; i++)
        n_tried += world_asked(w, 1, 64) > 0;
    assert_in_range(n_tried, 2, n_rounds * 2 * 0.004 / 50); // "one" and "all", 0.4 % each
}

/* Tries in 100 s, after n answers with tokens, which take 5 ms, and one without tokens, the second,
 * which takes empty_us. */
static unsigned tries_after(double empty_us, unsigned n_answers)
{
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 1000, 250);
    world_ask(&w->seqs[0], 1);
    for (unsigned i = 0; i < n_answers; i++) {
        world_answer(w, 0, 1 + i % 8, 5000);
        if (i == 0)
            control_answered(&w->c, &w->seqs[0], 0, 2, empty_us, false);
    }
    unsigned n_tried = 0;
    for (unsigned i = 0; i < 100000; i++)
        n_tried += world_asked(w, 1, 64) > 0;
    return n_tried;
}

/* Without a cap, a try of 700 ms would put off the next one for 700 ms / 0.004 = 175 s. */
static void one_delayed_answer_does_not_postpone_tries(void **state)
{
    (void)state;
    unsigned before = tries_after(5000, 40);
    assert_true(before > 50);
    assert_in_range(tries_after(700000, 40), 0.9 * before, 1.1 * before);
}

static void tries_are_at_most_ten_minutes_apart(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100000, 25000);
    for (unsigned i = 0; i < 50; i++)
        world_answer(w, 0, 1 + i % 8, 1e8);
    unsigned n_tried = 0;
    for (unsigned i = 0; i <= 6000; i++) // ten minutes
        n_tried += world_asked(w, 1, 64) > 0;
    assert_in_range(n_tried, 1, 2);
}

/* Otherwise each would send ten requests or more before its own share is low. */
static void new_sequences_start_with_the_share_granted_to_others(void **state)
{
    (void)state;
    static const double us[] = {1000, 2000, 5000, 15000};
    for (unsigned i = 0; i < ARRAY_LEN(us); i++) {
        struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 5000, 250);
        share_of_time_without_tries(w, us[i], 2000, 100);
        assert_true(share_of_time_without_tries(w, us[i], 10000, 100) > 0.98);
    }
}

static double wait_of_try_us(struct control_world *w)
{
    struct control_round r = {.pass = {.rows = 1}, .n_decoding = 1, .n_running = 1};
    w->items[0] =
        (struct control_item){.s = &w->seqs[0], .left = 1000, .max_nodes = 16, .max_depth = 16};
    return control_ask(&w->c, &r, w->items, 1);
}

/* Beside a pass on the same cores its answer would seem slower than it is. */
static void a_try_is_awaited(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 200);
    w->c.proposers[0] = (struct control_proposer){0};
    assert_true(wait_of_try_us(w) > 1e6);
    control_asked(&w->seqs[0], 0, 100, 1);
    assert_true(wait_of_try_us(w) == 0 && w->seqs[0].trying); // prefill: no draft arrives yet
    control_answered(&w->c, &w->seqs[0], 0, 2, 1000, true);
    assert_true(wait_of_try_us(w) > 1e6);
    w->c.proposers[0].n_tries = 1000;
    assert_true(wait_of_try_us(w) == 0);
}

/* A try keeps its request until it is answered. */
static void a_try_continues_during_prefill(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 110);
    while (!world_asked(w, 1, 64))
        ;
    control_asked(&w->seqs[0], 0, 100, 1);
    for (unsigned i = 0; i < 10; i++)
        assert_true(world_asked(w, 1, 64) > 0 && w->seqs[0].trying);
    control_answered(&w->c, &w->seqs[0], 0, 4, 1000, true);
    assert_int_equal(world_asked(w, 1, 64), 0);
}

static void sequences_whose_context_was_read_try_first(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 60);
    world_feed(w, 0, 0.05, 8, 200);
    w->seqs[2].prefill.done = true;
    unsigned n_tried = 0;
    for (unsigned i = 0; i < 2000; i++) {
        world_asked(w, 4, 64);
        n_tried += w->items[2].nodes > 0;
        assert_true(w->items[0].nodes == 0 && w->items[1].nodes == 0 && w->items[3].nodes == 0);
    }
    assert_in_range(n_tried, 2, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_that_never_pay_are_tried_rarely),
        cmocka_unit_test(drafts_that_almost_pay_are_tried_by_all_that_were_read),
        cmocka_unit_test(a_sequence_outside_the_best_distribution_tries_alone),
        cmocka_unit_test(a_try_of_all_pauses_during_prefill),
        cmocka_unit_test(a_fixed_request_is_no_try),
        cmocka_unit_test(a_new_proposer_is_tried_immediately),
        cmocka_unit_test(slow_empty_answers_make_tries_rare),
        cmocka_unit_test(slow_tries_stay_within_their_budget),
        cmocka_unit_test(one_delayed_answer_does_not_postpone_tries),
        cmocka_unit_test(tries_are_at_most_ten_minutes_apart),
        cmocka_unit_test(new_sequences_start_with_the_share_granted_to_others),
        cmocka_unit_test(a_try_is_awaited),
        cmocka_unit_test(a_try_continues_during_prefill),
        cmocka_unit_test(sequences_whose_context_was_read_try_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
