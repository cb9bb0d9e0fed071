/* test_control_formulas.c - the numbers of docs/controller.md: estimates of requests, the decision,
 * and when tries are due. */
#include <math.h>
#include "lib/oracles/control_world.h"
#include "lib/lib.h"
#include "base/mem.h"
#include "verifier-svc/control/exploration.h"

static void must_be(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-5 * fabs(expected) + 1e-9))
        fail_msg("%.9g, not %.9g", got, expected);
}

/* ---- granted share ---- */

static void granted_shares_follow_the_answers(void **state)
{
    (void)state;
    static const bool granted[] = {true, false, false, true, false, false, false, true};
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    struct control_seq *s = &w->seqs[0];
    double n_wished = 0, n_granted = 0, g = 1;
    control_asked(s, 1, 0, 1);
    for (unsigned i = 0; i < ARRAY_LEN(granted); i++) {
        control_answered(&w->c, s, 1, 2, 1000, granted[i]);
        n_wished = 0.98 * n_wished + 1;
        n_granted = 0.98 * n_granted + granted[i];
        g += 0.1 * (granted[i] - g);
        must_be(control_state_granted(&w->c, 1, s), g);
        must_be(control_state_granted(&w->c, 1, &w->seqs[1]),
                fmin(4 * (n_granted + 2) / (n_wished + 2), 1));
    }
    for (unsigned i = 0; i < 100; i++)
        control_answered(&w->c, s, 1, 2, 1000, false);
    assert_true(control_state_granted(&w->c, 1, &w->seqs[1]) < 0.3);
    s->granted = 0; // even then it has an answer
    assert_true(control_state_has_answer(s, 1) && control_state_granted(&w->c, 1, s) == 0);
    assert_false(control_state_has_answer(s, 2));
}

/* A prefill beyond its pass limit counts as an answer without tokens, and the first answer with
 * tokens after it makes up for that. */
static void an_endless_prefill_lowers_the_share_of_its_sequence(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    struct control_seq *s = &w->seqs[0];
    control_asked(s, 0, 16, 1);
    s->prefill.n_passes = 16 + 1;
    control_still_reading(s, 0, 16);
    assert_false(control_state_has_answer(s, 0)); // within the limit
    s->prefill.n_passes++;
    control_still_reading(s, 0, 16);
    must_be(s->granted, 0.9);
    control_still_reading(s, 0, 16);
    must_be(s->granted, 0.81);
    must_be(w->c.proposers[0].wished, 0); // it says nothing about other contexts
    control_answered(&w->c, s, 0, 2, 1000, true);
    must_be(s->granted, 1);
    must_be(w->c.proposers[0].empty_us, 0); // its time was that of the prefill
    assert_true(w->c.proposers[0].answers.us == 0);
}

/* ---- latency of answers ---- */

static void empty_answers_have_an_average_of_their_own(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    struct control_seq *s = &w->seqs[0];
    const double *empty_us = &w->c.proposers[0].empty_us;
    control_asked(s, 0, 0, 1);
    control_answered(&w->c, s, 0, 2, 1000, false);
    must_be(*empty_us, 1000);
    must_be(control_state_latency_us(&w->c, 0, 7, 3), 1000); // no other answer was seen
    control_answered(&w->c, s, 0, 2, 2000, false);
    must_be(*empty_us, 1200);
    control_answered(&w->c, s, 0, 2, 8 * 1200 + 500, false); // counts as eight times
    must_be(*empty_us, 1200 + 0.2 * 7 * 1200);
    control_answered(&w->c, s, 0, 2, 2880, true); // not sooner
    must_be(*empty_us, 2880);
    control_answered(&w->c, s, 0, 2, 880, true); // sooner
    must_be(*empty_us, 2880 - 0.2 * 2000);
}

