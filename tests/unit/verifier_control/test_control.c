/* test_control.c - the simple policies, requests that are fixed, and what is learnt. */
#include <math.h>
#include <string.h>
#include "lib/oracles/control_world.h"
#include "lib/lib.h"

/* ---- fixed ---- */

static void fixed_asks_for_k_within_what_is_allowed(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_FIXED, 5, 0, 1, 1);
    assert_int_equal(world_asked(w, 1, 64), 5);
    assert_int_equal(world_asked(w, 1, 3), 3);
    assert_int_equal(world_asked(w, 1, 0), 0);
    assert_int_equal(world_asked(w, 60, 64), 5);
}

static void many_sequences_switch_drafting_off(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_FIXED, 5, 8, 1, 1);
    assert_int_equal(world_asked(w, 7, 64), 5);
    assert_int_equal(world_asked(w, 8, 64), 0);
    w = world_of(CONTROL_GOODPUT, 5, 8, 100, 1);
    assert_true(world_asked(w, 7, 64) > 0);
    assert_int_equal(world_asked(w, 8, 64), 0);
}

static void a_fixed_request_drafts_where_it_does_not_pay(void **state)
{
    (void)state;
    struct draft draft = world_draft(8, NULL, (const float[8]){0});
    enum control_policy policies[] = {CONTROL_GOODPUT, CONTROL_FIXED, CONTROL_EMA};
    for (unsigned i = 0; i < ARRAY_LEN(policies); i++) {
        struct world *w = world_of(policies[i], 5, 0, 100, 100);
        struct control_round r = {
            .pass = {.rows = 2}, .n_decoding = 2, .n_fixed = 1, .draft_rows = 1000, .n_running = 2};
        w->seqs[0].ema = w->seqs[1].ema = 0;
        for (unsigned k = 0; k < 2; k++)
            w->items[k] = (struct control_item){
                .s = &w->seqs[k], .context = 100, .max_nodes = 8, .max_depth = 8, .fixed = k == 0};
        control_ask(&w->c, &r, w->items, 2);
        assert_int_equal(w->items[0].nodes, 5);
        if (policies[i] != CONTROL_FIXED)
            assert_int_equal(w->items[1].nodes, 0); // left to the policy
        w->items[0].draft = &draft;
        control_cut(&w->c, &r, w->items, 1);
        assert_int_equal(w->items[0].nodes, 8);
    }
}

/* How long two sequences wait, of which so many are fixed. */
static double waited_us(struct world *w, uint32_t n_fixed)
{
    struct control_round r = {.pass = {.rows = 2},
                              .n_decoding = 2,
                              .n_fixed = n_fixed,
                              .draft_rows = 1000,
                              .n_running = 2};
    for (unsigned i = 0; i < 2; i++)
        w->items[i] = (struct control_item){
            .s = &w->seqs[i], .max_nodes = 4, .max_depth = 4, .fixed = i < n_fixed};
    return control_ask(&w->c, &r, w->items, 2);
}

static void nobody_waits_longer_beside_a_request_that_is_fixed(void **state)
{
    (void)state;
    for (unsigned pays = 0; pays < 2; pays++) {
        struct world *w = world_of(CONTROL_GOODPUT, 4, 0, 100, 50);
        world_feed(w, 0, pays, 4, 500);
        world_feed(w, 1, pays, 4, 500);
        double us = waited_us(w, 0);
        assert_true(pays ? us > 0 : us == 0);
        assert_true(waited_us(w, 1) == us);
        assert_true(isinf(waited_us(w, 2))); // they measure their k, and nobody else is there
    }
}

static void the_policies_without_times_cut_nothing(void **state)
{
    (void)state;
    const float doubt[] = {.01f, .01f};
    assert_int_equal(world_cut(world_of(CONTROL_FIXED, 5, 0, 1, 9), doubt, 2), 2);
    assert_int_equal(world_cut(world_of(CONTROL_EMA, 5, 0, 1, 9), doubt, 2), 2);
}

/* ---- ema ---- */

static uint32_t asked_with_ema(uint32_t k, float ema)
{
    struct world *w = world_of(CONTROL_EMA, k, 8, 1, 1);
    w->seqs[0].ema = ema;
    return world_asked(w, 1, 64);
}

