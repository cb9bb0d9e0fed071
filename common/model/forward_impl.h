/* forward_impl.h - what forward.c, the steps of a pass and the sublayers share. Not for other
 * files.
 *
 * Threads: as forward.h; the functions of a pass run on all threads of the pool. */
#pragma once
#include "model/forward.h"

#define FORWARD_NO_LOGITS UINT32_MAX
/* Up to this many rows, every thread prepares all of them for itself. That removes four barriers of
 * a layer; on a busy machine each of them may wait for a thread that is not running. */
#define FORWARD_FEW_ROWS 4

struct forward {
    const struct model *m;
    struct kv_bytes *kv;
    struct pool *pool;
    struct forward_options opt;
    void *memory; // all buffers below, one mapping
    size_t bytes;

    float *x;                       // (max_rows, n_embd): the residual stream
    float *out;                     // (max_rows, n_embd): what a sublayer adds to x
    char *attn_work, *ffn_work;     // buffers of the sublayer that runs
    size_t attn_bytes, ffn_bytes;   // of the largest ones
    float *angles;                  // (max_rows, rope_dim / 2, 2)
    char *act[KERNEL_FORMS];        // (max_rows or threads * FEW_ROWS, act_bytes): prepared
    size_t act_bytes[KERNEL_FORMS]; // 0: no matrix takes that form
    float *logits;                  // (max_logits, n_vocab)
    uint32_t *logit_row;            // (max_rows): row of `logits`, or FORWARD_NO_LOGITS
    struct kernel_sight *sights;    // (max_rows)
    uint32_t *tails;                // (max_rows, FORWARD_MAX_DEPTH)
    /* (max_rows + 1): positions that the rows before attend to, in layers without a window and with
     * one. */
    uint64_t *cost, *window_cost;
    float *scratch; // (threads, scratch_floats)
    size_t scratch_floats;

    uint32_t hidden_layers[FORWARD_MAX_HIDDEN], n_hidden;
    float *hidden; // (n_hidden, max_rows, n_embd)

    const struct pass_plan *plan; // the pass that runs
    uint32_t n_rows, n_wanted;    // n_wanted: rows that want logits
    bool alone;                   // the calling thread runs the whole pass
    bool few;                     // FORWARD_FEW_ROWS at most
};

/* What one thread has of a pass. */
struct forward_part {
    unsigned i, n;     // thread i of n
    uint32_t from, to; // its rows
    float *scratch;
    char *act[KERNEL_FORMS]; // the prepared rows that it reads
};

/* Attention and feed-forward are the two sublayers of a layer: each reads x and adds to x. A kind
 * of sublayer is one file and one table. */
struct sublayer_ops {
    /* Calls forward_need_*() for the matrices and the scratch of the layer. */
    void (*plan)(struct forward *f, const struct model_layer *l);
    /* Buffers that it needs while it runs, beside those of struct forward. */
    size_t (*bytes)(const struct forward *f, const struct model_layer *l);
    /* x += sublayer(norm(x)) for all rows, on every thread. The last step is a barrier. */
    void (*run)(struct forward *f, const struct forward_part *t, uint32_t layer);
};

extern const struct sublayer_ops attn_full;   // grouped queries, every position before the row
extern const struct sublayer_ops attn_delta;  // gated delta net
extern const struct sublayer_ops ffn_dense;   // SwiGLU
extern const struct sublayer_ops ffn_experts; // SwiGLU of the experts that a router chooses

static inline size_t forward_rounded(size_t bytes)
{
    return (bytes + KERNEL_ALIGN - 1) / KERNEL_ALIGN * KERNEL_ALIGN;
}

/* The buffers of a sublayer, one after another. */
struct forward_space {
    char *work; // NULL: they are only counted
    size_t bytes;
};

/* A buffer for rows of n floats. */
static inline float *forward_place_rows(struct forward_space *s, uint32_t max_rows, size_t n)
{
    char *here = s->work ? s->work + s->bytes : NULL;
    s->bytes += forward_rounded(max_rows * n * sizeof(float));
    return (float *)(void *)here;
}

/* ---- forward.c ---- */

/* A pass prepares rows for this matrix: of few rows and of many. */
void forward_need_matrix(struct forward *f, const struct kernel_mat *w);
void forward_need_scratch(struct forward *f, size_t floats);

/* ---- forward_step.c: the steps that sublayers consist of, on thread t ---- */

void forward_wait(struct forward *f);
/* After rows were prepared. Few rows need no barrier: each thread reads those that it prepared. */
void forward_wait_rows(struct forward *f);

/* The rows that the thread prepares: its own, or all if there are few. */
void forward_rows_to_prepare(const struct forward *f, const struct forward_part *t,
                             uint32_t *ret_from, uint32_t *ret_to);
/* Rows of x, through a norm, into every form that the matrices take. */
void forward_norm_rows(struct forward *f, const struct forward_part *t, const float *norm,
                       const struct kernel_mat *const *mats, uint32_t n_mats);
/* Rows of x (max_rows, w->n_in) into the form that w takes. */
void forward_prepare_rows(struct forward *f, const struct forward_part *t,
                          const struct kernel_mat *w, const float *x);
/* The thread's columns of a matrix that is applied by itself. */
void forward_columns(const struct forward_part *t, const struct kernel_mat *w, uint32_t *ret_from,
                     uint32_t *ret_to);
/* Columns [from, to) of y = W x for n_rows prepared rows. */
void forward_apply(struct forward *f, const struct forward_part *t, const struct kernel_mat *w,
                   float *y, uint32_t n_rows, uint32_t from, uint32_t to);
/* The thread's columns of several matrices taken together, so that narrow ones do not leave threads
 * without work. */
void forward_apply_all(struct forward *f, const struct forward_part *t,
                       const struct kernel_mat *const *mats, float *const *ys, uint32_t n_mats);
/* x += W act + bias, the thread's columns. bias NULL: none. */
void forward_apply_and_add(struct forward *f, const struct forward_part *t,
                           const struct kernel_mat *w, const float *bias);