/* Also if they take less than a microsecond. */
static void a_short_empty_answer_caps_the_next_one(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    control_asked(&w->seqs[0], 0, 0, 1);
    control_answered(&w->c, &w->seqs[0], 0, 2, 0.5, false);
    control_answered(&w->c, &w->seqs[0], 0, 2, 100, false);
    must_be(w->c.proposers[0].empty_us, 0.5 + 0.2 * 7 * 0.5);
}

/* Of the answers with tokens to one set of requests: the longest k, the largest n and time. */
static void answers_of_a_round_count_with_their_largest_numbers(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    static const uint32_t k[] = {3, 5, 2}, n[] = {2, 1, 4};
    static const double us[] = {500, 300, 400};
    for (unsigned i = 0; i < 3; i++) {
        control_asked(&w->seqs[i], 0, 0, n[i]);
        control_answered(&w->c, &w->seqs[i], 0, k[i], us[i], true);
    }
    assert_true(draft_latency_us(&w->c.proposers[0].latency, 1, 1) == 0); // with the next requests
    world_asked(w, 0, 64);
    must_be(draft_latency_us(&w->c.proposers[0].latency, 5, 4), 500);
    must_be(w->c.proposers[0].latency.us[1], 250. / 5 / (1 + 0.2 * 3));
    struct draft_latency before = w->c.proposers[0].latency;
    world_asked(w, 0, 64); // they count once
    assert_memory_equal(&w->c.proposers[0].latency, &before, sizeof(before));
    control_answered(&w->c, &w->seqs[2], 0, 1, 100, true); // the sums start again
    assert_true(w->c.proposers[0].answers.k == 1 && w->c.proposers[0].answers.n == 4);
    must_be(w->c.proposers[0].answers.us, 100);
}

/* ---- acceptance ---- */

static void the_sums_of_a_sequence_fade_per_draft(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    struct control_seq *s = &w->seqs[0];
    double a = 0, e = 0, ema = 0.7;
    for (unsigned i = 0; i < 10; i++) {
        uint32_t n = i % 4;
        const struct accept_rate rates = w->c.proposers[0].accept_rate;
        double expected = 0;
        struct accept_rate after = rates; // each token of the draft sees the ones before it
        for (uint32_t k = 0; k <= n && k < 3; k++) {
            expected += accept_rate_predicted(&after, k, 1);
            accept_rate_seen(&after, k, 1, k < n);
        }
        world_see(w, s, 3, n);
        a = 0.9 * a + n;
        e = 0.9 * e + expected;
        ema += 0.1 * (n / 3. - ema);
        must_be(s->accepted, a);
        must_be(s->expected, e);
        must_be(s->ema, ema);
    }
    struct control_seq before = *s;
    struct draft d = world_draft(2, NULL, NULL);
    control_seen(&w->c, s, 0, &d, 0, (uint32_t[]){0}, 1); // nothing to see
    control_seen(&w->c, s, 0, &d, 2, NULL, 0);
    assert_memory_equal(s, &before, sizeof(before));
    control_seen(&w->c, s, 0, &d, 2, (uint32_t[]){0}, 1); // its second token is still to come
    must_be(s->ema, ema);
}

static void of_equal_siblings_only_the_first_is_accepted(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    const struct draft d = {
        .n = 2, .tokens = {2, 2}, .parents = {-1, -1}, .survival = {1, 1}, .tree = true};
    control_seen(&w->c, &w->seqs[0], 0, &d, 2, (uint32_t[]){2, 5}, 2);
    must_be(w->seqs[0].accepted, 1);
    must_be(w->c.proposers[0].accept_rate.all[0].accepted, 0.99);
    must_be(w->c.proposers[0].accept_rate.all[0].tried, 1.99);
}

static void the_acceptance_of_all_rounds_has_weight_a_tenth(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    control_verified(&w->c, 4, 1);
    must_be(w->c.acceptance_ema, 0.7 + 0.1 * (0.25 - 0.7));
    control_verified(&w->c, 1, 1);
    must_be(w->c.acceptance_ema, 0.655 + 0.1 * (1 - 0.655));
}

