/* test_prop_draft_model.c - the draft model's drafts equal those of a fresh sequence, for any
 * earlier drafts. Also: contexts, evicted sequences, time limits, models that do not fit.
 * test_prop_draft_sampling.c has the sampling. */
#include <errno.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "lib/lib.h"
#include "lib/rigs/draft_rig.h"

static void it_keeps_the_contract(void **state)
{
    (void)state;
    prop_contract(&prop_draft_model, DRAFT_RIG_VOCAB);
}

static void a_batch_drafts_what_each_would_alone(void **state)
{
    (void)state;
    draft_rig_open();
    enum { N = 50 }; // more than one group
    struct prop_seq seqs[N];
    struct draft together[N];
    struct prop_ask asks[N], *pointers[N];
    for (uint32_t i = 0; i < N; i++) {
        seqs[i] = draft_rig_story(3 + i * 3);
        asks[i] = draft_rig_ask(&seqs[i], 1 + i % 9, &together[i]);
        pointers[i] = &asks[i];
    }
    prop_ask_all(&prop_draft_model, draft_rig_shared, pointers, N);
    for (uint32_t i = 0; i < N; i++) {
        struct draft alone = prop_seq_draft(&seqs[i], 1 + i % 9);
        assert_true(alone.n > 0);
        prop_same_draft(&together[i], &alone);
        prop_seq_done(&seqs[i]);
    }
    draft_rig_close();
}

static void after_any_acceptance_the_next_draft_equals_a_fresh_one(void **state)
{
    (void)state;
    draft_rig_open();
    for (uint32_t n_accepted = 0; n_accepted <= 8; n_accepted++) {
        struct prop_seq s = draft_rig_story(60);
        struct draft d = prop_seq_draft(&s, 8);
        assert_int_equal(d.n, 8);
        prop_seq_update(&s, s.n, d.tokens, n_accepted); // 8: the row of the last one is missing
        draft_rig_same_as_fresh(&s, 8);
        prop_seq_update(&s, s.n, (uint32_t[]){17}, 1); // correction or bonus
        draft_rig_same_as_fresh(&s, 8);
        prop_seq_done(&s);
    }
    draft_rig_close();
}

/* Each branch of a draft ahead equals a fresh draft. Returns the number of branches. Adds to
 * *n_early those that assume a rejection. */
static uint32_t branches_as_fresh_drafts(uint32_t n_verifying, uint32_t k_wanted, uint32_t *n_early)
{
    struct prop_seq s = draft_rig_story(60);
    struct draft first = prop_seq_draft(&s, n_verifying), ahead;
    prop_seq_update(&s, s.n, first.tokens, n_verifying);
    struct prop_ask ask = draft_rig_ask(&s, k_wanted, &ahead), *asks = &ask;
    draft_rig_verify_last(&ask, n_verifying);
    prop_ask_all(&prop_draft_model, draft_rig_shared, &asks, 1);
    uint32_t n_branches = 0;
    assert_true(ahead.tree && ahead.n > k_wanted && ahead.n <= DRAFT_MAX_NODES - n_verifying);
    for (uint32_t i = 0; i < ahead.n; i++) {
        if (ahead.parents[i] >= 0)
            continue;
        uint32_t start = s.n + 1 + (uint32_t)ahead.parents[i], at = i, n = 0;
        assert_in_range(start, s.n - n_verifying, s.n);
        struct prop_seq fresh = prop_seq_new(&prop_draft_model, draft_rig_shared);
        prop_seq_update(&fresh, 0, s.tokens, start);
        if (i == 0) // the first branch continues the draft itself
            assert_int_equal(prop_seq_draft(&fresh, 1).tokens[0], ahead.tokens[0]);
        else if (start < s.n)
            assert_int_not_equal(ahead.tokens[i], s.tokens[start]);
        prop_seq_update(&fresh, start, &ahead.tokens[i], 1);
        struct draft rest = prop_seq_draft(&fresh, k_wanted - 1);
        for (uint32_t k = i + 1; k < ahead.n; k++) {
            if (ahead.parents[k] != (int32_t)at)
                continue;
            assert_int_equal(ahead.tokens[k], rest.tokens[n++]);
            at = k;
        }
        assert_int_equal(n, k_wanted - 1);
        prop_seq_done(&fresh);
        n_branches++;
        *n_early += start < s.n;
    }
    prop_seq_done(&s);
    return n_branches;
}

/* However many of the tokens are accepted, the branch for it equals a fresh draft. */
static void each_branch_of_a_draft_ahead_equals_a_fresh_draft(void **state)
{
    (void)state;
    uint32_t n_early = 0;
    draft_rig_open();
    assert_int_equal(branches_as_fresh_drafts(4, 5, &n_early), 6);
    assert_true(n_early > 0);
    assert_int_equal(branches_as_fresh_drafts(16, 17, &n_early), 2); // more branches would not fit
    draft_rig_close();
}

