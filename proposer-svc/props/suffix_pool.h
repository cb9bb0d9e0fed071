/* suffix_pool.h - past outputs, so that what was said once need not be found anew.
 *
 * A ring of tokens: each output stands behind a mark, and the oldest tokens make room for new ones.
 * An output is found by the tenant that it was added for and by nobody else.
 *
 * Threads: any; who looks holds the pool meanwhile. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "proposer-svc/props/ngram_index.h"

#define SUFFIX_POOL_MARK UINT32_MAX // no token: an output begins behind it

struct suffix_pool;

int suffix_pool_new(uint32_t max_tokens, uint64_t salt, struct suffix_pool **ret); // -ENOMEM
void suffix_pool_free(struct suffix_pool *p);
DEFINE_AUTO(struct suffix_pool, suffix_pool_free)

/* Of a long output the end is kept. What does not fit in memory is not kept. */
void suffix_pool_add(struct suffix_pool *p, const uint8_t *tenant, uint32_t tenant_len,
                     const uint32_t *tokens, uint32_t n);

struct suffix_pool_view {
    const struct ngram_index *grams;
    uint32_t owner;       // the tenant's number
    uint32_t oldest, end; // positions [oldest, end) are there
};
/* False: there is nothing of this tenant, and nothing to give back. */
bool suffix_pool_look(struct suffix_pool *p, const uint8_t *tenant, uint32_t tenant_len,
                      struct suffix_pool_view *ret);
void suffix_pool_looked(struct suffix_pool *p);

uint32_t suffix_pool_tokens(struct suffix_pool *p); // there now, marks included
