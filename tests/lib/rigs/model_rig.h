/* model_rig.h - a model with its pool of threads, KV pool and forward pass, for tests and
 * benchmarks. Ends the test on errors. */
#pragma once
#include "model/forward.h"
#include "model/tune.h"

struct model_rig {
    struct checkpoint *file;
    struct pool *pool;
    struct model *model;
    struct tune tune;
    struct kv *kv;
    struct forward *forward;
    struct pass_plan plan;
    uint32_t max_rows;
    bool has_own_pool;
};

/* Sequences of a pass. */
#define MODEL_RIG_MAX_SEQS 64

struct model_rig_options {
    bool may_be_alone; // small passes need not use all threads
    bool pin;          // threads to cores
    bool blas;         // float matrices through OpenBLAS
    enum kernel_kv kv_type;
    const char *tier;            // NULL: the best
    unsigned n_threads;          // 0: one
    struct pool *pool;           // of another rig, which must outlive this one; NULL: a new one
    uint32_t max_rows, n_blocks; // 0: 64, 128
};

void model_rig_open(struct model_rig *r, const char *path, const struct model_rig_options *opt);
/* The same with a file in memory, which must outlive the rig. */
void model_rig_open_memory(struct model_rig *r, const void *data, size_t len,
                           const struct model_rig_options *opt);
void model_rig_close(struct model_rig *r);

struct kv_seq model_rig_seq(const struct model_rig *r); // may take the whole pool
/* Runs tokens after those that the sequence holds, `chunk` rows a pass (0: max_rows). logits: NULL,
 * or (n, n_vocab) for the logits of every row. */
void model_rig_feed(struct model_rig *r, struct kv_seq *seq, const uint32_t *tokens, uint32_t n,
                    uint32_t chunk, float *logits);
/* Runs one token; returns its logits, which are valid until the next pass. */
const float *model_rig_step(struct model_rig *r, struct kv_seq *seq, uint32_t token);
