/* test_control.c - limits of both decisions, and the updates of all estimates. */
#include <math.h>
#include <string.h>
#include "lib/oracles/control_world.h"
#include "lib/lib.h"

static void drafts_stop_at_disable_batch_size(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_FIXED, 5, 8, 1, 1);
    assert_int_equal(world_asked(w, 7, 64), 5);
    assert_int_equal(world_asked(w, 8, 64), 0);
    w = world_of(CONTROL_GOODPUT, 5, 8, 100, 1);
    assert_true(world_asked(w, 7, 64) > 0);
    assert_int_equal(world_asked(w, 8, 64), 0);
}

static void a_request_has_at_most_max_nodes_and_max_depth_tokens(void **state)
{
    (void)state;
    static const uint32_t limits[][3] = {{3, 9, 3}, {9, 2, 2}, {9, 9, 5}}; // nodes, depth, tokens
    for (unsigned i = 0; i < ARRAY_LEN(limits); i++) {
        struct control_world *w = world_of(CONTROL_FIXED, 5, 0, 1, 1);
        struct control_round r = {.pass = {.rows = 1}, .n_decoding = 1, .n_running = 1};
        w->items[0] = (struct control_item){
            .s = &w->seqs[0], .max_nodes = limits[i][0], .max_depth = limits[i][1]};
        control_ask(&w->c, &r, w->items, 1);
        assert_int_equal(w->items[0].nodes, limits[i][2]);
        assert_int_equal(w->items[0].depth, limits[i][2]); // a chain
    }
}

static void a_draft_is_verified_up_to_the_first_node_beyond_a_limit(void **state)
{
    (void)state;
    static const int32_t parents[] = {-1, -1, 0, 1, 2, 3}; // two branches of three tokens
    static const uint32_t limits[][3] = {{6, 3, 6}, {4, 3, 4}, {6, 2, 4}, {6, 1, 2}, {6, 0, 0}};
    struct draft tree = world_draft(6, NULL, NULL);
    memcpy(tree.parents, parents, sizeof(parents));
    for (unsigned i = 0; i < ARRAY_LEN(limits); i++) {
        struct control_world *w = world_of(CONTROL_FIXED, 5, 0, 1, 1);
        struct control_round r = {.pass = {.rows = 1}, .n_decoding = 1, .n_running = 1};
        w->items[0] = (struct control_item){
            .s = &w->seqs[0], .max_nodes = limits[i][0], .max_depth = limits[i][1], .draft = &tree};
        control_cut(&w->c, &r, w->items, 1);
        assert_int_equal(w->items[0].nodes, limits[i][2]);
    }
}

static void the_averages_follow_acceptance(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_EMA, 5, 8, 1, 1);
    struct control_seq *s = &w->seqs[0];
    control_verified(&w->c, 0, 0); // without drafts it stays
    assert_true(w->c.acceptance_ema == 0.7);
    control_verified(&w->c, 4, 4);
    world_see(w, s, 4, 4);
    assert_true(fabs(w->c.acceptance_ema - 0.73) < 1e-6 && fabs(s->ema - 0.73) < 1e-6);
    assert_true(w->seqs[1].ema == 0.7f); // each sequence has its own
    for (int i = 0; i < 100; i++) {
        control_verified(&w->c, 5, 0);
        world_see(w, s, 5, 0);
    }
    assert_true(w->c.acceptance_ema < 0.001 && s->ema < 0.001f);
}

static void a_tree_updates_the_rates_along_the_committed_path(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 1, 1);
    const int32_t parents[] = {-1, -1, 0, 1};
    struct draft tree = world_draft(4, (const uint32_t[]){1, 2, 3, 3}, NULL);
    memcpy(tree.parents, parents, sizeof(parents));
    control_seen(&w->c, &w->seqs[0], 0, &tree, 4, (uint32_t[]){2, 3, 9}, 3);
    const struct accept_rate_counts *all = w->c.proposers[0].accept_rate.all;
    assert_true(all[0].tried > 1.9f && all[0].accepted > 0.9f && all[0].accepted < 1.1f);
    assert_true(all[1].tried == 1 && all[1].accepted == 1);
    assert_true(all[2].tried == 0);
}

static void answers_of_one_round_count_once_with_the_longest_time(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    for (unsigned i = 0; i < 200; i++) {
        uint32_t k = 2 + i % 3;
        world_ask(&w->seqs[0], 2);
        world_ask(&w->seqs[1], 2);
        control_answered(&w->c, &w->seqs[0], 0, 1, 30, true);
        control_answered(&w->c, &w->seqs[1], 0, k, 50 + 20.0 * k, true);
        world_asked(w, 2, 64);
    }
    const struct draft_latency *a = &w->c.proposers[0].latency;
    assert_true(fabs(draft_latency_us(a, 2, 2) - 90) < 3);
    assert_true(fabs(draft_latency_us(a, 4, 2) - 130) < 3);
}

