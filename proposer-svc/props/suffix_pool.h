/* suffix_pool.h - past outputs, which sequences of the same model and tenant draft from.
 *
 * A ring of tokens. Each output begins with a mark, and new tokens replace the oldest ones. An
 * output is found only by the owner that it was added for, a model and a tenant.
 *
 * Threads: any. A pool that is locked for reading takes no outputs meanwhile. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "proposer-svc/props/ngram_index.h"
#include "proposer-svc/props/prop.h"

#define SUFFIX_POOL_MARK UINT32_MAX // not a token; the next position is the start of an output

#define SUFFIX_POOL_OWNER_MAX (1 + PROP_MODEL_MAX + PROP_TENANT_MAX) // bytes

struct suffix_pool;

int suffix_pool_new(uint32_t max_tokens, uint64_t salt, struct suffix_pool **ret); // -ENOMEM
void suffix_pool_free(struct suffix_pool *p);
DEFINE_AUTO(struct suffix_pool, suffix_pool_free)

/* Adds an output. Only its last max_tokens - 1 tokens are stored. Without memory nothing is
 * added. */
void suffix_pool_add(struct suffix_pool *p, const uint8_t *owner, uint32_t owner_len,
                     const uint32_t *tokens, uint32_t n);

struct suffix_pool_view {
    const struct ngram_index *grams;
    uint32_t owner;       // its number
    uint32_t oldest, end; // valid positions: [oldest, end)
};
/* Locks the pool for reading until suffix_pool_unlock(). False: the owner has no outputs; the pool
 * is not locked. */
bool suffix_pool_lock(struct suffix_pool *p, const uint8_t *owner, uint32_t owner_len,
                      struct suffix_pool_view *ret);
void suffix_pool_unlock(struct suffix_pool *p);

/* The number of tokens in the pool, marks included. */
uint32_t suffix_pool_tokens(struct suffix_pool *p);