static void ema_has_four_bands(void **state)
{
    (void)state;
    assert_int_equal(asked_with_ema(5, 0.81f), 5);
    assert_int_equal(asked_with_ema(5, 0.8f), 3);
    assert_int_equal(asked_with_ema(5, 0.51f), 3);
    assert_int_equal(asked_with_ema(5, 0.5f), 1);
    assert_int_equal(asked_with_ema(5, 0.31f), 1);
    assert_int_equal(asked_with_ema(5, 0.3f), 0);
    assert_int_equal(asked_with_ema(5, 0.0f), 0);
}

static void the_middle_bands_ask_for_one_token_at_least(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 3; k++) {
        assert_int_equal(asked_with_ema(k, 0.6f), 1);
        assert_int_equal(asked_with_ema(k, 0.4f), 1);
        assert_int_equal(asked_with_ema(k, 0.9f), k);
    }
}

static void ema_tries_one_token_again_every_32_rounds(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_EMA, 5, 8, 1, 1);
    w->seqs[0].ema = 0;
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 1; i < 32; i++)
            assert_int_equal(world_asked(w, 1, 64), 0);
        assert_int_equal(world_asked(w, 1, 64), 1);
    }
}

static void ema_stops_at_its_batch_limit_and_zero_is_none(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_EMA, 5, 8, 1, 1);
    assert_int_equal(world_asked(w, 7, 64), 3);
    assert_int_equal(world_asked(w, 8, 64), 0);
    w = world_of(CONTROL_EMA, 5, 0, 1, 1);
    assert_int_equal(world_asked(w, 60, 64), 3);
}

/* ---- what is learnt ---- */

static void the_averages_follow_what_was_accepted(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_EMA, 5, 8, 1, 1);
    struct control_seq *s = &w->seqs[0];
    control_verified(&w->c, 0, 0); // no draft says nothing
    assert_true(w->c.acceptance_ema == 0.7);
    control_verified(&w->c, 4, 4);
    world_see(w, s, 4, 4);
    assert_true(fabs(w->c.acceptance_ema - 0.73) < 1e-6 && fabs(s->ema - 0.73) < 1e-6);
    assert_true(w->seqs[1].ema == 0.7f); // another sequence's own
    for (int i = 0; i < 100; i++) {
        control_verified(&w->c, 5, 0);
        world_see(w, s, 5, 0);
    }
    assert_true(w->c.acceptance_ema < 0.001 && s->ema < 0.001f);
}

/* Where others run nobody waits: the one token that is tried comes when its place has been decided.
 */
static void ema_learns_from_drafts_that_come_too_late(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_EMA, 5, 8, 1, 1);
    struct control_seq *s = &w->seqs[0];
    struct draft late = world_draft(3, (const uint32_t[]){7, 8, 9}, NULL);
    s->ema = 0;
    for (unsigned i = 0; i < 20; i++)
        control_seen(&w->c, s, 0, &late, 1, (uint32_t[]){7}, 1);
    assert_int_equal(world_asked(w, 1, 64), 5);
    float before = s->ema;
    control_seen(&w->c, s, 0, &late, 3, (uint32_t[]){7}, 1); // two of them are still to be verified
    assert_true(s->ema == before);
}

static void a_tree_teaches_along_the_committed_path(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 1, 1);
    const int32_t parents[] = {-1, -1, 0, 1};
    struct draft tree = world_draft(4, (const uint32_t[]){1, 2, 3, 3}, NULL);
    memcpy(tree.parents, parents, sizeof(parents));
    control_seen(&w->c, &w->seqs[0], 0, &tree, 4, (uint32_t[]){2, 3, 9}, 3);
    const struct accept_rate_counts *all = w->c.proposers[0].accept_rate.all;
    assert_true(all[0].tried > 1.9f && all[0].accepted > 0.9f && all[0].accepted < 1.1f);
    assert_true(all[1].tried == 1 && all[1].accepted == 1);
    assert_true(all[2].tried == 0);
}

