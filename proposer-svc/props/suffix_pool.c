/* suffix_pool.c - the ring of tokens, its index, and a table of the owners whose outputs it
 * has. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "proposer-svc/props/prop.h"
#include "proposer-svc/props/suffix_pool.h"

#define POSITION_MAX (1u << 31) // beyond it the pool is cleared, and positions restart at 1

struct owner {
    uint32_t next;     // owner in the same bucket, or the next free entry; 0: none
    uint32_t n_tokens; // in the ring, marks included; 0: the entry is free
    uint32_t len;
    uint8_t bytes[SUFFIX_POOL_OWNER_MAX];
};

struct suffix_pool {
    pthread_rwlock_t lock; // guards the fields below
    struct ngram_index grams;
    uint32_t *tokens, *owners; // (mask + 1)
    uint32_t max_tokens, oldest, end;
    struct owner *table; // (max_owners), by number; [0] is unused
    uint32_t n_owners, max_owners, first_free, bucket_mask;
    uint32_t *buckets;
};

int suffix_pool_new(uint32_t max_tokens, uint64_t salt, struct suffix_pool **ret)
{
    uint32_t size = 16;
    while (size < max_tokens)
        size *= 2;
    AUTO(suffix_pool_free) struct suffix_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return fail(-ENOMEM, "no memory");
    pthread_rwlock_init(&p->lock, NULL);
    p->max_tokens = max_tokens;
    p->oldest = p->end = p->n_owners = 1;
    p->bucket_mask = size / 16 - 1;
    p->tokens = malloc(size * sizeof(*p->tokens));
    p->owners = malloc(size * sizeof(*p->owners));
    p->buckets = calloc(p->bucket_mask + 1, sizeof(*p->buckets));
    p->grams = (struct ngram_index){
        .tokens = p->tokens, .owners = p->owners, .mask = size - 1, .salt = salt};
    if (!p->tokens || !p->owners || !p->buckets ||
        ngram_index_init(&p->grams, max_tokens, size) < 0)
        return fail(-ENOMEM, "no memory for %u tokens of past outputs", max_tokens);
    *ret = TAKE(p);
    return 0;
}

void suffix_pool_free(struct suffix_pool *p)
{
    if (!p)
        return;
    ngram_index_done(&p->grams);
    free(p->tokens);
    free(p->owners);
    free(p->table);
    free(p->buckets);
    pthread_rwlock_destroy(&p->lock);
    free(p);
}

/* ---- owners ---- */

