/* model.h - a language model's weights, read from a GGUF file and packed for this CPU.
 *
 * Architectures are rows of a table in arch.c. Matrices are repacked at load on all threads, with
 * progress, and the file's pages given back, so extra memory is bounded by one matrix.
 *
 * Threads: immutable after model_load(). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/pool.h"
#include "file/gguf.h"
#include "kernel/kernel.h"

enum model_rope { MODEL_ROPE_PAIRS, MODEL_ROPE_HALVES }; // (2i, 2i+1), or (i, i + n/2)

struct model_params {
    const char *architecture; // "llama", "qwen2", "qwen3"
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, n_ctx_train;
    float norm_eps;
    enum model_rope rope;
    uint32_t rope_dim;
    float rope_base;
    float rope_gain; // on cosine and sine: 1, or YaRN's
    uint64_t n_weights;
};

struct model_layer {
    const float *attn_norm, *ffn_norm, *q_norm, *k_norm; // q_norm, k_norm: NULL if absent
    const float *q_bias, *k_bias, *v_bias;               // NULL if absent
    struct kernel_mat q, k, v, o, gate, up, down;
};

struct model {
    struct model_params params;
    const struct kernel *kernel;
    struct model_layer *layers;
    struct kernel_mat embd, head; // head is embd where tied
    const float *out_norm;
    const float *rope_freqs;   // (rope_dim / 2): radians per position, all scaling folded in
    uint64_t digest;           // of shapes, rotation, samples of the weights: names the model
    size_t bytes;              // of weights in memory
    struct model_store *store; // what owns the memory
};

struct model_load_options {
    struct pool *pool;
    const struct kernel *kernel;
    /* progress 0 .. 1, called a few times a second from the loading thread; false: give up. */
    bool (*progress)(void *arg, float done);
    void *arg;
};

/* -ENOTSUP: architecture, type or scaling that is not supported, named. -EINVAL: a tensor or key is
 * missing, or has another shape than it must (both in the sentence). -ENOMEM: does not fit into the
 * memory that is available, with both numbers, before anything is read. -ECANCELED. */
int model_load(const struct gguf *g, const struct model_load_options *opt, struct model **ret);
void model_free(struct model *m);
DEFINE_AUTO(struct model, model_free)