static void answers_that_come_together_take_the_time_of_the_longest(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
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

static void answer_without(struct world *w, double us)
{
    world_ask(&w->seqs[0], 1);
    control_answered(&w->c, &w->seqs[0], 0, 2, us, false);
}

static void an_answer_without_tokens_that_was_held_up_counts_a_few_times(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    const double *empty_us = &w->c.proposers[0].empty_us;
    w->seqs[0].prefill.done = true;
    answer_without(w, 5000);
    assert_true(*empty_us == 5000);
    answer_without(w, 700000);
    assert_true(*empty_us > 5000 && *empty_us < 15000);
    for (unsigned i = 0; i < 30; i++) // all take long now
        answer_without(w, 700000);
    assert_true(*empty_us > 600000);
}

/* Nor is the first one more than that of what answers with tokens take. */
static void answers_with_tokens_bound_what_those_without_take(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    const double *empty_us = &w->c.proposers[0].empty_us;
    w->seqs[0].prefill.done = true;
    for (unsigned i = 0; i < 30; i++) {
        world_ask(&w->seqs[0], 1);
        control_answered(&w->c, &w->seqs[0], 0, 2, 5000, true);
        world_asked(w, 1, 64);
        if (i == 9) {
            answer_without(w, 700000);
            assert_true(*empty_us > 30000 && *empty_us < 50000);
        }
    }
    assert_true(*empty_us >= 5000 && *empty_us < 6000);
}

/* Proposer p answers so many wishes of a sequence, all alike. */
static void answer_wishes(struct world *w, struct control_seq *s, unsigned p, unsigned n,
                          bool given)
{
    for (unsigned i = 0; i < n; i++) {
        control_asked(s, p, 0, 1);
        control_answered(&w->c, s, p, 2, 1000, given);
    }
}

/* Place 0 is also where a sequence begins that has asked nobody. */
static void a_silent_proposer_says_nothing_of_another(void **state)
{
    (void)state;
    for (unsigned silent = 0; silent < 2; silent++) {
        struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
        struct control_seq *s = &w->seqs[0];
        unsigned other = 1 - silent;
        answer_wishes(w, &w->seqs[1], other, 40, true);
        answer_wishes(w, s, silent, 40, false);
        assert_true(control_state_granted(&w->c, silent, s) < 0.1);
        assert_true(control_state_granted(&w->c, other, s) == 1);
        control_asked(s, other, 100, 1);
        control_put_off(s, other, 100);
        assert_true(control_state_granted(&w->c, other, s) == 1); // it only reads
        answer_wishes(w, s, other, 1, false);
        assert_true(control_state_granted(&w->c, other, s) > 0.8);
        control_unread(s);
        assert_true(control_state_granted(&w->c, other, s) < 1); // it is the same one
    }
}

static void an_answer_of_the_last_proposer_comes_too_late_to_count(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
    struct control_seq *s = &w->seqs[0];
    answer_wishes(w, s, 1, 40, false);
    control_answered(&w->c, s, 0, 2, 1000, true);
    assert_true(control_state_granted(&w->c, 1, s) < 0.1);
    struct prefill_price_seq reading = s->prefill;
    control_put_off(s, 0, 700);
    assert_memory_equal(&s->prefill, &reading, sizeof(reading));
}

static void another_proposer_in_the_same_place_starts_anew(void **state)
{
    (void)state;
    for (unsigned p = 0; p < 2; p++) {
        struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 1);
        struct control_seq *s = &w->seqs[0];
        answer_wishes(w, s, p, 40, false);
        control_forget(&w->c, p);
        control_seq_forget(s, 1 - p);
        assert_true(control_state_granted(&w->c, p, s) < 0.1 && s->prefill.done);
        control_unread(s); // since it was preempted
        control_seq_forget(s, p);
        assert_true(control_state_granted(&w->c, p, s) == 1);
    }
}

/* ---- contexts that are read first ---- */

static void pass_beside(struct world *w, struct control_seq *beside, double us)
{
    control_passed(&w->c, &(struct pass_time_work){.rows = 1}, us, beside);
}

/* The proposer of a sequence reads its 100 positions beside 10 passes of 200 us, not 100. */
static void read_beside_passes(struct world *w, struct control_seq *s)
{
    control_asked(s, 0, 100, 1);
    for (unsigned i = 0; i < 10; i++)
        pass_beside(w, s, 200);
    control_answered(&w->c, s, 0, 4, 1000, true);
}

