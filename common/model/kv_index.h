/* kv_index.h - finds blocks by what they hold: every full block of committed rows, under the block
 * before it.
 *
 * A block is named by its parent (the block before it; first ones by a root, which is whose prompt
 * it is) and its KV_BLOCK tokens. The key, a hash of the parent's key and the tokens, only says
 * where to look: parent, tokens and salt are always compared, so prompts with equal keys never meet
 * and tenants with equal keys neither. Keys hold a secret of the process, so that whoever
 * chooses tokens cannot make them meet in one place of the table; what leaves the process is a
 * name.
 *
 * Who holds a block holds all blocks before it too, and lets go of the last one first. So of the
 * blocks that nobody holds ("idle") the one that was let go of first never has a child: evicting in
 * that order is least-recently-used and never cuts a chain in the middle.
 *
 * Everything is allocated at once. Threads: as kv.h, of which it is a part. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define KV_NO_BLOCK UINT32_MAX
#define KV_SALT_MAX 64 // bytes
#define KV_NAME 32     // bytes of a block's name

struct kv_index;

/* Whose prefixes these are: only equal salts share. */
struct kv_root {
    const void *salt;
    uint32_t salt_len; // at most KV_SALT_MAX
};

/* Hashes n bytes behind what `key` stands for. */
typedef uint64_t kv_hash_fn(uint64_t key, const void *bytes, size_t n);
uint64_t kv_hash(uint64_t key, const void *bytes, size_t n);

/* A block's name says all of its prefix, salt and identity: SHA-256 over the name of the block
 * before it and its tokens (little-endian). Unlike keys, no two that differ can be found; it is
 * what may leave the process. */
void kv_name_root(uint64_t identity, const struct kv_root *root, uint8_t ret_name[KV_NAME]);
void kv_name_next(const uint8_t before[KV_NAME], const uint32_t *tokens, uint8_t ret_name[KV_NAME]);

/* identity: names all that decides the bits in a block (model, KV type, arithmetic); the root keys
 * come of it. hash: kv_hash, or one that collides on purpose. -ENOMEM. */
size_t kv_index_bytes(uint32_t n_blocks); // that it takes
int kv_index_new(uint32_t n_blocks, uint64_t identity, kv_hash_fn *hash, struct kv_index **ret);
void kv_index_free(struct kv_index *x);
DEFINE_AUTO(struct kv_index, kv_index_free)

/* The block with these KV_BLOCK tokens below `parent`, or below the root if that is KV_NO_BLOCK;
 * KV_NO_BLOCK: none. root may be NULL with a parent. */
uint32_t kv_index_find(const struct kv_index *x, const struct kv_root *root, uint32_t parent,
                       const uint32_t *tokens);
/* Enters a block that is held and that kv_index_find() would not find. */
void kv_index_add(struct kv_index *x, const struct kv_root *root, uint32_t parent,
                  const uint32_t *tokens, uint32_t block);
/* Takes it out; it is idle and has no child. */
void kv_index_remove(struct kv_index *x, uint32_t block);
bool kv_index_has(const struct kv_index *x, uint32_t block);

/* Nobody holds it any more; somebody holds it again. */
void kv_index_idle(struct kv_index *x, uint32_t block);
void kv_index_busy(struct kv_index *x, uint32_t block);
uint32_t kv_index_n_idle(const struct kv_index *x);
/* The idle block to evict next; KV_NO_BLOCK: none. */
uint32_t kv_index_oldest(const struct kv_index *x);
/* The one that will be evicted last, and the one before an idle block; KV_NO_BLOCK: none. */
uint32_t kv_index_newest(const struct kv_index *x);
uint32_t kv_index_older(const struct kv_index *x, uint32_t block);
/* What names begin with. */
void kv_index_root_name(const struct kv_index *x, const struct kv_root *root,
                        uint8_t ret_name[KV_NAME]);

/* What is known of a block that is in it. */
struct kv_entry {
    const uint8_t *name; // (KV_NAME)
    uint32_t depth;      // blocks before it
    uint32_t parent;     // block, or KV_NO_BLOCK: below the root
};
struct kv_entry kv_index_entry(const struct kv_index *x, uint32_t block);

/* Everything in it adds up, given the holders of all blocks; false and a sentence otherwise.
 * scratch: (n_blocks). */
bool kv_index_check(const struct kv_index *x, const uint32_t *holders, uint32_t *scratch);
