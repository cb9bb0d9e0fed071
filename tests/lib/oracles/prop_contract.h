/* prop_contract.h - what every proposer must do, whatever its idea. */
#pragma once
#include "proposer-svc/props/prop.h"

/* One sequence with its own copy of the context, as the session layer keeps it. */
struct prop_seq {
    const struct prop_ops *ops;
    void *shared, *state;
    uint32_t *tokens;
    uint32_t n, n_prompt;
    const char *tenant; // NULL: none
};

struct prop_seq prop_seq_new(const struct prop_ops *ops, void *shared);
void prop_seq_done(struct prop_seq *s);   // it has ended
void prop_seq_forget(struct prop_seq *s); // it has not
/* Cuts to keep, then appends. */
void prop_seq_update(struct prop_seq *s, uint32_t keep, const uint32_t *tokens, uint32_t n);
/* Drafts for all, working in between until all are done. */
void prop_ask_all(const struct prop_ops *ops, void *shared, struct prop_ask **asks, uint32_t n);
/* Drafts and checks what holds for every draft: at most k, survival in 0 .. 1 and not rising,
 * parents before children. */
struct draft prop_seq_draft(const struct prop_seq *s, uint32_t k);
void prop_same_draft(const struct draft *a, const struct draft *b);

/* These are the draft's tokens. */
#define EXPECT(d, ...)                                                                             \
    do {                                                                                           \
        uint32_t want_[] = {__VA_ARGS__};                                                          \
        assert_int_equal((d).n, sizeof(want_) / 4);                                                \
        assert_memory_equal((d).tokens, want_, sizeof(want_));                                     \
    } while (0)

/* The settings of all proposers for most tests; the draft model is the embedded one, on one thread.
 * A cmocka setup. */
int prop_defaults(void **state);
/* Its settings are at their defaults before this. n_vocab: tokens come from below it. */
void prop_contract(const struct prop_ops *ops, uint32_t n_vocab);
