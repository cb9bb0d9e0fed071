/* model.h - a language model's weights, read from a checkpoint and packed for this CPU.
 *
 * A model is a list of layers; each has its kinds and shapes. arch.h describes architectures.
 * model_plan() reads the shapes, so the memory for serving the model is known before it is
 * allocated. model_load() reads and packs the weights on all threads. At any time, at most a few
 * MiB of weights are in memory twice.
 *
 * Threads: immutable after model_load(). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/pool.h"
#include "file/checkpoint.h"
#include "kernel/kernel.h"
#include "kv/kv_bytes.h"

enum model_rope { MODEL_ROPE_PAIRS, MODEL_ROPE_HALVES }; // (2i, 2i+1), or (i, i + n/2)

struct model_params {
    const char *architecture; // "llama", "qwen2", ...
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, n_ctx_train;
    uint32_t n_experts, n_used_experts, n_expert_ff; // 0: none
    uint32_t window;                                 // of layers that have one; 0: none has
    /* Of layers with a gated delta net; 0: none has. All but every full_every-th layer have. */
    uint32_t full_every, n_delta_k_heads, n_delta_v_heads, delta_dim, n_taps;
    uint32_t n_skipped_layers; // after the last one: for multi-token prediction; not loaded
    float norm_eps;
    enum model_rope rope;
    uint32_t rope_dim;
    float rope_base;
    float rope_gain; // on cosine and sine: 1, or YaRN's
    uint64_t n_weights;
};

/* Kinds of attention and of feed-forward; a layer has one of each. */
enum model_attn_kind {
    MODEL_ATTN_FULL,  // a row sees every position before it
    MODEL_ATTN_DELTA, // a gated delta net: a recurrent state
};
enum model_ffn_kind {
    MODEL_FFN_DENSE,   // SwiGLU: silu(gate x) * (up x), then down
    MODEL_FFN_EXPERTS, // the same by the experts that a router chooses for each row
};
enum model_glu { MODEL_SWIGLU, MODEL_SWIGLU_CLAMPED }; // as in struct kernel

/* A gated delta net. Of a row come queries and keys (n_k_heads, dim) and values (n_v_heads, dim),
 * through a convolution over the last n_taps positions. */
struct model_delta {
    uint32_t n_k_heads, n_v_heads, dim, n_taps;
    /* The n_v_heads / n_k_heads value heads of a key head follow one another; else they are
     * n_k_heads apart. */
    bool is_grouped;
    struct kernel_mat qkv, gate, beta, alpha;
    /* In place of beta and alpha, if is_grouped: the rows of beta of a key head's value heads, then
     * those of alpha. */
    struct kernel_mat beta_alpha;
    const float *conv;        // (n_taps, channels)
    const float *dt_bias, *a; // (n_v_heads)
    const float *norm;        // (dim)
};

static inline uint32_t model_delta_channels(const struct model_delta *d)
{
    return (2 * d->n_k_heads + d->n_v_heads) * d->dim;
}

struct model_attn {
    enum model_attn_kind kind;
    uint32_t n_heads;                      // of queries: n_kv_heads groups
    uint32_t n_kv_heads, k_dim, v_dim;     // as in struct kv_layer
    uint32_t window;                       // the same
    const float *norm;                     // of x
    const float *q_norm, *k_norm;          // of a head; NULL if absent
    const float *q_bias, *k_bias, *v_bias; // NULL if absent
    const float *o_bias, *sinks;           // the same; sinks (n_heads): as in struct kernel_attn
    struct kernel_mat q, k, v, o;
    bool has_gate; // q's rows of a head: (k_dim) queries, then (k_dim) gates of its output
    struct model_delta delta;
};

/* The probabilities of the experts are softmax(router x). A row runs through the n_used experts of
 * the largest ones; of equal ones the first. Their outputs are multiplied by these probabilities,
 * and added in the order of the experts. */
struct model_experts {
    uint32_t n, n_used, n_ff;
    bool weights_sum_to_1; // the n_used probabilities are divided by their sum
    enum model_glu glu;    // of the experts; the shared expert has SwiGLU
    struct kernel_mat router;
    /* Of the first expert. Those of the others follow, kernel_packed_bytes() apart. */
    struct kernel_mat gate, up, down;
    /* Added to the products; NULL if absent. router_bias (n); the others (n, n_out). */
    const float *router_bias, *gate_bias, *up_bias, *down_bias;
};

