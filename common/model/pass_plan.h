/* pass_plan.h - one forward pass as plain data: its rows, and where the KV of their sequences lies.
 *
 * A plan holds numbers only: indices into its own arrays, and block numbers of the KV pool. So it
 * could be sent to another process that has the same weights and the same pool.
 *
 * The caller adds a sequence, then its rows, then the next sequence. Rows of one sequence stand
 * together and in rising `index`, parents before children.
 *
 * Threads: one at a time; no thread changes a plan while it runs. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kv/kv.h"

/* One token position of one sequence. */
struct pass_row {
    uint32_t seq; // of the plan
    uint32_t token;
    uint32_t pos;   // logical position; siblings of a tree share it
    uint32_t index; // row of the sequence's storage that it writes; equals pos in a chain
    /* Row of the plan with the position before, in a *tree* draft. -1: all positions before lie in
     * storage order (prompt, last token, chain). */
    int32_t parent;
    bool wants_logits;
};

/* A sequence's storage, as it is when the sequence is added. */
struct pass_seq {
    uint32_t first_block; // in `blocks`
    uint32_t len;         // rows in use: committed and draft
    uint32_t first_row;   // of the plan
    /* Of a model with recurrent layers: its state, the position that the state has, and the one
     * that it gets in this pass. */
    uint32_t state, state_from, state_to;
};

struct pass_plan {
    struct pass_row *rows; // (max_rows)
    struct pass_seq *seqs; // (max_seqs)
    uint32_t *blocks;      // (max_blocks) block numbers of all sequences
    uint32_t n_rows, n_seqs, n_blocks;
    uint32_t max_rows, max_seqs, max_blocks;
};

/* Memory of such a plan, in bytes. */
size_t pass_plan_bytes(uint32_t max_rows, uint32_t max_seqs, uint32_t seq_rows);
/* Plans of up to max_seqs sequences, each with storage for seq_rows rows at most. -ENOMEM. */
int pass_plan_init(struct pass_plan *p, uint32_t max_rows, uint32_t max_seqs, uint32_t seq_rows);
void pass_plan_done(struct pass_plan *p); // also of one that is zeroed

void pass_plan_clear(struct pass_plan *p);
/* Copies the sequence's block list. Returns the number that its rows give as `seq`. n_after: its
 * last rows that a state does not include yet, because they may be dropped. They are a chain of
 * KV_MAX_AFTER at most. Without a state, n_after has no meaning. */
uint32_t pass_plan_add_seq(struct pass_plan *p, struct kv_seq *seq, uint32_t n_after);
void pass_plan_add_row(struct pass_plan *p, struct pass_row row);
/* Adds n rows in storage order, at positions pos, pos + 1, ...; the last n_logits want logits. */
void pass_plan_add_chain(struct pass_plan *p, uint32_t seq, const uint32_t *tokens, uint32_t pos,
                         uint32_t n, uint32_t n_logits);

/* The block numbers of the row's sequence. */
static inline const uint32_t *pass_plan_blocks(const struct pass_plan *p, uint32_t row)
{
    return p->blocks + p->seqs[p->rows[row].seq].first_block;
}

/* The slot that the row writes: its block times KV_BLOCK, plus its place in the block. */
static inline uint32_t pass_plan_slot(const struct pass_plan *p, uint32_t row)
{
    uint32_t index = p->rows[row].index;
    return pass_plan_blocks(p, row)[index / KV_BLOCK] * KV_BLOCK + index % KV_BLOCK;
}
