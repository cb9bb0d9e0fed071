/* test_prop_suffix.c - a draft equals that of a scan over the context and the tenant's outputs. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "lib/oracles/prop_contract.h"
#include "lib/oracles/suffix_scan.h"
#include "proposer-svc/props/prop_suffix.h"
#include "proposer-svc/props/suffix_pool.h"

static void *must_open(void)
{
    void *shared;
    assert_int_equal(prop_suffix.open(&shared), 0);
    return shared;
}

/* A sequence that ends. The tokens after its prompt become an output. */
static void add_output(void *shared, const char *tenant, uint32_t n_prompt, const uint32_t *tokens,
                       uint32_t n)
{
    struct prop_seq s = prop_seq_new(&prop_suffix, shared);
    s.tenant = tenant;
    s.n_prompt = n_prompt;
    prop_seq_update(&s, 0, tokens, n);
    prop_seq_done(&s);
}

static struct draft ask(void *shared, const char *tenant, const uint32_t *tokens, uint32_t n,
                        uint32_t k)
{
    struct prop_seq s = prop_seq_new(&prop_suffix, shared);
    s.tenant = tenant;
    prop_seq_update(&s, 0, tokens, n);
    struct draft d = prop_seq_draft(&s, k);
    prop_seq_done(&s); // adds no output: the prompt is unknown
    return d;
}

#define TOKENS(...) (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4

static struct draft draft_of(const uint32_t *tokens, uint32_t n, uint32_t k)
{
    void *shared = must_open();
    struct draft d = ask(shared, NULL, tokens, n, k);
    prop_suffix.close(shared);
    return d;
}

static void it_keeps_the_contract(void **state)
{
    (void)state;
    prop_contract(&prop_suffix, 1000);
    prop_suffix_settings = (struct prop_suffix_settings){
        .max_depth = 3, .pool_tokens = 0, .factor = 2.5, .offset = 1, .min_prob = 0.4};
    prop_contract(&prop_suffix, 1000);
}

static void the_most_frequent_continuation_is_the_draft(void **state)
{
    (void)state;
    struct draft d = draft_of(TOKENS(7, 1, 8, 7, 2, 8, 7, 1, 9, 7, 1, 5, 7), 4);
    EXPECT(d, 1); // three of four times; a match of one token allows one draft token
    assert_true(d.survival[0] == 0.75f);
}

static void survival_is_the_product_of_the_frequencies(void **state)
{
    (void)state;
    prop_suffix_settings.factor = 2;
    struct draft d = draft_of(TOKENS(7, 1, 8, 30, 7, 2, 31, 7, 1, 9, 32, 7, 1, 9, 33, 7), 4);
    EXPECT(d, 1, 9);
    assert_true(d.survival[0] == 0.75f);
    assert_true(d.survival[1] == 0.75f * (2.0f / 3.0f));
}

static void a_draft_is_as_long_as_its_match_allows(void **state)
{
    (void)state;
    struct draft d = draft_of(TOKENS(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3), 10);
    EXPECT(d, 4, 5, 6);
    prop_suffix_settings.factor = 1.5;
    prop_suffix_settings.offset = 1;
    d = draft_of(TOKENS(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3), 10);
    EXPECT(d, 4, 5, 6, 7, 8);
    d = draft_of(TOKENS(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3), 2);
    EXPECT(d, 4, 5);
}

static void a_draft_ends_where_it_is_improbable(void **state)
{
    (void)state;
    prop_suffix_settings.min_prob = 0.6;
    assert_int_equal(draft_of(TOKENS(7, 1, 8, 7, 2, 9, 7), 4).n, 0);
    prop_suffix_settings.min_prob = 0.5;
    assert_int_equal(draft_of(TOKENS(7, 1, 8, 7, 2, 9, 7), 4).n, 1);
}

