/* kv_tier.h - the KV pool's second tier: evicted blocks are written to disk. The blocks of a
 * waiting sequence are read back before it is admitted.
 *
 * A sequence waits at most KV_TIER_WAIT_US until the disk is free, and as long for each piece.
 * After that it runs these tokens again.
 *
 * Threads: the engine's. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "verifier-svc/engine/loaded_model.h"
#include "verifier-svc/engine/seq.h"
#include "verifier-svc/kvdisk/kv_disk.h"
#include "verifier-svc/settings/verifier_options.h"

struct kv_tier;

#define KV_TIER_WAIT_US 1000000
#define KV_TIER_FLUSH_US 10000000 // in kv_tier_free()

/* fetched: as in struct kv_disk_options. *ret is NULL if the options have no disk tier, or if it
 * cannot be opened, which is logged as a warning. -ENOMEM. */
int kv_tier_new(const struct verifier_options *o, const struct loaded_model *loaded,
                void (*fetched)(void *owner, struct kv_disk_fetch *f), void *owner,
                struct kv_tier **ret);
/* Writes the blocks in memory, for at most KV_TIER_FLUSH_US. All of them must be unreferenced. */
void kv_tier_free(struct kv_tier *t);
DEFINE_AUTO(struct kv_tier, kv_tier_free)

/* Requests the blocks of a waiting sequence from disk. True: it should wait for them, until
 * s->restore_until_us at most. May be called repeatedly, and after any pause; t may be NULL. */
bool kv_tier_restores(struct kv_tier *t, struct seq *s, int64_t now_us);
/* A fetch for sequence s is done. With s == NULL (the sequence is gone) any thread may call it. */
void kv_tier_take(struct kv_tier *t, struct kv_disk_fetch *f, struct seq *s);

struct kv_disk_counts kv_tier_counts(struct kv_tier *t);
