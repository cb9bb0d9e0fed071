/* kv_keys.c - see kv_keys.h. Open addressing without tombstones: removing a key moves later keys of
 * the same search up (Knuth, The Art of Computer Programming 3, 6.4, algorithm R). */
#include "verifier-svc/kvdisk/kv_keys.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/rng.h"

static uint64_t slots_for(uint64_t max)
{
    uint64_t n = 2;
    while (n < 2 * max && n < 2ull * KV_KEYS_MAX)
        n *= 2;
    return n;
}

size_t kv_keys_bytes(uint64_t max)
{
    return slots_for(max) * sizeof(struct kv_key);
}

int kv_keys_init(struct kv_keys *k, uint64_t max)
{
    uint32_t n_slots = (uint32_t)slots_for(max);
    *k = (struct kv_keys){.slots = calloc(n_slots, sizeof(*k->slots)), .n_slots = n_slots};
    if (!k->slots)
        return fail(-ENOMEM, "no memory for the keys of %u blocks on disk", n_slots / 2);
    k->max = n_slots / 2;
    return 0;
}

void kv_keys_done(struct kv_keys *k)
{
    free(k->slots);
    *k = (struct kv_keys){0};
}

/* The slot where the search for a key begins. */
static uint32_t home_of(const struct kv_keys *k, uint64_t key)
{
    return (uint32_t)rng_splitmix64(key) & (k->n_slots - 1);
}

/* The key's slot, or the free slot where it belongs. */
static uint32_t slot_of(const struct kv_keys *k, uint64_t key)
{
    uint32_t i = home_of(k, key);
    while (k->slots[i].last_use_s != KV_KEYS_NONE && k->slots[i].key != key)
        i = (i + 1) & (k->n_slots - 1);
    return i;
}

int kv_keys_set(struct kv_keys *k, uint64_t key, int64_t last_use_s)
{
    struct kv_key *slot = k->max ? &k->slots[slot_of(k, key)] : NULL;
    bool is_new = slot && slot->last_use_s == KV_KEYS_NONE;
    if (!slot || (is_new && k->n == k->max))
        return -ENOSPC;
    k->n += is_new;
    *slot = (struct kv_key){key, last_use_s};
    return 0;
}

int64_t kv_keys_last_use(const struct kv_keys *k, uint64_t key)
{
    return k->n ? k->slots[slot_of(k, key)].last_use_s : KV_KEYS_NONE;
}

void kv_keys_remove(struct kv_keys *k, uint64_t key)
{
    if (kv_keys_last_use(k, key) == KV_KEYS_NONE)
        return;
    uint32_t mask = k->n_slots - 1, free_slot = slot_of(k, key);
    for (uint32_t i = (free_slot + 1) & mask; k->slots[i].last_use_s != KV_KEYS_NONE;
         i = (i + 1) & mask) {
        uint32_t home = home_of(k, k->slots[i].key);
        if (((i - home) & mask) >=
            ((i - free_slot) & mask)) { // the search for slot i's key passes the free slot
            k->slots[free_slot] = k->slots[i];
            free_slot = i;
        }
    }
    k->slots[free_slot].last_use_s = KV_KEYS_NONE;
    k->n--;
}
