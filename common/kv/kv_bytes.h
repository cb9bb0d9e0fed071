/* kv_bytes.h - the memory of the key/value pool: K and V of every block, layer by layer.
 *
 * kv.h counts holders of blocks. This file copies, moves, saves and loads blocks by number, so that
 * another backend could keep them elsewhere.
 *
 * A layer's blocks lie together: (n_blocks, n_heads) times kernel_kv_bytes(). What attention reads
 * of a block under one head is therefore one piece of memory. Layers may differ in shape.
 *
 * Threads: any, as long as no block is read by one thread and written by another. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "kernel/kernel.h"

#define KV_BLOCK KERNEL_KV_BLOCK // positions in a block
#define KV_MAX_BLOCKS (1u << 26)

struct kv_bytes;

/* What a layer keeps of each position, or of a sequence. */
struct kv_layer {
    uint32_t n_heads;      // of K and V; 0: a recurrent layer, which keeps a state instead
    uint32_t k_dim, v_dim; // of a head; kernels read equal ones only
    uint32_t window;       // positions that a row sees, with its own; 0: all before it
    /* Floats of the state of a sequence, and of what it keeps of each of its last KV_LOG rows. */
    uint32_t n_state, n_logged;
};

/* Rows whose inputs a recurrent layer keeps: draft rows, and before them the rows that its
 * convolution reads. */
#define KV_MAX_TAPS 4                   // of a convolution
#define KV_MAX_CHAIN 16                 // draft rows of a sequence with a state
#define KV_MAX_AFTER (KV_MAX_CHAIN + 1) // rows after the state's position
#define KV_LOG (KV_MAX_AFTER + KV_MAX_TAPS - 1)
#define KV_NO_STATE UINT32_MAX

struct kv_shape {
    uint32_t n_layers;
    enum kernel_kv type;
    const struct kv_layer *layers; // (n_layers)
};

/* Bytes of a block: all layers, K and V. */
size_t kv_bytes_block(const struct kv_shape *shape);
/* Reserves all blocks. Copies the shape. -ENOMEM, with the size; -EINVAL: absurd counts; -ENOTSUP:
 * a shape that kernels cannot read. */
int kv_bytes_new(const struct kv_shape *shape, uint32_t n_blocks, struct kv_bytes **ret);
void kv_bytes_free(struct kv_bytes *b);
DEFINE_AUTO(struct kv_bytes, kv_bytes_free)

const struct kv_shape *kv_bytes_shape(const struct kv_bytes *b);

void kv_bytes_copy(struct kv_bytes *b, uint32_t from_block, uint32_t to_block);
/* One position, in all layers. A slot is a block times KV_BLOCK, plus the place in the block. */
void kv_bytes_move(struct kv_bytes *b, uint32_t from_slot, uint32_t to_slot);
/* A block as kv_bytes_block() bytes, which are the same for every pool of the same shape. */
void kv_bytes_save(const struct kv_bytes *b, uint32_t block, void *to);
void kv_bytes_load(struct kv_bytes *b, uint32_t block, const void *from);

/* Where K and V of a block begin under a head of a layer. */
char *kv_bytes_at(const struct kv_bytes *b, uint32_t layer, uint32_t block, uint32_t head);
/* Bytes from block to block of a layer. */
size_t kv_bytes_stride(const struct kv_bytes *b, uint32_t layer);

/* ---- states of recurrent layers ---- */

/* Bytes of a state: all layers. 0: the shape has no recurrent layer. */
size_t kv_bytes_state(const struct kv_shape *shape);
/* Reserves n states. Once, and only for a shape that has them. -ENOMEM, with the size. */
int kv_bytes_add_states(struct kv_bytes *b, uint32_t n);
/* For a new sequence: zero are the logged rows before position 0. The rest has any content. */
void kv_bytes_begin_state(struct kv_bytes *b, uint32_t state);
/* Copies a state of a position, with the logged rows that a convolution reads next. */
void kv_bytes_copy_state(struct kv_bytes *b, uint32_t from, uint32_t to, uint32_t position);
/* (n_state) floats of a recurrent layer, aligned. */
float *kv_bytes_state_at(const struct kv_bytes *b, uint32_t layer, uint32_t state);
/* (n_logged) floats of a position. The position KV_LOG before it has the same place. */
float *kv_bytes_logged_at(const struct kv_bytes *b, uint32_t layer, uint32_t state,
                          uint32_t position);
