/* forward.h - one forward pass over ragged rows: prompts, last tokens and drafts of any sequences.
 *
 * A row is one token position of one sequence. Rows never depend on other rows of the pass but
 * their own ancestors, and every sum has one order (kernel.h), so a row's logits are the same bits
 * whatever else is in the pass, however a prompt is cut into chunks, and however many threads run
 * it.
 *
 * Threads: engine thread only; it works with the whole pool inside forward_run(). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/pool.h"
#include "model/draft.h"
#include "model/kv.h"
#include "model/model.h"

struct forward;

struct forward_row {
    const struct kv_seq *seq;
    uint32_t token;
    uint32_t pos;   // logical position; siblings of a tree share it
    uint32_t index; // row of the sequence's storage that it writes; equals pos in a chain
    int32_t parent; // row of this pass with the position before, of a *tree* draft; -1: all
                    // positions before lie in storage order (prompt, last token, chain)
    bool wants_logits;
};

struct forward_options {
    uint32_t max_rows;   // in a pass
    uint32_t max_logits; // rows of a pass that want logits
    size_t alone_bytes;  // smaller passes are run by the caller alone; 0: FORWARD_ALONE_BYTES
    bool blas;           // float matrices through OpenBLAS, which ends the promise of same bits
};

/* A small pass is done before other threads have come: every step ends at a barrier, and where
 * cores are shared with other work each barrier may wait for a thread that is not running. Measured
 * on two busy cores, 11 MiB of weights, one row: alone 0.3 ms, two threads 1.4 to 4 ms. Costs no
 * bit. The size of a pass is that of the weights, times 1 + rows / 16. */
#define FORWARD_ALONE_BYTES (32u << 20)

/* The memory that forward_new() takes; the model may be planned only, with its kernel set. */
size_t forward_bytes(const struct model *m, struct pool *pool, const struct forward_options *opt);

/* Everything a pass needs is allocated here. -ENOMEM, with the size. -EINVAL: absurd options, or kv
 * has another shape than the model. */
int forward_new(const struct model *m, struct kv *kv, struct pool *pool,
                const struct forward_options *opt, struct forward **ret);
void forward_free(struct forward *f);
DEFINE_AUTO(struct forward, forward_free)

/* Writes K and V of each row into its sequence's storage (already grown) and computes logits.
 * Rows of one sequence stand in rising `index`, parents before children. A row with parent -1 has
 * index equal to pos and sees storage rows [0, pos]; one with a parent sees what that sees, and
 * itself: so a tree hangs below a row with parent -1 (the last committed token) of the same pass,
 * at most FORWARD_MAX_DEPTH deep. */
#define FORWARD_MAX_DEPTH DRAFT_MAX_DEPTH
void forward_run(struct forward *f, const struct forward_row *rows, uint32_t n_rows);

/* Raw logits (n_vocab) of row i of the last pass, which wanted them. Valid until the next pass. */
const float *forward_logits(const struct forward *f, uint32_t i);

/* Asks for the hidden rows of the coming passes: layer l in [0, n_layers): its input; n_layers:
 * before the final norm; n_layers + 1: after it. n = 0: none (default). Learned heads need them.
 * Allocates: not in a round. -EINVAL, -ENOMEM. */
#define FORWARD_MAX_HIDDEN 8
int forward_want_hidden(struct forward *f, const uint32_t *layers, uint32_t n);
/* (n_embd) of the n-th wanted layer for row i of the last pass. */
const float *forward_hidden(const struct forward *f, uint32_t n, uint32_t i);