static void passes_beside_a_reader_say_nothing_of_others(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    struct pass_time before = w->c.pass_time;
    read_beside_passes(w, &w->seqs[0]);
    assert_memory_equal(&w->c.pass_time, &before, sizeof(before));
    pass_beside(w, NULL, 200);
    assert_true(w->c.pass_time.scale > before.scale);
}

static void unless_they_were_faster_or_it_never_ends(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    double before = w->c.pass_time.scale;
    control_asked(&w->seqs[0], 0, 100, 1);
    pass_beside(w, &w->seqs[0], 50);
    assert_true(w->c.pass_time.scale < before);
    before = w->c.pass_time.scale;
    for (unsigned i = 0; i < 100; i++) {
        control_asked(&w->seqs[0], 0, 100, 1); // it is still reading, it says each time
        pass_beside(w, &w->seqs[0], 200);
    }
    assert_true(w->c.pass_time.scale > before);
}

/* It is answered while the pass runs. */
static void the_last_pass_beside_a_reader_is_paid_for_too(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_ask(&w->seqs[0], 1);
    control_answered(&w->c, &w->seqs[0], 0, 4, 1000, true);
    pass_beside(w, &w->seqs[0], 200);
    assert_true(w->c.proposers[0].prefill_price.us == 100);
}

static void a_pass_that_was_interrupted_makes_no_price(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    world_ask(&w->seqs[1], 1);
    pass_beside(w, &w->seqs[1], 1e8); // the machine was suspended
    control_answered(&w->c, &w->seqs[1], 0, 4, 1000, true);
    assert_true(world_asked_with(w, 1, 64, 1000) > 0);
}

/* Each position costs 10 us. */
static struct world *world_with_readers(void)
{
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    for (unsigned i = 0; i < 20; i++)
        read_beside_passes(w, &w->seqs[20 + i]);
    control_seq_init(&w->seqs[0]);
    return w;
}

static void what_ends_soon_is_not_read(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    assert_true(world_asked_with(w, 1, 64, 10) > 0); // what reading costs is not known
    w = world_with_readers();
    assert_int_equal(world_asked_with(w, 1, 64, 10), 0);
    assert_true(world_asked_with(w, 1, 64, 1000) > 0);
    control_asked(&w->seqs[0], 0, 100, 1); // its price is paid
    assert_true(world_asked_with(w, 1, 64, 10) > 0);
    control_answered(&w->c, &w->seqs[0], 0, 4, 1000, true);
    assert_true(world_asked_with(w, 1, 64, 10) > 0);
    control_unread(&w->seqs[0]);
    assert_int_equal(world_asked_with(w, 1, 64, 10), 0);
}

/* It was thought to read 100 positions, but had to read ten times as many: each costs 1 us. */
static void what_was_read_is_the_proposers_word(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    for (unsigned i = 20; i < 40; i++) {
        control_asked(&w->seqs[i], 0, 100, 1);
        control_put_off(&w->seqs[i], 0, 1000);
        for (unsigned k = 0; k < 10; k++)
            pass_beside(w, &w->seqs[i], 200);
        control_put_off(&w->seqs[i], 0, 200); // it gets on
        control_answered(&w->c, &w->seqs[i], 0, 4, 1000, true);
    }
    control_seq_init(&w->seqs[0]);
    assert_true(world_asked_with(w, 1, 64, 10) > 0);
}

static void who_is_not_read_keeps_nobody_from_drafting(void **state)
{
    (void)state;
    struct world *w = world_with_readers();
    control_seq_init(&w->seqs[1]);
    read_beside_passes(w, &w->seqs[1]);
    world_asked_with(w, 2, 64, 10);
    assert_true(w->items[0].nodes == 0 && w->items[1].nodes > 0);
}

/* One whose context is being read has cost what it costs, also before the first has been read. */
static void the_first_reading_is_not_charged(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    for (unsigned i = 0; i < 10; i++) {
        assert_true(world_asked_with(w, 2, 64, 10) > 0);
        control_asked(&w->seqs[0], 0, 100, 1);
        pass_beside(w, &w->seqs[0], 1000);
    }
}

