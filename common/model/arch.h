/* arch.h - the architectures: each is one file that describes its layers as data.
 *
 * A description names the kinds of a layer's attention and feed-forward, and the tensors that a
 * file must have for it. arch.c has the table of architectures and reads the shapes that all share.
 *
 * Threads: immutable. */
#pragma once
#include <stddef.h>
#include <stdio.h>
#include "file/checkpoint.h"
#include "model/model.h"

enum arch_has { ARCH_ALWAYS, ARCH_MAYBE };

/* A size of a tensor, by the shapes of its layer. */
enum arch_dim {
    ARCH_ONE, // as n_out: a vector
    ARCH_EMBD,
    ARCH_K_DIM,  // of a head
    ARCH_Q_ROWS, // n_heads * k_dim
    ARCH_K_ROWS, // n_kv_heads * k_dim
    ARCH_V_ROWS, // n_kv_heads * v_dim
    ARCH_O_COLS, // n_heads * v_dim
    ARCH_HEADS,
    ARCH_GATED_Q_ROWS,   // n_heads * 2 * k_dim
    ARCH_DELTA_CHANNELS, // of a gated delta net's convolution
    ARCH_DELTA_VALUES,   // n_v_heads * dim
    ARCH_DELTA_HEADS,    // n_v_heads
    ARCH_DELTA_GATES,    // 2 * n_v_heads
    ARCH_DELTA_DIM,
    ARCH_TAPS,
    ARCH_FF, // of the feed-forward that every row runs through
    ARCH_EXPERTS,
    ARCH_EXPERT_FF,
    ARCH_ROW, // as n_out: a matrix of one row
};

/* A tensor of a layer, and where it goes. */
struct arch_tensor {
    enum checkpoint_role role;
    enum arch_dim n_in, n_out;
    size_t to; // offset in struct model_layer: of a kernel_mat, or of a vector's pointer
    enum arch_has has;
    bool joins_next;    // a pass applies it together with the next matrix
    bool per_expert;    // the file's tensor has such a matrix or vector of each expert
    bool as_file;       // its type stays
    bool is_transposed; // a small matrix of floats, to floats (n_in, n_out)
};

#define ARCH_TO(member) offsetof(struct model_layer, member)

/* The norms before attention and before the feed-forward. */
#define ARCH_NORMS                                                                                 \
    {CHECKPOINT_ATTN_NORM, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(attn.norm)},                         \
    {                                                                                              \
        CHECKPOINT_FFN_NORM, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(ffn.norm)                          \
    }
/* The same where the file calls the second one a norm after attention. */
#define ARCH_POST_NORMS                                                                            \
    {CHECKPOINT_ATTN_NORM, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(attn.norm)},                         \
    {                                                                                              \
        CHECKPOINT_ATTN_POST_NORM, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(ffn.norm)                    \
    }
/* The norms of the heads of q and k. */
#define ARCH_HEAD_NORMS                                                                            \
    {CHECKPOINT_ATTN_Q_NORM, ARCH_K_DIM, ARCH_ONE, .to = ARCH_TO(attn.q_norm)},                    \
    {                                                                                              \
        CHECKPOINT_ATTN_K_NORM, ARCH_K_DIM, ARCH_ONE, .to = ARCH_TO(attn.k_norm)                   \
    }
/* The matrices of attention over every position. q_rows: ARCH_GATED_Q_ROWS if it has gates. */
#define ARCH_ATTENTION ARCH_ATTENTION_OF(ARCH_Q_ROWS)
#define ARCH_ATTENTION_OF(q_rows)                                                                  \
    {CHECKPOINT_ATTN_Q, ARCH_EMBD, (q_rows), .to = ARCH_TO(attn.q), .joins_next = true},           \
        {CHECKPOINT_ATTN_K, ARCH_EMBD, ARCH_K_ROWS, .to = ARCH_TO(attn.k), .joins_next = true},    \
        {CHECKPOINT_ATTN_V, ARCH_EMBD, ARCH_V_ROWS, .to = ARCH_TO(attn.v)},                        \
    {                                                                                              \
        CHECKPOINT_ATTN_OUTPUT, ARCH_O_COLS, ARCH_EMBD, .to = ARCH_TO(attn.o)                      \
    }
