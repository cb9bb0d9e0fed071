/* prop_contract.h - the tests that every proposer must pass. */
#pragma once
#include "proposer-svc/props/prop.h"

/* A sequence with a copy of its context, as in the session layer. */
struct prop_seq {
    const struct prop_ops *ops;
    void *shared, *state;
    uint32_t *tokens;
    uint32_t n, n_prompt;
    const char *tenant, *model; // NULL: none
};

struct prop_seq prop_seq_new(const struct prop_ops *ops, void *shared);
void prop_seq_done(struct prop_seq *s);   // the sequence has ended
void prop_seq_forget(struct prop_seq *s); // the session is dropped; the sequence has not ended
/* Cuts the context to `keep` tokens, then appends n tokens. */
void prop_seq_update(struct prop_seq *s, uint32_t keep, const uint32_t *tokens, uint32_t n);
/* Drafts for all asks, with work() in between, until all are done. */
void prop_ask_all(const struct prop_ops *ops, void *shared, struct prop_ask **asks, uint32_t n);
/* Drafts, and checks the draft: at most k tokens, survival in 0 .. 1 and not above the parent's,
 * parents before children. */
struct draft prop_seq_draft(const struct prop_seq *s, uint32_t k);
void prop_same_draft(const struct draft *a, const struct draft *b);

/* Asserts that these are the draft's tokens. */
#define EXPECT(d, ...)                                                                             \
    do {                                                                                           \
        uint32_t want_[] = {__VA_ARGS__};                                                          \
        assert_int_equal((d).n, sizeof(want_) / 4);                                                \
        assert_memory_equal((d).tokens, want_, sizeof(want_));                                     \
    } while (0)

/* A cmocka setup: default settings for all proposers. The draft model is the embedded one, on one
 * thread. */
int prop_defaults(void **state);
/* Runs all tests of the contract. n_vocab: the tests use tokens below it. */
void prop_contract(const struct prop_ops *ops, uint32_t n_vocab);
