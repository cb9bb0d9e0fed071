/* prop_contract.c - the tests that every proposer passes. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/oracles/prop_contract.h"
#include "proposer-svc/draftmodel/prop_draft_model.h"
#include "proposer-svc/props/prop_ngram.h"
#include "proposer-svc/props/prop_suffix.h"

#define CONTEXT_MAX 4096

#define TEXT(s) ((char *)(uintptr_t)(s))

int prop_defaults(void **state)
{
    (void)state;
    prop_ngram_settings = (struct prop_ngram_settings){4, 1, TEXT("latest"), true};
    prop_suffix_settings = (struct prop_suffix_settings){
        .max_depth = 24, .pool_tokens = 1000, .factor = 1, .min_prob = 0.1};
    prop_draft_model_settings =
        (struct prop_draft_model_settings){.model = TEXT(SOURCE_DIR "/models/tales-1m-q8_0.gguf"),
                                           .quantise = TEXT("no"),
                                           .float_gemm = TEXT("own"),
                                           .kv_type = TEXT("f16"),
                                           .threads = 1,
                                           .sparse_k = 64,
                                           .memory_check = true};
    return 0;
}

struct prop_seq prop_seq_new(const struct prop_ops *ops, void *shared)
{
    struct prop_seq s = {.ops = ops, .shared = shared};
    s.state = calloc(1, ops->seq_size + 1);
    s.tokens = malloc(CONTEXT_MAX * sizeof(*s.tokens));
    assert_true(s.state && s.tokens);
    memset(s.tokens, 0xff, CONTEXT_MAX * sizeof(*s.tokens)); // no vocabulary has the tokens after n
    return s;
}

static struct prop_context context_of(const struct prop_seq *s)
{
    const char *tenant = s->tenant ? s->tenant : "", *model = s->model ? s->model : "";
    return (struct prop_context){.tokens = s->tokens,
                                 .n = s->n,
                                 .n_prompt = s->n_prompt,
                                 .tenant = (const uint8_t *)tenant,
                                 .tenant_len = (uint32_t)strlen(tenant),
                                 .model = (const uint8_t *)model,
                                 .model_len = (uint32_t)strlen(model)};
}

static void end_seq(struct prop_seq *s, const struct prop_context *c)
{
    s->ops->seq_done(s->shared, s->state, c);
    free(s->state);
    free(s->tokens);
}

void prop_seq_done(struct prop_seq *s)
{
    struct prop_context c = context_of(s);
    end_seq(s, &c);
}

void prop_seq_forget(struct prop_seq *s)
{
    end_seq(s, NULL);
}

void prop_seq_update(struct prop_seq *s, uint32_t keep, const uint32_t *tokens, uint32_t n)
{
    assert_true(keep <= s->n && keep + n <= CONTEXT_MAX);
    struct prop_context before = context_of(s);
    if (keep < s->n)
        s->ops->cut(s->shared, s->state, &before, keep);
    if (n)
        memcpy(s->tokens + keep, tokens, n * sizeof(*tokens));
    s->n = keep + n;
    struct prop_context now = context_of(s);
    assert_int_equal(s->ops->grow(s->shared, s->state, &now), 0);
}

void prop_ask_all(const struct prop_ops *ops, void *shared, struct prop_ask **asks, uint32_t n)
{
    struct prop_ask *open[64];
    assert_true(n <= ARRAY_LEN(open));
    memcpy(open, asks, n * sizeof(struct prop_ask *));
    for (uint32_t n_open = n, left; n_open; n_open = left) {
        ops->draft(shared, open, n_open);
        left = 0;
        for (uint32_t i = 0; i < n_open; i++) {
            if (open[i]->done && !open[i]->unread)
                continue;
            open[i]->done = false;
            open[i]->unread = 0;
            open[left++] = open[i];
        }
        assert_true(!left || ops->work(shared)); // else the asks would never be done
    }
}

/* A greedy ask. *to is not empty, as the proposer must set it. */
static struct prop_ask ask_of(const struct prop_seq *s, uint32_t k, struct draft *to)
{
    memset(to, 0xa5, sizeof(*to));
    to->q = NULL;
    return (struct prop_ask){.seq = s->state,
                             .context = context_of(s),
                             .max_depth = k,
                             .max_nodes = k,
                             .sampling.params = {.top_p = 1, .repetition = 1},
                             .until_us = INT64_MAX,
                             .to = to};
}

struct draft prop_seq_draft(const struct prop_seq *s, uint32_t k)
{
    struct draft d;
    struct prop_ask ask = ask_of(s, k, &d);
    prop_ask_all(s->ops, s->shared, (struct prop_ask *[]){&ask}, 1);
    assert_true(d.n <= k);
    for (uint32_t i = 0; i < d.n; i++) {
        int32_t parent = d.tree ? d.parents[i] : (int32_t)i - 1;
        assert_true(parent >= -1 && parent < (int32_t)i);
        assert_true(d.survival[i] >= 0 && d.survival[i] <= (parent < 0 ? 1 : d.survival[parent]));
    }
    return d;
}

