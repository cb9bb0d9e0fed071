/* draft.h - a draft: tokens that are guessed to follow a context, as a chain or a tree.
 *
 * Proposers make drafts and the verifier verifies them; both hold this struct, by pointer. It has
 * the nodes and nothing about their transport. The callers store the sequence, the proposer and
 * the latency of a draft separately (drafts.h, prop.h).
 *
 * A node is an index into the arrays. Parents stand before their children, so a draft can be cut
 * at any index and stays a tree.
 *
 * Threads: pure functions and plain data; a draft has one owner at a time. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"

#define DRAFT_MAX_NODES 64     // tokens of one draft, over all branches
#define DRAFT_MAX_DEPTH 64     // tokens on one path from the context to a leaf
#define DRAFT_MAX_PROPOSERS 16 // that one verifier uses at a time

/* How a draft's tokens were chosen; the numbers are those of QMode in proposer.proto. */
enum draft_q_mode {
    DRAFT_POINT,   // not drawn: the proposer's best guess
    DRAFT_COUPLED, // drawn with the target's own noise
    DRAFT_SPARSE,  // drawn from q, of which some tokens are listed
    DRAFT_DENSE,   // drawn from q, which is listed for the whole vocabulary
    DRAFT_N_Q_MODES
};

/* The distribution q that each token was drawn from, one row a token, in one allocation with all
 * arrays. A proposer fills `probs` (sparse) or `weights` (dense), as the wire carries them. The
 * verifier decodes both into `weights` with their sums, and leaves `probs` NULL. */
struct draft_q {
    uint32_t width;  // sparse: ids of a row; dense: tokens of the vocabulary, from id 0 on
    uint32_t *ids;   // sparse: (n, width); dense: NULL
    uint16_t *probs; // sparse: (n, width), one less than they are, in 1/65536; a row's sum is 65536
    float *weights;  // (n, width)
    /* The verifier's. A node keeps its row when nodes before it are cut. */
    double *sums;                 // (n) of each row's weights
    uint8_t row[DRAFT_MAX_NODES]; // of each node
};

struct draft {
    uint32_t n; // nodes; 0: the proposer has no tokens to offer
    uint32_t tokens[DRAFT_MAX_NODES];
    int32_t parents[DRAFT_MAX_NODES]; // node; -1: the last token of the context
    /* Estimated probability, 0 .. 1, that this token and all before it on its path are accepted. */
    float survival[DRAFT_MAX_NODES];
    bool tree; // false: a chain, the parents are -1, 0, 1, ...
    enum draft_q_mode q_mode;
    struct draft_q *q; // sparse and dense: freed with the draft; else NULL
};

/* An empty draft. NULL: no memory. */
struct draft *draft_new(void);
void draft_free(struct draft *d);
DEFINE_AUTO(struct draft, draft_free)

/* The parents precede their children and every token is below n_vocab. */
bool draft_valid(const struct draft *d, uint32_t n_vocab);

/* Follows n tokens from the context down the tree. Returns the node reached (-1: no token was
 * followed), or -2 if the tree has no such path. */
int32_t draft_follow(const struct draft *d, const uint32_t *tokens, uint32_t n);

/* True if the parents are not -1, 0, 1, ...: what `tree` of a whole draft says. */
bool draft_branches(const struct draft *d);

/* What follows changes a draft in place. Nodes keep their order and their q row. `tree` stays as it
 * was, so that a tree that is cut to a chain still counts as a tree. */

/* Keeps the first max_nodes nodes that are at most max_depth tokens after the context. */
void draft_trim(struct draft *d, uint32_t max_nodes, uint32_t max_depth);
/* Removes nodes whose survival is below p_min of their parent's, and all nodes below them. In a
 * draft with q, no token may be removed because of which token it is. There the first unlikely node
 * stays, and all nodes after it are removed. */
void draft_cut(struct draft *d, float p_min);
/* Keeps the nodes below `root`, whose children become the first nodes; their survival is then
 * relative to the root's. root -1: all nodes stay. */
void draft_descend(struct draft *d, int32_t root);
/* Keeps one path: at each node the child with the highest survival. */
void draft_keep_likeliest(struct draft *d);
