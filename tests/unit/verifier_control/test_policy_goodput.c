/* test_policy_goodput.c - how many draft tokens goodput asks for, verifies and tries. */
#include <math.h>
#include "lib/oracles/control_world.h"
#include "lib/lib.h"

/* ---- what is asked for ---- */

/* The proposer took us for k tokens; another round follows. */
static void answered(struct world *w, unsigned seq, uint32_t k, double us)
{
    world_ask(&w->seqs[seq], 1);
    control_answered(&w->c, &w->seqs[seq], 0, k, us, true);
    control_ask(&w->c, &(struct control_round){.n_decoding = 1}, w->items, 0);
}

/* The k that makes most tokens per second if every token is right with probability alpha. */
static uint32_t best_k(double alpha, double first_us, double row_us, double per_k_us)
{
    uint32_t best = 0;
    double rate = 1 / first_us, tokens = 1, chance = 1;
    for (uint32_t k = 1; k <= 16; k++) {
        tokens += chance *= alpha;
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
    double tokens = 1, chance = 1;
    for (uint32_t i = 0; i < k; i++)
        tokens += chance *= alpha;
    return tokens / (first_us + k * (row_us + per_k_us));
}

static void goodput_finds_the_best_length_for_every_acceptance(void **state)
{
    (void)state;
    static const double alphas[] = {.1, .2, .3, .4, .5, .6, .7, .8, .9, .95};
    static const double row_us[] = {1, 5, 20, 50};
    for (unsigned a = 0; a < 10; a++) {
        for (unsigned c = 0; c < 4; c++) {
            struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, row_us[c]);
            world_feed(w, 0, alphas[a], 16, 2000);
            world_feed(w, 0, alphas[a], 4, 20);
            w->seqs[0].accepted = w->seqs[0].expected = 0; // this one's luck is not at stake
            for (uint32_t k = 1; k <= 16; k++) // a proposer that takes 3 us for each token
                answered(w, 0, k, 3.0 * k);
            uint32_t best = best_k(alphas[a], 100, row_us[c], 3);
            uint32_t k = world_asked(w, 1, 64);
            double got = rate_with(k, alphas[a], 100, row_us[c], 3);
            double most = rate_with(best, alphas[a], 100, row_us[c], 3);
            assert_true(got >= 0.98 * most); // as none is left for what promises 2 % more
        }
    }
}

static void any_k_may_be_the_most(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= CONTROL_K_MAX; k++) {
        struct world *w = world_of(CONTROL_GOODPUT, k, 0, 100, 0.1);
        world_feed(w, 0, 1, 16, 300);
        assert_int_equal(world_asked(w, 1, 64), k);
    }
}

static void without_times_nothing_is_drafted(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    w->c.pass_time = (struct pass_time){0};
    for (unsigned i = 0; i < 2000; i++) {
        pass_time_seen(&w->c.pass_time, &(struct pass_time_work){.rows = 1}, 100);
        assert_int_equal(world_asked(w, 2, 64), 0);
    }
    assert_true(w->c.pass_time.scale == 0);
}

static void a_sequence_that_fares_better_gets_more(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 20);
    for (unsigned i = 0; i < 100; i++) {
        world_feed(w, 0, 0.9, 4, 1);
        world_feed(w, 1, 0.1, 4, 1);
    }
    world_asked(w, 2, 64);
    assert_true(w->items[0].nodes > w->items[1].nodes);
}

static void rows_go_to_the_likeliest_tokens(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 4);
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
    for (unsigned i = 0; i < 16; i++) // most may be the limit
        assert_true(w->items[i].nodes == most || w->items[i].survival[w->items[i].nodes] <= least);
}

static void one_draft_that_fails_says_little_of_a_sequence(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 3);
    for (unsigned i = 0; i < 100; i++)
        world_see(w, &w->seqs[1], 16, i % 16);
    uint32_t before = world_asked(w, 1, 64);
    world_see(w, &w->seqs[0], 4, 0);
    assert_true(world_asked(w, 1, 64) >= before - before / 3);
}

