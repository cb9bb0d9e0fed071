/* gguf.h - validated, mapped reader of GGUF v2 and v3 files (format: ggml docs/gguf.md).
 *
 * Every count, offset, string and shape is checked when the file is opened; after that reading
 * cannot leave the mapping. Split files (-00001-of-00004) are opened by their first part. A file
 * that is cut short under a running process raises SIGBUS: do not write into a served model.
 *
 * Threads: immutable after gguf_open(). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

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

#define GGUF_MAX_TENSORS 65536
#define GGUF_MAX_KEYS 65536
#define GGUF_MAX_ITEMS (16u << 20) // in an array
#define GGUF_MAX_TEXT (16u << 20)  // bytes of a string
#define GGUF_MAX_NAME 1024         // bytes of a key or of a tensor's name
#define GGUF_MAX_ALIGNMENT 65536
#define GGUF_MAX_SPLITS 1024
#define GGUF_MAX_DIMS 4

struct gguf;

struct gguf_text { // not NUL-terminated; points into the mapping
    const char *data;
    size_t len;
};

struct gguf_tensor {
    struct gguf_text name;
    enum gguf_type type;
    uint32_t n_dims;
    uint64_t shape[GGUF_MAX_DIMS]; // as in the file: innermost first; missing ones are 1
    const void *data;              // aligned as the file says
    size_t bytes;
};

/* "Q8_0" ...; "type 99" for a number that means nothing here. Static or thread-local text. */
const char *gguf_type_name(enum gguf_type type);
/* Weights in a block and bytes of a block; -ENOTSUP, with a sentence, for types whose layout is not
 * known. Also knows types that are not in the enum, so that a model can refuse them by name. */
int gguf_type_block(enum gguf_type type, uint32_t *ret_weights, uint32_t *ret_bytes);

/* -ENOENT, -EACCES ..., -EINVAL (the sentence names file, thing and limit), -ENOTSUP (a version, or
 * a tensor type, that is not supported; named). Reads headers only, never the weights. */
int gguf_open(const char *path, struct gguf **ret);
/* The same over bytes in memory that outlive it (tests, fuzzer): one part, aligned like malloc's.
 */
int gguf_open_memory(const void *data, size_t len, struct gguf **ret);
void gguf_close(struct gguf *g);
DEFINE_AUTO(struct gguf, gguf_close)

uint32_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint32_t i);
const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name); // NULL: none
size_t gguf_bytes(const struct gguf *g);                                     // of all parts
int64_t gguf_modified(const struct gguf *g); // file time, seconds since 1970; 0 in memory
/* Tells the kernel that these bytes of a tensor are (not) needed soon; used around repacking. */
void gguf_advise(const struct gguf *g, const void *at, size_t bytes, bool needed);

/* Metadata (of the first part). Numbers of any integer kind convert if the value fits, as do the
 * two float kinds; floats are finite. -ENOENT: no such key (no sentence: many are optional);
 * -EINVAL: another kind, or out of range. */
int gguf_u32(const struct gguf *g, const char *key, uint32_t *ret);
int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret);
int gguf_float(const struct gguf *g, const char *key, float *ret);
int gguf_bool(const struct gguf *g, const char *key, bool *ret);
int gguf_str(const struct gguf *g, const char *key, struct gguf_text *ret);

/* Arrays. */
struct gguf_array {
    enum gguf_kind kind;
    uint64_t n;
    const void *items;     // packed as in the file, unaligned; strings: see gguf_array_text()
    const uint64_t *index; // of strings: where each begins
};
int gguf_array(const struct gguf *g, const char *key, struct gguf_array *ret);
struct gguf_text gguf_array_text(const struct gguf_array *a, uint64_t i); // kind GGUF_STRING
int64_t gguf_array_int(const struct gguf_array *a, uint64_t i);           // integer and bool kinds
double gguf_array_float(const struct gguf_array *a, uint64_t i);          // float kinds