/* ---- passes beside a prefill ---- */

static void the_excess_of_a_pass_is_charged_up_to_eight_times(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    struct control_seq *s = &w->seqs[0];
    struct pass_time before = w->c.pass_time;
    const struct pass_time_work pass = {.rows = 2}; // 105 us
    control_asked(s, 3, 100, 1);
    control_passed(&w->c, &pass, 135, s);
    must_be(s->prefill.us, 30);
    control_passed(&w->c, &pass, 105, s); // as expected
    must_be(s->prefill.us, 30);
    control_passed(&w->c, &pass, 1e7, s);
    must_be(s->prefill.us, 30 + 7 * 105);
    assert_memory_equal(&w->c.pass_time, &before, sizeof(before));
    w->c.since_less = 5;
    control_passed(&w->c, &(struct pass_time_work){.rows = 1, .drafted = true}, 100, NULL);
    assert_int_equal(w->c.since_less, 5);
    control_passed(&w->c, &(struct pass_time_work){.rows = 1}, 100, NULL); // a pass without drafts
    assert_int_equal(w->c.since_less, 0);
}

/* ---- the decision ---- */

/* One sequence; its context costs nothing. */
static const struct control_round alone = {
    .pass = {.rows = 1}, .n_decoding = 1, .n_running = 1, .draft_rows = 1000};

static double ask_one(struct control_world *w, uint32_t max, uint32_t left)
{
    w->items[0] = (struct control_item){
        .s = &w->seqs[0], .unread = 100, .left = left, .max_nodes = max, .max_depth = max};
    world_guard(w, 1);
    double us = control_ask(&w->c, &alone, w->items, 1);
    world_unguard(w, 1);
    return us;
}

/* h_i = g * product of clamp(F r(j)); F = (A + 40) / (E + 40). */
static void a_request_has_these_chances_of_survival(void **state)
{
    (void)state;
    static const double sums[][2] = {{0, 0}, {6, 4}, {4, 16}, {0, 1e6}, {1e6, 0}}; // A, E
    for (unsigned i = 0; i < ARRAY_LEN(sums); i++) {
        struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
        struct control_seq *s = &w->seqs[0];
        s->accepted = (float)sums[i][0];
        s->expected = (float)sums[i][1];
        s->granted = 0.5f;
        ask_one(w, 3, 1000);
        double rate = 0.7 * (sums[i][0] + 40) / (sums[i][1] + 40), path = 0.5;
        rate = rate < 0.01 ? 0.01 : rate > 0.99 ? 0.99 : rate;
        for (unsigned k = 0; k < 3; k++)
            must_be(w->items[0].survival[k], path *= rate);
    }
}

/* With predictions .8 and .5 of its two branches, both after the first token. */
static void a_present_draft_has_these_chances_of_survival(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    struct draft d = {.n = 3, .parents = {-1, 0, 0}, .survival = {1, 0.8f, 0.5f}};
    w->seqs[0].accepted = 4;
    w->items[0] =
        (struct control_item){.s = &w->seqs[0], .max_nodes = 3, .max_depth = 2, .draft = &d};
    world_guard(w, 1);
    control_cut(&w->c, &alone, w->items, 1);
    world_unguard(w, 1);
    const float *h = w->items[0].survival;
    must_be(h[0], 0.7 * 1.1);
    must_be(h[1], h[0] * fmin(0.88 * 1.1, 0.99));
    must_be(h[2], h[0] * 0.5 * 1.1);
    assert_true(w->items[0].token_depth[0] == 1 && w->items[0].token_depth[2] == 2);
}

