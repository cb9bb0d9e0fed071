/* kv_keys.h - which blocks are on disk, and when each was used last: a table in memory.
 *
 * Threads: one at a time. */
#pragma once
#include <stdint.h>

struct kv_keys {
    struct kv_key *slots; // (n_slots), a power of two; at most half are taken
    uint32_t n_slots, n;
};

struct kv_key {
    uint64_t key;
    int64_t last_use_s; // seconds since 1970; KV_KEYS_NONE: the slot is free
};
#define KV_KEYS_NONE INT64_MIN

void kv_keys_done(struct kv_keys *k); // empty afterwards, and may be used again
/* Adds the key or renews it. -ENOMEM: it is not there. */
int kv_keys_set(struct kv_keys *k, uint64_t key, int64_t last_use_s);
/* KV_KEYS_NONE: it is not there. */
int64_t kv_keys_last_use(const struct kv_keys *k, uint64_t key);
void kv_keys_remove(struct kv_keys *k, uint64_t key);
