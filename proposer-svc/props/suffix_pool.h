/* suffix_pool.h - past outputs, which sequences of the same tenant draft from.
 *
 * A ring of tokens. Each output begins with a mark, and new tokens replace the oldest ones. An
 * output is found only by the tenant that it was added for.
 *
 * Threads: any. A pool that is locked for reading takes no outputs meanwhile. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "proposer-svc/props/ngram_index.h"

#define SUFFIX_POOL_MARK UINT32_MAX // not a token; the next position is the start of an output

struct suffix_pool;

int suffix_pool_new(uint32_t max_tokens, uint64_t salt, struct suffix_pool **ret); // -ENOMEM
void suffix_pool_free(struct suffix_pool *p);
DEFINE_AUTO(struct suffix_pool, suffix_pool_free)

/* Adds an output. Only its last max_tokens - 1 tokens are stored. Without memory nothing is
 * added. */
void suffix_pool_add(struct suffix_pool *p, const uint8_t *tenant, uint32_t tenant_len,
                     const uint32_t *tokens, uint32_t n);

struct suffix_pool_view {
    const struct ngram_index *grams;
    uint32_t owner;       // the tenant's number
    uint32_t oldest, end; // valid positions: [oldest, end)
};
/* Locks the pool for reading until suffix_pool_unlock(). False: the tenant has no outputs; the pool
 * is not locked. */
bool suffix_pool_lock(struct suffix_pool *p, const uint8_t *tenant, uint32_t tenant_len,
                      struct suffix_pool_view *ret);
void suffix_pool_unlock(struct suffix_pool *p);

/* The number of tokens in the pool, marks included. */
uint32_t suffix_pool_tokens(struct suffix_pool *p);