static uint32_t *bucket_of(const struct suffix_pool *p, const uint8_t *bytes, uint32_t len)
{
    uint64_t h = p->grams.salt;
    for (uint32_t i = 0; i < len; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return &p->buckets[rng_splitmix64(h) & p->bucket_mask];
}

/* The owner's number; 0: it has no outputs. */
static uint32_t find_owner(const struct suffix_pool *p, const uint8_t *bytes, uint32_t len)
{
    uint32_t t = *bucket_of(p, bytes, len);
    while (t && (p->table[t].len != len || memcmp(p->table[t].bytes, bytes, len) != 0))
        t = p->table[t].next;
    return t;
}

/* Numbers an owner that has no number. 0: no memory. There are at most as many owners as
 * outputs. */
static uint32_t add_owner(struct suffix_pool *p, const uint8_t *bytes, uint32_t len)
{
    uint32_t t = p->first_free;
    if (t) {
        p->first_free = p->table[t].next;
    } else if (p->n_owners >= p->max_owners) {
        uint32_t max = p->max_owners * 2 + 64;
        struct owner *table = realloc(p->table, max * sizeof(*table));
        if (!table)
            return 0;
        p->table = table;
        p->max_owners = max;
    }
    if (!t)
        t = p->n_owners++;
    uint32_t *bucket = bucket_of(p, bytes, len);
    p->table[t] = (struct owner){.next = *bucket, .len = len};
    memcpy(p->table[t].bytes, bytes, len);
    *bucket = t;
    return t;
}

static void remove_owner(struct suffix_pool *p, uint32_t t)
{
    struct owner *gone = &p->table[t];
    uint32_t *at = bucket_of(p, gone->bytes, gone->len);
    while (*at != t)
        at = &p->table[*at].next;
    *at = gone->next;
    gone->next = p->first_free;
    p->first_free = t;
}

/* ---- the ring ---- */

static uint32_t *token_at(struct suffix_pool *p, uint32_t pos)
{
    return &p->tokens[pos & p->grams.mask];
}

static void drop_oldest(struct suffix_pool *p)
{
    uint32_t at = p->oldest++, owner = p->owners[at & p->grams.mask], n = 0;
    while (n <= NGRAM_INDEX_LONGEST && at + n < p->end && *token_at(p, at + n) != SUFFIX_POOL_MARK)
        n++;
    for (unsigned i = 0; i < NGRAM_INDEX_LENS && ngram_index_lens[i] < n; i++)
        ngram_index_forget(&p->grams, i, at + ngram_index_lens[i]);
    if (--p->table[owner].n_tokens == 0)
        remove_owner(p, owner);
}

static void clear_pool(struct suffix_pool *p)
{
    ngram_index_clear(&p->grams);
    memset(p->buckets, 0, (p->bucket_mask + 1) * sizeof(*p->buckets));
    p->first_free = 0;
    p->oldest = p->end = p->n_owners = 1;
}

static void append_token(struct suffix_pool *p, uint32_t token, uint32_t owner)
{
    p->owners[p->end & p->grams.mask] = owner;
    *token_at(p, p->end++) = token;
    p->table[owner].n_tokens++;
}

static void add_output(struct suffix_pool *p, const uint8_t *owner, uint32_t owner_len,
                       const uint32_t *tokens, uint32_t n)
{
    if (p->end > POSITION_MAX)
        clear_pool(p);
    while (p->end - p->oldest + n + 1 > p->max_tokens)
        drop_oldest(p);
    uint32_t number = find_owner(p, owner, owner_len);
    if (!number)
        number = add_owner(p, owner, owner_len);
    if (!number)
        return;
    append_token(p, SUFFIX_POOL_MARK, number);
    for (uint32_t i = 0; i < n; i++)
        append_token(p, tokens[i], number);
    for (uint32_t i = 1; i < n; i++)
        ngram_index_add(&p->grams, p->end - n + i, i);
}

void suffix_pool_add(struct suffix_pool *p, const uint8_t *owner, uint32_t owner_len,
                     const uint32_t *tokens, uint32_t n)
{
    if (n > p->max_tokens - 1) {
        tokens += n - (p->max_tokens - 1);
        n = p->max_tokens - 1;
    }
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] == SUFFIX_POOL_MARK)
            n = i; // not a real token: the output ends before it
    if (n < 2)
        return;
    pthread_rwlock_wrlock(&p->lock);
    add_output(p, owner, owner_len, tokens, n);
    pthread_rwlock_unlock(&p->lock);
}

bool suffix_pool_lock(struct suffix_pool *p, const uint8_t *owner, uint32_t owner_len,
                      struct suffix_pool_view *ret)
{
    pthread_rwlock_rdlock(&p->lock);
    *ret = (struct suffix_pool_view){.grams = &p->grams,
                                     .owner = find_owner(p, owner, owner_len),
                                     .oldest = p->oldest,
                                     .end = p->end};
    if (!ret->owner)
        pthread_rwlock_unlock(&p->lock);
    return ret->owner;
}

void suffix_pool_unlock(struct suffix_pool *p)
{
    pthread_rwlock_unlock(&p->lock);
}

uint32_t suffix_pool_tokens(struct suffix_pool *p)
{
    pthread_rwlock_rdlock(&p->lock);
    uint32_t n = p->end - p->oldest;
    pthread_rwlock_unlock(&p->lock);
    return n;
}