static void a_slow_proposer_is_asked_for_more_at_once_or_not_at_all(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 10);
    world_feed(w, 0, 0.8, 16, 300);
    for (unsigned i = 0; i < 50; i++)
        answered(w, 0, 1 + i % 8, 1);
    answered(w, 1, 4, 1e6); // a new sequence has to be learnt first
    answered(w, 0, 4, 1e6); // and one may be held up
    uint32_t fast = world_asked(w, 1, 64);
    for (unsigned i = 0; i < 200; i++)
        answered(w, 0, 1 + i % 8, 60);
    uint32_t slow = world_asked(w, 1, 64);
    assert_true(slow > fast);
    for (unsigned i = 0; i < 200; i++)
        answered(w, 0, 1 + i % 8, 5000);
    assert_int_equal(world_asked(w, 1, 64), 0);
}

/* Proposer number p drafts for sequence p, in us, tokens of which each is right with probability
 * alpha. */
static void show_proposer(struct world *w, unsigned p, double alpha, double us)
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

/* Sequences ask proposers 0 and 1 by turns. Returns how long waiting pays. */
static double ask_by_turns(struct world *w, uint32_t n)
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

/* Its drafts are not worth the wait, with those of the other or without. */
static void a_slow_proposer_keeps_nobody_else_from_drafting(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 300);
    show_proposer(w, 0, 0.8, 200);
    show_proposer(w, 1, 0.1, 40000);
    double wait_us = ask_by_turns(w, 2);
    assert_true(w->items[0].nodes > 2 && w->items[1].nodes == 0);
    assert_true(w->c.wait_us < 400 && wait_us > 5000 && wait_us < 40000);
}

/* Together they pay, but without the slow one better. */
static void a_slow_proposer_holds_up_nobody(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 300);
    show_proposer(w, 0, 0.8, 200);
    show_proposer(w, 1, 0.8, 15000);
    ask_by_turns(w, 2);
    assert_true(w->items[0].nodes > 2 && w->items[1].nodes == 0);
}

/* Each sequence that a proposer drafts for takes it as long as half a token, but four of 16 only
 * are worth a row, and bring 1.19 of none. */
static void who_has_no_row_takes_no_time_of_its_proposer(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 60);
    for (unsigned i = 0; i < 300; i++)
        draft_latency_seen(&w->c.proposers[0].latency, 1 + i % 8, 1 + i % 5,
                           500 + (1 + i % 8) * (400 + 200.0 * (i % 5)));
    for (unsigned i = 0; i < 16; i++) {
        w->seqs[i].expected = 7e5; // at the 0.7 that a token has before any was tried
        w->seqs[i].accepted = i < 4 ? 9e5 : 0.2e5;
    }
    world_asked(w, 16, 64);
    for (unsigned i = 0; i < 16; i++)
        assert_true(i < 4 ? w->items[i].nodes > 2 : w->items[i].nodes == 0);
}

/* Nor is a proposer waited for that has none to draft. */
static void who_has_no_row_is_not_waited_for(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 3000);
    show_proposer(w, 0, 0.9, 200);
    show_proposer(w, 1, 0.01, 1000);
    ask_by_turns(w, 2);
    assert_true(w->items[0].nodes > 0 && w->items[1].nodes == 0);
    assert_true(w->c.wait_us < 400);
}

/* A pass of up to 16 rows takes the same, one of more 1.6 times as long: sequences of the slow
 * proposer get the four rows that are left, and bring less than none; those of the other bring a
 * quarter more. */
static void who_has_no_row_beside_a_slow_proposer_drafts_without_it(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 0);
    struct pass_time_measured m = {0};
    for (unsigned i = 0; i < PASS_TIME_TIMED; i++)
        m.us[i] = pass_time_rows_at(i) <= 16 ? 10000 : 16000;
    pass_time_init(&w->c.pass_time, &m);
    show_proposer(w, 0, 0.9, 4000);
    show_proposer(w, 1, 0.85, 200);
    for (unsigned i = 2; i < 12; i++)
        control_asked(&w->seqs[i], i % 2, 0, 1); // it was read
    ask_by_turns(w, 12);
    uint32_t k[2] = {0};
    for (unsigned i = 0; i < 12; i++)
        k[i % 2] += w->items[i].nodes;
    assert_true(k[0] == 0 && k[1] == 4);
}

static void waiting_is_worth_what_the_draft_brings(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 4, 0, 100, 0);
    struct control_round r = {
        .n_decoding = 1, .draft_rows = 1000, .n_running = 1, .pass = {.rows = 1}};
    w->items[0] = (struct control_item){.s = &w->seqs[0], .max_nodes = 4, .max_depth = 4};
    world_feed(w, 0, 1, 4, 500);
    double us = control_ask(&w->c, &r, w->items, 1);
    assert_int_equal(w->items[0].nodes, 4);
    assert_true(us > 350 && us < 400); // five tokens in a pass that costs no more than for one
}

