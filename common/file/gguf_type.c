/* gguf_type.c - names and block layouts of tensor types (ggml.h, enum ggml_type). */
#include <errno.h>
#include <stdio.h>
#include "base/err.h"
#include "file/gguf.h"

struct type_info {
    const char *name;
    uint16_t weights, bytes; // of a block
    enum checkpoint_type type;
};

static const struct type_info types[] = {
    [0] = {"F32", 1, 4, CHECKPOINT_F32},           [1] = {"F16", 1, 2, CHECKPOINT_F16},
    [2] = {"Q4_0", 32, 18, CHECKPOINT_Q4_0},       [3] = {"Q4_1", 32, 20, CHECKPOINT_Q4_1},
    [6] = {"Q5_0", 32, 22, CHECKPOINT_Q5_0},       [7] = {"Q5_1", 32, 24, CHECKPOINT_Q5_1},
    [8] = {"Q8_0", 32, 34, CHECKPOINT_Q8_0},       [9] = {"Q8_1", 32, 36, CHECKPOINT_OTHER},
    [10] = {"Q2_K", 256, 84, CHECKPOINT_OTHER},    [11] = {"Q3_K", 256, 110, CHECKPOINT_OTHER},
    [12] = {"Q4_K", 256, 144, CHECKPOINT_Q4_K},    [13] = {"Q5_K", 256, 176, CHECKPOINT_Q5_K},
    [14] = {"Q6_K", 256, 210, CHECKPOINT_Q6_K},    [15] = {"Q8_K", 256, 292, CHECKPOINT_OTHER},
    [16] = {"IQ2_XXS", 256, 66, CHECKPOINT_OTHER}, [17] = {"IQ2_XS", 256, 74, CHECKPOINT_OTHER},
    [18] = {"IQ3_XXS", 256, 98, CHECKPOINT_OTHER}, [19] = {"IQ1_S", 256, 50, CHECKPOINT_OTHER},
    [20] = {"IQ4_NL", 32, 18, CHECKPOINT_IQ4_NL},  [21] = {"IQ3_S", 256, 110, CHECKPOINT_OTHER},
    [22] = {"IQ2_S", 256, 82, CHECKPOINT_OTHER},   [23] = {"IQ4_XS", 256, 136, CHECKPOINT_IQ4_XS},
    [24] = {"I8", 1, 1, CHECKPOINT_OTHER},         [25] = {"I16", 1, 2, CHECKPOINT_OTHER},
    [26] = {"I32", 1, 4, CHECKPOINT_OTHER},        [27] = {"I64", 1, 8, CHECKPOINT_OTHER},
    [28] = {"F64", 1, 8, CHECKPOINT_OTHER},        [29] = {"IQ1_M", 256, 56, CHECKPOINT_OTHER},
    [30] = {"BF16", 1, 2, CHECKPOINT_BF16},        [34] = {"TQ1_0", 256, 54, CHECKPOINT_OTHER},
    [35] = {"TQ2_0", 256, 66, CHECKPOINT_OTHER},   [39] = {"MXFP4", 32, 17, CHECKPOINT_MXFP4},
};

static const struct type_info *info_of(enum gguf_type type)
{
    if ((unsigned)type >= ARRAY_LEN(types) || !types[type].name)
        return NULL;
    return &types[type];
}

const char *gguf_type_name(enum gguf_type type)
{
    static _Thread_local char text[24];
    const struct type_info *info = info_of(type);
    if (info)
        return info->name;
    snprintf(text, sizeof(text), "type %u", (unsigned)type);
    return text;
}

int gguf_type_block(enum gguf_type type, uint32_t *ret_weights, uint32_t *ret_bytes)
{
    const struct type_info *info = info_of(type);
    if (!info)
        return fail(-ENOTSUP, "gguf: tensor type %u is not known", (unsigned)type);
    *ret_weights = info->weights;
    *ret_bytes = info->bytes;
    return 0;
}

enum checkpoint_type gguf_type_checkpoint(enum gguf_type type)
{
    const struct type_info *info = info_of(type);
    return info ? info->type : CHECKPOINT_OTHER;
}
