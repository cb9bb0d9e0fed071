/* test_prop_ngram.c - a draft from the index equals that of a scan over the context. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "lib/oracles/ngram_scan.h"
#include "lib/oracles/prop_contract.h"
#include "proposer-svc/props/prop_ngram.h"

static void set_ngram(int64_t max, int64_t min, const char *match, bool prompt_lookup)
{
    prop_ngram_settings = (struct prop_ngram_settings){max, min, (char *)match, prompt_lookup};
}

static void *must_open(void)
{
    void *shared;
    assert_int_equal(prop_ngram.open(&shared), 0);
    return shared;
}

static struct draft draft_of(const uint32_t *tokens, uint32_t n, uint32_t k)
{
    void *shared = must_open();
    struct prop_seq s = prop_seq_new(&prop_ngram, shared);
    prop_seq_update(&s, 0, tokens, n);
    struct draft d = prop_seq_draft(&s, k);
    prop_seq_done(&s);
    prop_ngram.close(shared);
    return d;
}

#define DRAFT_OF(k, ...)                                                                           \
    draft_of((uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4, k)

static void it_keeps_the_contract(void **state)
{
    (void)state;
    prop_contract(&prop_ngram, 1000);
    set_ngram(3, 2, "earliest_full", true);
    prop_contract(&prop_ngram, 1000);
}

static void the_continuation_of_the_latest_match_is_the_draft(void **state)
{
    (void)state;
    struct draft d = DRAFT_OF(3, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 1, 2);
    EXPECT(d, 6, 7, 8);
}

static void the_longest_match_wins_over_a_later_one(void **state)
{
    (void)state;
    struct draft d = DRAFT_OF(2, 9, 1, 2, 5, 6, 3, 2, 7, 8, 9, 1, 2);
    EXPECT(d, 5, 6);
}

static void a_copy_that_reaches_the_end_continues_with_itself(void **state)
{
    (void)state;
    struct draft d = DRAFT_OF(7, 1, 2, 3, 1, 2, 3);
    EXPECT(d, 1, 2, 3, 1, 2, 3, 1);
    d = DRAFT_OF(4, 5, 5);
    EXPECT(d, 5, 5, 5, 5);
}

static void earliest_full_takes_the_first_match_that_k_tokens_follow(void **state)
{
    (void)state;
    set_ngram(4, 1, "earliest_full", true);
    struct draft d = DRAFT_OF(3, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 1, 2);
    EXPECT(d, 3, 4, 5);
    assert_int_equal(DRAFT_OF(7, 1, 2, 3, 1, 2, 3).n, 0);
    d = DRAFT_OF(3, 8, 7, 6, 5, 6, 5); // 2 tokens follow (6, 5) and 5: none is full
    assert_int_equal(d.n, 0);
    d = DRAFT_OF(3, 5, 7, 6, 9, 6, 5, 6, 5); // k tokens follow 5, but not (6, 5)
    EXPECT(d, 7, 6, 9);
}

static void too_little_context_gives_no_draft(void **state)
{
    (void)state;
    assert_int_equal(draft_of(NULL, 0, 5).n, 0);
    assert_int_equal(DRAFT_OF(5, 1).n, 0);
    assert_int_equal(DRAFT_OF(5, 1, 2).n, 0);
    set_ngram(4, 3, "latest", true);
    assert_int_equal(DRAFT_OF(5, 1, 1).n, 0);
    assert_int_equal(DRAFT_OF(5, 1, 1, 1).n, 0);
    assert_int_equal(DRAFT_OF(5, 1, 1, 1, 1).n, 5);
}

static void a_draft_has_at_most_k_tokens(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 8; k++)
        assert_int_equal(DRAFT_OF(k, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3).n, k);
}

static void without_prompt_lookup_only_generated_tokens_are_searched(void **state)
{
    (void)state;
    set_ngram(4, 1, "latest", false);
    void *shared = must_open();
    struct prop_seq s = prop_seq_new(&prop_ngram, shared);
    s.n_prompt = 5;
    prop_seq_update(&s, 0, (uint32_t[]){1, 2, 3, 4, 1}, 5);
    assert_int_equal(prop_seq_draft(&s, 3).n, 0);
    prop_seq_update(&s, 5, (uint32_t[]){2}, 1);
    assert_int_equal(prop_seq_draft(&s, 3).n, 0);
    prop_seq_update(&s, 6, (uint32_t[]){9, 2}, 2);
    struct draft d = prop_seq_draft(&s, 1);
    EXPECT(d, 9);
    prop_seq_done(&s);
    prop_ngram.close(shared);
}

static void a_minimum_above_the_maximum_is_refused(void **state)
{
    (void)state;
    void *shared;
    set_ngram(2, 3, "latest", true);
    assert_int_equal(prop_ngram.open(&shared), -EINVAL);
    assert_string_equal(fail_text(), "ngram_min 3 is above ngram_max 2");
}

/* Docs/benchmarks.md: the probability that a copied token is accepted, by length of the match. */
static void survival_is_the_product_of_the_measured_ratios(void **state)
{
    (void)state;
    static const float ratios[][7] = {{0.16f, 0.38f, 0.45f, 0.50f, 0.56f, 0.56f, 0.56f},
                                      {0.33f, 0.44f, 0.50f, 0.57f, 0.65f, 0.65f, 0.65f},
                                      {0.43f, 0.49f, 0.58f, 0.65f, 0.70f, 0.70f, 0.70f},
                                      {0.72f, 0.82f, 0.87f, 0.90f, 0.93f, 0.93f, 0.93f}};
    set_ngram(6, 1, "latest", true);
    for (uint32_t matched = 1; matched <= 6; matched++) {
        uint32_t tokens[40], n = 0;
        for (uint32_t i = 0; i < 12; i++)
            tokens[n++] = 100 + i;
        tokens[n++] = 50; // the match does not go further back
        for (uint32_t i = 0; i < matched; i++)
            tokens[n++] = 100 + i;
        struct draft d = draft_of(tokens, n, 7);
        float want = 1;
        assert_int_equal(d.n, 7);
        for (uint32_t i = 0; i < 7; i++) {
            want *= ratios[matched < 4 ? matched - 1 : 3][i];
            assert_int_equal(d.tokens[i], i + matched < 13 ? tokens[i + matched] : 100);
            assert_true(d.survival[i] == want);
        }
    }
}

