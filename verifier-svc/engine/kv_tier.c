/* kv_tier.c - writes evicted blocks, restores those of waiting sequences. */
#include "verifier-svc/engine/kv_tier.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/svc.h"

#define FLUSH_EXTEND_US (2 * KV_TIER_FLUSH_US)

struct kv_tier {
    struct kv *kv;
    struct kv_disk *disk;
    struct kv_seq restored; // holds blocks while they are filled
    int64_t flush_until_us;
};

/* ---- to the disk ---- */

static void write_block(struct kv_tier *t, uint32_t block, int64_t wait_us)
{
    struct kv_entry entry = kv_entry_of(t->kv, block);
    struct kv_store_head head = {.depth = entry.depth};
    memcpy(head.name, entry.name, KV_NAME);
    struct kv_disk_block *b = kv_disk_take(t->disk, &head, wait_us);
    if (!b)
        return;
    kv_save(t->kv, block, b->data);
    kv_disk_put(t->disk, b);
}

static void evicted(void *owner, uint32_t block)
{
    write_block(owner, block, 0);
}

static bool flush_block(void *owner, uint32_t block)
{
    struct kv_tier *t = owner;
    int64_t left_us = t->flush_until_us - clock_us();
    if (left_us > 0)
        write_block(t, block, left_us);
    return left_us > 0;
}

/* ---- from the disk ---- */

/* Fills the fetch with the blocks on disk that follow those in memory. False: there are none. */
static bool name_next(struct kv_tier *t, const struct seq *s, struct kv_disk_fetch *f)
{
    struct kv_root root = seq_root(s);
    const uint32_t *tokens = seq_tokens(s);
    uint32_t n = (s->n - 1) / KV_BLOCK;
    uint8_t name[KV_NAME];
    f->owner = s->id;
    f->from = kv_find_name(t->kv, &root, tokens, n * KV_BLOCK, name);
    for (f->n = 0; f->n < f->max && f->from + f->n < n; f->n++) {
        kv_name_next(name, tokens + (size_t)(f->from + f->n) * KV_BLOCK, name);
        if (!kv_disk_has(t->disk, name))
            break;
        memcpy(f->names[f->n], name, KV_NAME);
    }
    return f->n > 0;
}

static enum seq_restore fetch_next(struct kv_tier *t, struct seq *s)
{
    struct kv_disk_fetch *f = kv_disk_fetch(t->disk);
    if (!f)
        return SEQ_RESTORE_MORE; // all fetches are in use: later
    if (!name_next(t, s, f)) {
        kv_disk_fetched(t->disk, f);
        return SEQ_RESTORED;
    }
    kv_disk_read(t->disk, f);
    return SEQ_RESTORING;
}

bool kv_tier_restores(struct kv_tier *t, struct seq *s, int64_t now_us)
{
    if (!t)
        return false;
    if (s->restore == SEQ_RESTORE_NEW || s->restore == SEQ_RESTORE_MORE) {
        s->restore = fetch_next(t, s);
        if (s->restore == SEQ_RESTORING || !s->restore_until_us)
            s->restore_until_us = now_us + KV_TIER_WAIT_US;
    }
    if (now_us >= s->restore_until_us)
        s->restore = SEQ_RESTORED;
    return s->restore != SEQ_RESTORED;
}

/* Enters the fetched blocks into the pool, indexed and unreferenced. False: there are no free
 * blocks, or the blocks before them were evicted. */
static bool take_blocks(struct kv_tier *t, const struct kv_disk_fetch *f, const struct seq *s)
{
    struct kv_root root = seq_root(s);
    const uint32_t *tokens = seq_tokens(s);
    uint32_t from = f->from * KV_BLOCK, n = f->n_found * KV_BLOCK;
    bool fits = kv_match(t->kv, &t->restored, &root, tokens, from) == from &&
                kv_grow(t->kv, &t->restored, n) == 0;
    for (uint32_t i = 0; i < f->n_found && fits; i++)
        kv_load(t->kv, t->restored.blocks[f->from + i], f->data[i]);
    if (fits)
        kv_enter(t->kv, &t->restored, &root, tokens, from + n);
    kv_release(t->kv, &t->restored);
    return fits;
}

void kv_tier_take(struct kv_tier *t, struct kv_disk_fetch *f, struct seq *s)
{
    if (s && s->restore == SEQ_RESTORING) {
        bool fits = f->n_found && take_blocks(t, f, s), more = fits && f->n_found == f->n;
        s->n_restored += fits ? f->n_found * KV_BLOCK : 0;
        s->restore = more ? SEQ_RESTORE_MORE : SEQ_RESTORED;
        s->restore_until_us = 0; // the next piece has its own time limit, from its request on
    }
    kv_disk_fetched(t->disk, f);
}

/* ---- life ---- */

int kv_tier_new(const struct verifier_options *o, const struct loaded_model *loaded,
                void (*fetched)(void *owner, struct kv_disk_fetch *f), void *owner,
                struct kv_tier **ret)
{
    *ret = NULL;
    if (!*o->kv_disk)
        return 0;
    if (loaded->run.n_states) {
        log_warn("kv-disk: blocks of a model with recurrent layers are not stored; continuing "
                 "without it");
        return 0;
    }
    AUTO(kv_tier_free) struct kv_tier *t = calloc(1, sizeof(*t));
    if (!t)
        return fail(-ENOMEM, "no memory");
    t->kv = loaded->run.kv;
    int err = kv_seq_init(&t->restored, loaded->run.context);
    if (err < 0)
        return err;
    struct kv_disk_options options = {
        .store = {.dir = o->kv_disk,
                  .max_bytes = (uint64_t)o->kv_disk_size << 20,
                  .ttl_s = o->kv_disk_ttl,
                  .identity = loaded->kv_identity,
                  .block_bytes = (uint32_t)kv_bytes_block(kv_shape_of(t->kv))},
        .fetched = fetched,
        .owner = owner,
    };
    if (kv_disk_new(&options, &t->disk) < 0) {
        log_warn("kv-disk: %s; continuing without it", fail_text());
        return 0;
    }
    kv_on_evict(t->kv, evicted, t);
    struct kv_store_counts counts = kv_disk_counts(t->disk).store;
    log_info("kv-disk open folder=%s blocks=%lu mib=%lu", o->kv_disk, counts.blocks,
             counts.bytes >> 20);
    *ret = TAKE(t);
    return 0;
}

void kv_tier_free(struct kv_tier *t)
{
    if (!t)
        return;
    if (t->disk) {
        svc_extend(FLUSH_EXTEND_US);
        kv_on_evict(t->kv, NULL, NULL);
        t->flush_until_us = clock_us() + KV_TIER_FLUSH_US;
        kv_each_idle(t->kv, flush_block, t);
        int64_t left_us = t->flush_until_us - clock_us();
        kv_disk_free(t->disk, left_us > 0 ? left_us : 0);
    }
    kv_seq_done(t->kv, &t->restored);
    free(t);
}

struct kv_disk_counts kv_tier_counts(struct kv_tier *t)
{
    return t ? kv_disk_counts(t->disk) : (struct kv_disk_counts){0};
}
