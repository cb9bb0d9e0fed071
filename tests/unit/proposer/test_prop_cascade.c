/* test_prop_cascade.c - of several proposers the draft that promises most, or the first. */
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

static void the_first_that_has_a_token_is_taken(void **state)
{
    (void)state;
    prop_ngram_settings.ngram_min = 3;
    set_cascade("ngram", "suffix", "first");
    must_open();
    struct prop_seq s = SEQ_OF(1, 2, 3, 4, 5, 6, 7, 1, 2, 3);
    EXPECT(prop_seq_draft(&s, 5), 4, 5, 6, 7, 1); // the suffix proposer would say three tokens
    prop_seq_done(&s);
    s = SEQ_OF(1, 2, 3, 4, 5, 6, 7, 2, 3);
    EXPECT(prop_seq_draft(&s, 5), 4, 5); // the match is too short for the n-gram proposer
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

static void the_draft_that_promises_most_is_taken(void **state)
{
    (void)state;
    set_cascade("ngram", "suffix", "score");
    must_open();
    struct prop_seq s = SEQ_OF(7, 1, 30, 7, 1, 31, 7, 1, 32, 7, 2, 33, 7);
    EXPECT(prop_seq_draft(&s, 5), 1); // most often; the latest, 2, is kept once in six times
    prop_seq_done(&s);
    s = SEQ_OF(1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4);
    EXPECT(prop_seq_draft(&s, 5), 5, 6, 7, 1, 2);
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

static void who_is_wrong_is_believed_less(void **state)
{
    (void)state;
    prop_ngram_settings.ngram_min = 2;
    set_cascade("suffix", "ngram", "score");
    must_open();
    struct prop_seq s = SEQ_OF(1, 2, 40, 41, 42, 43, 50, 1, 2), wrong = SEQ_OF(7, 8, 9, 7);
    EXPECT(prop_seq_draft(&s, 4), 40, 41); // two tokens, surely; the n-gram: four, hardly
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

/* The draft goes behind the context to be verified, and then it is taken back. */
static void what_is_being_verified_is_not_right_yet(void **state)
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
    EXPECT(prop_seq_draft(&s, 4), 40, 41, 42, 43); // suffix is believed less
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
    assert_int_equal(about.max_context, 0);               // the n-gram proposer has no end
    struct prop_seq s = SEQ_OF(4080, 300, 400, 500, 300); // one n-gram token: little
    struct draft d = drawn(&s, DRAFT_SPARSE);
    assert_int_equal(d.q_mode, DRAFT_SPARSE);
    assert_int_equal(d.n, 4);
    assert_int_equal(d.q->width, 8);
    free(d.q);
    prop_seq_done(&s);
    s = SEQ_OF(4080, 300, 400, 500, 600, 4080, 300, 400, 500); // much: the model is not asked
    d = drawn(&s, DRAFT_SPARSE);
    assert_int_equal(d.q_mode, DRAFT_POINT);
    EXPECT(d, 600, 4080, 300, 400);
    assert_null(d.q);
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

/* How often one of these, of two that are both asked, promised more than the model. */
static uint32_t n_doubtful(const char *first, const char *second)
{
    uint32_t n = 0;
    set_cascade(first, second, "score");
    must_open();
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t x = 300 + 50 * i, a = 2000 + 60 * i; // x is followed by a three times in four
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

/* Choosing by what was drawn would favour some tokens. */
static void a_drawn_draft_is_sent_whatever_it_promises(void **state)
{
    (void)state;
    assert_true(n_doubtful("suffix", "draft") > 4);
    assert_true(n_doubtful("draft", "suffix") > 4);
}

/* A context that the model has to read first. */
static void nobody_is_waited_for_when_there_is_a_draft(void **state)
{
    (void)state;
    set_cascade("ngram", "draft", "score");
    must_open();
    uint32_t tokens[400];
    for (uint32_t i = 0; i < 400; i++)
        tokens[i] = 300 + i;
    tokens[399] = tokens[10]; // a match of one token promises little
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

static void what_the_only_one_that_could_puts_off_is_put_off(void **state)
{
    (void)state;
    set_cascade("ngram", "draft", "score");
    must_open();
    uint32_t tokens[400];
    for (uint32_t i = 0; i < 400; i++)
        tokens[i] = 300 + i; // nothing is said twice
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
    assert_true(prop_cascade.work(shared)); // now it is known how long that takes
    for (ask.unread = 0; !ask.unread; ask.done = false) {
        prop_seq_update(&s, 400, NULL, 0);
        ask.until_us = clock_us() + 500;
        prop_cascade.draft(shared, (struct prop_ask *[]){&ask}, 1);
        assert_int_equal(d.n, 0);
    }
    prop_seq_done(&s);
    prop_cascade.close(shared);
}

/* The model goes on with it from call to call. */
static void what_a_member_drafts_ahead_is_its_own_word(void **state)
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
    set_cascade("nobody", NULL, "score");
    assert_int_equal(prop_cascade.open(&shared), -EINVAL);
    assert_non_null(strstr(fail_text(), "\"nobody\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_keeps_the_contract, prop_defaults),
        cmocka_unit_test_setup(the_first_that_has_a_token_is_taken, prop_defaults),
        cmocka_unit_test_setup(the_draft_that_promises_most_is_taken, prop_defaults),
        cmocka_unit_test_setup(who_is_wrong_is_believed_less, prop_defaults),
        cmocka_unit_test_setup(what_is_being_verified_is_not_right_yet, prop_defaults),
        cmocka_unit_test_setup(a_drawn_draft_is_sent_with_its_q, prop_defaults),
        cmocka_unit_test_setup(a_drawn_draft_is_sent_whatever_it_promises, prop_defaults),
        cmocka_unit_test_setup(nobody_is_waited_for_when_there_is_a_draft, prop_defaults),
        cmocka_unit_test_setup(what_the_only_one_that_could_puts_off_is_put_off, prop_defaults),
        cmocka_unit_test_setup(what_a_member_drafts_ahead_is_its_own_word, prop_defaults),
        cmocka_unit_test_setup(members_that_do_not_fit_are_refused, prop_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
