/* checkpoint.h - an opened model file, whatever its format: tensors, parameters, tokenizer.
 *
 * Opening checks every count, offset, text and shape. Texts and numbers before the weights are in
 * memory then. Weights are read on demand. If another process cuts the file short, reading fails.
 *
 * Callers use the same roles and keys for every format. The format translates them to its own
 * names, and errors show those. Keys:
 *
 *     general.architecture, general.name      the model as a whole
 *     tokenizer.tokens, tokenizer.merges ...  the tokenizer (text/ lists what it reads)
 *     attention.head_count ...                any other: a parameter of the architecture, named as
 *                                             in GGUF, without the architecture's prefix
 *
 * Formats: GGUF (gguf.h). A new one fills in checkpoint_format.h.
 *
 * Threads: immutable after checkpoint_open(). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/span.h"

#define CHECKPOINT_MAX_TENSORS 65536
#define CHECKPOINT_MAX_DIMS 4

struct checkpoint;

/* Reads headers only, never the weights. -ENOENT, -EACCES ...: the file. -EINVAL: malformed; the
 * error text names file, item and limit. -ENOTSUP: an unsupported format, version or tensor type,
 * which the error text names. */
int checkpoint_open(const char *path, struct checkpoint **ret);
/* Opens bytes in memory (tests, fuzzers). data is aligned as by malloc() and outlives *ret. */
int checkpoint_open_memory(const void *data, size_t len, struct checkpoint **ret);
void checkpoint_close(struct checkpoint *c);
DEFINE_AUTO(struct checkpoint, checkpoint_close)

/* The default name of a model: its file name without folder and without the suffix of a format.
 * malloc'ed; NULL: no memory. The file need not exist. */
char *checkpoint_model_name(const char *path);
const char *checkpoint_path(const struct checkpoint *c); // for error texts
int64_t checkpoint_modified(const struct checkpoint *c); // seconds since 1970; 0 in memory
/* Changes when a part of the model is written or replaced by another file. 0 in memory. */
uint64_t checkpoint_identity(const struct checkpoint *c);
/* Of all bytes before the weights: parameters, tokenizer, chat template, shapes; of all parts. */
uint64_t checkpoint_head_digest(const struct checkpoint *c);

/* ---- tensors ---- */

/* How weights are stored. OTHER: a type of the format that no model can use. */
enum checkpoint_type {
    CHECKPOINT_OTHER,
    CHECKPOINT_F32,
    CHECKPOINT_F16,
    CHECKPOINT_BF16,
    CHECKPOINT_Q4_0,
    CHECKPOINT_Q4_1,
    CHECKPOINT_Q5_0,
    CHECKPOINT_Q5_1,
    CHECKPOINT_Q8_0,
    CHECKPOINT_Q4_K,
    CHECKPOINT_Q5_K,
    CHECKPOINT_Q6_K,
    CHECKPOINT_IQ4_NL,
    CHECKPOINT_IQ4_XS,
    CHECKPOINT_MXFP4,
};
#define CHECKPOINT_TYPES (CHECKPOINT_MXFP4 + 1)

struct checkpoint_tensor {
    struct span name; // in the file
    enum checkpoint_type type;
    const char *type_name; // "Q4_0"; of OTHER types too
    uint32_t n_dims;
    uint64_t shape[CHECKPOINT_MAX_DIMS]; // innermost first; missing ones are 1
    uint32_t part;                       // of the model's files, from 0
    uint64_t offset;                     // of its first byte in that file
    size_t bytes;
};

