/* kv_keys.h - a table in memory of the blocks on disk and the last use of each.
 *
 * The table has a fixed size. It never grows, so the cost of a call is at most one search.
 *
 * Threads: one at a time. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct kv_keys {
    struct kv_key *slots; // (n_slots), a power of two; at most half are in use
    uint32_t n_slots, n, max;
};

struct kv_key {
    uint64_t key;
    int64_t last_use_s; // seconds since 1970; KV_KEYS_NONE: the slot is free
};
#define KV_KEYS_NONE 0
#define KV_KEYS_MAX (1u << 29)

/* Bytes of a table for `max` keys; larger values count as KV_KEYS_MAX. */
size_t kv_keys_bytes(uint64_t max);
int kv_keys_init(struct kv_keys *k, uint64_t max); // -ENOMEM
/* Frees the table. Afterwards it holds no key and accepts none. */
void kv_keys_done(struct kv_keys *k);
/* Adds the key, or updates its last use; last_use_s > 0. -ENOSPC: the table is full. */
int kv_keys_set(struct kv_keys *k, uint64_t key, int64_t last_use_s);
/* The key's last use; KV_KEYS_NONE: the table does not have the key. */
int64_t kv_keys_last_use(const struct kv_keys *k, uint64_t key);
/* Removes the key, if the table has it. */
void kv_keys_remove(struct kv_keys *k, uint64_t key);
