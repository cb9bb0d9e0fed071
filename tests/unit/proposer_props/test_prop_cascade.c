/* test_prop_cascade.c - the cascade sends the draft with the best score, or the first draft. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/clock.h"
#include "lib/lib.h"
#include "lib/oracles/prop_contract.h"
#include "proposer-svc/props/prop_cascade.h"
#include "proposer-svc/draftmodel/prop_draft_model.h"
#include "proposer-svc/props/prop_ngram.h"
#include "proposer-svc/props/prop_suffix.h"

#define TEXT(s) ((char *)(uintptr_t)(s))

static void *shared;

static void set_cascade(const char *first, const char *second, const char *choose)
{
    prop_cascade_settings = (struct prop_cascade_settings){
        .members = {.n = second ? 2 : 1, .v = {TEXT(first), TEXT(second)}}, .choose = TEXT(choose)};
}

static void must_open(void)
{
    if (prop_cascade.open(&shared) < 0)
        fail_msg("%s", fail_text());
}

static struct prop_seq seq_of(const uint32_t *tokens, uint32_t n)
{
    struct prop_seq s = prop_seq_new(&prop_cascade, shared);
    prop_seq_update(&s, 0, tokens, n);
    return s;
}

#define SEQ_OF(...) seq_of((uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)

static void it_keeps_the_contract(void **state)
{
    (void)state;
    set_cascade("ngram", "suffix", "first");
    prop_contract(&prop_cascade, 1000);
    set_cascade("ngram", "suffix", "score");
    prop_contract(&prop_cascade, 1000);
}

static void with_first_the_first_draft_with_a_token_is_sent(void **state)
{
    (void)state;
    prop_ngram_settings.ngram_min = 3;
    set_cascade("ngram", "suffix", "first");
    must_open();
    struct prop_seq s = SEQ_OF(1, 2, 3, 4, 5, 6, 7, 1, 2, 3);
    EXPECT(prop_seq_draft(&s, 5), 4, 5, 6, 7, 1); // the suffix proposer would draft three tokens
    prop_seq_done(&s);
    s = SEQ_OF(1, 2, 3, 4, 5, 6, 7, 2, 3);
    EXPECT(prop_seq_draft(&s, 5), 4, 5); // the match is too short for the n-gram proposer
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

static void with_score_the_draft_with_the_best_score_is_sent(void **state)
{
    (void)state;
    set_cascade("ngram", "suffix", "score");
    must_open();
    struct prop_seq s = SEQ_OF(7, 1, 30, 7, 1, 31, 7, 1, 32, 7, 2, 33, 7);
    EXPECT(prop_seq_draft(&s, 5), 1); // the most frequent; the latest one, 2, has survival 0.16
    prop_seq_done(&s);
    s = SEQ_OF(1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4);
    EXPECT(prop_seq_draft(&s, 5), 5, 6, 7, 1, 2);
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

static void a_members_score_falls_when_its_drafts_are_rejected(void **state)
{
    (void)state;
    prop_ngram_settings.ngram_min = 2;
    set_cascade("suffix", "ngram", "score");
    must_open();
    struct prop_seq s = SEQ_OF(1, 2, 40, 41, 42, 43, 50, 1, 2), wrong = SEQ_OF(7, 8, 9, 7);
    EXPECT(prop_seq_draft(&s, 4), 40,
           41); // two certain tokens; the n-gram proposer has four unlikely ones
    for (uint32_t i = 0; i < 100; i++) {
        EXPECT(prop_seq_draft(&wrong, 4), 8);
        prop_seq_update(&wrong, 4, &(uint32_t){900 + i}, 1);
        prop_seq_update(&wrong, 4, NULL, 0);
    }
    EXPECT(prop_seq_draft(&s, 4), 40, 41, 42, 43);
    prop_seq_done(&s);
    prop_seq_done(&wrong);
    prop_cascade.close(shared);
}

static struct draft ahead_of(const struct prop_seq *s, uint32_t n_verifying)
{
    struct draft d;
    struct prop_ask ask = {.seq = s->state,
                           .context = {.tokens = s->tokens, .n = s->n, .n_verifying = n_verifying},
                           .max_depth = 5,
                           .max_nodes = DRAFT_MAX_NODES - n_verifying,
                           .until_us = INT64_MAX,
                           .to = &d};
    prop_ask_all(s->ops, s->shared, (struct prop_ask *[]){&ask}, 1);
    return d;
}

/* The draft is appended to the context while it is verified, and then it is removed. */
static void tokens_that_are_being_verified_do_not_count_as_accepted(void **state)
{
    (void)state;
    prop_ngram_settings.ngram_min = 2;
    set_cascade("suffix", "ngram", "score");
    must_open();
    struct prop_seq s = SEQ_OF(1, 2, 40, 41, 42, 43, 50, 1, 2), wrong = SEQ_OF(7, 8, 9, 7);
    for (uint32_t i = 0; i < 100; i++) {
        EXPECT(prop_seq_draft(&wrong, 4), 8);
        struct prop_context verifying = {.tokens = wrong.tokens, .n = 5, .n_verifying = 1};
        wrong.tokens[4] = 8;
        assert_int_equal(prop_cascade.grow(shared, wrong.state, &verifying), 0);
        wrong.n = 5;
        ahead_of(&wrong, 1);
        prop_seq_update(&wrong, 4, &(uint32_t){900 + i}, 1);
        prop_seq_update(&wrong, 4, NULL, 0);
    }
    EXPECT(prop_seq_draft(&s, 4), 40, 41, 42, 43); // the suffix proposer's score has fallen
    prop_seq_done(&s);
    prop_seq_done(&wrong);
    prop_cascade.close(shared);
}

