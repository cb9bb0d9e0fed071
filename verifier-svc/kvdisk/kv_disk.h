/* kv_disk.h - the second tier of the KV cache: blocks that memory evicts are written behind, blocks
 * that a prompt matches are read ahead, and both wait for nobody.
 *
 * A thread of its own works with the file (kv_store.h). The engine asks what is there, hands blocks
 * over in buffers that exist from the start, and is called when a fetch is done. A fault of the
 * disk is a warning and the end of the tier, or of one block of it, never of a request.
 *
 * Threads: the engine's, where nothing else is said. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "verifier-svc/kvdisk/kv_store.h"

struct kv_disk;

#define KV_DISK_BUFFER_BYTES (64u << 20) // of blocks that wait to be written
#define KV_DISK_FETCH 64                 // blocks that are read in one go, at most
#define KV_DISK_FETCH_BYTES (16u << 20)  // of them, where that is more than four
#define KV_DISK_FETCHES 2                // under way at most

/* A block on its way to the disk. */
struct kv_disk_block {
    struct kv_store_head head;
    struct kv_disk_block *next;
    uint8_t *data; // (block_bytes)
};

/* Blocks on their way from the disk. */
struct kv_disk_fetch {
    uint64_t owner; // whoever asked
    uint32_t from;  // blocks before the first, for whoever asked
    uint8_t names[KV_DISK_FETCH][KV_NAME];
    uint32_t max;                 // that fit
    uint32_t n;                   // asked for
    uint32_t n_found;             // of them, the first so many
    uint8_t *data[KV_DISK_FETCH]; // (block_bytes) each
    struct kv_disk_fetch *next;
};

struct kv_disk_options {
    struct kv_store_options store;
    /* On the tier's thread: the fetch is done. It goes back through kv_disk_fetched(). */
    void (*fetched)(void *owner, struct kv_disk_fetch *f);
    void *owner;
    int64_t (*now_s)(void); // NULL: clock_unix_s(); tests set it
};

/* What all of it takes in memory, at most. */
size_t kv_disk_bytes(const struct kv_store_options *o);
/* Opens the folder and starts the thread. Errors as kv_store_open(). */
int kv_disk_new(const struct kv_disk_options *o, struct kv_disk **ret);
/* What is to be written is written, for at most flush_us; then the file is closed. All fetches have
 * come back. */
void kv_disk_free(struct kv_disk *d, int64_t flush_us);

/* Whether a block is there (to be read or still to be written). Any thread. */
bool kv_disk_has(struct kv_disk *d, const uint8_t name[KV_NAME]);
/* A buffer for a block that leaves memory, head set; NULL: it is there already (and was used now),
 * all buffers are full (counted as dropped), or the tier is off. wait_us: how long a buffer may be
 * waited for; 0 in a round. */
struct kv_disk_block *kv_disk_take(struct kv_disk *d, const struct kv_store_head *head,
                                   int64_t wait_us);
/* Its data is filled in: to be written. */
void kv_disk_put(struct kv_disk *d, struct kv_disk_block *b);

/* An empty fetch; NULL: all are under way, ask again later. */
struct kv_disk_fetch *kv_disk_fetch(struct kv_disk *d);
/* owner, names and n are set: read them, which renews them. */
void kv_disk_read(struct kv_disk *d, struct kv_disk_fetch *f);
/* Done with it. */
void kv_disk_fetched(struct kv_disk *d, struct kv_disk_fetch *f);

struct kv_disk_counts {
    bool on;
    struct kv_store_counts store;
    uint32_t n_waiting;                              // blocks that are to be written
    uint64_t n_written, n_read, n_dropped, n_failed; // blocks
};
struct kv_disk_counts kv_disk_counts(struct kv_disk *d); // any thread
