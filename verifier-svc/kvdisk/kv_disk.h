/* kv_disk.h - the disk tier of the KV cache. It writes the blocks that memory evicts and reads back
 * the blocks that a prompt matches. The engine never waits for the disk in a round.
 *
 * A dedicated thread works with the file (kv_store.h). The engine asks which blocks exist, passes
 * blocks in buffers that are allocated at the start, and is called when a fetch is done.
 *
 * A disk error is logged as a warning. It costs one block or turns the tier off. It never fails a
 * request.
 *
 * Threads: the engine thread, unless a function says otherwise. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "verifier-svc/kvdisk/kv_store.h"

struct kv_disk;

#define KV_DISK_BUFFER_BYTES (64u << 20) // of the blocks that wait to be written
#define KV_DISK_FETCH 64                 // blocks of a fetch, at most
#define KV_DISK_FETCH_BYTES (16u << 20)  // of a fetch, unless four blocks are larger
#define KV_DISK_FETCHES 2                // in progress, at most

/* A block that will be written to the disk. */
struct kv_disk_block {
    struct kv_store_head head;
    struct kv_disk_block *next;
    uint8_t *data; // (block_bytes)
};

/* Blocks that are read from the disk. */
struct kv_disk_fetch {
    uint64_t owner; // for the caller: the sequence that needs the blocks
    uint32_t from;  // for the caller: the number of blocks before the first one
    uint8_t names[KV_DISK_FETCH][KV_NAME];
    uint32_t max;                 // capacity, in blocks
    uint32_t n;                   // blocks to read
    uint32_t n_found;             // blocks read: the first n_found of n
    uint8_t *data[KV_DISK_FETCH]; // (block_bytes) each
    struct kv_disk_fetch *next;
};

struct kv_disk_options {
    struct kv_store_options store;
    /* The tier's thread calls it when a fetch is done. The receiver returns the fetch with
     * kv_disk_fetched(). */
    void (*fetched)(void *owner, struct kv_disk_fetch *f);
    void *owner;
    int64_t (*now_s)(void); // NULL: clock_unix_s(); tests replace it
};

/* Maximum memory of a tier. */
size_t kv_disk_bytes(const struct kv_store_options *o);
/* Opens the folder and starts the thread. Errors: as kv_store_open(). */
int kv_disk_new(const struct kv_disk_options *o, struct kv_disk **ret);
/* Completes the requested reads, then writes the waiting blocks for at most flush_us, then closes
 * the file. Fetches and blocks are invalid afterwards, and `fetched` is no longer called. */
void kv_disk_free(struct kv_disk *d, int64_t flush_us);

/* Whether the block can be read: it is in the file or waits to be written. Any thread. */
bool kv_disk_has(struct kv_disk *d, const uint8_t name[KV_NAME]);
/* Returns a buffer for an evicted block; its head is set. Waits at most wait_us for a buffer; pass
 * 0 in a round. NULL in these cases:
 * - the block exists already; this counts as a use;
 * - all buffers are in use; the block is counted as dropped;
 * - the table of keys is full;
 * - the tier is off. */
struct kv_disk_block *kv_disk_take(struct kv_disk *d, const struct kv_store_head *head,
                                   int64_t wait_us);
/* Queues the block for writing. The caller has filled its data. */
void kv_disk_put(struct kv_disk *d, struct kv_disk_block *b);

/* Returns an empty fetch. NULL: all are in progress, try again later. */
struct kv_disk_fetch *kv_disk_fetch(struct kv_disk *d);
/* Queues the fetch for reading, which counts as a use of its blocks. The caller has set owner,
 * names and n. */
void kv_disk_read(struct kv_disk *d, struct kv_disk_fetch *f);
/* Returns a fetch that the caller no longer needs. */
void kv_disk_fetched(struct kv_disk *d, struct kv_disk_fetch *f);

struct kv_disk_counts {
    bool on;
    struct kv_store_counts store;
    uint32_t n_waiting;                              // blocks that wait to be written
    uint64_t n_written, n_read, n_dropped, n_failed; // blocks
};
struct kv_disk_counts kv_disk_counts(struct kv_disk *d); // any thread
