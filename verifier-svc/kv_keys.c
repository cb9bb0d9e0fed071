/* kv_keys.c - see kv_keys.h. Open addressing; what is removed leaves no mark: those behind it move
 * up (Knuth, The Art of Computer Programming 3, 6.4, algorithm R). */
#include "verifier-svc/kv_keys.h"
#include <errno.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/rng.h"

#define MIN_SLOTS 1024u
#define MAX_SLOTS (1u << 30)

void kv_keys_done(struct kv_keys *k)
{
    free(k->slots);
    *k = (struct kv_keys){0};
}

static uint32_t home_of(const struct kv_keys *k, uint64_t key)
{
    return (uint32_t)rng_splitmix64(key) & (k->n_slots - 1);
}

/* The key's slot, or the free one where it would go. */
static uint32_t slot_of(const struct kv_keys *k, uint64_t key)
{
    uint32_t i = home_of(k, key);
    while (k->slots[i].last_use_s != KV_KEYS_NONE && k->slots[i].key != key)
        i = (i + 1) & (k->n_slots - 1);
    return i;
}

static int grow(struct kv_keys *k)
{
    uint32_t n_slots = k->n_slots ? 2 * k->n_slots : MIN_SLOTS;
    if (n_slots > MAX_SLOTS)
        return fail(-ENOMEM, "more than %u blocks on disk", MAX_SLOTS / 2);
    struct kv_keys larger = {.slots = malloc(n_slots * sizeof(*larger.slots)), .n_slots = n_slots};
    if (!larger.slots)
        return fail(-ENOMEM, "no memory for the keys of %u blocks", n_slots / 2);
    for (uint32_t i = 0; i < n_slots; i++)
        larger.slots[i].last_use_s = KV_KEYS_NONE;
    for (uint32_t i = 0; i < k->n_slots; i++) {
        if (k->slots[i].last_use_s != KV_KEYS_NONE)
            larger.slots[slot_of(&larger, k->slots[i].key)] = k->slots[i];
    }
    larger.n = k->n;
    free(k->slots);
    *k = larger;
    return 0;
}

int kv_keys_set(struct kv_keys *k, uint64_t key, int64_t last_use_s)
{
    if (2 * (k->n + 1) > k->n_slots) {
        int err = grow(k);
        if (err)
            return err;
    }
    struct kv_key *slot = &k->slots[slot_of(k, key)];
    k->n += slot->last_use_s == KV_KEYS_NONE;
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
        if (((i - home) & mask) >= ((i - free_slot) & mask)) { // its search passes the free slot
            k->slots[free_slot] = k->slots[i];
            free_slot = i;
        }
    }
    k->slots[free_slot].last_use_s = KV_KEYS_NONE;
    k->n--;
}
