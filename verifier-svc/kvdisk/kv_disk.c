/* kv_disk.c - see kv_disk.h. */
#include "verifier-svc/kvdisk/kv_disk.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"
#include "verifier-svc/kvdisk/kv_keys.h"

#define MIN_BUFFERS 8
#define MAX_BUFFERS 4096
#define MIN_FETCH 4
#define MAX_BATCH 64 // blocks in a transaction
#define MAX_TOUCHES 4096
#define FILE_BYTES (8u << 20)  // memory of SQLite's cache, the log's index and this thread
#define MAX_RENEWALS 3         // new files that replace damaged ones; then the tier is turned off
#define PRUNE_US 60000000      // from one pruning to the next
#define TOUCH_US 1000000       // uses of blocks are collected for this time, then written
#define FULL_QUIET_US 60000000 // from one warning that the disk is full to the next

struct block_list { // first in, first out
    struct kv_disk_block *first, **end;
};

struct kv_disk {
    struct kv_disk_options options;
    pthread_t thread;
    uint32_t max_batch;

    /* The tier's thread only. */
    struct kv_store *store; // NULL: the tier is off
    int64_t prune_us;       // time of the next pruning
    int64_t quiet_until_us; // no warning of a full disk before this time

    /* Under mu. */
    pthread_mutex_t mu;
    pthread_cond_t work, buffer_free; // the thread has something to do; a buffer is free
    struct kv_keys keys;
    struct kv_disk_block *free_blocks;
    struct block_list puts; // blocks that wait to be written
    struct kv_disk_fetch *free_fetches, *reads;
    uint64_t touches[MAX_TOUCHES]; // keys of used blocks; the file does not have these uses yet
    uint32_t n_touches;
    bool stopping;
    int64_t stop_us;
    struct kv_disk_counts counts;

    struct kv_disk_block *blocks; // (n_buffers)
    struct kv_disk_fetch fetches[KV_DISK_FETCHES];
    uint8_t *data; // of blocks, then of fetches
};

static int64_t now_s(const struct kv_disk *d)
{
    return d->options.now_s ? d->options.now_s() : clock_unix_s();
}

/* ---- memory ---- */

static size_t clamp(size_t n, size_t least, size_t most)
{
    return n < least ? least : n > most ? most : n;
}

static size_t n_buffers(const struct kv_store_options *o)
{
    return clamp(KV_DISK_BUFFER_BYTES / o->block_bytes, MIN_BUFFERS, MAX_BUFFERS);
}

static size_t max_fetch_blocks(const struct kv_store_options *o)
{
    return clamp(KV_DISK_FETCH_BYTES / o->block_bytes, MIN_FETCH, KV_DISK_FETCH);
}

static size_t data_bytes(const struct kv_store_options *o)
{
    return (n_buffers(o) + KV_DISK_FETCHES * max_fetch_blocks(o)) * o->block_bytes;
}

/* Keys of the blocks in the file and of those that wait to be written. */
static uint64_t max_keys(const struct kv_store_options *o)
{
    return o->max_bytes / o->block_bytes + n_buffers(o);
}

size_t kv_disk_bytes(const struct kv_store_options *o)
{
    return sizeof(struct kv_disk) + n_buffers(o) * sizeof(struct kv_disk_block) + data_bytes(o) +
           kv_keys_bytes(max_keys(o)) + FILE_BYTES;
}

/* ---- the thread ---- */

static void add_key(void *owner, uint64_t key, int64_t last_use_s)
{
    struct kv_disk *d = owner;
    pthread_mutex_lock(&d->mu);
    if (last_use_s > 0)
        kv_keys_set(&d->keys, key, last_use_s); // if the table is full, the block is not found
    pthread_mutex_unlock(&d->mu);
}

static void remove_key(void *owner, uint64_t key)
{
    struct kv_disk *d = owner;
    pthread_mutex_lock(&d->mu);
    kv_keys_remove(&d->keys, key);
    pthread_mutex_unlock(&d->mu);
}

/* Replaces the table of keys; takes ownership of `keys`. */
static void replace_keys(struct kv_disk *d, struct kv_keys keys)
{
    pthread_mutex_lock(&d->mu);
    struct kv_keys old = d->keys;
    d->keys = keys;
    pthread_mutex_unlock(&d->mu);
    kv_keys_done(&old);
}

static void turn_tier_off(struct kv_disk *d)
{
    log_warn("kv-disk %s: %s; continuing without it", d->options.store.dir, fail_text());
    kv_store_free(d->store);
    d->store = NULL;
    replace_keys(d, (struct kv_keys){0});
    pthread_mutex_lock(&d->mu);
    d->counts.on = false;
    pthread_mutex_unlock(&d->mu);
}

