/* accept.h - which tokens of a draft stay, over chains and trees.
 *
 * own-draw: at every row the target draws its own token, keyed by (seed, choice, position); the
 * walk goes on while a child of the current node equals it. The draw never depends on the draft, so
 * the committed tokens are those of a run without any draft: one rule for greedy, point and coupled
 * drafts. Daliri, Musco, Suresh 2024, arXiv:2408.07978.
 *
 * The other rules test the draft's tokens against p, most of them by q, and draw one token behind
 * the last that stays. What is certain they decide; chances they leave to a struct accept_chance.
 * docs/speculation.md has each rule, its formulas and why it is lossless.
 *
 * Threads: pure functions. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "model/dist.h"
#include "model/draft.h"

#define ACCEPT_MAX DRAFT_MAX_NODES

enum accept_rule {
    ACCEPT_OWN_DRAW,
    ACCEPT_REJECTION, // also of trees: see ACCEPT_RECURSIVE
    ACCEPT_BLOCK,     // of chains; trees are judged as by ACCEPT_RECURSIVE
    ACCEPT_RECURSIVE, // rejection, sibling after sibling
    ACCEPT_THRESHOLD, // lossy, and so are the next two
    ACCEPT_TYPICAL,
    ACCEPT_LENIENCE,
    ACCEPT_N_RULES
};

struct accept_rule_info {
    const char *name;
    bool lossless, tests_q;
    double parameter; // its default, allowed are numbers above 0 and up to 1; 0: it has none
};
extern const struct accept_rule_info accept_rules[ACCEPT_N_RULES];

/* A draft as a tree; in a chain the parents are -1, 0, 1, ... */
struct accept_tree {
    uint32_t n;
    const uint32_t *tokens;
    const int32_t *parents; // index below the child's own; -1: the last committed token
};

/* At most ACCEPT_MAX tokens, every one below n_vocab, every parent before its child. */
bool accept_valid(const struct accept_tree *t, uint32_t n_vocab);
/* Keeps the first max_nodes tokens, and of them those at most max_depth behind the context, each
 * with its survival and q_row, whatever these say. Returns how many. */
uint32_t accept_trim(uint32_t *tokens, int32_t *parents, float *survival, uint8_t *q_row,
                     uint32_t n, uint32_t max_nodes, uint32_t max_depth);
/* Leaves out the tokens that survive their parents with a chance below p_min, and what is below
 * them. drawn: nothing may be dropped because of the token itself, so the first such token stays,
 * and what comes behind it goes. Returns how many are kept. */
uint32_t accept_cut(uint32_t *tokens, int32_t *parents, float *survival, uint8_t *q_row, uint32_t n,
                    float p_min, bool drawn);

/* Where a committed token came from. */
enum accept_origin {
    ACCEPT_TARGET,     // no draft in this round
    ACCEPT_ACCEPTED,   // a draft token that was kept
    ACCEPT_CORRECTION, // the target's token at the first rejection
    ACCEPT_BONUS,      // the target's token after a fully accepted draft
};

struct accept_result {
    uint32_t n_tokens;         // committed, at least 1
    uint32_t n_accepted;       // of them from the draft; they come first
    uint32_t path[ACCEPT_MAX]; // the accepted tokens' indices in the draft, rising
    uint32_t token;            // the last committed one
    enum accept_origin last;   // its origin
};

/* Draws the target's token behind `row` (0: the last committed token; i + 1: draft token i) and
 * commits it. False: the generation ends with it. */
typedef bool accept_draw_fn(void *arg, uint32_t row, uint32_t *ret_token);

void accept_own_draw(const struct accept_tree *t, accept_draw_fn *draw, void *arg,
                     struct accept_result *ret);

/* The law that a draft token was drawn from, given the draft's tokens before it: of siblings drawn
 * without replacement, the later ones' q lacks the earlier ones. A token's probability is its
 * weight over `sum`. */
struct accept_q {
    uint32_t n;           // 0: one-hot, on the token itself (a draft that was chosen and not drawn)
    const uint32_t *ids;  // (n) all that could come, each once; NULL: the whole vocabulary
    const float *weights; // (n)
    double sum;
};

/* What an acceptance rule cannot know by itself. Rows are counted as in accept_draw_fn. */
struct accept_chance {
    /* p of the token behind a row: what its weights hold is the rule's from here on. Rows are asked
     * for in rising order, but for the last, which may be any again. */
    struct dist_weights (*p)(void *arg, uint32_t row);
    /* True with that probability, and independent of all else; at most once for a row. */
    bool (*flip)(void *arg, uint32_t row, double probability);
    /* A token of that law, likewise. */
    uint32_t (*draw)(void *arg, uint32_t row, const struct dist_weights *law);
    void *arg;
};

/* Any rule but own-draw. q: (t->n); parameter: the rule's. */
void accept_judge(enum accept_rule rule, double parameter, const struct accept_tree *t,
                  const struct accept_q *q, const struct accept_chance *c,
                  struct accept_result *ret);

/* flip and draw by Philox, keyed by (seed, choice), step and row. Never by the position: block
 * verification looks at rows that the next step drafts and tests again. arg is a struct
 * accept_keyed, or begins with one. */
struct accept_keyed {
    uint64_t key;
    uint32_t step; // of the sequence; never the same twice
};
bool accept_keyed_flip(void *arg, uint32_t row, double probability);
uint32_t accept_keyed_draw(void *arg, uint32_t row, const struct dist_weights *law);