/* ---- memory ---- */

static void grow_to(void *shared, struct prop_seq *s, uint32_t n)
{
    s->n = n;
    struct prop_context c = {.tokens = s->tokens, .n = n};
    assert_int_equal(prop_ngram.grow(shared, s->state, &c), 0);
}

/* Bytes that a sequence requests when it grows to n tokens. */
static size_t bytes_to(void *shared, struct prop_seq *s, uint32_t n)
{
    failing_at(0);
    grow_to(shared, s, n);
    return failing_bytes();
}

/* A table has space for a quarter more and 1024 tokens. It has 4/3 as many slots. */
static void tables_grow_by_a_quarter_and_1024_tokens(void **state)
{
    (void)state;
    set_ngram(2, 1, "latest", true);
    void *shared = must_open();
    struct prop_seq s = prop_seq_new(&prop_ngram, shared);
    assert_int_equal(bytes_to(shared, &s, 1000), 2 * 4 * (2274 + 3036));
    assert_int_equal(bytes_to(shared, &s, 2273), 0);
    assert_int_equal(bytes_to(shared, &s, 2274), 2 * 4 * (3866 + 5156));
    prop_seq_done(&s);
    prop_ngram.close(shared);
}

static void without_memory_a_sequence_cannot_grow(void **state)
{
    (void)state;
    set_ngram(2, 1, "latest", true);
    void *shared;
    failing_at(1);
    assert_int_equal(prop_ngram.open(&shared), -ENOMEM);
    assert_true(failing_has_failed());
    assert_string_equal(fail_text(), "ngram: no memory");
    shared = must_open();
    for (unsigned n = 1; n <= 4; n++) { // two allocations for each of two tables
        struct prop_seq s = prop_seq_new(&prop_ngram, shared);
        struct prop_context c = {.tokens = s.tokens, .n = 10};
        failing_at(n);
        assert_int_equal(prop_ngram.grow(shared, s.state, &c), -ENOMEM);
        assert_true(failing_has_failed());
        assert_string_equal(fail_text(), "ngram: no memory for 10 tokens");
        prop_seq_done(&s);
    }
    struct prop_seq s = prop_seq_new(&prop_ngram, shared);
    struct prop_context huge = {.tokens = s.tokens, .n = 2600000000u}; // above 2^32 slots
    assert_int_equal(prop_ngram.grow(shared, s.state, &huge), -ENOMEM);
    assert_string_equal(fail_text(), "ngram: no memory for 2600000000 tokens");
    prop_seq_done(&s);
    prop_ngram.close(shared);
}