/* A row costs as much as makes T * none / U just 1.02. */
static void drafts_must_promise_2_percent_more_than_none(void **state)
{
    (void)state;
    for (int more = -1; more <= 1; more += 2) {
        double row_us = 100 * (1.7 / 1.02 - 1) * (1 + 1e-5 * more);
        struct control_world *w = world_of(CONTROL_GOODPUT, 1, 0, 100, row_us);
        double wait_us = ask_one(w, 1, 1000);
        assert_int_equal(w->items[0].nodes, more < 0);
        must_be(wait_us, more < 0 ? 1.7 * 100 - (100 + row_us) : 0); // T * none - U
        assert_true(w->c.expected_wait_us == 0);
    }
}

/* The wait is part of U, and the longest useful wait does not contain it. */
static void the_useful_wait_is_what_drafts_save(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 1, 0, 100, 10);
    w->c.proposers[0].latency.us[0] = 20;
    w->c.proposers[0].latency.us[1] = 5;
    must_be(ask_one(w, 1, 1000), 1.7 * 100 - 110);
    assert_int_equal(w->items[0].nodes, 1);
    must_be(w->c.expected_wait_us, 25);
}

/* Prefill costs as much as `left` tokens save, of which 512 count. */
static void a_prefill_must_be_worth_at_most_512_tokens(void **state)
{
    (void)state;
    static const uint32_t lefts[] = {1, 100, 511, 512, 513, 100000};
    double saved_us = 100 / 1.02 - 110 / 1.7; // per token
    for (unsigned i = 0; i < ARRAY_LEN(lefts); i++) {
        for (int more = -1; more <= 1; more += 2) {
            struct control_world *w = world_of(CONTROL_GOODPUT, 1, 0, 100, 10);
            double cost_us = saved_us * (lefts[i] < 512 ? lefts[i] : 512) * (1 + 1e-5 * more);
            w->c.proposers[0].prefill_price = (struct prefill_price){cost_us, 100};
            ask_one(w, 1, lefts[i]);
            assert_int_equal(w->items[0].nodes, more < 0);
        }
    }
}

static void a_fixed_draft_is_worth_any_prefill(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 4, 0, 100, 10);
    struct control_round r = alone;
    w->c.proposers[0].prefill_price = (struct prefill_price){1e9, 100};
    r.n_fixed = 1;
    w->items[0] = (struct control_item){
        .s = &w->seqs[0], .unread = 100, .left = 50, .max_nodes = 9, .max_depth = 9, .fixed = true};
    assert_true(isinf(control_ask(&w->c, &r, w->items, 1))); // all decoding ones are fixed
    assert_true(w->items[0].nodes == 4 && w->items[0].depth == 4);
    r.n_decoding = 2; // the other one does not wait for it
    assert_false(isinf(control_ask(&w->c, &r, w->items, 1)));
    assert_int_equal(w->items[0].nodes, 4);
}

/* It may have none, for example at the end of its answer. */
static void a_fixed_draft_without_tokens_is_not_waited_for(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 4, 0, 100, 200);
    struct control_round r = alone;
    r.n_fixed = 1;
    w->items[0] = (struct control_item){.s = &w->seqs[0], .left = 1, .fixed = true};
    assert_true(control_ask(&w->c, &r, w->items, 1) == 0);
    assert_int_equal(w->items[0].nodes, 0);
}

static void every_sequence_gets_the_tokens_of_its_policy(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_FIXED, 5, 0, 1, 1);
    world_asked(w, 3, 64);
    for (unsigned i = 0; i < 3; i++)
        assert_true(w->items[i].nodes == 5 && w->items[i].depth == 5);
    w = world_of(CONTROL_EMA, 5, 0, 1, 1);
    w->seqs[1].ema = 0.9f;
    w->seqs[2].ema = 0.4f;
    world_asked(w, 3, 64);
    assert_true(w->items[0].nodes == 3 && w->items[1].nodes == 5 && w->items[2].nodes == 1);
}

/* ---- when tries are due ---- */

