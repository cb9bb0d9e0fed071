/* kv_tier.h - the KV pool's second tier as the engine sees it: what memory evicts goes to disk, and
 * what is there of a waiting sequence's tokens comes back before it is admitted.
 *
 * Nobody waits longer than KV_TIER_WAIT_US until the disk has time, nor for each piece; whoever has
 * waited so long runs those tokens again.
 *
 * Threads: the engine's. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "verifier-svc/kvdisk/kv_disk.h"
#include "verifier-svc/verifier_options.h"
#include "verifier-svc/engine/seq.h"
#include "verifier-svc/engine/loaded_model.h"

struct kv_tier;

#define KV_TIER_WAIT_US 1000000
#define KV_TIER_FLUSH_US 10000000 // at the end

/* fetched: as in struct kv_disk_options. NULL in *ret: there is none, by option or because of a
 * fault, which is a warning. -ENOMEM. */
int kv_tier_new(const struct verifier_options *o, const struct loaded_model *served,
                void (*fetched)(void *owner, struct kv_disk_fetch *f), void *owner,
                struct kv_tier **ret);
/* Writes what memory holds, for at most KV_TIER_FLUSH_US. Nobody holds a block any more. */
void kv_tier_free(struct kv_tier *t);
DEFINE_AUTO(struct kv_tier, kv_tier_free)

/* Whether a waiting sequence that could begin should go on waiting, until s->restore_until_us at
 * most, because its blocks are being read; asks for them. May be called as often as one likes, and
 * after any pause; t may be NULL. */
bool kv_tier_restores(struct kv_tier *t, struct seq *s, int64_t now_us);
/* A fetch is done; s: the sequence that it is for; NULL: nobody wants it any more, on any thread.
 */
void kv_tier_take(struct kv_tier *t, struct kv_disk_fetch *f, struct seq *s);

struct kv_disk_counts kv_tier_counts(struct kv_tier *t);