/* Replaces the damaged file by a new one. Until this is done, the table has no slots, so that it
 * accepts no key. */
static int renew_file(struct kv_disk *d)
{
    struct kv_keys keys = {0};
    replace_keys(d, keys);
    int err = kv_store_renew(d->store);
    err = err ? err : kv_keys_init(&keys, max_keys(&d->options.store));
    if (!err)
        replace_keys(d, keys);
    return err;
}

/* Reacts to an error of the store:
 * - a full disk: a warning, and the tier continues;
 * - a damaged file: a new file, at most MAX_RENEWALS times;
 * - any other error: the tier is turned off. */
static void check_error(struct kv_disk *d, int err)
{
    if (err == 0 || err == -ENOENT)
        return;
    if (err == -ENOSPC) {
        int64_t now_us = clock_us();
        if (now_us >= d->quiet_until_us) {
            log_warn("kv-disk %s: %s; no blocks are written until the disk has free space",
                     d->options.store.dir, fail_text());
            d->quiet_until_us = now_us + FULL_QUIET_US;
        }
        return;
    }
    if (err != -EBADMSG || kv_store_counts(d->store).n_renewed >= MAX_RENEWALS || renew_file(d) < 0)
        turn_tier_off(d);
}

static void write_batch(struct kv_disk *d, struct kv_disk_block *first, uint32_t n)
{
    struct kv_store_row rows[MAX_BATCH];
    uint32_t i = 0;
    for (struct kv_disk_block *b = first; b; b = b->next)
        rows[i++] = (struct kv_store_row){b->head, b->data};
    int64_t used_s = now_s(d);
    int err = d->store ? kv_store_put(d->store, rows, n, used_s) : -ENOENT;
    check_error(d, err);
    for (struct kv_disk_block *b = first; b; b = b->next) {
        if (err)
            remove_key(d, kv_store_key(b->head.name));
        else
            add_key(d, kv_store_key(b->head.name), used_s);
    }
    pthread_mutex_lock(&d->mu);
    d->counts.n_waiting -= n;
    *(err ? &d->counts.n_failed : &d->counts.n_written) += n;
    pthread_mutex_unlock(&d->mu);
}

/* The block with this name that waits to be written; NULL: none. The result stays valid without mu,
 * because only this thread removes blocks from the list. */
static const struct kv_disk_block *find_waiting_block(struct kv_disk *d,
                                                      const uint8_t name[KV_NAME])
{
    pthread_mutex_lock(&d->mu);
    const struct kv_disk_block *b = d->puts.first;
    while (b && memcmp(b->head.name, name, KV_NAME) != 0)
        b = b->next;
    pthread_mutex_unlock(&d->mu);
    return b;
}

/* Reads a block from the file, or copies it from a buffer that waits to be written. */
static int read_block(struct kv_disk *d, const uint8_t name[KV_NAME], int64_t at_s, void *ret_data)
{
    int err = kv_store_get(d->store, name, at_s, ret_data);
    if (err != -ENOENT)
        return err;
    const struct kv_disk_block *b = find_waiting_block(d, name);
    if (b)
        memcpy(ret_data, b->data, d->options.store.block_bytes);
    else
        remove_key(d, kv_store_key(name));
    return b ? 0 : err;
}

static void read_blocks(struct kv_disk *d, struct kv_disk_fetch *f)
{
    int64_t at_s = now_s(d);
    int err = 0;
    for (f->n_found = 0; f->n_found < f->n && d->store && !err; f->n_found += !err)
        err = read_block(d, f->names[f->n_found], at_s, f->data[f->n_found]);
    check_error(d, err);
    pthread_mutex_lock(&d->mu);
    d->counts.n_read += f->n_found;
    pthread_mutex_unlock(&d->mu);
    for (uint32_t i = 0; i < f->n_found && d->store; i++)
        add_key(d, kv_store_key(f->names[i]), at_s);
    d->options.fetched(d->options.owner, f);
}

static void touch_blocks(struct kv_disk *d, const uint64_t *keys, uint32_t n)
{
    if (d->store)
        check_error(d, kv_store_touch(d->store, keys, n, now_s(d)));
}

static void prune_blocks(struct kv_disk *d, int64_t at_s)
{
    bool more = false;
    if (d->store)
        check_error(d, kv_store_prune(d->store, at_s, &more));
    d->prune_us = clock_us() + (more ? 0 : PRUNE_US);
}

/* ---- the thread's steps: called with mu locked; they unlock it while they use the file ---- */

static void add_touch(struct kv_disk *d, uint64_t key)
{
    if (d->n_touches < MAX_TOUCHES)
        d->touches[d->n_touches++] = key;
}

