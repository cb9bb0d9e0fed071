/* snapshots.h - where the states of recurrent layers become snapshots (kv_states.h), at which other
 * sequences can begin.
 *
 * A snapshot costs the time to copy a state, and its memory. So there is one about every
 * SNAPSHOT_ROWS rows, and one at the last block of a prompt. A pass of a prompt ends there.
 *
 * Threads: the engine's. */
#pragma once
#include "verifier-svc/engine/engine_impl.h"

#define SNAPSHOT_ROWS 512
/* A shorter prompt has no snapshot at its end, which would take one more pass. */
#define SNAPSHOT_MIN_ROWS 64

/* Rows until the pass of a prompt ends; UINT32_MAX: it need not. */
uint32_t snapshots_rows_left(const struct engine *e, const struct seq *s);
/* Blocks of the sequence have entered the index: keeps its state, if a snapshot is due. */
void snapshots_keep(struct engine *e, struct seq *s);
/* Rows of a common prefix at which a sequence can begin. n: rows that are equal. */
uint32_t snapshots_common(const struct engine *e, uint32_t n);