/* ---- tries ---- */

static void what_never_pays_is_off_and_tried_again_rarely(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 60);
    world_feed(w, 0, 0.05, 8, 200);
    unsigned n_tried = 0, rounds = 5000;
    for (unsigned i = 0; i < rounds; i++)
        n_tried += world_asked(w, 1, 64) > 0;
    assert_in_range(n_tried, 1, rounds / 60); // a row is 60 % of a pass, at most 1 % of the time
}

/* Four sequences that were read, and drafts of one token of which every other is kept: they bring
 * 1.5 times the tokens in 1.53 times the time. */
static struct world *world_where_drafts_almost_pay(void)
{
    struct world *w = world_of(CONTROL_GOODPUT, 1, 0, 100, 11);
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

/* In how many of so many rounds sequence 0 has a draft; then sequences 1 and 2 have one, too. */
static unsigned rounds_of_all(struct world *w, unsigned n_rounds, uint32_t k_of_3)
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

static void what_almost_pays_is_tried_by_all_that_were_read(void **state)
{
    (void)state;
    struct world *w = world_where_drafts_almost_pay();
    assert_in_range(rounds_of_all(w, 340, 1), 16, 22);
    w->c.proposers[0].prefill_price = (struct prefill_price){.us = 1e6, .positions = 100};
    control_unread(&w->seqs[3]);
    assert_in_range(rounds_of_all(w, 340, 0), 16, 22);
}

/* In how many of so many rounds a sequence of proposer 1 tries by itself, that has two of four. */
static unsigned tries_of_the_other(struct world *w, unsigned n_rounds)
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

static void who_is_not_among_all_tries_too(void **state)
{
    (void)state;
    struct world *w = world_where_drafts_almost_pay();
    w->c.proposers[1] = w->c.proposers[0];
    for (unsigned i = 2; i < 4; i++) {
        control_asked(&w->seqs[i], 1, 0, 1);
        w->seqs[i].accepted = 0; // they fare worse than others
        w->seqs[i].expected = 100;
    }
    assert_in_range(tries_of_the_other(w, 400), 5, 20);
    control_forget(&w->c, 1);
    assert_in_range(tries_of_the_other(w, 16), 8, 9); // the first eight at once
}

static void while_a_context_is_read_all_do_not_try(void **state)
{
    (void)state;
    struct world *w = world_where_drafts_almost_pay();
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
    struct world *w = world_where_drafts_almost_pay();
    struct control_round r = {
        .pass = {.rows = 2}, .n_decoding = 2, .n_fixed = 1, .draft_rows = 1000, .n_running = 2};
    w->c.proposers[0].n_tries = 0;
    for (unsigned i = 0; i < 50; i++) {
        w->items[0] =
            (struct control_item){.s = &w->seqs[0], .max_nodes = 4, .max_depth = 4, .fixed = true};
        assert_true(control_ask(&w->c, &r, w->items, 1) == 0); // nobody waits for it
        assert_int_equal(w->items[0].nodes, 1);
    }
}

/* However little it seems to bring, and also if it says nothing. */
static void a_new_proposer_is_tried_at_once(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 200);
    w->c.proposers[0] = (struct control_proposer){0};
    unsigned n_tried = 0;
    for (unsigned i = 0; i < 50; i++) {
        n_tried += world_asked(w, 2, 64) > 0 || w->items[1].nodes > 0;
        assert_int_equal(n_tried, i < 8 ? i + 1 : 8);
    }
    control_forget(&w->c, 0); // another one
    assert_true(world_asked(w, 2, 64) > 0 || w->items[1].nodes > 0);
}

/* Of the time of n_rounds, 5 ms each, what tries leave if the proposer answers each wish after us
 * without tokens. Sequences end after so many rounds. */
static double left_beside_silence(struct world *w, double us, unsigned n_rounds, unsigned n_tokens)
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

/* Retrieval far away, that finds nothing. */
static void what_says_nothing_slowly_is_tried_rarely(void **state)
{
    (void)state;
    for (unsigned near = 0; near < 2; near++) {
        struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 5000, 250);
        for (unsigned i = 0; i < 50 * near; i++) // what it had to say before came at once
            answered(w, 0, 1 + i % 8, 200);
        left_beside_silence(w, 15000, 200, 200);
        assert_true(left_beside_silence(w, 15000, 20000, 20000) > 0.99);
    }
}

