/* kv_keys.h - which blocks are on disk, and when each was used last: a table in memory of a size
 * that is chosen once, so that no call takes longer than a search.
 *
 * Threads: one at a time. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct kv_keys {
    struct kv_key *slots; // (n_slots), a power of two; at most half are taken
    uint32_t n_slots, n, max;
};

struct kv_key {
    uint64_t key;
    int64_t last_use_s; // seconds since 1970; KV_KEYS_NONE: the slot is free
};
#define KV_KEYS_NONE 0
#define KV_KEYS_MAX (1u << 29)

/* Bytes of a table of at most so many keys, of KV_KEYS_MAX if that is less. */
size_t kv_keys_bytes(uint64_t max);
int kv_keys_init(struct kv_keys *k, uint64_t max); // -ENOMEM
void kv_keys_done(struct kv_keys *k);              // empty afterwards, and full
/* Adds the key or renews it; last_use_s > 0. -ENOSPC: there is no room for it. */
int kv_keys_set(struct kv_keys *k, uint64_t key, int64_t last_use_s);
/* KV_KEYS_NONE: it is not there. */
int64_t kv_keys_last_use(const struct kv_keys *k, uint64_t key);
void kv_keys_remove(struct kv_keys *k, uint64_t key);
