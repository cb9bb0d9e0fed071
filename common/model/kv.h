/* kv.h - pool of key/value cache blocks, shared by every sequence the engine holds.
 *
 * A block keeps KV_BLOCK positions of K and V for all layers. Sequences hold block numbers, never
 * pointers, so equal prefixes can share a block and the pool can be counted exactly. A sequence's
 * storage grows in order of arrival: [committed rows][draft rows]; kv_keep() moves an accepted
 * path of a tree behind the committed rows and drops the rest. A block with several holders, or one
 * in the index, is never written: kv_grow() first gives a sequence its own copy of a partly filled
 * last block.
 *
 * With an index (kv_index.h) full blocks of committed rows are found by other sequences that begin
 * with the same tokens, and stay when nobody holds them any more, until their room is needed.
 *
 * Threads: engine thread only (kernels read and write rows of blocks that it has handed out). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "model/kv_bytes.h"
#include "model/kv_index.h"

struct kv;

/* Storage of one sequence; plain data, the owner keeps it and calls kv_seq_done(). */
struct kv_seq {
    uint32_t *blocks; // block numbers
    uint32_t n_blocks, cap_blocks;
    uint32_t len;       // rows in use: committed and draft
    uint32_t n_indexed; // blocks, from the first on, that are in the index
};

/* What such a pool and its index take in memory; KV_MAX_BLOCKS at most. */
size_t kv_pool_bytes(const struct kv_shape *shape, uint32_t n_blocks);
/* Reserves the whole pool at once, so running out later is a count and not a crash.
 * -ENOMEM, with the size. -EINVAL: absurd counts. */
int kv_new(const struct kv_shape *shape, uint32_t n_blocks, struct kv **ret);
void kv_free(struct kv *kv);
DEFINE_AUTO(struct kv, kv_free)

uint32_t kv_n_blocks(const struct kv *kv);
uint32_t kv_n_free(const struct kv *kv); // to be had: empty ones, and those that can be evicted
const struct kv_shape *kv_shape_of(const struct kv *kv);
struct kv_bytes *kv_bytes_of(struct kv *kv); // the blocks themselves

/* max_rows, given once: the table is allocated then, so growing allocates nothing. -ENOMEM. */
int kv_seq_init(struct kv_seq *seq, uint32_t max_rows);
void kv_seq_done(struct kv *kv, struct kv_seq *seq); // gives all blocks back
/* Makes room for n more rows behind seq->len and counts them as in use. All or nothing.
 * -ENOSPC: not enough free blocks, or past max_rows. Expected under load: shorten the draft, wait
 * or preempt. */
int kv_grow(struct kv *kv, struct kv_seq *seq, uint32_t n);
/* Rows [0, base) stay; of the rows behind, those named (indices into storage, rising, each >= base)
 * move to base, base + 1, ...; all others are dropped and whole blocks freed. n = 0 truncates. Rows
 * that this sequence shares with another may be dropped or stay, but cannot be overwritten. */
void kv_keep(struct kv *kv, struct kv_seq *seq, uint32_t base, const uint32_t *rows, uint32_t n);
/* `to` becomes a sequence with the same first `len` rows: full blocks are shared (one more holder),
 * a partly filled last one is copied. -ENOSPC. to: initialised, empty. */
int kv_fork(struct kv *kv, const struct kv_seq *from, uint32_t len, struct kv_seq *to);

/* ---- equal prefixes ---- */

/* From now on there is an index, with keys that come of `identity`; hash as in kv_index_new().
 * Once, before the first row. Without it, nothing is ever found or entered. -ENOMEM. */
int kv_open_index(struct kv *kv, uint64_t identity, kv_hash_fn *hash);
/* The full blocks among the first n_tokens rows of such a sequence that are known already;
 * ret_held: how many of them somebody holds, so that holding them takes no block from anybody. */
uint32_t kv_find(const struct kv *kv, const struct kv_root *root, const uint32_t *tokens,
                 uint32_t n_tokens, uint32_t *ret_held);
/* seq, initialised and empty, begins with these blocks. Its rows then: a multiple of KV_BLOCK. Who
 * wants logits leaves the last token out, whose row must run. */
uint32_t kv_match(struct kv *kv, struct kv_seq *seq, const struct kv_root *root,
                  const uint32_t *tokens, uint32_t n_tokens);
/* The first n rows of seq are written, committed, and of these tokens: full blocks enter the index.
 * Of two equal ones the sequence then holds the one that was there first. */
void kv_enter(struct kv *kv, struct kv_seq *seq, const struct kv_root *root, const uint32_t *tokens,
              uint32_t n);

/* ---- a second tier ---- */

/* As kv_find(); ret_name: of the last of them, of the root if there is none. An index is there. */
uint32_t kv_find_name(const struct kv *kv, const struct kv_root *root, const uint32_t *tokens,
                      uint32_t n_tokens, uint8_t ret_name[KV_NAME]);
/* fn is told of every block that leaves the index to make room, while its rows still stand; NULL:
 * nobody is. */
void kv_on_evict(struct kv *kv, void (*fn)(void *owner, uint32_t block), void *owner);
/* fn for the blocks that can be found and that nobody holds, those before others first, until it
 * returns false. */
void kv_each_idle(const struct kv *kv, bool (*fn)(void *owner, uint32_t block), void *owner);
struct kv_entry kv_entry_of(const struct kv *kv, uint32_t block); // of one that can be found
/* A block's rows as bytes, kv_bytes_block() of them, the same for every pool of the same shape. */
void kv_save(const struct kv *kv, uint32_t block, void *to);
void kv_load(struct kv *kv, uint32_t block, const void *from);

struct kv_figures {
    uint32_t n_empty;  // blocks that hold nothing
    uint32_t n_idle;   // that nobody holds and that can be found; the rest is held
    uint32_t n_shared; // that several sequences hold
    uint64_t n_evicted;
};
struct kv_figures kv_figures(const struct kv *kv);

/* ---- rows ---- */

/* Slot of a row of storage: its block times KV_BLOCK, plus its place there. */
static inline uint32_t kv_slot(const struct kv_seq *seq, uint32_t row)
{
    return seq->blocks[row / KV_BLOCK] * KV_BLOCK + row % KV_BLOCK;
}

/* Every block's holders add up over these sequences, which are all there are, and so does the
 * index; false and a sentence otherwise. Allocates nothing. For tests and debug builds. */
bool kv_check(const struct kv *kv, const struct kv_seq *const *seqs, uint32_t n_seqs);
