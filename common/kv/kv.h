/* kv.h - pool of key/value cache blocks, shared by every sequence the engine holds.
 *
 * A block keeps KV_BLOCK positions of K and V for all layers. Sequences hold block numbers, never
 * pointers, so equal prefixes can share a block and the pool can be counted exactly. This file
 * counts blocks and records their holders; kv_bytes.h has the memory of the blocks.
 *
 * A sequence's storage grows in order of arrival: [committed rows][draft rows]. kv_keep() moves an
 * accepted path of a tree to the end of the committed rows and drops the other rows. A block with
 * several holders, or one in the index, is never written. If the last block is such a block and is
 * partly filled, kv_grow() first gives the sequence its own copy.
 *
 * With an index (kv_index.h), other sequences with the same prefix find full blocks of committed
 * rows. Such a block stays when it has no holder, until the pool needs an empty block.
 *
 * Of a model with recurrent layers, a sequence also has a state, from its first row on. It belongs
 * to one position: the end of its first state_len rows. Rows after it may be dropped, but the state
 * cannot return to a position before it. So a sequence that shares a prefix starts at a snapshot
 * (kv_states.h), or is forked at the state's position.
 *
 * Threads: one thread per pool: the engine thread, or a proposer's draft thread. Kernels read and
 * write rows of blocks that it has handed out. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "kv/kv_bytes.h"
#include "kv/kv_index.h"
#include "kv/kv_states.h"

struct kv;

/* Storage of one sequence; plain data, the owner keeps it and calls kv_seq_done(). */
struct kv_seq {
    uint32_t *blocks; // block numbers
    uint32_t n_blocks, cap_blocks;
    uint32_t len;       // rows in use: committed and draft
    uint32_t n_indexed; // blocks, from the first on, that are in the index
    bool has_state;     // only of a model with recurrent layers
    uint32_t state, state_len;
};

/* Memory of such a pool and its index, in bytes. n_blocks: KV_MAX_BLOCKS at most. */
size_t kv_pool_bytes(const struct kv_shape *shape, uint32_t n_blocks);
/* Reserves the whole pool, so running out later is a count and not a crash. Errors: as
 * kv_bytes_new(). */
int kv_new(const struct kv_shape *shape, uint32_t n_blocks, struct kv **ret);
void kv_free(struct kv *kv);
DEFINE_AUTO(struct kv, kv_free)

/* Of a model with recurrent layers, before the first row: reserves n states. -ENOMEM. */
int kv_open_states(struct kv *kv, uint32_t n);

uint32_t kv_n_blocks(const struct kv *kv);
uint32_t kv_n_free(const struct kv *kv); // available: empty or evictable
/* Blocks that only this sequence holds: as many become free when it releases its blocks. */
uint32_t kv_n_own(const struct kv *kv, const struct kv_seq *seq);
const struct kv_shape *kv_shape_of(const struct kv *kv);
struct kv_bytes *kv_bytes_of(struct kv *kv); // the blocks themselves

/* Allocates the block table for max_rows, so that growing allocates nothing. -ENOMEM. */
int kv_seq_init(struct kv_seq *seq, uint32_t max_rows);
void kv_seq_done(struct kv *kv, struct kv_seq *seq); // releases all blocks
/* Adds n rows after seq->len and counts them as in use. All or nothing. -ENOSPC: not enough free
 * blocks, no free state, or past max_rows. Expected under high traffic: shorten the draft, wait or
 * preempt. */
int kv_grow(struct kv *kv, struct kv_seq *seq, uint32_t n);
/* Rows [0, base) stay. The n named rows (indices into storage, rising, each >= base) move to base,
 * base + 1, ... All other rows are dropped and whole blocks released. n = 0 truncates. Rows that
 * this sequence shares with another may be dropped or stay, but cannot be overwritten. With a
 * state, base + n is at least state_len, or 0. */