/* A known proposer whose drafts never pay, or with `pay`, do. base_us: of its answers. */
static struct control_world *tries_of(double row_us, double base_us, double token_us)
{
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, row_us);
    w->c.proposers[0].latency.us[0] = base_us;
    w->c.proposers[0].latency.us[1] = token_us;
    w->c.proposers[0].n_tries = 8;
    w->items[0] = (struct control_item){.s = &w->seqs[0], .allowed = 16, .left = 1000};
    return w;
}

/* The round in which a try of one is due, for an item with this many tokens. */
static unsigned round_of_one(struct control_world *w, uint32_t nodes, double round_us,
                             uint32_t tried_with)
{
    struct control_item *v = &w->items[0];
    for (unsigned n = 1;; n++) {
        assert_true(n < 20000000);
        exploration_begin_round(&w->c);
        v->nodes = nodes;
        exploration_one(&w->c, &alone, v, 1, v, round_us);
        if (v->nodes == nodes)
            continue;
        assert_int_equal(v->nodes, tried_with);
        assert_true(v->s->trying && v->s->since_try == 0 && w->c.since_one == 0);
        assert_int_equal(w->c.proposers[0].n_tries, 9);
        return n;
    }
}

static void a_try_of_one_is_due_by_its_extra_time(void **state)
{
    (void)state;
    /* Two rows of 10 us: 20 us. */
    assert_int_equal(round_of_one(tries_of(10, 0, 0), 0, 100, 2), 50);
    /* Also a wait of 30 + 2 * 5 us. */
    assert_int_equal(round_of_one(tries_of(10, 30, 5), 0, 100, 2), 150);
    /* Three more tokens: three rows and three tokens of the wait. */
    assert_int_equal(round_of_one(tries_of(10, 30, 5), 3, 50, 6), 225);
    /* At least 16 rounds. */
    assert_int_equal(round_of_one(tries_of(1, 0, 0), 0, 100, 2), 16);
    /* After ten minutes at most. */
    assert_int_equal(round_of_one(tries_of(1e7, 0, 0), 0, 100, 2), 6000000);
    struct control_world *w = tries_of(10, 30, 5);
    w->c.proposers[0].empty_us = 60; // an answer without tokens takes longer
    assert_int_equal(round_of_one(w, 0, 100, 2), 200);
    w = tries_of(10, 30, 5);
    w->c.proposers[0].prefill_price = (struct prefill_price){1, 10};
    w->items[0].unread = 40; // 4 us
    assert_int_equal(round_of_one(w, 0, 100, 2), 160);
    w = tries_of(10, 0, 0);
    w->c.pass_time.attend_us = 0.5; // two rows of 10 positions: 10 us
    w->items[0].context = 10;
    assert_int_equal(round_of_one(w, 0, 100, 2), 75);
    w = tries_of(10, 0, 0);
    w->items[0].allowed = 1;
    assert_int_equal(round_of_one(w, 0, 100, 1), 25);
}

static void the_first_eight_tries_are_due_immediately(void **state)
{
    (void)state;
    struct control_world *w = tries_of(1000, 0, 0);
    w->c.proposers[0].n_tries = 0;
    for (unsigned i = 0; i < 10; i++) {
        exploration_begin_round(&w->c);
        w->items[0].nodes = 0;
        exploration_one(&w->c, &alone, w->items, 1, w->items, 100);
        assert_int_equal(w->items[0].nodes, i < 8 ? 2 : 0);
    }
}

