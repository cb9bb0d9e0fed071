/* kv_tier.h - the KV pool's second tier as the engine sees it: what memory evicts goes to disk, and
 * what is there of a waiting sequence's tokens comes back before it is admitted.
 *
 * Nobody waits longer than TIER_WAIT_US until the disk has time, nor for each piece; whoever has
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

struct tier;

#define TIER_WAIT_US 1000000
#define TIER_FLUSH_US 10000000 // at the end

/* fetched: as in struct kv_disk_options. NULL in *ret: there is none, by option or because of a
 * fault, which is a warning. -ENOMEM. */
int tier_new(const struct options *o, const struct served *served,
             void (*fetched)(void *owner, struct kv_disk_fetch *f), void *owner, struct tier **ret);
/* Writes what memory holds, for at most TIER_FLUSH_US. Nobody holds a block any more. */
void tier_free(struct tier *t);
DEFINE_AUTO(struct tier, tier_free)

/* Whether a waiting sequence that could begin should go on waiting, until s->restore_until_us at
 * most, because its blocks are being read; asks for them. May be called as often as one likes, and
 * after any pause; t may be NULL. */
bool tier_restores(struct tier *t, struct seq *s, int64_t now_us);
/* A fetch is done; s: the sequence that it is for; NULL: nobody wants it any more, on any thread.
 */
void tier_take(struct tier *t, struct kv_disk_fetch *f, struct seq *s);

struct kv_disk_counts tier_counts(struct tier *t);