static struct draft drawn(struct prop_seq *s, enum draft_q_mode mode)
{
    struct draft d = {0};
    struct prop_ask ask = {.seq = s->state,
                           .context = {.tokens = s->tokens, .n = s->n},
                           .max_depth = 4,
                           .max_nodes = 4,
                           .q_mode = mode,
                           .sampling.params = {.temperature = 1, .top_p = 1, .repetition = 1},
                           .until_us = INT64_MAX,
                           .to = &d};
    prop_ask_all(s->ops, s->shared, (struct prop_ask *[]){&ask}, 1);
    return d;
}

static void a_drawn_draft_is_sent_with_its_q(void **state)
{
    (void)state;
    prop_draft_model_settings.sparse_k = 8;
    set_cascade("ngram", "draft", "score");
    must_open();
    struct prop_about about;
    prop_cascade.about(shared, &about);
    assert_true(about.q_modes & 1u << DRAFT_SPARSE);
    assert_true(about.vocab_digest);
    assert_int_equal(about.max_context, 0);               // the n-gram proposer has no limit
    struct prop_seq s = SEQ_OF(4080, 300, 400, 500, 300); // a match of one token: a low score
    struct draft d = drawn(&s, DRAFT_SPARSE);
    assert_int_equal(d.q_mode, DRAFT_SPARSE);
    assert_int_equal(d.n, 4);
    assert_int_equal(d.q->width, 8);
    free(d.q);
    prop_seq_done(&s);
    s = SEQ_OF(4080, 300, 400, 500, 600, 4080, 300, 400,
               500); // a high score: the model is not asked
    d = drawn(&s, DRAFT_SPARSE);
    assert_int_equal(d.q_mode, DRAFT_POINT);
    EXPECT(d, 600, 4080, 300, 400);
    assert_null(d.q);
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

/* Both members are asked. Counts how often the suffix proposer's draft has the better score. */
static uint32_t n_better_scores(const char *first, const char *second)
{
    uint32_t n = 0;
    set_cascade(first, second, "score");
    must_open();
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t x = 300 + 50 * i, a = 2000 + 60 * i; // a follows x three times out of four
        struct prop_seq s = SEQ_OF(4080, x, a, 30, x, a, 31, x, a, 32, x, 2, 33, x);
        prop_seq_draft(&s, 1);
        while (prop_cascade.work(shared)) // the model reads the context
            ;
        struct draft point = prop_seq_draft(&s, 1), d = drawn(&s, DRAFT_SPARSE);
        assert_int_equal(d.q_mode, DRAFT_SPARSE);
        n += point.survival[0] == 0.75f;
        free(d.q);
        prop_seq_done(&s);
    }
    prop_cascade.close(shared);
    return n;
}

/* A choice that depends on the drawn token would distort q. */
static void a_drawn_draft_is_sent_whatever_its_score(void **state)
{
    (void)state;
    assert_true(n_better_scores("suffix", "draft") > 4);
    assert_true(n_better_scores("draft", "suffix") > 4);
}