static void read_next_fetch(struct kv_disk *d)
{
    struct kv_disk_fetch *f = d->reads;
    d->reads = f->next;
    for (uint32_t i = 0; i < f->n; i++)
        add_touch(d, kv_store_key(f->names[i])); // reading a block is a use
    pthread_mutex_unlock(&d->mu);
    read_blocks(d, f);
    pthread_mutex_lock(&d->mu);
}

static void write_touches(struct kv_disk *d)
{
    uint64_t keys[MAX_TOUCHES];
    uint32_t n = d->n_touches;
    if (!n)
        return;
    memcpy(keys, d->touches, n * sizeof(*keys));
    d->n_touches = 0;
    pthread_mutex_unlock(&d->mu);
    touch_blocks(d, keys, n);
    pthread_mutex_lock(&d->mu);
}

static void write_next_batch(struct kv_disk *d)
{
    write_touches(d); // before this write evicts the least recently used blocks
    struct kv_disk_block *first = d->puts.first, *last = first;
    uint32_t n = 1;
    while (n < d->max_batch && last->next) {
        last = last->next;
        n++;
    }
    d->puts.first = last->next;
    if (!d->puts.first)
        d->puts.end = &d->puts.first;
    last->next = NULL;
    pthread_mutex_unlock(&d->mu);
    write_batch(d, first, n);
    pthread_mutex_lock(&d->mu);
    last->next = d->free_blocks;
    d->free_blocks = first;
    pthread_cond_broadcast(&d->buffer_free);
}

static void prune_next(struct kv_disk *d)
{
    int64_t at_s = now_s(d); // uses after this moment cannot expire at at_s
    write_touches(d);
    pthread_mutex_unlock(&d->mu);
    prune_blocks(d, at_s);
    pthread_mutex_lock(&d->mu);
}

static void wait_for_work(struct kv_disk *d)
{
    int64_t until_us = d->prune_us;
    if (d->n_touches && until_us > clock_us() + TOUCH_US)
        until_us = clock_us() + TOUCH_US;
    struct timespec at = clock_at(until_us);
    int r = pthread_cond_clockwait(&d->work, &d->mu, CLOCK_MONOTONIC, &at);
    if (r == ETIMEDOUT && d->n_touches)
        write_touches(d);
}

static void publish_counts(struct kv_disk *d)
{
    if (d->store)
        d->counts.store = kv_store_counts(d->store);
}

static void *disk_main(void *arg)
{
    struct kv_disk *d = arg;
    pthread_mutex_lock(&d->mu);
    for (;;) {
        publish_counts(d);
        if (d->reads)
            read_next_fetch(d);
        else if (d->stopping && (!d->puts.first || clock_us() >= d->stop_us))
            break;
        else if (clock_us() >= d->prune_us && !d->stopping)
            prune_next(d);
        else if (d->puts.first)
            write_next_batch(d);
        else if (d->n_touches == MAX_TOUCHES)
            write_touches(d);
        else
            wait_for_work(d);
    }
    if (d->counts.n_waiting)
        log_warn("kv-disk %s: the time to write ended; %u blocks are lost", d->options.store.dir,
                 d->counts.n_waiting);
    write_touches(d);
    pthread_mutex_unlock(&d->mu);
    return NULL;
}

/* ---- called by the engine ---- */

/* Allocates the data of all blocks and fetches, once. */
static int set_up_buffers(struct kv_disk *d)
{
    const struct kv_store_options *o = &d->options.store;
    size_t bytes = o->block_bytes, n = n_buffers(o);
    d->blocks = calloc(n, sizeof(*d->blocks));
    d->data = malloc(data_bytes(o));
    if (!d->blocks || !d->data)
        return fail(-ENOMEM, "no memory for %zu MiB of KV disk buffers", data_bytes(o) >> 20);
    for (size_t i = 0; i < n; i++) {
        d->blocks[i].data = d->data + i * bytes;
        d->blocks[i].next = d->free_blocks;
        d->free_blocks = &d->blocks[i];
    }
    for (size_t i = 0; i < KV_DISK_FETCHES; i++) {
        struct kv_disk_fetch *f = &d->fetches[i];
        f->max = (uint32_t)max_fetch_blocks(o);
        for (size_t j = 0; j < f->max; j++)
            f->data[j] = d->data + (n + i * f->max + j) * bytes;
        f->next = d->free_fetches;
        d->free_fetches = f;
    }
    uint64_t fit = KV_STORE_LOG_BYTES / 2 / bytes;
    d->max_batch = fit > MAX_BATCH ? MAX_BATCH : (uint32_t)fit;
    return 0;
}

static void free_disk(struct kv_disk *d)
{
    if (!d)
        return;
    kv_store_free(d->store);
    kv_keys_done(&d->keys);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->buffer_free);
    pthread_mutex_destroy(&d->mu);
    free(d->blocks);
    free(d->data);
    free(d);
}
DEFINE_AUTO(struct kv_disk, free_disk)

