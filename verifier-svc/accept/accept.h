/* accept.h - which tokens of a draft are accepted, for chains and trees.
 *
 * own-draw: at every row the target draws its own token, keyed by (seed, choice, position). The
 * walk continues while a child of the current node equals it. The draw never depends on the draft,
 * so the committed tokens are those of a run without any draft. This one rule covers greedy, point
 * and coupled drafts. Daliri, Musco, Suresh 2024, arXiv:2408.07978.
 *
 * The other rules test the draft's tokens against p, most of them with q, and draw one token after
 * the last accepted one. The rules are deterministic; struct accept_chance supplies all randomness.
 * docs/speculation.md has each rule, its formulas and why it is lossless.
 *
 * Threads: pure functions. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "model/dist.h"
#include "model/draft.h"

enum accept_rule {
    ACCEPT_OWN_DRAW,
    ACCEPT_REJECTION, // also of trees: see ACCEPT_RECURSIVE
    ACCEPT_BLOCK,     // of chains; for trees the same as ACCEPT_RECURSIVE
    ACCEPT_RECURSIVE, // rejection, sibling after sibling
    ACCEPT_THRESHOLD, // lossy, and so are the next two
    ACCEPT_TYPICAL,
    ACCEPT_LENIENCE,
    ACCEPT_N_RULES
};

struct accept_rule_info {
    const char *name;
    bool lossless, tests_q;
    double parameter; // default; allowed are numbers above 0 and up to 1; 0: the rule has none
};
extern const struct accept_rule_info accept_rules[ACCEPT_N_RULES];

/* Where a committed token came from. */
enum accept_origin {
    ACCEPT_TARGET,     // no draft in this round
    ACCEPT_ACCEPTED,   // an accepted draft token
    ACCEPT_CORRECTION, // the target's token at the first rejection
    ACCEPT_BONUS,      // the target's token after a fully accepted draft
};

struct accept_result {
    uint32_t n_tokens;              // committed, at least 1
    uint32_t n_accepted;            // of these, tokens of the draft; they come first
    uint32_t path[DRAFT_MAX_NODES]; // the accepted tokens' indices in the draft, rising
    uint32_t token;                 // the last committed one
    enum accept_origin last;        // its origin
};

/* Draws the target's token after `row` (0: the last committed token; i + 1: draft token i). False:
 * no token after this one is wanted. */
typedef bool accept_draw_fn(void *arg, uint32_t row, uint32_t *ret_token);

void accept_own_draw(const struct draft *t, accept_draw_fn *draw, void *arg,
                     struct accept_result *ret);

/* The distribution that a draft token was drawn from, conditional on the draft tokens before it.
 * For siblings drawn without replacement, the q of a later sibling lacks the earlier ones. A
 * token's probability is its weight over `sum`. */
struct accept_q {
    uint32_t n;          // 0: one-hot on the token itself (the token was chosen, not drawn)
    const uint32_t *ids; // (n) the tokens that were possible, each once; NULL: the whole vocabulary
    const float *weights; // (n)
    double sum;
};

/* The decoded q of a draft's node; n is 0 if the draft was not drawn. */
struct accept_q accept_q_of(const struct draft *d, uint32_t node);

/* What the caller supplies to a rule. Rows are counted as in accept_draw_fn. */
struct accept_chance {
    /* p of the token after a row; the rule may change its weights. Rows come in rising order,
     * except the last call, which may repeat any row. */
    struct dist_weights (*p)(void *arg, uint32_t row);
    /* True with that probability, independently of everything else; at most once per row. */
    bool (*flip)(void *arg, uint32_t row, double probability);
    /* A token of that distribution, independently of everything else; at most once per row. */
    uint32_t (*draw)(void *arg, uint32_t row, const struct dist_weights *from);
    void *arg;
};

/* Any rule except own-draw. q: (t->n), of each node; parameter: the rule's. */
void accept_judge(enum accept_rule rule, double parameter, const struct draft *t,
                  const struct accept_q *q, const struct accept_chance *c,
                  struct accept_result *ret);

/* flip and draw by Philox, keyed by (seed, choice), step and row. The key has no position: block
 * verification tests rows that the next step may draft and test again. arg is a struct
 * accept_keyed, or begins with one. */
struct accept_keyed {
    uint64_t key;
    uint32_t step; // of the sequence; never the same twice
};
bool accept_keyed_flip(void *arg, uint32_t row, double probability);
uint32_t accept_keyed_draw(void *arg, uint32_t row, const struct dist_weights *from);
