/* kv_index.h - finds full blocks of committed rows by their tokens and the blocks before them.
 *
 * A block is identified by its parent and its KV_BLOCK tokens. The parent is the block before it;
 * that of a first block is a root, the owner of the prompt. The key is a hash of the parent's key
 * and the tokens. It only says where to look: parent, tokens and salt are always compared. So
 * prompts or tenants with equal keys never share a block. Keys contain a secret of the process, so
 * a client that chooses tokens cannot make them collide. Only names leave the process.
 *
 * A sequence that holds a block holds all blocks before it, too, and releases the last one first. A
 * block of the index without a holder is "idle". The block that has been idle for longest therefore
 * never has a child: evicting in that order is least-recently-used and never cuts a chain.
 *
 * Everything is allocated in kv_index_new(). Threads: as kv.h, of which this is a part. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define KV_NO_BLOCK UINT32_MAX
#define KV_SALT_MAX 64 // bytes
#define KV_NAME 32     // bytes of a block's name

struct kv_index;

/* The owner of a prefix: only equal salts share blocks. */
struct kv_root {
    const void *salt;
    uint32_t salt_len; // at most KV_SALT_MAX
};

/* Extends a hash: `key` is the hash of some bytes, the result that of these bytes plus n more. */
typedef uint64_t kv_hash_fn(uint64_t key, const void *bytes, size_t n);
uint64_t kv_hash(uint64_t key, const void *bytes, size_t n);

/* A block's name depends on its whole prefix, the salt and the identity. It is the SHA-256 of the
 * name of the block before it and of its tokens (little-endian). Unlike keys, no two prefixes with
 * equal names can be found, so names may leave the process. */
void kv_name_root(uint64_t identity, const struct kv_root *root, uint8_t ret_name[KV_NAME]);
void kv_name_next(const uint8_t before[KV_NAME], const uint32_t *tokens, uint8_t ret_name[KV_NAME]);

size_t kv_index_bytes(uint32_t n_blocks); // memory of an index
/* identity: stands for all that decides the bits in a block (model, KV type, arithmetic); names
 * depend on it. hash: kv_hash, or one that collides on purpose. -ENOMEM. */
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
/* Removes a block that is idle and has no child. */
void kv_index_remove(struct kv_index *x, uint32_t block);
bool kv_index_has(const struct kv_index *x, uint32_t block);

/* The block has lost its last holder; it has a holder again. */
void kv_index_idle(struct kv_index *x, uint32_t block);
void kv_index_busy(struct kv_index *x, uint32_t block);
uint32_t kv_index_n_idle(const struct kv_index *x);
/* The idle block to evict next; KV_NO_BLOCK: none. */
uint32_t kv_index_oldest(const struct kv_index *x);
/* The idle block to evict last, and the one to evict before `block`; KV_NO_BLOCK: none. */
uint32_t kv_index_newest(const struct kv_index *x);
uint32_t kv_index_older(const struct kv_index *x, uint32_t block);
/* The name of a root, as that of a block before the first. */
void kv_index_root_name(const struct kv_index *x, const struct kv_root *root,
                        uint8_t ret_name[KV_NAME]);

/* A block that is in the index. */
struct kv_entry {
    const uint8_t *name; // (KV_NAME)
    uint32_t depth;      // blocks before it
    uint32_t parent;     // block, or KV_NO_BLOCK: below the root
};
struct kv_entry kv_index_entry(const struct kv_index *x, uint32_t block);

/* Checks all entries against the holders of all blocks. False and a sentence: one is wrong.
 * scratch: (n_blocks). */
bool kv_index_check(const struct kv_index *x, const uint32_t *holders, uint32_t *scratch);