struct model_ffn {
    enum model_ffn_kind kind;
    const float *norm; // of x
    /* What every row runs through; beside experts it is the shared expert. n_ff = 0: none. */
    uint32_t n_ff;
    struct kernel_mat gate, up, down;
    struct model_experts experts;
    struct kernel_mat shared_router; // the shared expert's factor is sigmoid(shared_router x)
};

struct model_layer {
    struct model_attn attn;
    struct model_ffn ffn;
};

struct model {
    struct model_params params;
    const struct kernel *kernel;
    struct model_layer *layers;   // (n_layers)
    struct kv_layer *kv_layers;   // (n_layers) what each keeps of a position
    struct kernel_mat embd, head; // head is embd where tied
    struct kernel_mat **mats;     // (n_mats) all matrices that passes multiply by
    uint32_t n_mats;
    const float *out_norm;
    const float *rope_freqs;   // (rope_dim / 2): radians per position, all scaling folded in
    uint64_t digest;           // of shapes, rotation, all weights: names the model
    size_t bytes;              // of weights in memory, known before they are loaded
    struct model_store *store; // what owns the memory
};

#define MODEL_AS_FILE (-1)

/* All but the weights, which are NULL. The file must stay open until they are loaded.
 * quantise: KERNEL_Q8_0 or KERNEL_Q4_0, to which matrices of larger types are rounded when they are
 * loaded, or MODEL_AS_FILE.
 * -ENOTSUP: architecture, type or scaling that is not supported, named. -EINVAL: a tensor or key is
 * missing, or has another shape than it must (both in the sentence). -ENOMEM. */
int model_plan(const struct checkpoint *c, int quantise, struct model **ret);
void model_free(struct model *m);
DEFINE_AUTO(struct model, model_free)

/* The kernel's type for a tensor. -ENOTSUP (no sentence): it has none. */
int model_weight_type(const struct checkpoint_tensor *t, enum kernel_type *ret);

struct model_load_options {
    struct pool *pool;
    const struct kernel *kernel;
    /* progress 0 .. 1, called from the loading thread at each tensor and each MiB of its share;
     * false: give up. */
    bool (*progress)(void *arg, float done);
    void *arg;
    const char *cache; // folder of packed weights (weights_file.h); NULL or empty: none
};

/* Packs the weights, once, and completes the digest. With a cache it maps packed weights or leaves
 * them there for later; if the cache fails it says so in the log. -ENOMEM, with the size; -EIO: the
 * file was cut short meanwhile; -ECANCELED. After an error the model can only be freed. */
int model_load(struct model *m, const struct model_load_options *opt);

/* Bytes of the weights that are in memory already, in the file of packed weights that model_load()
 * would map. */
size_t model_cached_bytes(const struct model *m, const char *cache);

static inline struct kv_shape model_kv_shape(const struct model *m, enum kernel_kv type)
{
    return (struct kv_shape){m->params.n_layers, type, m->kv_layers};
}

/* Expert e's matrix of one of struct model_experts. */
static inline struct kernel_mat model_expert(const struct kernel_mat *first, uint32_t e)
{
    struct kernel_mat w = *first;
    w.data = (const char *)w.data + e * kernel_packed_bytes(w.type, w.n_out, w.n_in);
    return w;
}

static inline uint32_t model_tiles(const struct kernel_mat *w)
{
    return (w->n_out + KERNEL_TILE - 1) / KERNEL_TILE;
}

/* The columns, of n_out, that thread i of n computes of a matrix. A pass may apply it together with
 * other matrices, which have n_tiles tiles of columns with its own; `before` of them precede them.
 * The same thread packs these columns, so they lie in the memory of its NUMA node. Those of experts
 * lie in that of any node: threads share the experts by their cost in each pass. */
static inline void model_columns(uint32_t n_out, uint32_t before, uint32_t n_tiles, unsigned i,
                                 unsigned n, uint32_t *ret_from, uint32_t *ret_to)
{
    uint32_t from, to;
    pool_slice(i, n, n_tiles, 1, &from, &to);
    from = from > before ? (from - before) * KERNEL_TILE : 0;
    to = to > before ? (to - before) * KERNEL_TILE : 0;
    *ret_from = from < n_out ? from : n_out;
    *ret_to = to < n_out ? to : n_out;
}