/* Also where a try takes as long as many passes. */
static void slow_tries_keep_their_share(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 1000, 250);
    for (unsigned i = 0; i < 50; i++)
        answered(w, 0, 1 + i % 8, 50000);
    unsigned n_tried = 0, n_rounds = 50000;
    for (unsigned i = 0; i < n_rounds; i++)
        n_tried += world_asked(w, 1, 64) > 0;
    assert_in_range(n_tried, 2, n_rounds * 2 * 0.004 / 50); // by itself and as all, 0.4 % each
}

/* An answer without tokens comes after the first of n with some, which take 5 ms. Tries in
 * 100 s. */
static unsigned tries_after(double empty_us, unsigned n_answers)
{
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 1000, 250);
    world_ask(&w->seqs[0], 1);
    for (unsigned i = 0; i < n_answers; i++) {
        answered(w, 0, 1 + i % 8, 5000);
        if (i == 0)
            control_answered(&w->c, &w->seqs[0], 0, 2, empty_us, false);
    }
    unsigned n_tried = 0;
    for (unsigned i = 0; i < 100000; i++)
        n_tried += world_asked(w, 1, 64) > 0;
    return n_tried;
}

/* The answer was held up: 700 ms would make a try as dear as three minutes of others. */
static void one_stalled_answer_puts_no_tries_off(void **state)
{
    (void)state;
    unsigned before = tries_after(5000, 40);
    assert_true(before > 50);
    assert_in_range(tries_after(700000, 40), 0.9 * before, 1.1 * before);
}

/* What has become faster is found again, be it ever so slow before. */
static void no_try_is_put_off_for_ever(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100000, 25000);
    for (unsigned i = 0; i < 50; i++)
        answered(w, 0, 1 + i % 8, 1e8);
    unsigned n_tried = 0;
    for (unsigned i = 0; i <= 6000; i++) // ten minutes
        n_tried += world_asked(w, 1, 64) > 0;
    assert_in_range(n_tried, 1, 2);
}

/* Else each would ask ten times and more before it knew. */
static void new_sequences_know_what_others_were_given(void **state)
{
    (void)state;
    static const double us[] = {1000, 2000, 5000, 15000};
    for (unsigned i = 0; i < ARRAY_LEN(us); i++) {
        struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 5000, 250);
        left_beside_silence(w, us[i], 2000, 100);
        assert_true(left_beside_silence(w, us[i], 10000, 100) > 0.98);
    }
}

static double try_waits_us(struct world *w)
{
    struct control_round r = {.pass = {.rows = 1}, .n_decoding = 1, .n_running = 1};
    w->items[0] =
        (struct control_item){.s = &w->seqs[0], .left = 1000, .max_nodes = 16, .max_depth = 16};
    return control_ask(&w->c, &r, w->items, 1);
}

/* Beside a pass on the same cores it would seem slower than it is. */
static void a_try_is_waited_for(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 200);
    w->c.proposers[0] = (struct control_proposer){0};
    assert_true(try_waits_us(w) > 1e6);
    control_asked(&w->seqs[0], 0, 100, 1);
    assert_true(try_waits_us(w) == 0 && w->seqs[0].trying); // it reads: no draft comes yet
    control_answered(&w->c, &w->seqs[0], 0, 2, 1000, true);
    assert_true(try_waits_us(w) > 1e6);
    w->c.proposers[0].n_tries = 1000;
    assert_true(try_waits_us(w) == 0);
}

/* A try asks until it is answered. */
static void a_try_goes_on_while_it_is_read(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 110);
    while (!world_asked(w, 1, 64))
        ;
    control_asked(&w->seqs[0], 0, 100, 1);
    for (unsigned i = 0; i < 10; i++)
        assert_true(world_asked(w, 1, 64) > 0 && w->seqs[0].trying);
    control_answered(&w->c, &w->seqs[0], 0, 4, 1000, true);
    assert_int_equal(world_asked(w, 1, 64), 0);
}

static void tries_are_for_those_that_were_read(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 60);
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

/* ---- what is verified ---- */

static void a_draft_is_cut_where_its_proposer_doubts(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 20);
    const float said[] = {.95f, .9f, .09f, .08f, .07f};
    assert_int_equal(world_cut(w, said, 5), 2);
}

