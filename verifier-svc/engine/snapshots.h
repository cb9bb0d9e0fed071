/* snapshots.h - where the states of recurrent layers become snapshots (kv_states.h), at which other
 * sequences can begin.
 *
 * A snapshot costs the time to copy a state, and its memory. So there is one about every
 * SNAPSHOT_ROWS rows, and one at the last block of a prompt. A pass of a prompt ends there. That at
 * the end of a prompt may replace the oldest of all. One before it replaces none but the one before
 * of the same sequence.
 *
 * Threads: the engine's. */
#pragma once
#include "verifier-svc/engine/engine_impl.h"

#define SNAPSHOT_ROWS 512 // as in a pass, by default
/* A shorter prompt has no snapshot at its end. It takes one more pass, which costs as much as the
 * rows that it saves (an estimate). */
#define SNAPSHOT_MIN_ROWS 64

/* Rows until the pass of a prompt ends; UINT32_MAX: it need not. */
uint32_t snapshots_rows_left(const struct engine *e, const struct seq *s);
/* Blocks of the sequence have entered the index: keeps its state, if a snapshot is due. */
void snapshots_keep(struct engine *e, struct seq *s);
/* How many of n rows of r, with which another sequence begins, that one can share once r has run
 * them. */
uint32_t snapshots_common(const struct engine *e, const struct seq *r, uint32_t n);
