/* forward.h - one forward pass over ragged rows: prompts, last tokens and drafts of any sequences.
 *
 * A row is one token position of one sequence. It depends on its own ancestors only, and every sum
 * has one order (kernel.h). So other rows in the pass, the chunks of a prompt and the number of
 * threads do not change the bits of a row's logits.
 *
 * Threads: engine thread only; it works with the whole pool inside forward_run(). Between passes,
 * any thread may read logits and hidden rows. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/pool.h"
#include "model/draft.h"
#include "kv/kv_bytes.h"
#include "model/model.h"
#include "model/pass_plan.h"

struct forward;

struct forward_options {
    uint32_t max_rows;   // in a pass
    uint32_t max_logits; // rows of a pass that want logits
    size_t alone_bytes;  // the caller alone runs smaller passes; 0: FORWARD_ALONE_BYTES
    bool blas;           // float matrices through OpenBLAS, which ends the promise of same bits
};

/* One thread finishes a small pass sooner. With several threads every step ends with a barrier, and
 * on busy cores each barrier may wait for a thread that is not running. Measured on two busy cores,
 * 11 MiB of weights, one row: alone 0.3 ms, two threads 1.4 to 4 ms. The bits are the same. The
 * size of a pass is that of the weights, times 1 + rows / 16. */
#define FORWARD_ALONE_BYTES (32u << 20)

/* The memory that forward_new() takes. The model need not be loaded, but its kernel is set. */
size_t forward_bytes(const struct model *m, struct pool *pool, const struct forward_options *opt);

/* Allocates everything a pass needs. -ENOMEM, with the size. -EINVAL: absurd options, or kv has not
 * the model's shape. */
int forward_new(const struct model *m, struct kv_bytes *kv, struct pool *pool,
                const struct forward_options *opt, struct forward **ret);
void forward_free(struct forward *f);
DEFINE_AUTO(struct forward, forward_free)

/* Writes K and V of each row into its sequence's storage, which has already grown, and computes
 * logits. A row with parent -1 has index equal to pos and sees storage rows [0, pos]. A row with a
 * parent sees the same rows as its parent, and itself. So a tree hangs below a row with parent -1
 * of the same pass: the last committed token. It is at most FORWARD_MAX_DEPTH deep. */
#define FORWARD_MAX_DEPTH DRAFT_MAX_DEPTH
void forward_run(struct forward *f, const struct pass_plan *plan);

/* Raw logits (n_vocab) of row i of the last pass. The row wanted them. Valid until the next
 * pass. */
const float *forward_logits(const struct forward *f, uint32_t i);

/* Keeps hidden rows of the coming passes, for learned heads. Layer l in [0, n_layers): its input;
 * n_layers: before the final norm; n_layers + 1: after it. n = 0: none (default). Allocates, so do
 * not call it in a round. -EINVAL, -ENOMEM. */
#define FORWARD_MAX_HIDDEN 8
int forward_want_hidden(struct forward *f, const uint32_t *layers, uint32_t n);
/* (n_embd) of the n-th wanted layer for row i of the last pass. */
const float *forward_hidden(const struct forward *f, uint32_t n, uint32_t i);