/* The first row more is dear, those behind it are not. */
static void a_bend_in_the_times_ends_only_drafts_that_are_tested_against_q(void **state)
{
    (void)state;
    struct pass_time_measured m = {.us = {100, 160, 161, 162, 163, 164}};
    struct draft draft = world_draft(5, NULL, (const float[]){.5f, .48f, .46f, .44f, .42f});
    struct draft_q q = {0};
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 20);
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

static void all_of_a_try_is_verified(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 60);
    const float doubt[] = {.01f, .01f};
    w->seqs[0].trying = true;
    assert_int_equal(world_cut(w, doubt, 2), 2);
}

static void no_more_is_asked_for_than_a_pass_has_rows_for(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 0);
    struct control_round r = {
        .n_decoding = 2, .n_running = 2, .draft_rows = 5, .pass = {.rows = 2}};
    struct draft draft = world_draft(16, NULL, NULL);
    for (unsigned i = 0; i < 2; i++)
        w->items[i] = (struct control_item){
            .s = &w->seqs[i], .max_nodes = 16, .max_depth = 16, .draft = &draft};
    for (unsigned here = 0; here < 2; here++) {
        if (here)
            control_cut(&w->c, &r, w->items, 2);
        else
            control_ask(&w->c, &r, w->items, 2);
        assert_int_equal(w->items[0].nodes + w->items[1].nodes, 5);
    }
}

/* Every token that is verified makes the next wait come later by less than it brings. */
static void what_was_worth_asking_for_is_worth_verifying(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 30);
    world_feed(w, 1, 0.9, 8, 200);
    for (unsigned i = 0; i < 50; i++)
        answered(w, 1, 1 + i % 8, 100 + 1.0 * (i % 8));
    uint32_t k = world_asked(w, 1, 64);
    assert_true(k > 2);
    assert_int_equal(world_cut(w, NULL, k), k);
}

static void a_wait_that_is_over_does_not_count_against_the_draft(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    const float said[] = {.97f, .95f, .93f};
    w->c.pass_time.drafted_scale = 2;
    assert_int_equal(world_cut(w, said, 3), 3);
}

static void what_a_proposer_says_is_weighed_by_what_came_of_it(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 20);
    const float boast[] = {.97f, .94f, .91f};
    struct draft draft = world_draft(3, (const uint32_t[]){1, 2, 3}, boast);
    assert_int_equal(world_cut(w, boast, 3), 3);
    for (unsigned i = 0; i < 200; i++)
        control_seen(&w->c, &w->seqs[1], 0, &draft, 3, (uint32_t[]){4}, 1);
    assert_int_equal(world_cut(w, boast, 3), 0);
}

/* Its word means something else than it says, wherever in a draft it is said. */
static void what_a_proposer_says_counts_at_every_place(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 10);
    const float modest[] = {.15f, .0225f, .003375f, .00050625f};
    struct draft draft = world_draft(1, (const uint32_t[]){1}, modest);
    assert_int_equal(world_cut(w, modest, 4), 1);
    for (unsigned i = 0; i < 20; i++)
        control_seen(&w->c, &w->seqs[1], 0, &draft, 1, (uint32_t[]){1, 4}, 2);
    assert_int_equal(world_cut(w, modest, 4), 4);
}

/* ---- round by round ---- */

/* What really happens: a pass of M rows takes 100 us and row_us for each further row, a draft of k
 * tokens, each right with probability alpha, 10 us and 5 us for each. */
struct truth {
    double alpha, row_us;
    double load;    // passes take so much longer
    double drafted; // those with drafts once more
};

struct run {
    double tokens, us;
};

/* The drafts that were requested arrive. Returns their number; they are the first items then. */
static uint32_t request_drafts(struct world *w, uint32_t n, struct run *run)
{
    static struct draft chain;
    chain = world_draft(WORLD_CHAIN, NULL, NULL);
    uint32_t n_drafts = 0, longest = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = w->items[i].nodes;
        if (!k)
            continue;
        longest = k > longest ? k : longest;
        w->items[n_drafts++] = (struct control_item){
            .s = &w->seqs[i], .context = 100, .max_nodes = k, .max_depth = k, .draft = &chain};
    }
    double us = n_drafts ? 10 + 5.0 * longest : 0;
    for (uint32_t i = 0; i < n_drafts; i++) {
        world_ask(w->items[i].s, n_drafts);
        control_answered(&w->c, w->items[i].s, 0, w->items[i].max_nodes, us, true);
    }
    run->us += us;
    return n_drafts;
}