static int open_store(struct kv_disk *d)
{
    int err = kv_store_open(&d->options.store, &d->store);
    if (err)
        return err;
    kv_store_on_removed(d->store, remove_key, d);
    err = kv_store_each(d->store, add_key, d);
    return err == -EBADMSG ? renew_file(d) : err;
}

int kv_disk_new(const struct kv_disk_options *o, struct kv_disk **ret)
{
    AUTO(free_disk) struct kv_disk *d = calloc(1, sizeof(*d));
    if (!d)
        return fail(-ENOMEM, "no memory");
    d->options = *o;
    d->puts.end = &d->puts.first;
    d->counts.on = true;
    d->prune_us = clock_us();
    pthread_mutex_init(&d->mu, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->buffer_free, NULL);
    int err = kv_keys_init(&d->keys, max_keys(&o->store));
    err = err ? err : open_store(d);
    err = err ? err : set_up_buffers(d);
    if (err)
        return err;
    publish_counts(d);
    err = thread_start(disk_main, d, 0, &d->thread);
    if (err)
        return err;
    *ret = TAKE(d);
    return 0;
}

void kv_disk_free(struct kv_disk *d, int64_t flush_us)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->mu);
    d->stopping = true;
    d->stop_us = clock_us() + flush_us;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mu);
    pthread_join(d->thread, NULL);
    free_disk(d);
}

/* Whether the key is known and has not expired. */
static bool has_key(const struct kv_disk *d, uint64_t key)
{
    int64_t last_use_s = kv_keys_last_use(&d->keys, key);
    return last_use_s != KV_KEYS_NONE && last_use_s > now_s(d) - d->options.store.ttl_s;
}

bool kv_disk_has(struct kv_disk *d, const uint8_t name[KV_NAME])
{
    pthread_mutex_lock(&d->mu);
    bool there = has_key(d, kv_store_key(name));
    pthread_mutex_unlock(&d->mu);
    return there;
}

/* Takes a free buffer; waits at most wait_us for one. NULL: none. */
static struct kv_disk_block *take_free_block(struct kv_disk *d, int64_t wait_us)
{
    struct timespec at = clock_at(clock_us() + wait_us);
    while (!d->free_blocks && wait_us) {
        if (pthread_cond_clockwait(&d->buffer_free, &d->mu, CLOCK_MONOTONIC, &at) == ETIMEDOUT)
            break;
    }
    struct kv_disk_block *b = d->free_blocks;
    if (b)
        d->free_blocks = b->next;
    return b;
}

struct kv_disk_block *kv_disk_take(struct kv_disk *d, const struct kv_store_head *head,
                                   int64_t wait_us)
{
    struct kv_disk_block *b = NULL;
    uint64_t key = kv_store_key(head->name);
    pthread_mutex_lock(&d->mu);
    if (d->counts.on && has_key(d, key)) {
        kv_keys_set(&d->keys, key, now_s(d));
        add_touch(d, key);
    } else if (d->counts.on && kv_keys_set(&d->keys, key, now_s(d)) == 0) {
        b = take_free_block(d, wait_us);
        if (b) {
            b->head = *head;
        } else {
            kv_keys_remove(&d->keys, key);
            d->counts.n_dropped++;
        }
    }
    pthread_mutex_unlock(&d->mu);
    return b;
}

void kv_disk_put(struct kv_disk *d, struct kv_disk_block *b)
{
    pthread_mutex_lock(&d->mu);
    b->next = NULL;
    *d->puts.end = b;
    d->puts.end = &b->next;
    d->counts.n_waiting++;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mu);
}

struct kv_disk_fetch *kv_disk_fetch(struct kv_disk *d)
{
    pthread_mutex_lock(&d->mu);
    struct kv_disk_fetch *f = d->free_fetches;
    if (f)
        d->free_fetches = f->next;
    pthread_mutex_unlock(&d->mu);
    return f;
}

void kv_disk_read(struct kv_disk *d, struct kv_disk_fetch *f)
{
    pthread_mutex_lock(&d->mu);
    struct kv_disk_fetch **end = &d->reads;
    while (*end)
        end = &(*end)->next;
    f->next = NULL;
    *end = f;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mu);
}

void kv_disk_fetched(struct kv_disk *d, struct kv_disk_fetch *f)
{
    pthread_mutex_lock(&d->mu);
    f->next = d->free_fetches;
    d->free_fetches = f;
    pthread_mutex_unlock(&d->mu);
}

struct kv_disk_counts kv_disk_counts(struct kv_disk *d)
{
    pthread_mutex_lock(&d->mu);
    struct kv_disk_counts counts = d->counts;
    pthread_mutex_unlock(&d->mu);
    return counts;
}
