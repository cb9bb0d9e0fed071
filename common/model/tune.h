/* tune.h - chooses how the kernels read the matrices of a loaded model, by timing them.
 *
 * All walks of a matrix (struct kernel_walk) give the same bits. Which one is fastest depends on
 * the CPU, on the type and shape of the matrix, and on the rows of activations. tune_model() times
 * the candidates on the model's own weights, as many as do not fit into the caches. Matrices of
 * equal type and shape get the same walks. Without timing (TANDEM_TUNE=off) they get those of
 * kernel_usual_walk(). The choice may be kept in a folder. Then the next start with the same
 * CPU, threads, types and shapes does not time them again.
 *
 * Threads: the one that runs the passes, before the first pass. */
#pragma once
#include <stdint.h>
#include "model/model.h"

#define TUNE_MAX 32 // types and shapes; matrices of further ones are not timed
/* Rows of activations that are timed for struct kernel_mat's `more`. */
#define TUNE_MORE_ROWS 6

/* The walks of the matrices of one type and shape. */
struct tune_choice {
    enum kernel_type type;
    uint32_t n_out, n_in;
    struct kernel_walk one, more;
};

struct tune {
    struct tune_choice of[TUNE_MAX];
    uint32_t n;
    bool timed; // now or by an earlier start; false: they are the usual ones
};

/* Sets the walks of all matrices of m and says which in *ret. Runs for about a second at most.
 * folder: for the choice; NULL or empty: none.
 * -ENOMEM; -EINVAL: TANDEM_TUNE has another value than on or off. */
int tune_model(struct model *m, struct pool *pool, const char *folder, struct tune *ret);
/* Digest of what every measured time depends on: CPU, kernels and threads. */
uint64_t tune_machine(const struct kernel *k, const struct pool *pool);