/* With many sequences, each still gets the branch that continues its draft. */
static void many_drafts_ahead_share_the_passes(void **state)
{
    (void)state;
    draft_rig_open();
    enum { N = 16, N_VERIFYING = 4, K = 5 };
    struct prop_seq s[N];
    struct draft drafts[N];
    struct prop_ask ask[N], *asks[N];
    uint32_t n_calls = 0, n_open = N;
    for (uint32_t i = 0; i < N; i++) {
        s[i] = draft_rig_story(60 + i);
        struct draft first = prop_seq_draft(&s[i], N_VERIFYING);
        prop_seq_update(&s[i], s[i].n, first.tokens, N_VERIFYING);
        ask[i] = draft_rig_ask(&s[i], K, &drafts[i]);
        draft_rig_verify_last(&ask[i], N_VERIFYING);
        asks[i] = &ask[i];
    }
    for (; n_open; n_calls++) {
        prop_draft_model.draft(draft_rig_shared, asks, n_open);
        for (uint32_t i = n_open; i-- > 0;)
            if (asks[i]->done)
                asks[i] = asks[--n_open];
    }
    assert_in_range(n_calls, K, K + 3); // a pass begins branches from at most 32 rows
    for (uint32_t i = 0; i < N; i++) {
        struct draft fresh = prop_seq_draft(&s[i], K);
        uint32_t at = 0, n = 1;
        assert_int_equal(drafts[i].tokens[0], fresh.tokens[0]);
        for (uint32_t k = 1; k < drafts[i].n; k++) {
            if (drafts[i].parents[k] != (int32_t)at)
                continue;
            assert_int_equal(drafts[i].tokens[k], fresh.tokens[n++]);
            at = k;
        }
        assert_int_equal(n, K);
        assert_in_range(drafts[i].n, 2 * K, 3 * K);
        prop_seq_done(&s[i]);
    }
    draft_rig_close();
}

static void a_long_context_is_read_between_drafts_for_others(void **state)
{
    (void)state;
    draft_rig_open();
    struct prop_seq new = draft_rig_story(900), known = draft_rig_story(50);
    prop_seq_draft(&known, 1);
    struct draft d[2];
    struct prop_ask asks[2] = {draft_rig_ask(&new, 5, &d[0]), draft_rig_ask(&known, 5, &d[1])};
    prop_draft_model.draft(draft_rig_shared, (struct prop_ask *[]){&asks[0], &asks[1]}, 2);
    assert_false(asks[0].done);
    assert_true(asks[1].done);
    assert_int_equal(d[1].n, 5);

    uint32_t n_pieces = 0;
    while (prop_draft_model.work(draft_rig_shared))
        n_pieces++;
    assert_true(n_pieces > 1);
    prop_draft_model.draft(draft_rig_shared, (struct prop_ask *[]){&asks[0]}, 1);
    assert_true(asks[0].done);
    assert_int_equal(d[0].n, 5);
    prop_seq_done(&new);
    prop_seq_done(&known);
    draft_rig_close();
}

/* One call of draft() with an ask that has `us` microseconds. False: the time was up before. */
static bool called_in_time(const struct prop_seq *s, int64_t us, struct prop_ask *ask)
{
    static struct draft d;
    *ask = draft_rig_ask(s, 5, &d);
    ask->until_us = clock_us() + us;
    prop_draft_model.draft(draft_rig_shared, (struct prop_ask *[]){ask}, 1);
    assert_true(!ask->done || d.n == 0);
    return !ask->done || ask->unread;
}