void kv_keep(struct kv *kv, struct kv_seq *seq, uint32_t base, const uint32_t *rows, uint32_t n);
/* Drops all rows and releases all blocks. The block table stays, so the sequence can grow again. */
void kv_release(struct kv *kv, struct kv_seq *seq);
/* `to` becomes a sequence with the same first `len` rows: full blocks are shared (one more holder),
 * a partly filled last one is copied. A state is copied; its position must be len. -ENOSPC, also if
 * it is another. to: initialised, empty. */
int kv_fork(struct kv *kv, const struct kv_seq *from, uint32_t len, struct kv_seq *to);

/* ---- equal prefixes ---- */

/* Adds an index whose keys depend on `identity`; hash as in kv_index_new(). Call it once, before
 * the first row. Without an index, nothing is found or entered. -ENOMEM. */
int kv_open_index(struct kv *kv, uint64_t identity, kv_hash_fn *hash);
/* How many full blocks of a sequence that begins with these tokens are in the index. With recurrent
 * layers, those up to the last snapshot count. ret_held: how many of them have a holder; sharing
 * these takes no free block. */
uint32_t kv_find(const struct kv *kv, const struct kv_root *root, const uint32_t *tokens,
                 uint32_t n_tokens, uint32_t *ret_held);
/* seq, initialised and empty, gets the blocks that kv_find() counts. Returns its rows: a multiple
 * of KV_BLOCK. A caller that needs logits leaves the last token out, because its row must run. */
uint32_t kv_match(struct kv *kv, struct kv_seq *seq, const struct kv_root *root,
                  const uint32_t *tokens, uint32_t n_tokens);
/* The first n rows of seq are written, committed, and belong to these tokens: their full blocks
 * enter the index. Where the index has an equal block, the sequence holds that one instead. */
void kv_enter(struct kv *kv, struct kv_seq *seq, const struct kv_root *root, const uint32_t *tokens,
              uint32_t n);

/* Which snapshots a new one may replace if no state is free: the oldest of all, or only one that
 * the sequence made before. */
enum kv_replace { KV_REPLACE_OLDEST, KV_REPLACE_OWN };
/* The state is kept as a snapshot if it belongs to the end of a block of the index. own: rows
 * before an earlier snapshot of the sequence; 0: none. True: there is a snapshot now. */
bool kv_snapshot(struct kv *kv, const struct kv_seq *seq, enum kv_replace replace, uint32_t own);

/* ---- a second tier ---- */

/* As kv_find(). ret_name: the name of the last block found, or of the root. Needs an index. */
uint32_t kv_find_name(const struct kv *kv, const struct kv_root *root, const uint32_t *tokens,
                      uint32_t n_tokens, uint8_t ret_name[KV_NAME]);
/* fn is called for every block before it is evicted, while its rows are still valid. NULL: none. */
void kv_on_evict(struct kv *kv, void (*fn)(void *owner, uint32_t block), void *owner);
/* Calls fn for the blocks of the index without a holder, parents before children, until fn returns
 * false. */
void kv_each_idle(const struct kv *kv, bool (*fn)(void *owner, uint32_t block), void *owner);
struct kv_entry kv_entry_of(const struct kv *kv, uint32_t block); // of a block in the index
/* As kv_bytes_save() and kv_bytes_load(). */
void kv_save(const struct kv *kv, uint32_t block, void *to);
void kv_load(struct kv *kv, uint32_t block, const void *from);

struct kv_figures {
    uint32_t n_empty;  // blocks that hold nothing
    uint32_t n_idle;   // in the index without a holder; all other blocks are held
    uint32_t n_shared; // with several holders
    uint64_t n_evicted;
    uint32_t n_snapshots;
};
struct kv_figures kv_figures(const struct kv *kv);

/* ---- rows ---- */

/* Slot of a row of storage: its block times KV_BLOCK, plus its place there. */
static inline uint32_t kv_slot(const struct kv_seq *seq, uint32_t row)
{
    return seq->blocks[row / KV_BLOCK] * KV_BLOCK + row % KV_BLOCK;
}

/* Checks every count against these sequences, which must be all sequences, and the index. False and
 * a sentence: a count is wrong. Allocates nothing. For tests and debug builds. */
bool kv_check(const struct kv *kv, const struct kv_seq *const *seqs, uint32_t n_seqs);
