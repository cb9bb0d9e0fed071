/* gguf_write.h - writes GGUF v3 files: tiny models for tests, synthetic ones for benchmarks.
 *
 * Name all keys and tensors, write the head, then stream the weights in the order of the tensors.
 * A file of any size needs only the memory of its head:
 *
 *     gguf_write_new(&w);
 *     gguf_write_text(w, "general.architecture", "llama", 5);
 *     gguf_write_tensor(w, "output_norm.weight", GGUF_F32, 1, (uint64_t[]){64});
 *     gguf_write_head(w, file);
 *     gguf_write_data(w, weights, 64 * 4);       in pieces of any size
 *     gguf_write_end(w);
 *
 * The file may be an open_memstream(). gguf_write_head() reports errors in keys
 * and tensors.
 *
 * Threads: one at a time. */
#pragma once
#include <stdio.h>
#include "base/mem.h"
#include "file/gguf.h"

#define GGUF_WRITE_MAX_HEAD (1u << 30) // bytes

struct gguf_write;

int gguf_write_new(struct gguf_write **ret);
void gguf_write_free(struct gguf_write *w);
DEFINE_AUTO(struct gguf_write, gguf_write_free)

/* Keys. kind: any integer kind or GGUF_BOOL. */
void gguf_write_int(struct gguf_write *w, const char *key, enum gguf_kind kind, int64_t value);
void gguf_write_float(struct gguf_write *w, const char *key, float value);
void gguf_write_text(struct gguf_write *w, const char *key, const char *text, size_t len);
/* items: n values of a fixed-size kind, as in memory. */
void gguf_write_array(struct gguf_write *w, const char *key, enum gguf_kind kind, const void *items,
                      uint64_t n);
void gguf_write_texts(struct gguf_write *w, const char *key, const struct span *items, uint64_t n);
/* Default 32. Writes the key general.alignment. */
void gguf_write_alignment(struct gguf_write *w, uint32_t alignment);

/* shape: innermost first. */
void gguf_write_tensor(struct gguf_write *w, const char *name, enum gguf_type type, uint32_t n_dims,
                       const uint64_t *shape);

/* Writes everything before the weights. -EINVAL: a tensor whose rows do not fit its type, or whose
 * size overflows; -ENOMEM, -EMSGSIZE; errors of the file such as -EIO. */
int gguf_write_head(struct gguf_write *w, FILE *file);
/* The next bytes of weights; gaps between tensors are filled by the writer. -EINVAL: more than the
 * tensors hold; errors of the file such as -EIO. */
int gguf_write_data(struct gguf_write *w, const void *data, size_t len);
/* Flushes the file; the caller closes it. -EINVAL: weights are missing. */
int gguf_write_end(struct gguf_write *w);
