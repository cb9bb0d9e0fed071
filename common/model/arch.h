/* arch.h - the architectures that are known: what their files hold, and their shapes read and
 * checked.
 *
 * Threads: immutable. */
#pragma once
#include "file/gguf.h"
#include "model/model.h"

enum arch_has { ARCH_NEVER, ARCH_MAYBE, ARCH_ALWAYS };

struct arch {
    const char *name; // general.architecture, and the prefix of its keys
    enum model_rope rope;
    enum arch_has qkv_bias, qk_norm;
};

#define ARCH_MAX_LAYERS 1024
#define ARCH_MAX_WIDTH (1u << 20) // of any matrix, vocabulary included
#define ARCH_MAX_HEADS 1024
#define ARCH_MAX_HEAD_DIM 1024

/* Finds the file's architecture and fills in all of params but n_weights and rope_gain.
 * -ENOTSUP: another architecture or a variant of it that is not built, named; -EINVAL: a key is
 * missing or absurd, named. */
int arch_read(const struct gguf *g, struct model_params *to, const struct arch **ret);

/* Numbers under "<architecture>.<name>"; -ENOENT (no sentence) if absent, -EINVAL. */
int arch_u32(const struct gguf *g, const struct arch *a, const char *name, uint32_t *ret);
int arch_float(const struct gguf *g, const struct arch *a, const char *name, float *ret);
