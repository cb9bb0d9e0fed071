/* kv_tier_rig.h - a small KV pool with a disk behind it, and a prompt whose blocks say which they are.
 *
 * Threads: the test's own. */
#pragma once
#include <stdbool.h>
#include "base/queue.h"
#include "verifier-svc/engine/kv_tier.h"

struct tiered {
    char folder[64];
    uint32_t n_blocks, *tokens; // of the prompt
    uint32_t n_prompts;         // that there were
    struct options options;
    struct served served;
    struct request req;
    struct seq seq;        // waits, with this prompt
    struct kv_seq any;     // may take the whole pool
    struct queue *fetched; // pieces that have come
    struct tier *tier;     // NULL: none
};

/* A new folder, and what tiered_fresh() does. */
struct tiered *tiered_new(uint32_t n_blocks);
void tiered_free(struct tiered *t);
/* An empty pool, with room for a few blocks more than the prompt, which is a new one. */
void tiered_fresh(struct tiered *t);
/* Opens the tier, allocating nothing else; false: -ENOMEM. */
bool tiered_open(struct tiered *t);
void tiered_close(struct tiered *t);

/* The prompt is computed, evicted, and written, or not. */
void tiered_evict(struct tiered *t);
/* Waits for a piece and takes it. */
void tiered_take(struct tiered *t);
/* Blocks of the prompt that memory knows; all of them are right. */
uint32_t tiered_found(struct tiered *t);
