/* gguf.h - the GGUF format, v2 and v3, as numbers in a file and as a format of checkpoints.
 *
 * The format is defined in ggml's docs/gguf.md. Split files (-00001-of-00004) are opened by their
 * first part; parameters come from it.
 *
 * Threads: plain functions. */
#pragma once
#include <stdint.h>
#include "file/checkpoint.h"

/* Tensor types by their number in the file. */
enum gguf_type {
    GGUF_F32 = 0,
    GGUF_F16 = 1,
    GGUF_Q4_0 = 2,
    GGUF_Q4_1 = 3,
    GGUF_Q5_0 = 6,
    GGUF_Q5_1 = 7,
    GGUF_Q8_0 = 8,
    GGUF_Q2_K = 10,
    GGUF_Q3_K = 11,
    GGUF_Q4_K = 12,
    GGUF_Q5_K = 13,
    GGUF_Q6_K = 14,
    GGUF_Q8_K = 15,
    GGUF_IQ4_NL = 20,
    GGUF_IQ4_XS = 23,
    GGUF_BF16 = 30,
    GGUF_MXFP4 = 39,
};

/* Kinds of metadata values. */
enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_FLOAT32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_FLOAT64,
};

#define GGUF_MAX_KEYS 65536
#define GGUF_MAX_ITEMS (16u << 20) // in an array
#define GGUF_MAX_TEXT (16u << 20)  // bytes of a string
#define GGUF_MAX_NAME 1024         // bytes of a key or of a tensor's name
#define GGUF_MAX_ALIGNMENT 65536
#define GGUF_MAX_SPLITS 1024

/* "Q8_0" ...; "type 99" for a number that is not known. Static or thread-local text. */
const char *gguf_type_name(enum gguf_type type);
/* Weights in a block and bytes of a block. -ENOTSUP: the layout is not known. Covers types that are
 * not in the enum, so that a model can refuse them by name. */
int gguf_type_block(enum gguf_type type, uint32_t *ret_weights, uint32_t *ret_bytes);

/* The same type in a checkpoint. */
enum checkpoint_type gguf_type_checkpoint(enum gguf_type type);

extern const struct checkpoint_format gguf_format;