/* The feed-forward that every row runs through, without its norm. */
#define ARCH_DENSE                                                                                 \
    {CHECKPOINT_FFN_GATE, ARCH_EMBD, ARCH_FF, .to = ARCH_TO(ffn.gate)},                            \
        {CHECKPOINT_FFN_UP, ARCH_EMBD, ARCH_FF, .to = ARCH_TO(ffn.up)},                            \
    {                                                                                              \
        CHECKPOINT_FFN_DOWN, ARCH_FF, ARCH_EMBD, .to = ARCH_TO(ffn.down)                           \
    }
/* Experts, of which each row runs through a few. */
#define ARCH_OF_EXPERTS                                                                            \
    {CHECKPOINT_FFN_ROUTER, ARCH_EMBD, ARCH_EXPERTS, .to = ARCH_TO(ffn.experts.router),            \
     .as_file = true},                                                                             \
        {CHECKPOINT_FFN_GATE_EXPERTS, ARCH_EMBD, ARCH_EXPERT_FF, .to = ARCH_TO(ffn.experts.gate),  \
         .per_expert = true},                                                                      \
        {CHECKPOINT_FFN_UP_EXPERTS, ARCH_EMBD, ARCH_EXPERT_FF, .to = ARCH_TO(ffn.experts.up),      \
         .per_expert = true},                                                                      \
    {                                                                                              \
        CHECKPOINT_FFN_DOWN_EXPERTS, ARCH_EXPERT_FF, ARCH_EMBD, .to = ARCH_TO(ffn.experts.down),   \
                                                                .per_expert = true                 \
    }
/* An expert that every row runs through; its factor has a separate router. */
#define ARCH_SHARED_EXPERT                                                                         \
    {CHECKPOINT_FFN_SHARED_ROUTER, ARCH_EMBD, ARCH_ROW, .to = ARCH_TO(ffn.shared_router),          \
     .as_file = true},                                                                             \
        {CHECKPOINT_FFN_GATE_SHARED, ARCH_EMBD, ARCH_FF, .to = ARCH_TO(ffn.gate)},                 \
        {CHECKPOINT_FFN_UP_SHARED, ARCH_EMBD, ARCH_FF, .to = ARCH_TO(ffn.up)},                     \
    {                                                                                              \
        CHECKPOINT_FFN_DOWN_SHARED, ARCH_FF, ARCH_EMBD, .to = ARCH_TO(ffn.down)                    \
    }

struct arch_layer {
    enum model_attn_kind attn;
    enum model_ffn_kind ffn;
    const struct arch_tensor *tensors; // in the order in which they lie in memory
    uint32_t n_tensors;
    bool weights_sum_to_1; // as in struct model_experts
    enum model_glu glu;    // the same
    bool has_shared_expert;
    bool has_window; // attention sees the last model_params.window positions only
    bool has_gate;   // as in struct model_attn
    bool is_grouped; // as in struct model_delta
};

struct arch {
    const char *name;    // general.architecture
    const char *models;  // that have it, for readers
    const char *special; // what differs from a Llama; NULL: nothing
    enum model_rope rope;
    enum { ARCH_NO_EXPERTS, ARCH_SOME_EXPERTS, ARCH_ALL_EXPERTS } experts; // files that have them
    uint32_t window_every; // every so many layers, all but the last have a window; 0: none has
    bool has_delta;        // some layers have a gated delta net
    /* Layer l of a model with these parameters. */
    const struct arch_layer *(*layer)(const struct model_params *p, uint32_t l);
};

extern const struct arch arch_gpt_oss, arch_llama, arch_qwen2, arch_qwen2moe, arch_qwen3,
    arch_qwen35, arch_qwen35moe, arch_qwen3moe, arch_qwen3next, arch_qwen3vl, arch_qwen3vlmoe;

#define ARCH_MAX_LAYERS 1024
#define ARCH_MAX_WIDTH (1u << 20) // of any matrix, vocabulary included
#define ARCH_MAX_HEADS 1024
#define ARCH_MAX_EXPERTS 1024
#define ARCH_MAX_HEAD_DIM 1024

/* Finds the file's architecture and fills in all of params but n_weights and rope_gain.
 * -ENOTSUP: the architecture, or a variant of it, is not supported. -EINVAL: a parameter is missing
 * or out of range. The sentence names the file, the parameter and the limit. */
int arch_read(const struct checkpoint *c, struct model_params *to, const struct arch **ret);

/* Kinds and shapes of layer l; its tensors stay zero. */
void arch_shape_layer(const struct arch *a, const struct model_params *p, uint32_t l,
                      struct model_layer *to);
/* The table of docs/models.md, in Markdown. */
void arch_print_table(FILE *to);
uint32_t arch_size(const struct model_params *p, const struct model_layer *l, enum arch_dim dim);
