/* runner.h - a model and everything that running it needs: threads, weights, KV pool, activations
 * and the memory of distributions.
 *
 * runner_plan() calculates the memory and compares it with the available memory, before it
 * allocates any. runner_load() allocates it. Both log the result.
 *
 * Threads: the thread that runs the passes creates it and owns kv, forward and dists. The rest is
 * immutable once it is loaded. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/pool.h"
#include "file/checkpoint.h"
#include "kernel/kernel.h"
#include "model/dist.h"
#include "model/forward.h"
#include "kv/kv.h"
#include "model/model.h"
#include "model/tune.h"

struct runner_options {
    const char *prefix; // of settings that errors name ("draft."); NULL: none
    unsigned threads;   // 0: one per usable core
    bool pin, memory_check;
    int quantise;              // as in model_plan()
    bool blas;                 // as in forward_options
    const char *weights_cache; // as in model_load_options
    uint32_t context;          // positions of a sequence; 0: those of the training
    enum kernel_kv kv_type;
    uint64_t kv_mib;        // 0: for max_sequences, at most a quarter of the free memory
    uint32_t max_sequences; // sequences expected to hold KV at the same time
    uint32_t max_rows;      // of a pass
    uint32_t max_pass_seqs; // sequences of a pass
    uint32_t min_logits;    // rows of a pass that can always have logits
    /* Bytes that the caller will allocate once the model is loaded. NULL: none. */
    size_t (*beside)(const void *arg, const struct kv_shape *shape);
    const void *beside_arg;
    uint32_t n_vocab;   // tokens that can be drawn; further rows of the head are padding
    unsigned max_dists; // distributions that threads compute at the same time; 0: 1
};
#define RUNNER_MAX_DISTS 16

/* Bytes. Memory that the caller holds by then, such as the tokenizer, is not counted. */
struct runner_memory {
    size_t weights; // without those that another service has mapped
    size_t activations;
    size_t kv;     // the pool and its index
    size_t states; // of recurrent layers
    size_t beside; // pages read ahead while packing, distributions, requests
};

struct runner {
    struct runner_options opt;
    const struct kernel *kernel;
    struct pool *pool;
    struct model *model;
    uint32_t context;    // positions of a sequence
    uint32_t n_blocks;   // of the KV pool
    uint32_t n_states;   // of recurrent layers, also for snapshots; 0: no layer is recurrent
    uint32_t max_logits; // rows of a pass that can have logits
    struct runner_memory memory;
    struct tune tune; // how the kernels read the weights

    struct kv *kv;
    struct forward *forward;
    struct pass_plan plan;                // of the next pass; for the caller to fill
    struct dist *dists[RUNNER_MAX_DISTS]; // (n_dists)
    unsigned n_dists;                     // at most one per thread
};

/* c must stay open until the model is loaded. Errors name the file and the limit. -ENOMEM: not
 * enough memory; the sentence has both sizes and a setting that would fit. */
int runner_plan(struct runner *r, const struct checkpoint *c, const struct runner_options *opt);
/* progress as in model_load(). */
int runner_load(struct runner *r, bool (*progress)(void *arg, float done), void *arg);
void runner_done(struct runner *r); // also of a zeroed or partly loaded one

size_t runner_bytes(const struct runner_memory *m); // the sum