/* Items 0 and 1 of proposers 0 and 1: which one tries first. */
static void the_next_to_try_is_chosen_in_this_order(void **state)
{
    (void)state;
    struct control_world *w = tries_of(10, 0, 0);
    w->c.proposers[1].n_tries = 8;
    w->items[1] = (struct control_item){.s = &w->seqs[1], .proposer = 1, .allowed = 16};
    w->seqs[0].since_try = 5;
    w->seqs[1].since_try = 6;
    assert_ptr_equal(exploration_next(&w->c, w->items, 2, true), &w->items[1]); // waited longer
    w->seqs[0].since_try = 6;
    assert_ptr_equal(exploration_next(&w->c, w->items, 2, true), &w->items[0]);
    w->seqs[1].prefill.done = true; // was read
    assert_ptr_equal(exploration_next(&w->c, w->items, 2, true), &w->items[1]);
    w->c.proposers[0].n_tries = 7; // is new
    assert_ptr_equal(exploration_next(&w->c, w->items, 2, true), &w->items[0]);
    w->items[0].fixed = true;
    assert_ptr_equal(exploration_next(&w->c, w->items, 2, true), &w->items[1]);
    w->items[1].nodes = 8;
    assert_ptr_equal(exploration_next(&w->c, w->items, 2, true), &w->items[1]);
    assert_null(exploration_next(&w->c, w->items, 2, false)); // has tokens, and tries with all
    w->items[1].nodes = 16;                                   // all that it may have
    assert_null(exploration_next(&w->c, w->items, 2, true));
}

/* The round in which a try of all three items is due. */
static unsigned round_of_all(struct control_world *w, const struct row_budget *g)
{
    unsigned p = w->items[0].proposer;
    for (unsigned n = 1;; n++) {
        assert_true(n < 20000000);
        exploration_begin_round(&w->c);
        if (!exploration_all(&w->c, &alone, w->items, 3, g)) {
            assert_true(!w->seqs[0].trying && w->c.proposers[p].n_tries == 8);
            continue;
        }
        assert_true(w->seqs[0].trying && w->seqs[2].trying && !w->seqs[1].trying);
        assert_true(w->seqs[0].since_try == 0 && w->seqs[1].since_try == 5);
        assert_true(w->c.since_all == 0 && w->c.proposers[p].n_tries == 9);
        assert_int_equal(w->c.proposers[!p].n_tries, 8); // none of its items has tokens
        return n;
    }
}

/* Items 0 and 2 have two tokens of this proposer, 0 or 1. Item 1 has none of the other one. */
static struct control_world *world_of_three(unsigned proposer)
{
    struct control_world *w = tries_of(10, 30, 5);
    w->c.proposers[1] = w->c.proposers[0];
    for (unsigned i = 0; i < 3; i++)
        w->items[i] = (struct control_item){
            .s = &w->seqs[i], .proposer = proposer, .allowed = 16, .nodes = 2};
    w->items[1].proposer = !proposer;
    w->items[1].nodes = 0;
    w->seqs[1].since_try = 4;
    return w;
}

static void a_try_of_all_is_due_by_what_it_loses(void **state)
{
    (void)state;
    /* U - T * none = 160 - 1.5 * 100 = 10 us. The wait is that of the tries, 40 us. */
    const struct row_budget g = {.tokens = 1.5, .us = 160, .wait_us = 40, .n_rows = 2};
    assert_int_equal(round_of_all(world_of_three(0), &g), 25);
    assert_int_equal(round_of_all(world_of_three(1), &g), 25);
    const struct row_budget shorter = {.tokens = 1.5, .us = 160, .wait_us = 20, .n_rows = 2};
    assert_int_equal(round_of_all(world_of_three(1), &shorter), 75); // 20 us more
    const struct row_budget better = {.tokens = 1.61, .us = 160, .wait_us = 40, .n_rows = 2};
    assert_int_equal(round_of_all(world_of_three(1), &better), 16);
    struct control_world *w = world_of_three(1);
    w->items[0].nodes = w->items[2].nodes = 0; // nothing to try
    for (unsigned i = 0; i < 1000; i++) {
        exploration_begin_round(&w->c);
        assert_false(exploration_all(&w->c, &alone, w->items, 3, &g));
    }
}

