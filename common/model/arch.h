/* arch.h - the architectures: each is one file that describes its layers as data.
 *
 * A description names the kinds of a layer's attention and feed-forward, and the tensors that a
 * file must have for it. arch.c has the table of architectures and reads the shapes that all share.
 *
 * Threads: immutable. */
#pragma once
#include <stddef.h>
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
    ARCH_FF,
};

/* A tensor of a layer, and where it goes. */
struct arch_tensor {
    enum checkpoint_role role;
    enum arch_dim n_in, n_out;
    size_t to; // offset in struct model_layer: of a kernel_mat, or of a vector's pointer
    enum arch_has has;
    bool joins_next; // a pass applies it together with the next matrix
};

#define ARCH_TO(member) offsetof(struct model_layer, member)

struct arch_layer {
    enum model_attn_kind attn;
    enum model_ffn_kind ffn;
    const struct arch_tensor *tensors; // in the order in which they lie in memory
    uint32_t n_tensors;
};

struct arch {
    const char *name; // general.architecture
    enum model_rope rope;
    /* Layer l of a model with these parameters. */
    const struct arch_layer *(*layer)(const struct model_params *p, uint32_t l);
};

extern const struct arch arch_llama, arch_qwen2, arch_qwen3;

#define ARCH_MAX_LAYERS 1024
#define ARCH_MAX_WIDTH (1u << 20) // of any matrix, vocabulary included
#define ARCH_MAX_HEADS 1024
#define ARCH_MAX_HEAD_DIM 1024

/* Finds the file's architecture and fills in all of params but n_weights and rope_gain.
 * -ENOTSUP: the architecture, or a variant of it, is not supported. -EINVAL: a parameter is missing
 * or out of range. The sentence names the file, the parameter and the limit. */
int arch_read(const struct checkpoint *c, struct model_params *to, const struct arch **ret);

/* Kinds and shapes of layer l; its tensors stay zero. */
void arch_shape_layer(const struct arch *a, const struct model_params *p, uint32_t l,
                      struct model_layer *to);
uint32_t arch_size(const struct model_params *p, const struct model_layer *l, enum arch_dim dim);
