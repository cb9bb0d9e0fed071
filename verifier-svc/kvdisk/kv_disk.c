/* kv_disk.c - see kv_disk.h. */
#include "verifier-svc/kvdisk/kv_disk.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "verifier-svc/kvdisk/kv_keys.h"

#define MIN_BUFFERS 8
#define MAX_BUFFERS 4096
#define MIN_FETCH 4
#define MAX_BATCH 64 // blocks of a transaction
#define MAX_TOUCHES 4096
#define FILE_BYTES (8u << 20) // of memory: SQLite's cache, the log's index and this thread
#define MAX_RENEWALS 3        // of a damaged file, then the tier ends
#define PRUNE_US 60000000
#define TOUCH_US 1000000       // so long blocks' uses are collected
#define FULL_QUIET_US 60000000 // between two warnings that the disk is full

struct blocks { // first in, first out
    struct kv_disk_block *first, **end;
};

struct kv_disk {
    struct kv_disk_options options;
    pthread_t thread;
    uint32_t max_batch;

    /* The thread's own. */
    struct kv_store *store; // NULL: the tier is off
    int64_t prune_us, warned_us;

    /* Under mu. */
    pthread_mutex_t mu;
    pthread_cond_t work, room; // something to do; a buffer is free
    struct kv_keys keys;
    struct kv_disk_block *free_blocks;
    struct blocks puts;
    struct kv_disk_fetch *free_fetches, *reads;
    uint64_t touches[MAX_TOUCHES];
    uint32_t n_touches;
    bool stops;
    int64_t stop_us;
    struct kv_disk_counts counts;

