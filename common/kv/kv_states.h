/* kv_states.h - which states of recurrent layers are free, and which are snapshots.
 *
 * A sequence of a model with recurrent layers has one state. A snapshot is a copy of a state at
 * the end of a block of the index. A sequence with that prefix starts from it. If no state is free,
 * the snapshot that was used longest ago is given up.
 *
 * Threads: as kv.h, of which this is a part. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "kv/kv_bytes.h"

struct kv_states;

/* -ENOMEM. */
int kv_states_new(uint32_t n, uint32_t n_blocks, struct kv_states **ret);
void kv_states_free(struct kv_states *s);
DEFINE_AUTO(struct kv_states, kv_states_free)

/* A free state; KV_NO_STATE: none. */
uint32_t kv_states_take_free(struct kv_states *s);
/* A free state, or that of the oldest snapshot, whose content stays; KV_NO_STATE: none. */
uint32_t kv_states_take(struct kv_states *s);
void kv_states_give(struct kv_states *s, uint32_t state);
/* The snapshot at the end of a block; KV_NO_STATE: none. */
uint32_t kv_states_of(const struct kv_states *s, uint32_t block);
/* A state that was taken becomes the snapshot of a block without one. */
void kv_states_keep(struct kv_states *s, uint32_t block, uint32_t state);
/* The snapshot of the block is used now. */
void kv_states_use(struct kv_states *s, uint32_t block);
/* The block leaves the index, or its snapshot is given up: the snapshot's state becomes free. */
void kv_states_forget(struct kv_states *s, uint32_t block);

uint32_t kv_states_n_snapshots(const struct kv_states *s);
/* Whether all states but n are free or snapshots. */
bool kv_states_check(const struct kv_states *s, uint32_t n);