/* 32 places for each of the four lengths of n-grams, each with another next token. */
static void as_many_places_as_possible_may_have_different_tokens(void **state)
{
    (void)state;
    static const uint32_t tail[] = {10, 11, 12, 13, 14, 15, 16, 17};
    static const uint32_t lengths[] = {8, 4, 2, 1};
    uint32_t tokens[1000], n = 0;
    for (uint32_t l = 0; l < 4; l++) {
        for (uint32_t i = 0; i < SUFFIX_LOOK_MAX; i++) {
            for (uint32_t t = 8 - lengths[l]; t < 8; t++)
                tokens[n++] = tail[t];
            tokens[n++] = 100 + 2 * (l * SUFFIX_LOOK_MAX + i);
            tokens[n++] = 101 + 2 * (l * SUFFIX_LOOK_MAX + i);
        }
    }
    memcpy(tokens + n, tail, sizeof(tail));
    prop_suffix_settings.min_prob = 0;
    struct draft d = draft_of(tokens, n + 8, 8);
    assert_int_equal(d.n, 8); // one of the longest matches
    for (uint32_t i = 0; i < 8; i++)
        assert_true(d.survival[i] == 1 / 32.f);
}

static void periodic_text_is_continued(void **state)
{
    (void)state;
    struct draft d = draft_of(TOKENS(1, 2, 3, 1, 2, 3, 1, 2, 3), 6);
    EXPECT(d, 1, 2, 3, 1, 2, 3);
}

static void an_output_is_found_by_another_sequence(void **state)
{
    (void)state;
    void *shared = must_open();
    add_output(shared, "a", 2, TOKENS(91, 92, 1, 2, 3, 4, 5, 6));
    struct draft d = ask(shared, "a", TOKENS(50, 1, 2, 3), 8);
    EXPECT(d, 4, 5, 6);
    assert_int_equal(ask(shared, "a", TOKENS(91, 92), 8).n, 0); // the prompt is not an output
    assert_int_equal(ask(shared, "a", TOKENS(50, 6), 8).n, 0);  // no token follows
    prop_suffix.close(shared);
}

/* A sequence comes again after it was preempted or evicted, or on another stream. */
static void an_output_counts_once_after_its_session_was_dropped(void **state)
{
    (void)state;
    void *shared = must_open();
    struct prop_seq s = prop_seq_new(&prop_suffix, shared);
    s.n_prompt = 1;
    prop_seq_update(&s, 0, TOKENS(90, 1, 2, 3));
    prop_seq_forget(&s);
    add_output(shared, NULL, 1, TOKENS(90, 1, 2, 3, 4));
    add_output(shared, NULL, 1, TOKENS(90, 1, 2, 5, 6));
    assert_true(ask(shared, NULL, TOKENS(50, 1, 2), 1).survival[0] == 0.5f);
    prop_suffix.close(shared);
}

static void a_match_does_not_span_two_outputs(void **state)
{
    (void)state;
    void *shared = must_open();
    add_output(shared, NULL, 1, TOKENS(90, 1, 2, 3));
    add_output(shared, NULL, 1, TOKENS(90, 4, 5, 6));
    assert_int_equal(ask(shared, NULL, TOKENS(50, 2, 3), 8).n, 0);
    prop_suffix.close(shared);
}

static void a_tenant_drafts_from_its_own_outputs_only(void **state)
{
    (void)state;
    void *shared = must_open();
    add_output(shared, "a", 1, TOKENS(90, 1, 2, 3, 4, 5, 6));
    assert_int_equal(ask(shared, "b", TOKENS(50, 1, 2, 3), 8).n, 0);
    assert_int_equal(ask(shared, NULL, TOKENS(50, 1, 2, 3), 8).n, 0);
    add_output(shared, "b", 1,
               TOKENS(90, 1, 2, 3, 7, 8, 9)); // the same n-gram; each tenant has its own places
    struct draft d = ask(shared, "a", TOKENS(50, 1, 2, 3), 8);
    EXPECT(d, 4, 5, 6);
    d = ask(shared, "b", TOKENS(50, 1, 2, 3), 8);
    EXPECT(d, 7, 8, 9);
    assert_int_equal(ask(shared, NULL, TOKENS(50, 1, 2, 3), 8).n, 0);
    prop_suffix.close(shared);
}

