/* kv_states.c - a stack of free states, and the block of each snapshot. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include "base/err.h"
#include "kv/kv_index.h"
#include "kv/kv_states.h"

struct snapshot_of {
    uint32_t block; // KV_NO_BLOCK: the state is no snapshot
    uint64_t used;  // rises
};

struct kv_states {
    uint32_t n, n_free, n_snapshots;
    uint32_t *free;             // (n_free)
    struct snapshot_of *states; // (n)
    uint32_t *of_block;         // (n_blocks): KV_NO_STATE, or its snapshot
    uint64_t last_use;
};

int kv_states_new(uint32_t n, uint32_t n_blocks, struct kv_states **ret)
{
    AUTO(kv_states_free) struct kv_states *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "kv: no memory");
    s->n = s->n_free = n;
    s->free = calloc(n, sizeof(*s->free));
    s->states = calloc(n, sizeof(*s->states));
    s->of_block = calloc(n_blocks, sizeof(*s->of_block));
    if (!s->free || !s->states || !s->of_block)
        return fail(-ENOMEM, "kv: no memory for the counts of %u states", n);
    for (uint32_t i = 0; i < n; i++) {
        s->free[i] = n - 1 - i;
        s->states[i].block = KV_NO_BLOCK;
    }
    for (uint32_t b = 0; b < n_blocks; b++)
        s->of_block[b] = KV_NO_STATE;
    *ret = TAKE(s);
    return 0;
}

void kv_states_free(struct kv_states *s)
{
    if (!s)
        return;
    free(s->free);
    free(s->states);
    free(s->of_block);
    free(s);
}

/* The state of the snapshot that was used longest ago; KV_NO_STATE: there is none. */
static uint32_t oldest(const struct kv_states *s)
{
    uint32_t at = KV_NO_STATE;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->states[i].block != KV_NO_BLOCK &&
            (at == KV_NO_STATE || s->states[i].used < s->states[at].used))
            at = i;
    return at;
}

uint32_t kv_states_take_free(struct kv_states *s)
{
    return s->n_free ? s->free[--s->n_free] : KV_NO_STATE;
}

uint32_t kv_states_take(struct kv_states *s)
{
    const uint32_t at = s->n_free ? KV_NO_STATE : oldest(s);
    if (at != KV_NO_STATE)
        kv_states_forget(s, s->states[at].block);
    return kv_states_take_free(s);
}

void kv_states_give(struct kv_states *s, uint32_t state)
{
    assert(s->n_free < s->n && s->states[state].block == KV_NO_BLOCK);
    s->free[s->n_free++] = state;
}

uint32_t kv_states_of(const struct kv_states *s, uint32_t block)
{
    return s->of_block[block];
}

void kv_states_keep(struct kv_states *s, uint32_t block, uint32_t state)
{
    assert(s->of_block[block] == KV_NO_STATE);
    s->of_block[block] = state;
    s->states[state] = (struct snapshot_of){block, ++s->last_use};
    s->n_snapshots++;
}

void kv_states_use(struct kv_states *s, uint32_t block)
{
    s->states[s->of_block[block]].used = ++s->last_use;
}

void kv_states_forget(struct kv_states *s, uint32_t block)
{
    const uint32_t state = s->of_block[block];
    if (state == KV_NO_STATE)
        return;
    s->of_block[block] = KV_NO_STATE;
    s->states[state].block = KV_NO_BLOCK;
    s->n_snapshots--;
    kv_states_give(s, state);
}

uint32_t kv_states_n_snapshots(const struct kv_states *s)
{
    return s->n_snapshots;
}

bool kv_states_check(const struct kv_states *s, uint32_t n)
{
    uint32_t n_snapshots = 0;
    for (uint32_t i = 0; i < s->n; i++)
        n_snapshots += s->states[i].block != KV_NO_BLOCK;
    return n_snapshots == s->n_snapshots && n + n_snapshots + s->n_free == s->n;
}
