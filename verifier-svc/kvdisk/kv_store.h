/* kv_store.h - the file behind the KV cache: blocks by key in an SQLite database that outlives the
 * process.
 *
 * It is a cache: whatever is wrong with it costs its blocks and nothing else. A block is served
 * only if name, length and checksum are what was written, and not longer after its last use than
 * the time to live. A folder has one user at a time, who holds a lock on it; blocks of
 * several models may lie in it.
 *
 * Why SQLite: https://sqlite.org/transactional.html, a killed process leaves the last commit; read
 * without mapping, so a file cut short is an error and no SIGBUS.
 *
 * Threads: one at a time. Time is an argument: seconds since 1970, as the file outlives clocks. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "model/kv.h"

struct kv_store;

struct kv_store_options {
    const char *dir;      // made if it is not there
    uint64_t max_bytes;   // of all files, at least KV_STORE_MIN_BYTES
    int64_t ttl_s;        // since a block's last use
    uint64_t identity;    // of model, KV type and arithmetic
    uint32_t block_bytes; // of a block's K and V
};

#define KV_STORE_MIN_BYTES (256u << 20)
#define KV_STORE_LOG_BYTES (32u << 20) // of a transaction and what SQLite keeps before it is moved

/* What is kept with a block. A match compares the whole name (kv_index.h), which nobody can make
 * two prefixes of; only its first eight bytes are the key in the table. */
struct kv_store_head {
    uint8_t name[KV_NAME];
    uint32_t depth; // blocks before it
};

/* The first eight bytes of a name. */
uint64_t kv_store_key(const uint8_t name[KV_NAME]);

/* Takes the folder and opens its file, or makes one. What is damaged or of an older format is given
 * up for a new file, with a warning. -EBUSY: another process has the folder. -EEXIST: there is a
 * database of this name that is none of ours; it stays as it is. -EINVAL: too small. -EACCES,
 * -EROFS, -ENOSPC, -EIO, -ENOMEM. */
int kv_store_open(const struct kv_store_options *o, struct kv_store **ret);
void kv_store_free(struct kv_store *s);
DEFINE_AUTO(struct kv_store, kv_store_free)

/* All errors below: -EBADMSG: the file is damaged, kv_store_renew() may help; -ENOSPC: no room on
 * the disk; -EIO: anything else. */

/* Gives the damaged file up for a new one, with a warning that carries fail_text(). */
int kv_store_renew(struct kv_store *s);

struct kv_store_row {
    struct kv_store_head head;
    const void *data; // (block_bytes)
};
/* In one transaction: all or none. Blocks that are there are replaced. At most KV_STORE_LOG_BYTES.
 * What was used longest ago makes room. */
int kv_store_put(struct kv_store *s, const struct kv_store_row *rows, uint32_t n, int64_t now_s);
/* -ENOENT: there is no such block (any more), or it was damaged and is gone now. */
int kv_store_get(struct kv_store *s, const uint8_t name[KV_NAME], int64_t now_s, void *ret_data);
/* They were used now. */
int kv_store_touch(struct kv_store *s, const uint64_t *keys, uint32_t n, int64_t now_s);
/* Removes some of what has not been used for the time to live, and of what is too much since the
 * limit was lowered; ret_more: there may be more to remove. Each call is short. */
int kv_store_prune(struct kv_store *s, int64_t now_s, bool *ret_more);
/* Calls fn for each block of this identity. */
int kv_store_each(struct kv_store *s, void (*fn)(void *owner, uint64_t key, int64_t last_use_s),
                  void *owner);

/* fn is told of every block that leaves: expired, damaged, or to make room. */
void kv_store_on_gone(struct kv_store *s, void (*fn)(void *owner, uint64_t key), void *owner);

struct kv_store_counts {
    uint64_t blocks, bytes; // there now, of all identities
    uint64_t n_expired, n_evicted, n_damaged, n_renewed;
};
struct kv_store_counts kv_store_counts(const struct kv_store *s);
