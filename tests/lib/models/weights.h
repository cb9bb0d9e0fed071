/* weights.h - random weights and activations for tests and benches of kernels. */
#pragma once
#include "kernel/kernel.h"
#include <stdbool.h>
#include <stdint.h>

#define WEIGHTS_TYPES 13
extern const struct weights_type {
    enum kernel_type type;
    const char *name;
} weights_types[WEIGHTS_TYPES];

/* n_out rows in the file's layout; scales within what models have, or, extreme, also 0, denormal,
 * huge and negative ones, and runs of one byte (weights of -128 among them). Free it. */
void *weights_random(enum kernel_type type, uint32_t n_out, uint32_t n_in, uint64_t seed,
                     bool extreme);
/* Changes the scales of such rows (not extreme ones) so that the weights have about this standard
 * deviation and no mean, as trained ones. */
void weights_scale(enum kernel_type type, void *rows, uint32_t n_out, uint32_t n_in,
                   float deviation);
/* About normal; extreme: rows and blocks of 0, of denormals, of 1e30 among them. Free it. */
float *weights_floats(uint32_t n_rows, uint32_t n, uint64_t seed, bool extreme);
/* Memory aligned for kernels; end of the test if there is none. Free it. */
void *weights_alloc(size_t bytes);
/* The packed matrix of file rows; free data. */
struct kernel_mat weights_pack(enum kernel_type type, const void *rows, uint32_t n_out,
                               uint32_t n_in);
/* Room for m rows of that type's activations in every form that they have. */
size_t weights_room(enum kernel_type type, uint32_t n_in, uint32_t m);
/* Rows of x (m, n_in) as k->matmul() takes them for that type. to: weights_room(). Returns how far
 * apart they are. */
size_t weights_prepare(const struct kernel *k, enum kernel_type type, const float *x, uint32_t m,
                       uint32_t n_in, void *to);
