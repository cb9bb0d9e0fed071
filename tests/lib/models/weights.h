/* weights.h - random weights and activations for tests and benches of kernels. */
#pragma once
#include "kernel/kernel.h"
#include <stdbool.h>
#include <stdint.h>

#define WEIGHTS_TYPES 14
extern const struct weights_type {
    enum kernel_type type;
    const char *name;
} weights_types[WEIGHTS_TYPES];

/* n_out rows in the file's layout, with scales as in real models; free it. extreme: also scales of
 * 0, denormal, huge or negative ones, and runs of one byte, which include weights of -128. */
void *weights_random(enum kernel_type type, uint32_t n_out, uint32_t n_in, uint64_t seed,
                     bool extreme);
/* Changes the scales of rows that are not extreme. The weights then have about this standard
 * deviation and mean 0, like trained ones. */
void weights_scale(enum kernel_type type, void *rows, uint32_t n_out, uint32_t n_in,
                   float deviation);
/* About normally distributed; free it. extreme: also rows and blocks of 0, denormals, 1e30. */
float *weights_floats(uint32_t n_rows, uint32_t n, uint64_t seed, bool extreme);
/* Memory aligned for kernels; free it. Ends the test if there is no memory. */
void *weights_alloc(size_t bytes);
/* The packed matrix of file rows; free data. */
struct kernel_mat weights_pack(enum kernel_type type, const void *rows, uint32_t n_out,
                               uint32_t n_in);
/* Bytes for m rows of activations for that type, in the largest of their forms. */
size_t weights_room(enum kernel_type type, uint32_t n_in, uint32_t m);
/* Prepares rows of x (m, n_in) as k->matmul() expects them for that type. to: weights_room() bytes.
 * Returns the distance between rows in bytes. */
size_t weights_prepare(const struct kernel *k, enum kernel_type type, const float *x, uint32_t m,
                       uint32_t n_in, void *to);
