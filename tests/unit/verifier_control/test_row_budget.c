/* test_row_budget.c - which draft tokens get a row, and which proposers are waited for. */
#include "lib/oracles/control_world.h"
#include "lib/lib.h"

static void rows_go_to_the_tokens_most_likely_to_survive(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 4);
    uint32_t most = 0, n_differ = 0;
    float least = 1;
    for (unsigned i = 0; i < 16; i++)
        world_feed(w, i, 0.2 + 0.05 * i, 8, 100);
    world_asked(w, 16, 64);
    for (unsigned i = 0; i < 16; i++) {
        const struct control_item *v = &w->items[i];
        most = v->nodes > most ? v->nodes : most;
        least = v->nodes && v->survival[v->nodes - 1] < least ? v->survival[v->nodes - 1] : least;
        n_differ += v->nodes != w->items[0].nodes;
    }
    assert_true(n_differ > 8);
    for (unsigned i = 0; i < 16; i++) // `most` may be the limit
        assert_true(w->items[i].nodes == most || w->items[i].survival[w->items[i].nodes] <= least);
}

/* Proposer p answers for sequence p after us, with tokens accepted with probability alpha. */
static void show_proposer(struct control_world *w, unsigned p, double alpha, double us)
{
    const uint32_t tokens[4] = {7, 7, 7, 7};
    struct draft draft = world_draft(4, tokens, NULL);
    for (unsigned i = 0; i < 200; i++) {
        uint32_t n = world_right_tokens(w, alpha, 4), committed[5] = {7, 7, 7, 7};
        committed[n] = 8;
        control_asked(&w->seqs[p], p, 0, 1);
        control_answered(&w->c, &w->seqs[p], p, 1 + i % 8, us, true);
        control_seen(&w->c, &w->seqs[p], p, &draft, 4, committed, n + 1);
        control_ask(&w->c, &(struct control_round){.n_decoding = 1}, w->items, 0);
    }
}

/* Sequences request from proposers 0 and 1 alternately. Returns how long waiting pays. */
static double ask_two_proposers(struct control_world *w, uint32_t n)
{
    struct control_round r = {.n_decoding = n, .draft_rows = 1000, .n_running = n};
    for (uint32_t i = 0; i < n; i++) {
        pass_time_add(&r.pass, 1, 100);
        w->items[i] = (struct control_item){.s = &w->seqs[i],
                                            .proposer = i % 2,
                                            .context = 100,
                                            .left = 1000,
                                            .max_nodes = 16,
                                            .max_depth = 16};
    }
    return control_ask(&w->c, &r, w->items, n);
}

/* Its drafts are not worth the wait, neither with those of the other proposer nor alone. */
static void a_slow_proposer_does_not_stop_others(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 300);
    show_proposer(w, 0, 0.8, 200);
    show_proposer(w, 1, 0.1, 40000);
    double wait_us = ask_two_proposers(w, 2);
    assert_true(w->items[0].nodes > 2 && w->items[1].nodes == 0);
    assert_true(w->c.expected_wait_us < 400 && wait_us > 5000 && wait_us < 40000);
}

/* Both together pay, but the fast proposer alone is better. */
static void a_slow_proposer_is_excluded_if_that_is_better(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 300);
    show_proposer(w, 0, 0.8, 200);
    show_proposer(w, 1, 0.8, 15000);
    ask_two_proposers(w, 2);
    assert_true(w->items[0].nodes > 2 && w->items[1].nodes == 0);
}

/* Each sequence in a message takes the proposer as long as half a token. Only four of 16 are
 * worth a row; alone they reach 1.19 of the goodput without drafts. */
static void a_sequence_without_rows_does_not_extend_the_wait(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 60);
    for (unsigned i = 0; i < 300; i++)
        draft_latency_seen(&w->c.proposers[0].latency, 1 + i % 8, 1 + i % 5,
                           500 + (1 + i % 8) * (400 + 200.0 * (i % 5)));
    for (unsigned i = 0; i < 16; i++) {
        w->seqs[i].expected = 7e5; // at the rate of 0.7 before anything was tried
        w->seqs[i].accepted = i < 4 ? 9e5 : 0.2e5;
    }
    world_asked(w, 16, 64);
    for (unsigned i = 0; i < 16; i++)
        assert_true(i < 4 ? w->items[i].nodes > 2 : w->items[i].nodes == 0);
}

static void a_proposer_without_rows_is_not_waited_for(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 3000);
    show_proposer(w, 0, 0.9, 200);
    show_proposer(w, 1, 0.01, 1000);
    ask_two_proposers(w, 2);
    assert_true(w->items[0].nodes > 0 && w->items[1].nodes == 0);
    assert_true(w->c.expected_wait_us < 400);
}

/* Passes of up to 16 rows take the same time, larger ones 1.6 times as long. With the slow
 * proposer, its sequences get the four free rows, and goodput is below that without drafts. The
 * sequences of the fast one would reach 1.25 of it. */
static void starved_sequences_get_rows_once_a_slow_proposer_is_excluded(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 0);
    struct pass_time_measured m = {0};
    for (unsigned i = 0; i < PASS_TIME_TIMED; i++)
        m.us[i] = pass_time_rows_at(i) <= 16 ? 10000 : 16000;
    pass_time_init(&w->c.pass_time, &m);
    show_proposer(w, 0, 0.9, 4000);
    show_proposer(w, 1, 0.85, 200);
    for (unsigned i = 2; i < 12; i++)
        control_asked(&w->seqs[i], i % 2, 0, 1); // its context was read
    ask_two_proposers(w, 12);
    uint32_t k[2] = {0};
    for (unsigned i = 0; i < 12; i++)
        k[i % 2] += w->items[i].nodes;
    assert_true(k[0] == 0 && k[1] == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_to_the_tokens_most_likely_to_survive),
        cmocka_unit_test(a_slow_proposer_does_not_stop_others),
        cmocka_unit_test(a_slow_proposer_is_excluded_if_that_is_better),
        cmocka_unit_test(a_sequence_without_rows_does_not_extend_the_wait),
        cmocka_unit_test(a_proposer_without_rows_is_not_waited_for),
        cmocka_unit_test(starved_sequences_get_rows_once_a_slow_proposer_is_excluded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