    struct kv_disk_block *blocks; // (n_blocks)
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

static size_t n_fetch(const struct kv_store_options *o) // of each
{
    return clamp(KV_DISK_FETCH_BYTES / o->block_bytes, MIN_FETCH, KV_DISK_FETCH);
}

static size_t data_bytes(const struct kv_store_options *o)
{
    return (n_buffers(o) + KV_DISK_FETCHES * n_fetch(o)) * o->block_bytes;
}

/* Of blocks that are in the file and on their way there. */
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

static void remember(void *owner, uint64_t key, int64_t last_use_s)
{
    struct kv_disk *d = owner;
    pthread_mutex_lock(&d->mu);
    if (last_use_s > 0)
        kv_keys_set(&d->keys, key, last_use_s); // without room: a block that is not found
    pthread_mutex_unlock(&d->mu);
}

static void forget(void *owner, uint64_t key)
{
    struct kv_disk *d = owner;
    pthread_mutex_lock(&d->mu);
    kv_keys_remove(&d->keys, key);
    pthread_mutex_unlock(&d->mu);
}

/* These keys take the place of all that are known. */
static void exchange_keys(struct kv_disk *d, struct kv_keys keys)
{
    pthread_mutex_lock(&d->mu);
    struct kv_keys old = d->keys;
    d->keys = keys;
    pthread_mutex_unlock(&d->mu);
    kv_keys_done(&old);
}

static void turn_off(struct kv_disk *d)
{
    log_warn("kv-disk %s: %s; going on without it", d->options.store.dir, fail_text());
    kv_store_free(d->store);
    d->store = NULL;
    exchange_keys(d, (struct kv_keys){0});
    pthread_mutex_lock(&d->mu);
    d->counts.on = false;
    pthread_mutex_unlock(&d->mu);
}

/* A new file, of which no key is known. */
static int renew(struct kv_disk *d)
{
    struct kv_keys keys = {0};
    exchange_keys(d, keys);
    int err = kv_store_renew(d->store);
    err = err ? err : kv_keys_init(&keys, max_keys(&d->options.store));
    if (!err)
        exchange_keys(d, keys);
    return err;
}

/* What an error of the store means for the tier. */
static void check(struct kv_disk *d, int err)
{
    if (err == 0 || err == -ENOENT)
        return;
    if (err == -ENOSPC) {
        int64_t now_us = clock_us();
        if (now_us >= d->warned_us) {
            log_warn("kv-disk %s: %s; blocks are not kept until there is room",
                     d->options.store.dir, fail_text());
            d->warned_us = now_us + FULL_QUIET_US;
        }
        return;
    }
    if (err != -EBADMSG || kv_store_counts(d->store).n_renewed >= MAX_RENEWALS || renew(d) < 0)
        turn_off(d);
}

static void write_batch(struct kv_disk *d, struct kv_disk_block *first, uint32_t n)
{
    struct kv_store_row rows[MAX_BATCH];
    uint32_t i = 0;
    for (struct kv_disk_block *b = first; b; b = b->next)
        rows[i++] = (struct kv_store_row){b->head, b->data};
    int64_t used_s = now_s(d);
    int err = d->store ? kv_store_put(d->store, rows, n, used_s) : -ENOENT;
    check(d, err);
    for (struct kv_disk_block *b = first; b; b = b->next) {
        if (err)
            forget(d, kv_store_key(b->head.name));
        else
            remember(d, kv_store_key(b->head.name), used_s);
    }
    pthread_mutex_lock(&d->mu);
    d->counts.n_waiting -= n;
    *(err ? &d->counts.n_failed : &d->counts.n_written) += n;
    pthread_mutex_unlock(&d->mu);
}

/* The block that waits to be written, and does so until this thread takes it; NULL: none. */
static const struct kv_disk_block *find_put(struct kv_disk *d, const uint8_t name[KV_NAME])
{
    pthread_mutex_lock(&d->mu);
    const struct kv_disk_block *b = d->puts.first;
    while (b && memcmp(b->head.name, name, KV_NAME) != 0)
        b = b->next;
    pthread_mutex_unlock(&d->mu);
    return b;
}

/* From the file, or on its way there. */
static int read_block(struct kv_disk *d, const uint8_t name[KV_NAME], int64_t at_s, void *ret_data)
{
    int err = kv_store_get(d->store, name, at_s, ret_data);
    if (err != -ENOENT)
        return err;
    const struct kv_disk_block *b = find_put(d, name);
    if (b)
        memcpy(ret_data, b->data, d->options.store.block_bytes);
    else
        forget(d, kv_store_key(name));
    return b ? 0 : err;
}

static void read_blocks(struct kv_disk *d, struct kv_disk_fetch *f)
{
    int64_t at_s = now_s(d);
    int err = 0;
    for (f->n_found = 0; f->n_found < f->n && d->store && !err; f->n_found += !err)
        err = read_block(d, f->names[f->n_found], at_s, f->data[f->n_found]);
    check(d, err);
    pthread_mutex_lock(&d->mu);
    d->counts.n_read += f->n_found;
    pthread_mutex_unlock(&d->mu);
    for (uint32_t i = 0; i < f->n_found && d->store; i++)
        remember(d, kv_store_key(f->names[i]), at_s);
    d->options.fetched(d->options.owner, f);
}

static void touch(struct kv_disk *d, const uint64_t *keys, uint32_t n)
{
    if (d->store)
        check(d, kv_store_touch(d->store, keys, n, now_s(d)));
}

static void prune(struct kv_disk *d, int64_t at_s)
{
    bool more = false;
    if (d->store)
        check(d, kv_store_prune(d->store, at_s, &more));
    d->prune_us = clock_us() + (more ? 0 : PRUNE_US);
}

/* ---- what it does next: all under mu, let go of meanwhile ---- */

static void add_touch(struct kv_disk *d, uint64_t key)
{
    if (d->n_touches < MAX_TOUCHES)
        d->touches[d->n_touches++] = key;
}

static void next_read(struct kv_disk *d)
{
    struct kv_disk_fetch *f = d->reads;
    d->reads = f->next;
    for (uint32_t i = 0; i < f->n; i++)
        add_touch(d, kv_store_key(f->names[i])); // a hit renews
    pthread_mutex_unlock(&d->mu);
    read_blocks(d, f);
    pthread_mutex_lock(&d->mu);
}

static void next_touch(struct kv_disk *d)
{
    uint64_t keys[MAX_TOUCHES];
    uint32_t n = d->n_touches;
    if (!n)
        return;
    memcpy(keys, d->touches, n * sizeof(*keys));
    d->n_touches = 0;
    pthread_mutex_unlock(&d->mu);
    touch(d, keys, n);
    pthread_mutex_lock(&d->mu);
}

static void next_write(struct kv_disk *d)
{
    next_touch(d); // what is known to be in use stays
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
    pthread_cond_broadcast(&d->room);
}

static void next_prune(struct kv_disk *d)
{
    int64_t at_s = now_s(d); // what is used from now on has not expired then
    next_touch(d);
    pthread_mutex_unlock(&d->mu);
    prune(d, at_s);
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
        next_touch(d);
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
            next_read(d);
        else if (d->stops && (!d->puts.first || clock_us() >= d->stop_us))
            break;
        else if (clock_us() >= d->prune_us && !d->stops)
            next_prune(d);
        else if (d->puts.first)
            next_write(d);
        else if (d->n_touches == MAX_TOUCHES)
            next_touch(d);
        else
            wait_for_work(d);
    }
    if (d->counts.n_waiting)
        log_warn("kv-disk %s: %u blocks were not written before the end", d->options.store.dir,
                 d->counts.n_waiting);
    next_touch(d);
    pthread_mutex_unlock(&d->mu);
    return NULL;
}

