/* runner.h - a model with all it takes to run: threads, weights, KV pool, activations and room for
 * a distribution.
 *
 * runner_plan() reckons what that is and compares it with what is available, before any of it is
 * taken; runner_load() takes it. Both say in the log what they found.
 *
 * Threads: made by the thread that runs the passes; kv, forward and dist are its own, the rest is
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
#include "model/kv.h"
#include "model/model.h"

struct runner_options {
    const char *prefix; // of the settings that a refusal names; NULL: none
    unsigned threads;   // 0: one per core that may be used
    bool pin, memory_check;
    int quantise;     // as in model_plan()
    bool blas;        // as in forward_options
    uint32_t context; // positions of a sequence; 0: what the model was trained for
    enum kernel_kv kv_type;
    uint64_t kv_mib;        // 0: for max_sequences, within a quarter of what is left free
    uint32_t max_sequences; // that are expected to have KV at once
    uint32_t max_rows;      // of a pass
    uint32_t max_pass_seqs; // sequences of a pass
    uint32_t min_logits;    // so many of them may always want logits
    size_t (*beside)(const void *arg, size_t block_bytes); // bytes that the caller will take once
    const void *beside_arg; // the model is loaded, given those of a block of KV; NULL: none
    uint32_t n_vocab;       // tokens that can be drawn; rows of the head beyond are padding
};

/* Bytes. What the caller holds besides, as a tokenizer, is there by then. */
struct runner_memory {
    size_t weights, activations;
    size_t kv;     // the pool and its index
    size_t beside; // what packing reads ahead, distributions, what requests hold
};

struct runner {
    struct runner_options opt;
    const struct kernel *kernel;
    struct pool *pool;
    struct model *model;
    uint32_t context;    // positions of a sequence
    uint32_t n_blocks;   // of the KV pool
    uint32_t max_logits; // rows of a pass that may want logits
    struct runner_memory memory;

    struct kv *kv;
    struct forward *forward;
    struct pass_plan plan; // of the next pass; for the caller to fill
    struct dist *dist;
};

/* c stays open until the model is loaded. Errors name what is wrong with the file; -ENOMEM: it
 * would take more than is available, with both numbers and what would fit. */
int runner_plan(struct runner *r, const struct checkpoint *c, const struct runner_options *opt);
/* progress as in model_load(). */
int runner_load(struct runner *r, bool (*progress)(void *arg, float done), void *arg);
void runner_done(struct runner *r); // also of one that is zeroed or half made

size_t runner_bytes(const struct runner_memory *m); // all of it