/* The rounds with drafts from one round with less to the next, and its tokens. */
static unsigned round_of_less(struct control_world *w, uint32_t limit, const struct row_budget *g,
                              uint32_t expected)
{
    for (unsigned n = 1;; n++) {
        assert_true(n < 1000);
        for (unsigned i = 0; i < 3; i++)
            w->items[i].nodes = i == 1 ? 1 : 9;
        if (!exploration_less(&w->c, &alone, w->items, 3, limit, g))
            continue;
        for (unsigned i = 0; i < 3; i++) {
            uint32_t nodes = i == 1 && expected > 1 ? 1 : expected;
            assert_true(w->items[i].nodes == nodes && w->seqs[i].trying == (nodes > 0));
        }
        assert_int_equal(w->c.since_less, 0);
        must_be(w->c.expected_wait_us, expected ? 30 + 5. * expected : 0);
        return n;
    }
}

static void less_is_due_by_what_it_loses(void **state)
{
    (void)state;
    struct control_world *w = world_of_three(1);
    /* t0 - n U / T = 100 - 150 / 1.6 = 6.25 us, of 0.002 * 150 = 0.3 us per round: 20.83. */
    const struct row_budget g = {.tokens = 1.6, .us = 150};
    assert_int_equal(round_of_less(w, 10, &g, 0), 21);
    assert_int_equal(round_of_less(w, 10, &g, 8), 21);          // the next lower limit
    assert_int_equal(round_of_less(w, 10, &g, 5), 21);          // half
    assert_int_equal(round_of_less(w, 10, &g, 0), 21);          // in rotation
    const struct row_budget close = {.tokens = 1.5, .us = 150}; // nothing: at least 4 rounds
    assert_int_equal(round_of_less(w, 6, &close, 5), 4);
    const struct row_budget good = {.tokens = 5, .us = 150}; // 70 us: at most 64
    assert_int_equal(round_of_less(w, 6, &good, 3), 64);
    struct control_round fixed = alone;
    fixed.n_fixed = 1;
    for (unsigned i = 0; i < 100; i++)
        assert_false(exploration_less(&w->c, &fixed, w->items, 3, 6, &good));
    assert_int_equal(w->c.since_less, 0);
    w->seqs[2].prefill.positions = 10; // is being read
    for (unsigned i = 0; i < 100; i++)
        assert_false(exploration_less(&w->c, &alone, w->items, 3, 6, &good));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(granted_shares_follow_the_answers),
        cmocka_unit_test(an_endless_prefill_lowers_the_share_of_its_sequence),
        cmocka_unit_test(empty_answers_have_an_average_of_their_own),
        cmocka_unit_test(a_short_empty_answer_caps_the_next_one),
        cmocka_unit_test(answers_of_a_round_count_with_their_largest_numbers),
        cmocka_unit_test(the_sums_of_a_sequence_fade_per_draft),
        cmocka_unit_test(of_equal_siblings_only_the_first_is_accepted),
        cmocka_unit_test(the_acceptance_of_all_rounds_has_weight_a_tenth),
        cmocka_unit_test(the_excess_of_a_pass_is_charged_up_to_eight_times),
        cmocka_unit_test(a_request_has_these_chances_of_survival),
        cmocka_unit_test(a_present_draft_has_these_chances_of_survival),
        cmocka_unit_test(drafts_must_promise_2_percent_more_than_none),
        cmocka_unit_test(the_useful_wait_is_what_drafts_save),
        cmocka_unit_test(a_prefill_must_be_worth_at_most_512_tokens),
        cmocka_unit_test(a_fixed_draft_is_worth_any_prefill),
        cmocka_unit_test(a_fixed_draft_without_tokens_is_not_waited_for),
        cmocka_unit_test(every_sequence_gets_the_tokens_of_its_policy),
        cmocka_unit_test(a_try_of_one_is_due_by_its_extra_time),
        cmocka_unit_test(the_first_eight_tries_are_due_immediately),
        cmocka_unit_test(the_next_to_try_is_chosen_in_this_order),
        cmocka_unit_test(a_try_of_all_is_due_by_what_it_loses),
        cmocka_unit_test(less_is_due_by_what_it_loses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
