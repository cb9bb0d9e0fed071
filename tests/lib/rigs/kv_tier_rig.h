/* kv_tier_rig.h - a small KV pool with a KV tier on disk, and a prompt. The data of each block of
 * the prompt identifies the block.
 *
 * Threads: the test's only. */
#pragma once
#include <stdbool.h>
#include "base/queue.h"
#include "verifier-svc/engine/kv_tier.h"

struct kv_tier_rig {
    char folder[64];
    uint32_t n_blocks, *tokens; // of the prompt
    uint32_t n_prompts;         // prompts so far; part of the tokens and the data
    struct verifier_options options;
    struct loaded_model loaded;
    struct request req;
    struct seq seq;        // a waiting sequence with this prompt
    struct kv_seq any;     // a sequence that may use the whole pool
    struct queue *fetched; // pieces read from disk
    struct kv_tier *tier;  // NULL: none
};

/* Creates a folder, then does what kv_tier_rig_fresh() does. */
struct kv_tier_rig *kv_tier_rig_new(uint32_t n_blocks);
void kv_tier_rig_free(struct kv_tier_rig *t);
/* Creates an empty pool, some blocks larger than the prompt, and a new prompt. */
void kv_tier_rig_fresh(struct kv_tier_rig *t);
/* Opens the tier and allocates nothing else; false: -ENOMEM. */
bool kv_tier_rig_open(struct kv_tier_rig *t);
void kv_tier_rig_close(struct kv_tier_rig *t);

/* Fills the blocks of the prompt and evicts them. Waits until the tier has written or dropped
 * them. */
void kv_tier_rig_evict(struct kv_tier_rig *t);
/* Waits for a piece from disk and passes it to the tier. */
void kv_tier_rig_take(struct kv_tier_rig *t);
/* Number of blocks of the prompt that the pool finds; asserts that their data is correct. */
uint32_t kv_tier_rig_found(struct kv_tier_rig *t);