/* The purpose of a tensor in a model. */
enum checkpoint_role {
    CHECKPOINT_TOKEN_EMBD,
    CHECKPOINT_OUTPUT_NORM,
    CHECKPOINT_OUTPUT,
    CHECKPOINT_ROPE_FREQS,
    /* of a layer */
    CHECKPOINT_ATTN_NORM,
    CHECKPOINT_ATTN_POST_NORM,
    CHECKPOINT_ATTN_Q,
    CHECKPOINT_ATTN_K,
    CHECKPOINT_ATTN_V,
    CHECKPOINT_ATTN_Q_BIAS,
    CHECKPOINT_ATTN_K_BIAS,
    CHECKPOINT_ATTN_V_BIAS,
    CHECKPOINT_ATTN_Q_NORM,
    CHECKPOINT_ATTN_K_NORM,
    CHECKPOINT_ATTN_OUTPUT,
    CHECKPOINT_ATTN_OUTPUT_BIAS,
    CHECKPOINT_ATTN_SINKS,
    /* of a layer with a gated delta net */
    CHECKPOINT_DELTA_QKV,
    CHECKPOINT_DELTA_GATE,
    CHECKPOINT_DELTA_BETA,
    CHECKPOINT_DELTA_ALPHA,
    CHECKPOINT_DELTA_BETA_ALPHA, // both in one
    CHECKPOINT_DELTA_CONV,
    CHECKPOINT_DELTA_DT_BIAS,
    CHECKPOINT_DELTA_A,
    CHECKPOINT_DELTA_NORM,
    CHECKPOINT_DELTA_OUTPUT,
    CHECKPOINT_FFN_NORM,
    CHECKPOINT_FFN_GATE,
    CHECKPOINT_FFN_UP,
    CHECKPOINT_FFN_DOWN,
    /* of a layer with experts; GATE_EXPERTS and so on: those of all experts, one after another */
    CHECKPOINT_FFN_ROUTER,
    CHECKPOINT_FFN_GATE_EXPERTS,
    CHECKPOINT_FFN_UP_EXPERTS,
    CHECKPOINT_FFN_DOWN_EXPERTS,
    CHECKPOINT_FFN_ROUTER_BIAS,
    CHECKPOINT_FFN_GATE_EXPERTS_BIAS,
    CHECKPOINT_FFN_UP_EXPERTS_BIAS,
    CHECKPOINT_FFN_DOWN_EXPERTS_BIAS,
    CHECKPOINT_FFN_SHARED_ROUTER,
    CHECKPOINT_FFN_GATE_SHARED,
    CHECKPOINT_FFN_UP_SHARED,
    CHECKPOINT_FFN_DOWN_SHARED,
};

/* The tensor of a role in a layer (0 for roles outside the layers). NULL: the file has none. */
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c,
                                                enum checkpoint_role role, uint32_t layer);
/* The format's name of that tensor. Thread-local text, valid until the next call. */
const char *checkpoint_role_name(const struct checkpoint *c, enum checkpoint_role role,
                                 uint32_t layer);
/* By the name in the file. NULL: none. */
const struct checkpoint_tensor *checkpoint_find_name(const struct checkpoint *c, const char *name);
uint32_t checkpoint_n_tensors(const struct checkpoint *c);
/* In the order of the file. */
const struct checkpoint_tensor *checkpoint_tensor_at(const struct checkpoint *c, uint32_t i);
/* Copies n bytes of a tensor, beginning at its byte `from`; from + n is at most t->bytes. Any
 * thread. -EIO: the file is shorter than when it was opened. */
int checkpoint_read(const struct checkpoint *c, const struct checkpoint_tensor *t, uint64_t from,
                    size_t n, void *to);
/* Tells the kernel that this tensor is needed soon. */
void checkpoint_prefetch(const struct checkpoint *c, const struct checkpoint_tensor *t);

/* ---- parameters ---- */

/* Integers of any width, and floats of any width, are converted if the value fits. Floats must be
 * finite. -ENOENT: no such key; fail_text() is not set, because many keys are optional. -EINVAL:
 * another kind, or out of range. */
int checkpoint_u32(const struct checkpoint *c, const char *key, uint32_t *ret);
int checkpoint_u64(const struct checkpoint *c, const char *key, uint64_t *ret);
int checkpoint_float(const struct checkpoint *c, const char *key, float *ret);
int checkpoint_bool(const struct checkpoint *c, const char *key, bool *ret);
int checkpoint_text(const struct checkpoint *c, const char *key, struct span *ret);
/* The format's name of a key. Thread-local text, valid until the next call. */
const char *checkpoint_key_name(const struct checkpoint *c, const char *key);

enum checkpoint_items { CHECKPOINT_TEXTS, CHECKPOINT_INTS, CHECKPOINT_FLOATS };

struct checkpoint_array {
    enum checkpoint_items items;
    uint64_t n;
    unsigned width;        // bytes of a number
    bool is_signed;        // integers
    const void *data;      // numbers: packed, unaligned; texts: see index
    const uint64_t *index; // of texts: where in data each begins, with its length as 8 bytes
};
int checkpoint_array(const struct checkpoint *c, const char *key, struct checkpoint_array *ret);
struct span checkpoint_array_text(const struct checkpoint_array *a, uint64_t i);
int64_t checkpoint_array_int(const struct checkpoint_array *a, uint64_t i);
double checkpoint_array_float(const struct checkpoint_array *a, uint64_t i);