/* A pool of 16 tokens has one bucket for all tenants. */
static void tenants_of_one_bucket_share_nothing(void **state)
{
    (void)state;
    prop_suffix_settings.pool_tokens = 16;
    void *shared = must_open();
    add_output(shared, "anne", 1, TOKENS(90, 1, 2, 3, 4, 5));
    add_output(shared, "anna", 1, TOKENS(90, 6, 7, 8, 9, 10));
    assert_int_equal(ask(shared, "anna", TOKENS(50, 1, 2, 3), 8).n, 0);
    assert_int_equal(ask(shared, "anne", TOKENS(50, 6, 7, 8), 8).n, 0);
    assert_int_equal(ask(shared, "anne", TOKENS(50, 1, 2, 3), 8).n, 2);
    assert_int_equal(ask(shared, "anna", TOKENS(50, 6, 7, 8), 8).n, 2);
    prop_suffix.close(shared);
}

static struct draft ask_model(void *shared, const char *model, const char *tenant)
{
    struct prop_seq s = prop_seq_new(&prop_suffix, shared);
    s.tenant = tenant;
    s.model = model;
    prop_seq_update(&s, 0, TOKENS(50, 1, 2, 3));
    struct draft d = prop_seq_draft(&s, 8);
    prop_seq_done(&s);
    return d;
}

static void a_model_drafts_from_its_own_outputs_only(void **state)
{
    (void)state;
    void *shared = must_open();
    struct prop_seq s = prop_seq_new(&prop_suffix, shared);
    s.tenant = "nn";
    s.model = "fp_a";
    s.n_prompt = 1;
    prop_seq_update(&s, 0, TOKENS(90, 1, 2, 3, 4, 5));
    prop_seq_done(&s);
    assert_int_equal(ask_model(shared, "fp_b", "nn").n, 0);
    assert_int_equal(ask_model(shared, NULL, "nn").n, 0);
    assert_int_equal(ask_model(shared, "fp_an", "n").n, 0); // the border between both counts
    assert_int_equal(ask_model(shared, "fp_a", "nn").n, 2);
    prop_suffix.close(shared);
}

static void new_outputs_replace_the_oldest(void **state)
{
    (void)state;
    prop_suffix_settings.pool_tokens = 16; // two outputs of 7 tokens, with their marks
    void *shared = must_open();
    add_output(shared, "a", 1, TOKENS(90, 10, 11, 12, 13, 14, 15, 16));
    add_output(shared, "a", 1, TOKENS(90, 20, 21, 22, 23, 24, 25, 26));
    assert_int_equal(ask(shared, "a", TOKENS(10, 11), 8).n, 2);
    add_output(shared, "b", 1, TOKENS(90, 30, 31, 32, 33, 34, 35, 36));
    assert_int_equal(ask(shared, "a", TOKENS(10, 11), 8).n, 0);
    assert_int_equal(ask(shared, "a", TOKENS(20, 21), 8).n, 2);
    assert_int_equal(ask(shared, "b", TOKENS(30, 31), 8).n, 2);
    prop_suffix.close(shared);
}

static void the_pool_stays_within_its_limit(void **state)
{
    (void)state;
    AUTO(suffix_pool_free) struct suffix_pool *pool = NULL;
    assert_int_equal(suffix_pool_new(1000, 1, &pool), 0);
    size_t used = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t tokens[2000], n = i % 100 ? i % 30 : 2000;
        uint8_t tenant[4] = {(uint8_t)i, (uint8_t)(i >> 8), 1, (uint8_t)(i % 7)};
        for (uint32_t t = 0; t < n; t++)
            tokens[t] = i % 50 + t % 9;
        suffix_pool_add(pool, tenant, 1 + i % 4, tokens, n);
        assert_true(suffix_pool_tokens(pool) <= 1000);
        if (i == 1000)
            used = mallinfo2().uordblks;
    }
    assert_true(mallinfo2().uordblks <= used + 32768); // the table of tenants may have grown
}

/* ---- memory ---- */

/* Bytes that a sequence requests when it grows to n tokens. */
static size_t bytes_to(void *shared, struct prop_seq *s, uint32_t n)
{
    s->n = n;
    struct prop_context c = {.tokens = s->tokens, .n = n};
    failing_at(0);
    assert_int_equal(prop_suffix.grow(shared, s->state, &c), 0);
    return failing_bytes();
}

/* An index has space for a quarter more and 1024 tokens. It has 4/3 as many slots for each of four
 * lengths, and the four places before each. */