/* A verifier has two Rounds in flight. A slow sequence must not occupy one of them. */
static void an_ask_without_time_for_its_context_gets_unread(void **state)
{
    (void)state;
    draft_rig_open();
    struct prop_seq before = draft_rig_story(900), s = draft_rig_story(901);
    struct prop_ask ask;
    assert_true(called_in_time(&before, 1000000000, &ask));
    assert_false(ask.done); // the time of a chunk is not known yet
    assert_true(prop_draft_model.work(draft_rig_shared));
    while (!called_in_time(&s, 500,
                           &ask)) // its 900 rows, and those of `before`, take longer than 250 us
        ;
    assert_int_equal(ask.unread, 901);
    assert_true(called_in_time(&s, 1000000000, &ask));
    assert_false(ask.done);
    while (prop_draft_model.work(draft_rig_shared))
        ;
    prop_draft_model.draft(draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
    assert_true(ask.done && !ask.unread);
    assert_int_equal(ask.to->n, 5);
    prop_seq_done(&before);
    prop_seq_done(&s);
    draft_rig_close();
}

static void out_of_time_there_is_no_draft(void **state)
{
    (void)state;
    draft_rig_open();
    struct prop_seq s = draft_rig_story(50);
    struct draft d;
    struct prop_ask ask = draft_rig_ask(&s, 5, &d);
    ask.until_us = 0;
    prop_draft_model.draft(draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
    assert_true(ask.done);
    assert_int_equal(d.n, 0);
    prop_seq_done(&s);
    draft_rig_close();
}

static void an_idle_sequence_is_evicted_a_busy_one_is_not(void **state)
{
    (void)state;
    prop_draft_model_settings.kv_mib = 1; // 1365 positions
    draft_rig_open();
    struct prop_seq a = draft_rig_story_of("a", 800), b = draft_rig_story_of("b", 801);
    struct draft first = prop_seq_draft(&a, 5);
    assert_int_equal(first.n, 5);
    assert_int_equal(prop_seq_draft(&b, 5).n, 0);
    uint32_t n_tries = 1;
    while (!prop_seq_draft(&b, 5).n) // the other one is idle meanwhile
        assert_true(++n_tries < 1000);
    assert_true(n_tries > 10);
    for (n_tries = 0; !prop_seq_draft(&a, 5).n; n_tries++)
        assert_true(n_tries < 1000);

    prop_seq_done(&a);
    prop_seq_done(&b);
    draft_rig_close();
}

static void branches_without_an_ask_are_evicted(void **state)
{
    (void)state;
    prop_draft_model_settings.kv_mib = 1; // 1365 positions
    draft_rig_open();
    struct prop_seq a = draft_rig_story_of("a", 800), b = draft_rig_story_of("b", 801);
    struct draft first = prop_seq_draft(&a, 3), ahead;
    prop_seq_update(&a, a.n, first.tokens, 3);
    struct prop_ask ask = draft_rig_ask(&a, 8, &ahead);
    draft_rig_verify_last(&ask, 3);
    prop_draft_model.draft(draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
    assert_false(ask.done); // its verifier has disconnected
    unsigned n_tries = 0;
    while (!prop_seq_draft(&b, 5).n)
        assert_true(++n_tries < 1000);
    prop_seq_done(&a);
    prop_seq_done(&b);
    draft_rig_close();
}

static void while_a_context_is_read_no_sequence_becomes_idle(void **state)
{
    (void)state;
    prop_draft_model_settings.kv_mib = 1; // 1365 positions
    draft_rig_open();
    struct prop_seq a = draft_rig_story_of("a", 800), b = draft_rig_story_of("b", 801);
    struct draft d;
    struct prop_ask ask = draft_rig_ask(&b, 5, &d);
    assert_int_equal(prop_seq_draft(&a, 5).n, 5);
    for (unsigned i = 0; i < 1000; i++) { // as between the chunks of a long context
        prop_draft_model.draft(draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
        assert_false(ask.done);
    }
    prop_ask_all(&prop_draft_model, draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
    assert_int_equal(d.n, 0); // a's rows are not evicted
    prop_seq_done(&a);
    prop_seq_done(&b);
    draft_rig_close();
}

/* Counts chunks of context until there is a draft. */
static unsigned n_feedings(const struct prop_seq *s, struct draft *ret)
{
    struct prop_ask ask = draft_rig_ask(s, 5, ret);
    unsigned n = 0;
    for (;; n++) {
        prop_draft_model.draft(draft_rig_shared, (struct prop_ask *[]){&ask}, 1);
        if (ask.done)
            return n;
        assert_true(prop_draft_model.work(draft_rig_shared));
        assert_true(n < 1000);
    }
}

static void a_common_prefix_is_not_read_again(void **state)
{
    (void)state;
    draft_rig_open();
    struct prop_seq a = draft_rig_story(500), b;
    struct draft first, again;
    assert_true(n_feedings(&a, &first) > 1); // a pass has at most 256 rows
    prop_seq_done(&a);                       // the last turn of a chat
    b = draft_rig_story(504);
    assert_true(n_feedings(&b, &again) <=
                1); // at most 24 rows, perhaps in one chunk on a slow machine
    prop_seq_update(&b, 500, NULL, 0);
    assert_true(n_feedings(&b, &again) <= 1);
    prop_same_draft(&first, &again);
    prop_seq_done(&b);
    b = draft_rig_story_of("another", 500);
    assert_true(n_feedings(&b, &again) > 1);
    prop_same_draft(&first, &again);
    prop_seq_done(&b);
    draft_rig_close();
}

static void after_the_models_longest_context_there_is_no_draft(void **state)
{
    (void)state;
    prop_draft_model_settings.context = 64;
    draft_rig_open();
    struct prop_about about;
    prop_draft_model.about(draft_rig_shared, &about);
    assert_int_equal(about.max_context, 64);
    assert_string_equal(about.model, "tales-1m-q8_0.gguf");
    assert_true(about.vocab_digest);
    assert_int_equal(about.q_modes, (1u << DRAFT_N_Q_MODES) - 1);
    struct prop_seq s = draft_rig_story(60);
    assert_int_equal(prop_seq_draft(&s, 20).n, 4);
    prop_seq_update(&s, 60, (uint32_t[]){1, 2, 3, 4}, 4);
    assert_int_equal(prop_seq_draft(&s, 20).n, 0);
    prop_seq_update(&s, 64, (uint32_t[]){1, 2, 3, 4}, 4);
    assert_int_equal(prop_seq_draft(&s, 20).n, 0);
    prop_seq_done(&s);
    draft_rig_close();
}

static void after_a_token_that_the_model_does_not_have_there_is_no_draft(void **state)
{
    (void)state;
    draft_rig_open();
    struct prop_seq s = draft_rig_story(20);
    assert_int_equal(prop_seq_draft(&s, 4).n, 4);
    prop_seq_update(&s, 20, (uint32_t[]){1, 1u << 30, 3}, 3);
    assert_int_equal(prop_seq_draft(&s, 4).n, 0);
    prop_seq_update(&s, 22, (uint32_t[]){4, 5}, 2);
    assert_int_equal(prop_seq_draft(&s, 4).n, 0);
    prop_seq_update(&s, 21, (uint32_t[]){4}, 1); // the foreign token was removed
    assert_int_equal(prop_seq_draft(&s, 4).n, 4);
    prop_seq_done(&s);
    draft_rig_close();
}

static void a_model_rounded_to_four_bits_drafts_nearly_the_same(void **state)
{
    (void)state;
    struct draft whole, rounded;
    uint32_t n_same = 0, n_moved = 0;
    for (uint32_t at = 20; at < 180; at += 20) {
        struct draft *const both[] = {&whole, &rounded};
        for (unsigned i = 0; i < 2; i++) {
            prop_draft_model_settings.quantise = (char *)(uintptr_t)(i ? "q4_0" : "no");
            draft_rig_open();
            struct prop_seq s = draft_rig_story(at);
            *both[i] = prop_seq_draft(&s, 1);
            prop_seq_done(&s);
            draft_rig_close();
        }
        n_same += whole.tokens[0] == rounded.tokens[0];
        n_moved += whole.survival[0] != rounded.survival[0];
    }
    assert_true(n_same >= 5);
    assert_int_equal(n_moved, 8);
}

static void without_a_model_the_error_names_the_setting(void **state)
{
    (void)state;
    prop_draft_model_settings.model = NULL;
    assert_int_equal(prop_draft_model.open(&draft_rig_shared), -EINVAL);
    assert_string_equal(fail_text(), "draft.model is missing: the GGUF file of the draft model");
}

static void too_large_a_pool_is_refused_with_what_would_fit(void **state)
{
    (void)state;
    prop_draft_model_settings.kv_mib = 1 << 23;
    assert_int_equal(prop_draft_model.open(&draft_rig_shared), -ENOMEM);
    assert_non_null(strstr(fail_text(), "draft.kv_mib="));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_keeps_the_contract, prop_defaults),
        cmocka_unit_test_setup(a_batch_drafts_what_each_would_alone, prop_defaults),
        cmocka_unit_test_setup(after_any_acceptance_the_next_draft_equals_a_fresh_one,
                               prop_defaults),
        cmocka_unit_test_setup(each_branch_of_a_draft_ahead_equals_a_fresh_draft, prop_defaults),
        cmocka_unit_test_setup(many_drafts_ahead_share_the_passes, prop_defaults),
        cmocka_unit_test_setup(a_long_context_is_read_between_drafts_for_others, prop_defaults),
        cmocka_unit_test_setup(an_ask_without_time_for_its_context_gets_unread, prop_defaults),
        cmocka_unit_test_setup(out_of_time_there_is_no_draft, prop_defaults),
        cmocka_unit_test_setup(an_idle_sequence_is_evicted_a_busy_one_is_not, prop_defaults),
        cmocka_unit_test_setup(branches_without_an_ask_are_evicted, prop_defaults),
        cmocka_unit_test_setup(while_a_context_is_read_no_sequence_becomes_idle, prop_defaults),
        cmocka_unit_test_setup(a_common_prefix_is_not_read_again, prop_defaults),
        cmocka_unit_test_setup(after_the_models_longest_context_there_is_no_draft, prop_defaults),
        cmocka_unit_test_setup(after_a_token_that_the_model_does_not_have_there_is_no_draft,
                               prop_defaults),
        cmocka_unit_test_setup(a_model_rounded_to_four_bits_drafts_nearly_the_same, prop_defaults),
        cmocka_unit_test_setup(without_a_model_the_error_names_the_setting, prop_defaults),
        cmocka_unit_test_setup(too_large_a_pool_is_refused_with_what_would_fit, prop_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
