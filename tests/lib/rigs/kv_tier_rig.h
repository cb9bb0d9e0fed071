/* kv_tier_rig.h - a small KV pool with a disk behind it, and a prompt whose blocks say which they are.
 *
 * Threads: the test's own. */
#pragma once
#include <stdbool.h>
#include "base/queue.h"
#include "verifier-svc/engine/kv_tier.h"

struct kv_tier_rig {
    char folder[64];
    uint32_t n_blocks, *tokens; // of the prompt
    uint32_t n_prompts;         // that there were
    struct verifier_options options;
    struct loaded_model served;
    struct request req;
    struct seq seq;        // waits, with this prompt
    struct kv_seq any;     // may take the whole pool
    struct queue *fetched; // pieces that have come
    struct kv_tier *tier;  // NULL: none
};

/* A new folder, and what kv_tier_rig_fresh() does. */
struct kv_tier_rig *kv_tier_rig_new(uint32_t n_blocks);
void kv_tier_rig_free(struct kv_tier_rig *t);
/* An empty pool, with room for a few blocks more than the prompt, which is a new one. */
void kv_tier_rig_fresh(struct kv_tier_rig *t);
/* Opens the tier, allocating nothing else; false: -ENOMEM. */
bool kv_tier_rig_open(struct kv_tier_rig *t);
void kv_tier_rig_close(struct kv_tier_rig *t);

/* The prompt is computed, evicted, and written, or not. */
void kv_tier_rig_evict(struct kv_tier_rig *t);
/* Waits for a piece and takes it. */
void kv_tier_rig_take(struct kv_tier_rig *t);
/* Blocks of the prompt that memory knows; all of them are right. */
uint32_t kv_tier_rig_found(struct kv_tier_rig *t);