static void answer_empty(struct control_world *w, double us)
{
    world_ask(&w->seqs[0], 1);
    control_answered(&w->c, &w->seqs[0], 0, 2, us, false);
}

static void a_delayed_empty_answer_counts_at_most_eight_times(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    const double *empty_us = &w->c.proposers[0].empty_us;
    w->seqs[0].prefill.done = true;
    answer_empty(w, 5000);
    assert_true(*empty_us == 5000);
    answer_empty(w, 700000);
    assert_true(*empty_us > 5000 && *empty_us < 15000);
    for (unsigned i = 0; i < 30; i++) // all answers are slow now
        answer_empty(w, 700000);
    assert_true(*empty_us > 600000);
}

/* The first empty answer is capped by the latency of answers with tokens. */
static void answers_with_tokens_limit_the_latency_of_empty_ones(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    const double *empty_us = &w->c.proposers[0].empty_us;
    w->seqs[0].prefill.done = true;
    for (unsigned i = 0; i < 30; i++) {
        world_ask(&w->seqs[0], 1);
        control_answered(&w->c, &w->seqs[0], 0, 2, 5000, true);
        world_asked(w, 1, 64);
        if (i == 9) {
            answer_empty(w, 700000);
            assert_true(*empty_us > 30000 && *empty_us < 50000);
        }
    }
    assert_true(*empty_us >= 5000 && *empty_us < 6000);
}

/* Proposer p answers n requests of a sequence, all with tokens or all without. */
static void answer_requests(struct control_world *w, struct control_seq *s, unsigned p, unsigned n,
                            bool granted)
{
    for (unsigned i = 0; i < n; i++) {
        control_asked(s, p, 0, 1);
        control_answered(&w->c, s, p, 2, 1000, granted);
    }
}

/* Proposer 0 is also the initial value of granted_by. */
static void the_granted_share_is_per_proposer(void **state)
{
    (void)state;
    for (unsigned empty = 0; empty < 2; empty++) {
        struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
        struct control_seq *s = &w->seqs[0];
        unsigned other = 1 - empty;
        answer_requests(w, &w->seqs[1], other, 40, true);
        answer_requests(w, s, empty, 40, false);
        assert_true(control_state_granted(&w->c, empty, s) < 0.1);
        assert_true(control_state_granted(&w->c, other, s) == 1);
        control_asked(s, other, 100, 1);
        control_still_reading(s, other, 100);
        assert_true(control_state_granted(&w->c, other, s) == 1); // prefill is no answer
        answer_requests(w, s, other, 1, false);
        assert_true(control_state_granted(&w->c, other, s) > 0.8);
        control_unread(s);
        assert_true(control_state_granted(&w->c, other, s) < 1); // still the same proposer
    }
}

static void a_late_answer_of_the_previous_proposer_is_ignored(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    struct control_seq *s = &w->seqs[0];
    answer_requests(w, s, 1, 40, false);
    control_answered(&w->c, s, 0, 2, 1000, true);
    assert_true(control_state_granted(&w->c, 1, s) < 0.1);
    struct prefill_price_seq before = s->prefill;
    control_still_reading(s, 0, 700);
    assert_memory_equal(&s->prefill, &before, sizeof(before));
}

static void a_new_proposer_in_a_place_starts_without_history(void **state)
{
    (void)state;
    for (unsigned p = 0; p < 2; p++) {
        struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
        struct control_seq *s = &w->seqs[0];
        answer_requests(w, s, p, 40, false);
        control_forget(&w->c, p);
        control_seq_forget(s, 1 - p);
        assert_true(control_state_granted(&w->c, p, s) < 0.1 && s->prefill.done);
        control_unread(s); // the sequence was preempted
        control_seq_forget(s, p);
        assert_true(control_state_granted(&w->c, p, s) == 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_stop_at_disable_batch_size),
        cmocka_unit_test(a_request_has_at_most_max_nodes_and_max_depth_tokens),
        cmocka_unit_test(a_draft_is_verified_up_to_the_first_node_beyond_a_limit),
        cmocka_unit_test(the_averages_follow_acceptance),
        cmocka_unit_test(a_tree_updates_the_rates_along_the_committed_path),
        cmocka_unit_test(answers_of_one_round_count_once_with_the_longest_time),
        cmocka_unit_test(a_delayed_empty_answer_counts_at_most_eight_times),
        cmocka_unit_test(answers_with_tokens_limit_the_latency_of_empty_ones),
        cmocka_unit_test(the_granted_share_is_per_proposer),
        cmocka_unit_test(a_late_answer_of_the_previous_proposer_is_ignored),
        cmocka_unit_test(a_new_proposer_in_a_place_starts_without_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