void prop_same_draft(const struct draft *a, const struct draft *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->tree, b->tree);
    assert_memory_equal(a->tokens, b->tokens, a->n * sizeof(a->tokens[0]));
    if (a->tree)
        assert_memory_equal(a->parents, b->parents, a->n * sizeof(a->parents[0]));
}

static void random_tokens(uint32_t *to, uint32_t n, uint32_t n_vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = (uint32_t)(rng_splitmix64(seed * CONTEXT_MAX + i) % (n_vocab < 5 ? n_vocab : 5));
}

/* The draft equals that of a new sequence with the same context. */
static void assert_same_as_new(const struct prop_seq *s, uint32_t k)
{
    struct prop_seq new = prop_seq_new(s->ops, s->shared);
    new.n_prompt = s->n_prompt;
    prop_seq_update(&new, 0, s->tokens, s->n);
    struct draft a = prop_seq_draft(s, k), b = prop_seq_draft(&new, k);
    prop_same_draft(&a, &b);
    prop_seq_forget(&new);
}

static void test_empty_context(const struct prop_ops *ops, void *shared)
{
    struct prop_seq s = prop_seq_new(ops, shared);
    prop_seq_draft(&s, DRAFT_MAX_NODES);
    prop_seq_update(&s, 0, NULL, 0);
    prop_seq_draft(&s, DRAFT_MAX_NODES);
    prop_seq_done(&s);
}

static void test_keep_none_some_all(const struct prop_ops *ops, void *shared, uint32_t n_vocab)
{
    struct prop_seq s = prop_seq_new(ops, shared);
    uint32_t tokens[300];
    random_tokens(tokens, 300, n_vocab, 1);
    prop_seq_update(&s, 0, tokens, 300);
    assert_same_as_new(&s, 5);
    random_tokens(tokens, 300, n_vocab, 2);
    prop_seq_update(&s, s.n, tokens, 7); // all
    assert_same_as_new(&s, 5);
    prop_seq_update(&s, 120, tokens, 30); // some
    assert_same_as_new(&s, 5);
    prop_seq_update(&s, 40, NULL, 0); // and nothing new
    assert_same_as_new(&s, 5);
    prop_seq_update(&s, 0, tokens, 60); // none
    assert_same_as_new(&s, 5);
    prop_seq_update(&s, 0, NULL, 0);
    assert_same_as_new(&s, 5);
    prop_seq_done(&s);
}

static void test_two_interleaved(const struct prop_ops *ops, void *shared, uint32_t n_vocab)
{
    struct prop_seq a = prop_seq_new(ops, shared), b = prop_seq_new(ops, shared);
    uint32_t tokens[64];
    for (uint32_t i = 0; i < 14; i++) {
        struct prop_seq *s = i % 2 ? &a : &b;
        random_tokens(tokens, 64, n_vocab, 10 + i);
        prop_seq_update(s, s->n - s->n / 4, tokens, 1 + i * 3);
        assert_same_as_new(&a, 4);
        assert_same_as_new(&b, 4);
    }
    prop_seq_done(&a);
    prop_seq_done(&b);
}

static void test_every_k(const struct prop_ops *ops, void *shared, uint32_t n_vocab)
{
    struct prop_seq s = prop_seq_new(ops, shared);
    uint32_t tokens[128];
    random_tokens(tokens, 128, n_vocab, 3);
    prop_seq_update(&s, 0, tokens, 128);
    for (uint32_t k = 1; k <= DRAFT_MAX_NODES; k++)
        assert_same_as_new(&s, k);
    prop_seq_done(&s);
}

static void test_several_asks(const struct prop_ops *ops, void *shared, uint32_t n_vocab)
{
    enum { N = 3 };
    struct prop_seq s[N];
    struct draft together[N];
    struct prop_ask asks[N], *all[N];
    uint32_t tokens[64];
    for (uint32_t i = 0; i < N; i++) {
        random_tokens(tokens, 64, n_vocab, 30 + i);
        s[i] = prop_seq_new(ops, shared);
        prop_seq_update(&s[i], 0, tokens, 40 + i * 8);
        asks[i] = ask_of(&s[i], 4, &together[i]);
        all[i] = &asks[i];
    }
    prop_ask_all(ops, shared, all, N);
    for (uint32_t i = 0; i < N; i++) {
        struct draft alone = prop_seq_draft(&s[i], 4);
        prop_same_draft(&together[i], &alone);
        prop_seq_done(&s[i]);
    }
}

void prop_contract(const struct prop_ops *ops, uint32_t n_vocab)
{
    void *shared = NULL;
    if (ops->open)
        assert_int_equal(ops->open(&shared), 0);
    assert_ptr_equal(prop_find(ops->name), ops);
    test_empty_context(ops, shared);
    test_keep_none_some_all(ops, shared, n_vocab);
    test_two_interleaved(ops, shared, n_vocab);
    test_every_k(ops, shared, n_vocab);
    test_several_asks(ops, shared, n_vocab);
    if (ops->close)
        ops->close(shared);
}