static void verify(struct world *w, const struct truth *t, uint32_t n, uint32_t n_drafts,
                   struct run *run)
{
    struct control_round r = {.n_decoding = n, .draft_rows = 1000, .n_running = n};
    for (uint32_t i = 0; i < n; i++)
        pass_time_add(&r.pass, 1, 100);
    control_cut(&w->c, &r, w->items, n_drafts);
    for (uint32_t i = 0; i < n_drafts; i++) {
        const struct control_item *v = &w->items[i];
        uint32_t n_right = world_right_tokens(w, t->alpha, v->max_nodes);
        r.pass.rows += v->nodes;
        r.pass.drafted |= v->nodes > 0;
        run->tokens += n_right < v->nodes ? n_right : v->nodes;
        world_see(w, v->s, v->max_nodes, n_right);
    }
    double us = (1 + t->load) * (100 + t->row_us * (r.pass.rows - 1));
    us *= r.pass.drafted ? 1 + t->drafted : 1;
    control_passed(&w->c, &r.pass, us, NULL);
    run->us += us;
    run->tokens += n;
}

/* Tokens per us in so many rounds. */
static double run_rounds(struct world *w, const struct truth *t, uint32_t n, unsigned n_rounds)
{
    struct run run = {0};
    for (unsigned i = 0; i < n_rounds; i++) {
        world_asked(w, n, WORLD_CHAIN);
        verify(w, t, n, request_drafts(w, n, &run), &run);
    }
    return run.tokens / run.us;
}

/* Of what the best k would bring. */
static double best_rate(const struct truth *t, uint32_t n)
{
    double best = 0;
    for (uint32_t k = 0; k <= WORLD_CHAIN; k++) {
        double tokens = 1, chance = 1;
        for (uint32_t i = 0; i < k; i++)
            tokens += chance *= t->alpha;
        double us = 100 + t->row_us * (n * (k + 1) - 1) + (k ? 10 + 5.0 * k : 0);
        best = fmax(best, n * tokens / us);
    }
    return best;
}

static struct world *world_that_believes(double us_of_1, double us_of_4, double us_of_64)
{
    struct pass_time_measured m = {.us = {[0] = us_of_1, [3] = us_of_4, [18] = us_of_64}};
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    pass_time_init(&w->c.pass_time, &m);
    return w;
}

/* Times that were taken while something else held the machine up. */
static void a_wrong_start_is_unlearnt(void **state)
{
    (void)state;
    static const double us_of_4[] = {109, 900}; // 900: not even one token seems to pay
    for (unsigned i = 0; i < 2; i++) {
        for (uint32_t n = 1; n <= 4; n += 3) {
            struct truth t = {.alpha = 0.9, .row_us = 3};
            struct world *w = world_that_believes(100, us_of_4[i], 6000);
            run_rounds(w, &t, n, 4000);
            assert_true(run_rounds(w, &t, n, 4000) > 0.9 * best_rate(&t, n));
        }
    }
}

static void a_load_that_has_gone_is_forgotten(void **state)
{
    (void)state;
    struct truth t = {.alpha = 0.9, .row_us = 3};
    struct world *w = world_that_believes(100, 109, 289);
    run_rounds(w, &t, 1, 500);
    t.load = 1;
    run_rounds(w, &t, 1, 500);
    t.load = 0;
    run_rounds(w, &t, 1, 500);
    assert_true(run_rounds(w, &t, 1, 4000) > 0.9 * best_rate(&t, 1));
}

/* No other pass shows what rounds with fewer tokens take, if they are thought to take long. */
static void now_and_then_a_round_has_less(void **state)
{
    (void)state;
    struct truth t = {.alpha = 0.9, .row_us = 3};
    struct world *w = world_that_believes(100, 109, 289);
    run_rounds(w, &t, 2, 500);
    struct run run = {0};
    unsigned n_none = 0, n_few = 0;
    for (unsigned i = 0; i < 400; i++) {
        uint32_t k = world_asked(w, 2, WORLD_CHAIN);
        n_none += k == 0;
        n_few += k > 0 && k <= 6; // 10 and more are best
        verify(w, &t, 2, request_drafts(w, 2, &run), &run);
    }
    assert_in_range(n_none, 1, 20);
    assert_in_range(n_few, 1, 20);
}

