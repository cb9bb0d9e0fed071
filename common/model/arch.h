/* arch.h - the supported architectures: which tensors a file has, and the shape of the model.
 *
 * Threads: immutable. */
#pragma once
#include "file/checkpoint.h"
#include "model/model.h"

enum arch_has { ARCH_NEVER, ARCH_MAYBE, ARCH_ALWAYS };

struct arch {
    const char *name; // general.architecture
    enum model_rope rope;
    enum arch_has qkv_bias, qk_norm;
};

#define ARCH_MAX_LAYERS 1024
#define ARCH_MAX_WIDTH (1u << 20) // of any matrix, vocabulary included
#define ARCH_MAX_HEADS 1024
#define ARCH_MAX_HEAD_DIM 1024

/* Finds the file's architecture and fills in all of params but n_weights and rope_gain.
 * -ENOTSUP: the architecture, or a variant of it, is not supported. -EINVAL: a parameter is missing
 * or out of range. The sentence names the file, the parameter and the limit. */
int arch_read(const struct checkpoint *c, struct model_params *to, const struct arch **ret);