static void an_answer_without_tokens_has_nothing_to_read(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    control_asked(&w->seqs[0], 0, 100, 1);
    assert_int_equal(w->seqs[0].prefill.positions, 100);
    control_answered(&w->c, &w->seqs[0], 0, 4, 150, false);
    assert_int_equal(w->seqs[0].prefill.positions, 0);
    control_asked(&w->seqs[0], 0, 0, 1);
    assert_int_equal(w->seqs[0].prefill.positions, 0);
    control_asked(&w->seqs[0], 1, 101, 1); // another proposer
    assert_int_equal(w->seqs[0].prefill.positions, 101);
}

static void who_is_not_asked_is_not_read(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 110); // no row pays
    control_asked(&w->seqs[0], 0, 100, 1);
    assert_int_equal(world_asked(w, 1, 64), 0);
    assert_int_equal(w->seqs[0].prefill.positions, 0);
}

/* Rounds of so many in which the first sequence is asked for, each time to be put off. */
static unsigned rounds_put_off(struct world *w, unsigned n_rounds)
{
    struct control_seq *s = &w->seqs[0];
    unsigned n_asked = 0;
    for (unsigned i = 0; i < n_rounds; i++) {
        bool is_asked = world_asked(w, 1, 64) > 0;
        if (is_asked)
            control_asked(s, 0, 100, 1);
        pass_beside(w, prefill_price_running(&s->prefill) ? s : NULL, 100);
        if (is_asked)
            control_put_off(s, 0, 100);
        n_asked += is_asked;
    }
    return n_asked;
}

static void who_is_put_off_for_ever_is_asked_for_rarely(void **state)
{
    (void)state;
    struct world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 5);
    world_feed(w, 0, 0.9, 4, 100);
    assert_int_equal(rounds_put_off(w, 16), 16); // it takes a while to read
    rounds_put_off(w, 200);
    assert_in_range(rounds_put_off(w, 1000), 1, 1000 / 10);
    control_answered(&w->c, &w->seqs[0], 0, 2, 1000, true); // it has read it after all
    assert_true(world_asked(w, 1, 64) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_asks_for_k_within_what_is_allowed),
        cmocka_unit_test(many_sequences_switch_drafting_off),
        cmocka_unit_test(a_fixed_request_drafts_where_it_does_not_pay),
        cmocka_unit_test(nobody_waits_longer_beside_a_request_that_is_fixed),
        cmocka_unit_test(the_policies_without_times_cut_nothing),
        cmocka_unit_test(ema_has_four_bands),
        cmocka_unit_test(the_middle_bands_ask_for_one_token_at_least),
        cmocka_unit_test(ema_tries_one_token_again_every_32_rounds),
        cmocka_unit_test(ema_stops_at_its_batch_limit_and_zero_is_none),
        cmocka_unit_test(the_averages_follow_what_was_accepted),
        cmocka_unit_test(ema_learns_from_drafts_that_come_too_late),
        cmocka_unit_test(a_tree_teaches_along_the_committed_path),
        cmocka_unit_test(answers_that_come_together_take_the_time_of_the_longest),
        cmocka_unit_test(an_answer_without_tokens_that_was_held_up_counts_a_few_times),
        cmocka_unit_test(answers_with_tokens_bound_what_those_without_take),
        cmocka_unit_test(a_silent_proposer_says_nothing_of_another),
        cmocka_unit_test(an_answer_of_the_last_proposer_comes_too_late_to_count),
        cmocka_unit_test(another_proposer_in_the_same_place_starts_anew),
        cmocka_unit_test(passes_beside_a_reader_say_nothing_of_others),
        cmocka_unit_test(unless_they_were_faster_or_it_never_ends),
        cmocka_unit_test(the_last_pass_beside_a_reader_is_paid_for_too),
        cmocka_unit_test(a_pass_that_was_interrupted_makes_no_price),
        cmocka_unit_test(what_ends_soon_is_not_read),
        cmocka_unit_test(what_was_read_is_the_proposers_word),
        cmocka_unit_test(who_is_not_read_keeps_nobody_from_drafting),
        cmocka_unit_test(the_first_reading_is_not_charged),
        cmocka_unit_test(an_answer_without_tokens_has_nothing_to_read),
        cmocka_unit_test(who_is_not_asked_is_not_read),
        cmocka_unit_test(who_is_put_off_for_ever_is_asked_for_rarely),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