/* Drafting seems to pay, and while all rounds draft no pass shows what they would take without. */
static void rounds_without_drafts_are_tried_too(void **state)
{
    (void)state;
    struct truth t = {.alpha = 0.9, .row_us = 3, .drafted = 1};
    for (uint32_t n = 4; n <= 16; n *= 4) {
        struct world *w = world_that_believes(100, 109, 289);
        double none = n / (100 + t.row_us * (n - 1));
        run_rounds(w, &t, n, 200);
        assert_true(run_rounds(w, &t, n, 2000) > 0.97 * none);
    }
}

static void trying_costs_next_to_nothing(void **state)
{
    (void)state;
    static const struct truth hopeless[] = {{.05, 3, 0, 0}, {.3, 60, 0, 0}, {.9, 110, 0, 0}};
    for (unsigned i = 0; i < 3; i++) {
        for (uint32_t n = 1; n <= 16; n *= 4) {
            struct world *w = world_that_believes(100, 100 + 3 * hopeless[i].row_us,
                                                  100 + 63 * hopeless[i].row_us);
            run_rounds(w, &hopeless[i], n, 1000);
            assert_true(run_rounds(w, &hopeless[i], n, 5000) > 0.98 * best_rate(&hopeless[i], n));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goodput_finds_the_best_length_for_every_acceptance),
        cmocka_unit_test(any_k_may_be_the_most),
        cmocka_unit_test(without_times_nothing_is_drafted),
        cmocka_unit_test(a_sequence_that_fares_better_gets_more),
        cmocka_unit_test(rows_go_to_the_likeliest_tokens),
        cmocka_unit_test(one_draft_that_fails_says_little_of_a_sequence),
        cmocka_unit_test(a_slow_proposer_is_asked_for_more_at_once_or_not_at_all),
        cmocka_unit_test(a_slow_proposer_keeps_nobody_else_from_drafting),
        cmocka_unit_test(a_slow_proposer_holds_up_nobody),
        cmocka_unit_test(who_has_no_row_takes_no_time_of_its_proposer),
        cmocka_unit_test(who_has_no_row_is_not_waited_for),
        cmocka_unit_test(who_has_no_row_beside_a_slow_proposer_drafts_without_it),
        cmocka_unit_test(waiting_is_worth_what_the_draft_brings),
        cmocka_unit_test(what_never_pays_is_off_and_tried_again_rarely),
        cmocka_unit_test(what_almost_pays_is_tried_by_all_that_were_read),
        cmocka_unit_test(who_is_not_among_all_tries_too),
        cmocka_unit_test(while_a_context_is_read_all_do_not_try),
        cmocka_unit_test(a_fixed_request_is_no_try),
        cmocka_unit_test(a_new_proposer_is_tried_at_once),
        cmocka_unit_test(what_says_nothing_slowly_is_tried_rarely),
        cmocka_unit_test(slow_tries_keep_their_share),
        cmocka_unit_test(one_stalled_answer_puts_no_tries_off),
        cmocka_unit_test(no_try_is_put_off_for_ever),
        cmocka_unit_test(new_sequences_know_what_others_were_given),
        cmocka_unit_test(a_try_is_waited_for),
        cmocka_unit_test(a_try_goes_on_while_it_is_read),
        cmocka_unit_test(tries_are_for_those_that_were_read),
        cmocka_unit_test(a_draft_is_cut_where_its_proposer_doubts),
        cmocka_unit_test(a_bend_in_the_times_ends_only_drafts_that_are_tested_against_q),
        cmocka_unit_test(all_of_a_try_is_verified),
        cmocka_unit_test(no_more_is_asked_for_than_a_pass_has_rows_for),
        cmocka_unit_test(what_was_worth_asking_for_is_worth_verifying),
        cmocka_unit_test(a_wait_that_is_over_does_not_count_against_the_draft),
        cmocka_unit_test(what_a_proposer_says_is_weighed_by_what_came_of_it),
        cmocka_unit_test(what_a_proposer_says_counts_at_every_place),
        cmocka_unit_test(a_wrong_start_is_unlearnt),
        cmocka_unit_test(a_load_that_has_gone_is_forgotten),
        cmocka_unit_test(now_and_then_a_round_has_less),
        cmocka_unit_test(rounds_without_drafts_are_tried_too),
        cmocka_unit_test(trying_costs_next_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
