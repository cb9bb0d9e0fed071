/* kv_index.c - a hash table over block numbers, and the list of idle blocks. */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "kv/kv.h"
#include "kv/kv_index.h"

#define NONE KV_NO_BLOCK

struct entry {
    uint64_t key;
    uint32_t parent, n_children;
    uint32_t next;         // in its bucket
    uint32_t older, newer; // while idle
    uint32_t depth;
    bool in, idle;
    uint8_t name[KV_NAME];
    uint8_t salt_len; // below the root
    uint8_t salt[KV_SALT_MAX];
    uint32_t tokens[KV_BLOCK];
};

struct kv_index {
    kv_hash_fn *hash;
    uint64_t identity, secret;
    uint32_t n_blocks, n_idle, oldest, newest;
    uint64_t bucket_mask;
    uint32_t *buckets;     // the first block of each, or NONE
    struct entry *entries; // (n_blocks)
};

uint64_t kv_hash(uint64_t key, const void *bytes, size_t n)
{
    key = rng_splitmix64(key ^ n);
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)bytes + i, n - i < sizeof(word) ? n - i : sizeof(word));
        key = rng_splitmix64(key ^ word);
    }
    return key;
}

_Static_assert(SHA256_DIGEST_LENGTH == KV_NAME, "a name is a SHA-256");

void kv_name_root(uint64_t identity, const struct kv_root *root, uint8_t ret_name[KV_NAME])
{
    uint8_t bytes[sizeof(uint64_t) + KV_SALT_MAX];
    identity = htole64(identity);
    memcpy(bytes, &identity, sizeof(identity));
    if (root->salt_len)
        memcpy(bytes + sizeof(identity), root->salt, root->salt_len);
    SHA256(bytes, sizeof(identity) + root->salt_len, ret_name);
}

void kv_name_next(const uint8_t before[KV_NAME], const uint32_t *tokens, uint8_t ret_name[KV_NAME])
{
    uint8_t bytes[KV_NAME + KV_BLOCK * sizeof(uint32_t)];
    memcpy(bytes, before, KV_NAME);
    for (size_t i = 0; i < KV_BLOCK; i++) {
        uint32_t token = htole32(tokens[i]);
        memcpy(bytes + KV_NAME + i * sizeof(token), &token, sizeof(token));
    }
    SHA256(bytes, sizeof(bytes), ret_name);
}

static size_t n_buckets_for(uint32_t n_blocks)
{
    size_t n = 1;
    while (n < n_blocks)
        n *= 2;
    return n;
}

size_t kv_index_bytes(uint32_t n_blocks)
{
    return n_blocks * sizeof(struct entry) + n_buckets_for(n_blocks) * sizeof(uint32_t);
}

int kv_index_new(uint32_t n_blocks, uint64_t identity, kv_hash_fn *hash, struct kv_index **ret)
{
    AUTO(kv_index_free) struct kv_index *x = calloc(1, sizeof(*x));
    if (!x)
        return fail(-ENOMEM, "kv: no memory for an index");
    *x = (struct kv_index){hash, identity, .n_blocks = n_blocks, .oldest = NONE, .newest = NONE};
    x->secret = rng_secret();
    size_t n_buckets = n_buckets_for(n_blocks);
    x->bucket_mask = n_buckets - 1;
    x->buckets = malloc(n_buckets * sizeof(*x->buckets));
    x->entries = calloc(n_blocks, sizeof(*x->entries));
    if (!x->buckets || !x->entries)
        return fail(-ENOMEM, "kv: no memory for an index of %u blocks", n_blocks);
    memset(x->buckets, 0xff, n_buckets * sizeof(*x->buckets));
    *ret = TAKE(x);
    return 0;
}

void kv_index_free(struct kv_index *x)
{
    if (!x)
        return;
    free(x->buckets);
    free(x->entries);
    free(x);
}

/* ---- the table ---- */

static uint32_t *bucket_of(const struct kv_index *x, uint64_t key)
{
    return &x->buckets[key & x->bucket_mask];
}

static uint64_t parent_key(const struct kv_index *x, const struct kv_root *root, uint32_t parent)
{
    if (parent != NONE)
        return x->entries[parent].key;
    assert(root->salt_len <= KV_SALT_MAX);
    return x->hash(x->secret, root->salt, root->salt_len);
}

static uint64_t key_of(const struct kv_index *x, const struct kv_root *root, uint32_t parent,
                       const uint32_t *tokens)
{
    return x->hash(parent_key(x, root, parent), tokens, KV_BLOCK * sizeof(*tokens));
}

static bool is_named(const struct entry *e, const struct kv_root *root, uint32_t parent,
                     const uint32_t *tokens)
{
    if (e->parent != parent || memcmp(e->tokens, tokens, sizeof(e->tokens)) != 0)
        return false;
    return parent != NONE || (e->salt_len == root->salt_len &&
                              (!e->salt_len || memcmp(e->salt, root->salt, e->salt_len) == 0));
}

uint32_t kv_index_find(const struct kv_index *x, const struct kv_root *root, uint32_t parent,
                       const uint32_t *tokens)
{
    uint64_t key = key_of(x, root, parent, tokens);
    uint32_t b = *bucket_of(x, key);
    while (b != NONE &&
           (x->entries[b].key != key || !is_named(&x->entries[b], root, parent, tokens)))
        b = x->entries[b].next;
    return b;
}