static void an_index_grows_by_a_quarter_and_1024_tokens(void **state)
{
    (void)state;
    void *shared = must_open();
    struct prop_seq s = prop_seq_new(&prop_suffix, shared);
    assert_int_equal(bytes_to(shared, &s, 1000), 16 * (2274 + 3036));
    assert_int_equal(bytes_to(shared, &s, 2273), 0);
    assert_int_equal(bytes_to(shared, &s, 2274), 16 * (3866 + 5156));
    prop_seq_done(&s);
    prop_suffix.close(shared);
}

static void without_memory_a_sequence_cannot_grow(void **state)
{
    (void)state;
    void *shared = NULL;
    int r = -ENOMEM;
    for (unsigned n = 1; r < 0; n++) {
        failing_at(n);
        r = prop_suffix.open(&shared);
        assert_true(r == (failing_has_failed() ? -ENOMEM : 0));
        assert_true(n < 20);
        if (n == 1)
            assert_string_equal(fail_text(), "suffix: no memory");
    }
    for (unsigned n = 1; n <= 2; n++) {
        struct prop_seq s = prop_seq_new(&prop_suffix, shared);
        struct prop_context c = {.tokens = s.tokens, .n = 10};
        failing_at(n);
        assert_int_equal(prop_suffix.grow(shared, s.state, &c), -ENOMEM);
        assert_true(failing_has_failed());
        assert_string_equal(fail_text(), "no memory for 1036 tokens");
        prop_seq_done(&s);
    }
    struct prop_seq s = prop_seq_new(&prop_suffix, shared);
    struct prop_context huge = {.tokens = s.tokens, .n = 3500000000u}; // with spare above 2^32
    assert_int_equal(prop_suffix.grow(shared, s.state, &huge), -ENOMEM);
    assert_string_equal(fail_text(), "suffix: no memory for 3500000000 tokens");
    prop_seq_done(&s);
    prop_suffix.close(shared);
}

/* ---- against the scan ---- */

/* The outputs of a tenant that the pool should have: tokens [first, n). */
struct outputs {
    uint32_t tokens[20000], n, first;
};

static void append_output(struct outputs *p, const uint32_t *tokens, uint32_t n, uint32_t max)
{
    if (n < 2)
        return;
    if (n > max - 1) {
        tokens += n - (max - 1);
        n = max - 1;
    }
    p->tokens[p->n++] = SUFFIX_POOL_MARK;
    memcpy(p->tokens + p->n, tokens, n * sizeof(*tokens));
    p->n += n;
    if (p->n - p->first > max)
        p->first = p->n - max;
}

static void assert_same_as_scan(const struct prop_seq *s, uint32_t k, const struct outputs *outputs)
{
    const struct prop_suffix_settings *set = &prop_suffix_settings;
    struct suffix_scan how = {(uint32_t)set->max_depth, set->factor, set->offset, set->min_prob};
    struct draft d = prop_seq_draft(s, k);
    struct suffix_scan_draft want = suffix_scan(
        &how, s->tokens, s->n, outputs->tokens + outputs->first, outputs->n - outputs->first, k);
    assert_int_equal(d.n, want.n);
    assert_memory_equal(d.tokens, want.tokens, d.n * sizeof(d.tokens[0]));
    assert_memory_equal(d.survival, want.survival, d.n * sizeof(d.survival[0]));
}

/* Sequences of two tenants that grow, are cut, draft and end. */
static void compare_with_scan(uint32_t n_vocab, uint64_t seed)
{
    static struct outputs outputs[2];
    static const char *const tenants[] = {"a", NULL};
    void *shared = must_open();
    uint32_t n_pool = (uint32_t)prop_suffix_settings.pool_tokens;
    memset(outputs, 0, sizeof(outputs));
    for (uint32_t run = 0; run < 8; run++) {
        unsigned tenant = n_pool > 300 ? run % 2 : 0; // a small pool is full with one tenant
        struct prop_seq s = prop_seq_new(&prop_suffix, shared);
        s.n_prompt = 20;
        s.tenant = tenants[tenant];
        for (uint32_t step = 0; step < 40; step++) {
            uint64_t r = rng_splitmix64(seed * 100000 + run * 1000 + step);
            uint32_t tokens[40], n = (uint32_t)(r % 20 ? r / 40 % 6 : 40);
            for (uint32_t i = 0; i < n; i++)
                tokens[i] = (uint32_t)(rng_splitmix64(r + i) % n_vocab);
            uint32_t back = (uint32_t)(r >> 40) % 16 ? 0 : (uint32_t)(r >> 48) % (s.n + 1);
            prop_seq_update(&s, s.n - back, tokens, n);
            assert_same_as_scan(&s, 1 + (uint32_t)(r >> 20) % 12, &outputs[tenant]);
        }
        if (s.n > s.n_prompt)
            append_output(&outputs[tenant], s.tokens + s.n_prompt, s.n - s.n_prompt, n_pool);
        prop_seq_done(&s);
    }
    prop_suffix.close(shared);
}