/* Random appends, cuts and drafts over n_vocab tokens. Each draft equals that of the scan. */
static void compare_with_scan(const struct ngram_scan *how, uint32_t n_vocab, uint64_t seed,
                              bool prompt_lookup)
{
    set_ngram(how->len_max, how->len_min, how->earliest_full ? "earliest_full" : "latest",
              prompt_lookup);
    void *shared = must_open();
    struct prop_seq s = prop_seq_new(&prop_ngram, shared);
    s.n_prompt = 20;
    struct ngram_scan scan = *how;
    scan.n_skip = prompt_lookup ? 0 : s.n_prompt;
    for (uint32_t step = 0; step < 300; step++) {
        uint64_t r = rng_splitmix64(seed * 1000 + step);
        uint32_t tokens[40], n = (uint32_t)(r % 40 ? r / 40 % 6 : 40), want[DRAFT_MAX_NODES];
        for (uint32_t i = 0; i < n; i++)
            tokens[i] = (uint32_t)(rng_splitmix64(r + i) % n_vocab);
        uint32_t back = (uint32_t)(r >> 40) % 16 ? 0 : (uint32_t)(r >> 48) % (s.n + 1);
        prop_seq_update(&s, s.n - back, tokens, n);
        uint32_t k = 1 + (uint32_t)(r >> 20) % 12;
        struct draft d = prop_seq_draft(&s, k);
        assert_int_equal(d.n, ngram_scan(&scan, s.tokens, s.n, k, want));
        assert_memory_equal(d.tokens, want, d.n * sizeof(want[0]));
    }
    prop_seq_done(&s);
    prop_ngram.close(shared);
}

static void the_index_equals_the_scan(void **state)
{
    (void)state;
    static const struct ngram_scan hows[] = {
        {4, 1, 0, false}, {4, 1, 0, true}, {1, 1, 0, false}, {3, 2, 0, true}, {16, 4, 0, false}};
    static const uint32_t vocabs[] = {1, 2, 3, 5, 20, 100000};
    for (unsigned h = 0; h < 5; h++)
        for (unsigned v = 0; v < 6; v++)
            for (unsigned off = 0; off < 2; off++)
                compare_with_scan(&hows[h], vocabs[v], h * 100 + v * 10 + off, !off);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_keeps_the_contract, prop_defaults),
        cmocka_unit_test_setup(the_continuation_of_the_latest_match_is_the_draft, prop_defaults),
        cmocka_unit_test_setup(the_longest_match_wins_over_a_later_one, prop_defaults),
        cmocka_unit_test_setup(a_copy_that_reaches_the_end_continues_with_itself, prop_defaults),
        cmocka_unit_test_setup(earliest_full_takes_the_first_match_that_k_tokens_follow,
                               prop_defaults),
        cmocka_unit_test_setup(too_little_context_gives_no_draft, prop_defaults),
        cmocka_unit_test_setup(a_draft_has_at_most_k_tokens, prop_defaults),
        cmocka_unit_test_setup(without_prompt_lookup_only_generated_tokens_are_searched,
                               prop_defaults),
        cmocka_unit_test_setup(a_minimum_above_the_maximum_is_refused, prop_defaults),
        cmocka_unit_test_setup(survival_is_the_product_of_the_measured_ratios, prop_defaults),
        cmocka_unit_test_setup(tables_grow_by_a_quarter_and_1024_tokens, prop_defaults),
        cmocka_unit_test_setup(without_memory_a_sequence_cannot_grow, prop_defaults),
        cmocka_unit_test_setup(the_index_equals_the_scan, prop_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