/* The model would have to read the context first. */
static void no_member_is_waited_for_when_there_is_a_draft(void **state)
{
    (void)state;
    set_cascade("ngram", "draft", "score");
    must_open();
    uint32_t tokens[400];
    for (uint32_t i = 0; i < 400; i++)
        tokens[i] = 300 + i;
    tokens[399] = tokens[10]; // a match of one token has a low score
    struct prop_seq s = seq_of(tokens, 400);
    struct draft d = {0};
    struct prop_ask ask = {.seq = s.state,
                           .context = {.tokens = s.tokens, .n = s.n},
                           .max_depth = 3,
                           .max_nodes = 3,
                           .until_us = INT64_MAX,
                           .to = &d};
    prop_cascade.draft(shared, (struct prop_ask *[]){&ask}, 1);
    assert_true(ask.done);
    EXPECT(d, 311, 312, 313);
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

static void without_a_draft_the_member_that_needs_time_decides(void **state)
{
    (void)state;
    set_cascade("ngram", "draft", "score");
    must_open();
    uint32_t tokens[400];
    for (uint32_t i = 0; i < 400; i++)
        tokens[i] = 300 + i; // no token occurs twice
    struct prop_seq s = seq_of(tokens, 400);
    struct draft d = {0};
    struct prop_ask ask = {.seq = s.state,
                           .context = {.tokens = s.tokens, .n = s.n},
                           .max_depth = 3,
                           .max_nodes = 3,
                           .until_us = INT64_MAX,
                           .to = &d};
    prop_cascade.draft(shared, (struct prop_ask *[]){&ask}, 1);
    assert_false(ask.done);
    assert_true(prop_cascade.work(shared)); // now the time of a chunk is known
    for (ask.unread = 0; !ask.unread; ask.done = false) {
        prop_seq_update(&s, 400, NULL, 0);
        ask.until_us = clock_us() + 500;
        prop_cascade.draft(shared, (struct prop_ask *[]){&ask}, 1);
        assert_int_equal(d.n, 0);
    }
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

/* The model makes it over several calls. */
static void a_draft_ahead_equals_the_members(void **state)
{
    (void)state;
    uint32_t tokens[] = {4080, 300, 400, 500, 600, 700};
    struct draft got, want;
    set_cascade("ngram", "draft", "score");
    must_open();
    struct prop_seq s = seq_of(tokens, 6);
    got = ahead_of(&s, 2);
    prop_seq_done(&s);
    prop_cascade.close(shared);
    assert_int_equal(prop_draft_model.open(&shared), 0);
    s = prop_seq_new(&prop_draft_model, shared);
    prop_seq_update(&s, 0, tokens, 6);
    want = ahead_of(&s, 2);
    prop_seq_done(&s);
    prop_draft_model.close(shared);
    assert_true(want.n > 5);
    assert_int_equal(got.n, want.n);
    assert_memory_equal(got.tokens, want.tokens, want.n * sizeof(want.tokens[0]));
    assert_memory_equal(got.parents, want.parents, want.n * sizeof(want.parents[0]));
}

static void members_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    set_cascade("ngram", "ngram", "score");
    assert_int_equal(prop_cascade.open(&shared), -EINVAL);
    assert_non_null(strstr(fail_text(), "twice"));
    set_cascade("ngram", "cascade", "score");
    assert_int_equal(prop_cascade.open(&shared), -EINVAL);
    set_cascade("unknown", NULL, "score");
    assert_int_equal(prop_cascade.open(&shared), -EINVAL);
    assert_non_null(strstr(fail_text(), "\"unknown\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_keeps_the_contract, prop_defaults),
        cmocka_unit_test_setup(with_first_the_first_draft_with_a_token_is_sent, prop_defaults),
        cmocka_unit_test_setup(with_score_the_draft_with_the_best_score_is_sent, prop_defaults),
        cmocka_unit_test_setup(a_members_score_falls_when_its_drafts_are_rejected, prop_defaults),
        cmocka_unit_test_setup(tokens_that_are_being_verified_do_not_count_as_accepted,
                               prop_defaults),
        cmocka_unit_test_setup(a_drawn_draft_is_sent_with_its_q, prop_defaults),
        cmocka_unit_test_setup(a_drawn_draft_is_sent_whatever_its_score, prop_defaults),
        cmocka_unit_test_setup(no_member_is_waited_for_when_there_is_a_draft, prop_defaults),
        cmocka_unit_test_setup(without_a_draft_the_member_that_needs_time_decides, prop_defaults),
        cmocka_unit_test_setup(a_draft_ahead_equals_the_members, prop_defaults),
        cmocka_unit_test_setup(members_that_do_not_fit_are_refused, prop_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
