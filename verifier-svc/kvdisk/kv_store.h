/* kv_store.h - the file of the KV disk tier: an SQLite database that finds blocks by key and
 * survives the process.
 *
 * It is a cache: an error costs blocks and nothing else. A block is returned only if its name,
 * length and checksum are as written, and only within the time to live after its last use. One
 * process at a time uses a folder; it holds a lock on the folder. A folder may contain blocks of
 * several models.
 *
 * Why SQLite: a killed process leaves the last commit (https://sqlite.org/transactional.html). The
 * file is read without mapping, so a truncated file is an error and no SIGBUS.
 *
 * Threads: one at a time. Time is an argument, in seconds since 1970: the file survives reboots, a
 * monotonic clock does not. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "kv/kv.h"

struct kv_store;

struct kv_store_options {
    const char *dir;      // created if it does not exist
    uint64_t max_bytes;   // of all files, at least KV_STORE_MIN_BYTES
    int64_t ttl_s;        // time to live after a block's last use
    uint64_t identity;    // of model, KV type and arithmetic
    uint32_t block_bytes; // of a block's K and V
};

#define KV_STORE_MIN_BYTES (256u << 20)
#define KV_STORE_LOG_BYTES (32u << 20) // limit of a transaction and of SQLite's write-ahead log

/* The description of a block. The key in the table is only the first eight bytes of the name. A
 * match compares the whole name: no two prefixes with equal names can be found (kv_index.h). */
struct kv_store_head {
    uint8_t name[KV_NAME];
    uint32_t depth; // blocks before it in its sequence
};

/* The first eight bytes of a name. */
uint64_t kv_store_key(const uint8_t name[KV_NAME]);

/* Locks the folder and opens its file, or creates one. A file that is damaged or has another format
 * is replaced by a new one, with a warning. Errors:
 * - -EBUSY: another process uses the folder;
 * - -EEXIST: a foreign database has the file's name; it is not changed;
 * - -EINVAL: max_bytes is too small, or block_bytes is too large;
 * - -EACCES: also a folder of another user, or that others may enter, read or write;
 * - -EROFS, -ENOSPC, -EIO, -ENOMEM. */
int kv_store_open(const struct kv_store_options *o, struct kv_store **ret);
void kv_store_free(struct kv_store *s);
DEFINE_AUTO(struct kv_store, kv_store_free)

/* Errors of all functions below:
 * - -EBADMSG: the file is damaged; kv_store_renew() may help;
 * - -ENOSPC: the disk is full;
 * - -EIO, rarely another code: any other error. */

/* Replaces the damaged file by a new one, with a warning that contains fail_text(). */
int kv_store_renew(struct kv_store *s);

struct kv_store_row {
    struct kv_store_head head;
    const void *data; // (block_bytes)
};
/* Writes all rows in one transaction, or none; at most KV_STORE_LOG_BYTES. Replaces blocks with the
 * same key. Evicts the least recently used blocks if the file is full. */
int kv_store_put(struct kv_store *s, const struct kv_store_row *rows, uint32_t n, int64_t now_s);
/* Reads a block. -ENOENT: no such block, or it is expired or damaged; then it is removed. */
int kv_store_get(struct kv_store *s, const uint8_t name[KV_NAME], int64_t now_s, void *ret_data);
/* Sets the last use of these blocks to now. */
int kv_store_touch(struct kv_store *s, const uint64_t *keys, uint32_t n, int64_t now_s);
/* Removes some expired blocks. If none is expired and the file is above a lowered limit, evicts
 * some blocks or shrinks the file. Each call is short; *ret_more: another call may remove more. */
int kv_store_prune(struct kv_store *s, int64_t now_s, bool *ret_more);
/* Calls fn for each block of this identity. */
int kv_store_each(struct kv_store *s, void (*fn)(void *owner, uint64_t key, int64_t last_use_s),
                  void *owner);

/* fn is called for every block that is removed because it expired, was damaged or was evicted. */
void kv_store_on_removed(struct kv_store *s, void (*fn)(void *owner, uint64_t key), void *owner);

struct kv_store_counts {
    uint64_t blocks, bytes; // now, of all identities
    uint64_t n_expired, n_evicted, n_damaged, n_renewed;
};
struct kv_store_counts kv_store_counts(const struct kv_store *s);