/* ---- the engine's side ---- */

/* Every block's memory, allocated once. */
static int set_up_buffers(struct kv_disk *d)
{
    const struct kv_store_options *o = &d->options.store;
    size_t bytes = o->block_bytes, n = n_buffers(o);
    d->blocks = calloc(n, sizeof(*d->blocks));
    d->data = malloc(data_bytes(o));
    if (!d->blocks || !d->data)
        return fail(-ENOMEM, "no memory for %zu MiB of blocks on their way to the disk",
                    data_bytes(o) >> 20);
    for (size_t i = 0; i < n; i++) {
        d->blocks[i].data = d->data + i * bytes;
        d->blocks[i].next = d->free_blocks;
        d->free_blocks = &d->blocks[i];
    }
    for (size_t i = 0; i < KV_DISK_FETCHES; i++) {
        struct kv_disk_fetch *f = &d->fetches[i];
        f->max = (uint32_t)n_fetch(o);
        for (size_t j = 0; j < f->max; j++)
            f->data[j] = d->data + (n + i * f->max + j) * bytes;
        f->next = d->free_fetches;
        d->free_fetches = f;
    }
    uint64_t fit = KV_STORE_LOG_BYTES / 2 / bytes;
    d->max_batch = fit > MAX_BATCH ? MAX_BATCH : (uint32_t)fit;
    return 0;
}

static void release(struct kv_disk *d)
{
    if (!d)
        return;
    kv_store_free(d->store);
    kv_keys_done(&d->keys);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->room);
    pthread_mutex_destroy(&d->mu);
    free(d->blocks);
    free(d->data);
    free(d);
}
DEFINE_AUTO(struct kv_disk, release)

static int open_store(struct kv_disk *d)
{
    int err = kv_store_open(&d->options.store, &d->store);
    if (err)
        return err;
    kv_store_on_gone(d->store, forget, d);
    err = kv_store_each(d->store, remember, d);
    return err == -EBADMSG ? renew(d) : err;
}

int kv_disk_new(const struct kv_disk_options *o, struct kv_disk **ret)
{
    AUTO(release) struct kv_disk *d = calloc(1, sizeof(*d));
    if (!d)
        return fail(-ENOMEM, "no memory");
    d->options = *o;
    d->puts.end = &d->puts.first;
    d->counts.on = true;
    d->prune_us = clock_us();
    pthread_mutex_init(&d->mu, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->room, NULL);
    int err = kv_keys_init(&d->keys, max_keys(&o->store));
    err = err ? err : open_store(d);
    err = err ? err : set_up_buffers(d);
    if (err)
        return err;
    publish_counts(d);
    int r = pthread_create(&d->thread, NULL, disk_main, d);
    if (r)
        return fail(-r, "cannot start a thread: %s", strerror(r));
    *ret = TAKE(d);
    return 0;
}

void kv_disk_free(struct kv_disk *d, int64_t flush_us)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->mu);
    d->stops = true;
    d->stop_us = clock_us() + flush_us;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mu);
    pthread_join(d->thread, NULL);
    release(d);
}

static bool is_there(const struct kv_disk *d, uint64_t key)
{
    int64_t used_s = kv_keys_last_use(&d->keys, key);
    return used_s != KV_KEYS_NONE && used_s > now_s(d) - d->options.store.ttl_s;
}

bool kv_disk_has(struct kv_disk *d, const uint8_t name[KV_NAME])
{
    pthread_mutex_lock(&d->mu);
    bool there = is_there(d, kv_store_key(name));
    pthread_mutex_unlock(&d->mu);
    return there;
}

/* A free buffer; waits for one until then. */
static struct kv_disk_block *free_block(struct kv_disk *d, int64_t wait_us)
{
    struct timespec at = clock_at(clock_us() + wait_us);
    while (!d->free_blocks && wait_us) {
        if (pthread_cond_clockwait(&d->room, &d->mu, CLOCK_MONOTONIC, &at) == ETIMEDOUT)
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
    if (d->counts.on && is_there(d, key)) {
        kv_keys_set(&d->keys, key, now_s(d));
        add_touch(d, key);
    } else if (d->counts.on && kv_keys_set(&d->keys, key, now_s(d)) == 0) {
        b = free_block(d, wait_us);
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
