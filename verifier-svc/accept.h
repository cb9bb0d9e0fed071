/* accept.h - which tokens of a draft stay: the own-draw rule over chains and trees.
 *
 * At every row the target draws its own token, keyed by (seed, choice, position); the walk goes on
 * while a child of the current node equals it. The draw never depends on the draft, so the
 * committed tokens are those of a run without any draft: one rule for greedy, point and coupled
 * drafts. Daliri, Musco, Suresh 2024, arXiv:2408.07978.
 *
 * Threads: pure functions. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define ACCEPT_MAX 64 // tokens of one draft

/* A draft as a tree; in a chain the parents are -1, 0, 1, ... */
struct accept_tree {
    uint32_t n;
    const uint32_t *tokens;
    const int32_t *parents; // index below the child's own; -1: the last committed token
};

/* At most ACCEPT_MAX tokens, every one below n_vocab, every parent before its child. */
bool accept_valid(const struct accept_tree *t, uint32_t n_vocab);
/* Keeps the first max_nodes tokens, and of them those at most max_depth behind the context. Returns
 * how many. */
uint32_t accept_trim(uint32_t *tokens, int32_t *parents, uint32_t n, uint32_t max_nodes,
                     uint32_t max_depth);

/* Where a committed token came from. */
enum accept_origin {
    ACCEPT_TARGET,     // no draft in this round
    ACCEPT_ACCEPTED,   // a draft token that was kept
    ACCEPT_CORRECTION, // the target's token at the first rejection
    ACCEPT_BONUS,      // the target's token after a fully accepted draft
};

/* Draws the target's token behind `row` (0: the last committed token; i + 1: draft token i) and
 * commits it. False: the generation ends with it. */
typedef bool accept_draw_fn(void *arg, uint32_t row, uint32_t *ret_token);

struct accept_result {
    uint32_t n_tokens;         // committed, at least 1
    uint32_t n_accepted;       // of them from the draft; they come first
    uint32_t path[ACCEPT_MAX]; // the accepted tokens' indices in the draft, rising
    enum accept_origin last;   // origin of the last committed token
};

void accept_own_draw(const struct accept_tree *t, accept_draw_fn *draw, void *arg,
                     struct accept_result *ret);