static void the_index_equals_the_scan(void **state)
{
    (void)state;
    static const struct prop_suffix_settings sets[] = {
        {.max_depth = 24, .pool_tokens = 5000, .factor = 1, .min_prob = 0.1},
        {.max_depth = 24, .pool_tokens = 200, .factor = 2, .offset = 1, .min_prob = 0},
        {.max_depth = 3, .pool_tokens = 150, .factor = 1.5, .min_prob = 0.3},
        {.max_depth = 1, .pool_tokens = 5000, .factor = 4, .min_prob = 0.05},
    };
    static const uint32_t vocabs[] = {1, 2, 5, 20, 200, 100000};
    for (unsigned i = 0; i < ARRAY_LEN(sets); i++) {
        for (unsigned v = 0; v < ARRAY_LEN(vocabs); v += (unsigned)lib_amount(3, 1, 1)) {
            prop_suffix_settings = sets[i];
            compare_with_scan(vocabs[v], i * 10 + v);
        }
    }
}

/* ---- threads ---- */

static void *add_and_draft(void *shared)
{
    uint32_t tokens[60];
    for (uint32_t i = 0; i < 300; i++) {
        for (uint32_t t = 0; t < 60; t++)
            tokens[t] = t % 7 + i % 3;
        add_output(shared, i % 2 ? "a" : NULL, 5, tokens, 60);
        assert_true(ask(shared, "a", tokens, 60, 8).n);
    }
    return NULL;
}

static void sequences_may_be_served_by_several_threads(void **state)
{
    (void)state;
    pthread_t t[2];
    void *shared = must_open();
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&t[i], NULL, add_and_draft, shared), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    prop_suffix.close(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_keeps_the_contract, prop_defaults),
        cmocka_unit_test_setup(the_most_frequent_continuation_is_the_draft, prop_defaults),
        cmocka_unit_test_setup(survival_is_the_product_of_the_frequencies, prop_defaults),
        cmocka_unit_test_setup(a_draft_is_as_long_as_its_match_allows, prop_defaults),
        cmocka_unit_test_setup(a_draft_ends_where_it_is_improbable, prop_defaults),
        cmocka_unit_test_setup(as_many_places_as_possible_may_have_different_tokens, prop_defaults),
        cmocka_unit_test_setup(periodic_text_is_continued, prop_defaults),
        cmocka_unit_test_setup(an_output_is_found_by_another_sequence, prop_defaults),
        cmocka_unit_test_setup(an_output_counts_once_after_its_session_was_dropped, prop_defaults),
        cmocka_unit_test_setup(a_match_does_not_span_two_outputs, prop_defaults),
        cmocka_unit_test_setup(a_tenant_drafts_from_its_own_outputs_only, prop_defaults),
        cmocka_unit_test_setup(a_model_drafts_from_its_own_outputs_only, prop_defaults),
        cmocka_unit_test_setup(tenants_of_one_bucket_share_nothing, prop_defaults),
        cmocka_unit_test_setup(new_outputs_replace_the_oldest, prop_defaults),
        cmocka_unit_test_setup(the_pool_stays_within_its_limit, prop_defaults),
        cmocka_unit_test_setup(an_index_grows_by_a_quarter_and_1024_tokens, prop_defaults),
        cmocka_unit_test_setup(without_memory_a_sequence_cannot_grow, prop_defaults),
        cmocka_unit_test_setup(the_index_equals_the_scan, prop_defaults),
        cmocka_unit_test_setup(sequences_may_be_served_by_several_threads, prop_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