void kv_index_add(struct kv_index *x, const struct kv_root *root, uint32_t parent,
                  const uint32_t *tokens, uint32_t block)
{
    struct entry *e = &x->entries[block];
    assert(!e->in && (parent == NONE || x->entries[parent].in));
    *e = (struct entry){.key = key_of(x, root, parent, tokens), .parent = parent, .in = true};
    memcpy(e->tokens, tokens, sizeof(e->tokens));
    if (parent != NONE) {
        struct entry *before = &x->entries[parent];
        before->n_children++;
        e->depth = before->depth + 1;
        kv_name_next(before->name, tokens, e->name);
    } else {
        e->salt_len = (uint8_t)root->salt_len;
        if (root->salt_len)
            memcpy(e->salt, root->salt, root->salt_len);
        uint8_t root_name[KV_NAME];
        kv_index_root_name(x, root, root_name);
        kv_name_next(root_name, tokens, e->name);
    }
    uint32_t *bucket = bucket_of(x, e->key);
    e->next = *bucket;
    *bucket = block;
}

void kv_index_remove(struct kv_index *x, uint32_t block)
{
    struct entry *e = &x->entries[block];
    assert(e->idle && !e->n_children);
    kv_index_busy(x, block);
    uint32_t *at = bucket_of(x, e->key);
    while (*at != block)
        at = &x->entries[*at].next;
    *at = e->next;
    if (e->parent != NONE)
        x->entries[e->parent].n_children--;
    e->in = false;
}

bool kv_index_has(const struct kv_index *x, uint32_t block)
{
    return x->entries[block].in;
}

struct kv_entry kv_index_entry(const struct kv_index *x, uint32_t block)
{
    const struct entry *e = &x->entries[block];
    return (struct kv_entry){e->name, e->depth, e->parent};
}

/* ---- idle blocks ---- */

void kv_index_idle(struct kv_index *x, uint32_t block)
{
    struct entry *e = &x->entries[block];
    assert(e->in && !e->idle);
    e->idle = true;
    e->newer = NONE;
    e->older = x->newest;
    *(x->newest != NONE ? &x->entries[x->newest].newer : &x->oldest) = block;
    x->newest = block;
    x->n_idle++;
}

void kv_index_busy(struct kv_index *x, uint32_t block)
{
    struct entry *e = &x->entries[block];
    assert(e->idle);
    *(e->newer != NONE ? &x->entries[e->newer].older : &x->newest) = e->older;
    *(e->older != NONE ? &x->entries[e->older].newer : &x->oldest) = e->newer;
    e->idle = false;
    x->n_idle--;
}

uint32_t kv_index_n_idle(const struct kv_index *x)
{
    return x->n_idle;
}

uint32_t kv_index_oldest(const struct kv_index *x)
{
    return x->oldest;
}

uint32_t kv_index_newest(const struct kv_index *x)
{
    return x->newest;
}

uint32_t kv_index_older(const struct kv_index *x, uint32_t block)
{
    return x->entries[block].older;
}

void kv_index_root_name(const struct kv_index *x, const struct kv_root *root,
                        uint8_t ret_name[KV_NAME])
{
    kv_name_root(x->identity, root, ret_name);
}

/* ---- checking ---- */

static bool fail_block(const char *what, uint32_t block)
{
    fail(-EINVAL, "kv: block %u %s", block, what);
    return false;
}

static bool check_entry(const struct kv_index *x, uint32_t b, const uint32_t *holders)
{
    const struct entry *e = &x->entries[b];
    if (!e->in)
        return e->idle ? fail_block("is idle, but not in the index", b) : true;
    if (e->idle != (holders[b] == 0))
        return fail_block(e->idle ? "is held and idle" : "is in the index, not held and not idle",
                          b);
    if (e->parent != NONE && (e->parent >= x->n_blocks || !x->entries[e->parent].in))
        return fail_block("has lost its parent", b);
    if (e->parent != NONE && !e->idle && x->entries[e->parent].idle)
        return fail_block("is held, but its parent is not", b);
    struct kv_root root = {e->salt, e->salt_len};
    if (kv_index_find(x, &root, e->parent, e->tokens) != b)
        return fail_block("is not found by its name", b);
    return true;
}

/* In the order of eviction, every block comes before its parent: its count of children that have
 * not come yet is 0. */
static bool check_idle(const struct kv_index *x, uint32_t *n_children)
{
    uint32_t n = 0, before = NONE;
    for (uint32_t b = x->oldest; b != NONE; before = b, b = x->entries[b].newer) {
        const struct entry *e = &x->entries[b];
        if (!e->idle || e->older != before || n++ == x->n_idle)
            return fail_block("is at a wrong place of the idle list", b);
        if (n_children[b])
            return fail_block("would be evicted before its children", b);
        if (e->parent != NONE)
            n_children[e->parent]--;
    }
    if (n != x->n_idle || x->newest != before)
        return fail_block("is not the end of the idle list", x->newest);
    return true;
}

bool kv_index_check(const struct kv_index *x, const uint32_t *holders, uint32_t *scratch)
{
    memset(scratch, 0, x->n_blocks * sizeof(*scratch));
    for (uint32_t b = 0; b < x->n_blocks; b++) {
        if (!check_entry(x, b, holders))
            return false;
        if (x->entries[b].in && x->entries[b].parent != NONE)
            scratch[x->entries[b].parent]++;
    }
    for (uint32_t b = 0; b < x->n_blocks; b++) {
        if (x->entries[b].in && x->entries[b].n_children != scratch[b])
            return fail_block("has a wrong count of children", b);
    }
    return check_idle(x, scratch);
}
