/* pass_plan.c - fills plans of passes. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "model/pass_plan.h"

static uint32_t blocks_of(uint32_t rows)
{
    return rows / KV_BLOCK + (rows % KV_BLOCK != 0);
}

size_t pass_plan_bytes(uint32_t max_rows, uint32_t max_seqs, uint32_t seq_rows)
{
    size_t n_blocks = (size_t)max_seqs * blocks_of(seq_rows) + 1;
    return max_rows * sizeof(struct pass_row) + max_seqs * sizeof(struct pass_seq) +
           n_blocks * sizeof(uint32_t);
}

int pass_plan_init(struct pass_plan *p, uint32_t max_rows, uint32_t max_seqs, uint32_t seq_rows)
{
    *p = (struct pass_plan){.max_rows = max_rows, .max_seqs = max_seqs};
    if (__builtin_mul_overflow(max_seqs, blocks_of(seq_rows), &p->max_blocks))
        return fail(-ENOMEM, "pass: %u sequences of %u rows do not fit in memory", max_seqs,
                    seq_rows);
    p->rows = calloc(max_rows, sizeof(*p->rows));
    p->seqs = calloc(max_seqs, sizeof(*p->seqs));
    p->blocks = calloc(p->max_blocks + (size_t)1, sizeof(*p->blocks));
    if (!p->rows || !p->seqs || !p->blocks)
        return fail(-ENOMEM, "pass: no memory for a plan of %u rows and %u blocks", max_rows,
                    p->max_blocks);
    return 0;
}

void pass_plan_done(struct pass_plan *p)
{
    free(p->rows);
    free(p->seqs);
    free(p->blocks);
    *p = (struct pass_plan){0};
}

void pass_plan_clear(struct pass_plan *p)
{
    p->n_rows = p->n_seqs = p->n_blocks = 0;
}

uint32_t pass_plan_add_seq(struct pass_plan *p, struct kv_seq *seq, uint32_t n_after)
{
    assert(p->n_seqs < p->max_seqs && seq->n_blocks <= p->max_blocks - p->n_blocks);
    assert(!seq->has_state || n_after <= KV_MAX_AFTER);
    p->seqs[p->n_seqs] = (struct pass_seq){.first_block = p->n_blocks,
                                           .len = seq->len,
                                           .first_row = p->n_rows,
                                           .state = seq->state,
                                           .state_from = seq->state_len,
                                           .state_to = seq->len - n_after};
    if (seq->has_state)
        seq->state_len = seq->len - n_after;
    if (seq->n_blocks)
        memcpy(p->blocks + p->n_blocks, seq->blocks, seq->n_blocks * sizeof(*seq->blocks));
    p->n_blocks += seq->n_blocks;
    return p->n_seqs++;
}

void pass_plan_add_row(struct pass_plan *p, struct pass_row row)
{
    assert(p->n_rows < p->max_rows && row.seq < p->n_seqs);
    assert(row.index < p->seqs[row.seq].len);
    p->rows[p->n_rows++] = row;
}

void pass_plan_add_chain(struct pass_plan *p, uint32_t seq, const uint32_t *tokens, uint32_t pos,
                         uint32_t n, uint32_t n_logits)
{
    for (uint32_t i = 0; i < n; i++)
        pass_plan_add_row(p, (struct pass_row){.seq = seq,
                                               .token = tokens[i],
                                               .pos = pos + i,
                                               .index = pos + i,
                                               .parent = -1,
                                               .wants_logits = n - i <= n_logits});
}
