/* kernel.h - the arithmetic of a forward pass as a table of functions, one table per CPU tier.
 *
 * kernel_c.c is the reference and always complete. Each kernel_<isa>.c overrides the functions that
 * its instructions speed up. All tiers give the same bits for a row. The bits do not depend on the
 * other rows, their number M, the thread, or the range of output columns of a call. Every sum
 * therefore has one fixed order:
 *
 *   types of 32        Activations are quantised per 32 of K to [-127, 127] with a float scale
 *                      dx = amax/127. Sums inside 32 are exact integers. Then, per block in rising
 *                      order, acc = fmaf((float)isum, dw * dx, acc). Types with a minimum m per
 *                      32 then add acc = fmaf(m, dx * (float)sum of q, acc).
 *   types of 256       (Q4_K, Q5_K, Q6_K, IQ4_XS) Activations are quantised in the same way, but
 *                      per 256. The sum of each block is multiplied by its integer scale. Over 256
 *                      of K, these products add up to an exact integer, |isum| < 2^27. Then
 *                      acc = fmaf((float)isum, dw * dx, acc). The sums of q times the integer
 *                      minima form a second integer, imin. Then
 *                      acc = fmaf((float)imin, -dmin * dx, acc).
 *   INT8 K and V       A query is quantised like a row of K. A score is (float)isum * (dk * (dq *
 *                      scale)). In each piece, the weights exp(score - max) * dv are scaled and
 *                      rounded to integers; the largest is 32767. Their sums with V are exact
 *                      integers. They are converted to floats once, at the end.
 *   F16, F32           Sixteen lanes: lane l takes k = l, l + 16, ... by fmaf. A tree joins them:
 *                      lane i += lane i + 8, then + 4, + 2, + 1, as in
 *                      ((0+8)+(4+12))+((2+10)+(6+14)) + ... Norms, scores and softmax sums use the
 *                      same sixteen lanes and tree.
 *   BF16               Activations are rounded to bf16. Per 32 of K, one fmaf chain runs over even
 *                      k and one over odd k. Their sum is added to the accumulator, as TDPBF16PS
 *                      does.
 *
 * The code is compiled with -ffp-contract=off: only fmaf and intrinsics fuse a multiply-add. exp,
 * silu and similar functions are our own, with the same operations in every tier. Threads that call
 * kernels call kernel_thread_init() first (flush-to-zero, denormals-are-zero).
 *
 * Threads: the table is immutable after kernel_init(); functions touch only their arguments. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Types of weights. */
enum kernel_type {
    KERNEL_F32,
    KERNEL_F16,
    KERNEL_BF16,
    KERNEL_Q4_0,
    KERNEL_Q4_1,
    KERNEL_Q5_0,
    KERNEL_Q5_1,
    KERNEL_Q8_0,
    KERNEL_Q4_K,
    KERNEL_Q5_K,
    KERNEL_Q6_K,
    KERNEL_IQ4_NL,
    KERNEL_IQ4_XS,
    KERNEL_MXFP4,
};

#define KERNEL_TILE 16   // output columns that a packed layout interleaves
#define KERNEL_PIECE 256 // positions in a piece of attention; pieces start at multiples of it
#define KERNEL_ALIGN 64  // alignment of packed weights and prepared activations

/* How a thread reads the tiles of a matrix. It changes the speed and never the bits. {0}:
 * eight tiles, as CPUs of Intel want it. Quantised types and BF16. */
struct kernel_walk {
    uint8_t n_streams; // tiles read side by side, 1 .. KERNEL_STREAMS
    uint16_t ahead;    // distance of the prefetch in each tile, in bytes; 0: none
};
#define KERNEL_STREAMS 8

/* The matrix W of y = W x: n_out rows of n_in weights, in the layout of kernel_pack(). */
struct kernel_mat {
    enum kernel_type type;
    uint32_t n_out, n_in;
    const void *data;
    struct kernel_walk one, more; // for one row of activations, and for more rows
};

/* The form of prepared (quantised, rounded or copied) activations. It depends on the type of the
 * weights and on the tier:
 *   INT8, INT8_256     rows of int8 blocks
 *   F32, BF16          rows of floats; for BF16 rounded to bf16
 *   TILES, TILES_256   int8 blocks of up to KERNEL_ROWS rows together
 * Activations prepared for one type serve every type of the same form. */
enum kernel_form {
    KERNEL_FORM_INT8,     // for types of 32
    KERNEL_FORM_INT8_256, // for types of 256
    KERNEL_FORM_F32,
    KERNEL_FORM_BF16,
    KERNEL_FORM_TILES,     // for the types of INT8
    KERNEL_FORM_TILES_256, // for the types of INT8_256
};
#define KERNEL_FORMS 6
#define KERNEL_ROWS 16

/* The positions that the attention of a row sees. Position p < n_base lies in slot
 * blocks[p / 16] * 16 + p % 16 of the sequence. Then come n_tail positions, each in a slot named by
 * `tail`: the ancestors of a draft row, and last the row itself. */
struct kernel_sight {
    uint32_t n_base, n_tail;
    const uint32_t *tail;
};

/* The storage of K and V. INT8: a row of a head has one scale for K and one for V, maxabs / 127.
 * Its values are integers in [-127, 127], rounded to nearest, ties to even. */
enum kernel_kv { KERNEL_KV_F16, KERNEL_KV_F32, KERNEL_KV_INT8 };
#define KERNEL_KV_BLOCK 16 // positions in a block

/* Attention of rows of one sequence under one KV head. Positions that several rows see are read and
 * widened once for all these rows. The bits of a row are the same as if it were alone. */
struct kernel_attn {
    const float *q; // (n_heads, head_dim) of the first row; rows are row_stride floats apart
    float *out;     // (n_heads, head_dim) of the first row; rows have the same stride
    size_t row_stride;
    const struct kernel_sight *sights; // (n_rows)
    uint32_t n_rows, n_heads, head_dim;
    uint32_t window; // a row sees only the last `window` of its positions; 0: all
    float scale;     // factor of the scores q.k
    /* (n_heads): one more score of each head, of a position whose V is 0; NULL: none. */
    const float *sinks;
    const uint32_t *blocks;
    enum kernel_kv type;
    const char *kv; // blocks of this head, as kv_put() writes them
    size_t block;   // bytes from one block to the next
    float *scratch; // KERNEL_ATTN_SCRATCH(head_dim) floats, aligned
};
#define KERNEL_ATTN_QUERIES 32 // rows times heads that read K and V together
#define KERNEL_ATTN_SCRATCH(head_dim)                                                              \
    (KERNEL_ATTN_QUERIES * (KERNEL_PIECE + 8 * ((size_t)(head_dim) + 16)))

/* Rows of one sequence through one value head of a gated delta net. Row by row:
 *
 *     S = decay S;  S += k (x) beta (v - S^T k);  out = scale S^T q
 *
 * The sums over the keys have four chains by fmaf, k = c, c + 4, ..., joined as (0+1)+(2+3). */
struct kernel_delta {
    float *state; // S: (v_dim / 16, k_dim, 16), aligned; becomes that after the last row
    /* (k_dim), (k_dim), (v_dim) of the first row; rows are row_stride floats apart. q NULL: only
     * the state is wanted. */
    const float *q, *k, *v;
    size_t row_stride;
    const float *gates; // (2): decay and beta of the first row; rows are gates_stride apart
    size_t gates_stride;
    float *out; // (v_dim) of the first row; rows are out_stride apart
    size_t out_stride;
    float scale;
    uint32_t n_rows, k_dim, v_dim; // dimensions: multiples of 16
};

struct kernel {
    const char *name; // "c", "avx2", "avxvnni", "avx512", "amx"

    /* y[m][from..to) = W x_m. x: m rows prepared in form(w->type, m), x_bytes apart; y: rows
     * y_stride floats apart. from and to are multiples of KERNEL_TILE or n_out. Any m >= 1. */
    void (*matmul)(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m, float *y,
                   size_t y_stride, uint32_t from, uint32_t to);
    /* The form of m rows for weights of this type. It may differ between few rows and many. */
    enum kernel_form (*form)(enum kernel_type type, uint32_t m);
    /* Converts row r of m rows, each of n floats, to `form`. to: aligned memory of all m rows,
     * to_bytes apart (at least kernel_form_bytes()). For tiles, it has space for m rounded up to
     * KERNEL_ROWS. Several threads may prepare different rows at the same time. */
    void (*prepare)(enum kernel_form form, const float *x, uint32_t n, uint32_t r, uint32_t m,
                    void *to, size_t to_bytes);

    /* y = x / sqrt(mean(x^2) + eps) * w; y may be x. */
    void (*rmsnorm)(const float *x, const float *w, uint32_t n, float eps, float *y);
    /* y = silu(gate) * up, silu(x) = x / (1 + exp(-x)); y may be gate. */
    void (*swiglu)(const float *gate, const float *up, uint32_t n, float *y);
    /* That of gpt-oss: with g = min(gate, 7) and u = up, moved into [-7, 7],
     * y = g / (1 + exp(-1.702 g)) * (u + 1). y may be gate. */
    void (*swiglu_clamped)(const float *gate, const float *up, uint32_t n, float *y);
    /* y += x. */
    void (*add)(float *y, const float *x, uint32_t n);
    /* y = fmaf(factor, x, y). */
    void (*add_scaled)(float *y, float factor, const float *x, uint32_t n);
    /* Rounds to f16 (to nearest, ties to even). */
    void (*to_f16)(const float *x, uint32_t n, uint16_t *y);
    void (*from_f16)(const uint16_t *x, uint32_t n, float *y);
    /* Writes K and V of a head at a position to its place (0 .. 15) in a block of
     * kernel_kv_bytes(). INT8: if a value is a NaN or an infinity, every row that sees the
     * position gets NaNs. */
    void (*kv_put)(enum kernel_kv type, const float *k, const float *v, uint32_t head_dim,
                   uint32_t place, void *block);
    void (*attn)(const struct kernel_attn *a);

    void (*delta)(const struct kernel_delta *d);
    /* y = silu(w[0] x[0] + w[1] x[1] + ...), by fmaf. x: (n_taps) rows, the oldest first; w: rows
     * w_stride floats apart. n: a multiple of 16, as of the next two. */
    void (*conv_silu)(const float *const *x, const float *w, size_t w_stride, uint32_t n_taps,
                      uint32_t n, float *y);
    /* y = x / sqrt(sum(x^2) + eps); y may be x. */
    void (*l2norm)(const float *x, uint32_t n, float eps, float *y);
    /* y *= 1 / (1 + exp(-gate)). */
    void (*mul_sigmoid)(const float *gate, uint32_t n, float *y);

    /* log(sum(exp(x - max))) + max, with sixteen lanes: exp in float, the rest in double. NaN if
     * any x is a NaN. */
    double (*logsumexp)(const float *x, uint32_t n);
    /* Index of the largest value; ties go to the lowest index. NaNs are skipped; n if all are. */
    uint32_t (*argmax)(const float *x, uint32_t n);
    /* y = exact_math_exp(x / divisor - max), in double. */
    void (*weigh)(const float *x, uint32_t n, double divisor, double max, double *y);
    /* w[i] = rng_u64(key, RNG_TARGET_DRAW, position, 0, tokens[i]). */
    void (*noise)(uint64_t key, uint32_t position, const uint32_t *tokens, uint32_t n, uint64_t *w);
};

/* The best tier of this CPU, or the one that TANDEM_CPU (c, avx2, avxvnni, avx512, amx) names.
 * -ENOTSUP: the tier is unknown, or this CPU does not have it; the error text says which. */
int kernel_init(const struct kernel **ret);
/* A tier by name. NULL: unknown, or this CPU does not have it. */
const struct kernel *kernel_tier(const char *name);
/* The walk that is usually fastest on this CPU's family. */
struct kernel_walk kernel_usual_walk(void);
/* The products of this tier follow kernel_mat's walks. */
bool kernel_has_walks(const struct kernel *k, enum kernel_type type);
/* Sets FTZ and DAZ. Every thread calls this once, before its first kernel. */
void kernel_thread_init(void);

/* Weights and bytes of a block in the file. -ENOTSUP, with an error text: the type has no
 * kernel. */
int kernel_type_block(enum kernel_type type, uint32_t *ret_weights, uint32_t *ret_bytes);
const char *kernel_type_name(enum kernel_type type); // "Q8_0"
/* The form of few rows; the same in every tier. */
enum kernel_form kernel_form_of(enum kernel_type type);
size_t kernel_form_bytes(enum kernel_form form, uint32_t n_in);

/* Incremented when kernel_pack() writes other bytes. */
#define KERNEL_PACKING 1
/* Bytes of the packed layout; the same for every tier. n_in is a multiple of the type's block.
 * n_out may be any number; the last tile is filled up with zeros. */
size_t kernel_packed_bytes(enum kernel_type type, uint32_t n_out, uint32_t n_in);
/* Packs output columns [from, to); both are multiples of KERNEL_TILE or n_out. src: the rows one
 * after another, as in the file. Several threads may pack disjoint ranges at the same time. */
void kernel_pack(enum kernel_type type, const void *src, uint32_t n_out, uint32_t n_in,
                 uint32_t from, uint32_t to, void *packed);
/* Converts one row in the layout of the file to floats; for the embedding and as an oracle. */
void kernel_dequant(enum kernel_type type, const void *row, uint32_t n_in, float *to);

/* Bytes of K and V of a block for one head; a multiple of KERNEL_ALIGN. */
size_t kernel_kv_bytes(enum kernel_kv type, uint32_t head_dim);
/* Copies a position from its place in one block to a place in another. */
void kernel_kv_move(enum kernel_kv type, uint32_t head_dim, const void *from, uint32_t place,
                    void *to, uint32_t to_place);
const char *kernel_kv_name(enum kernel_kv type); // "f16", "f32", "int8"
bool kernel_kv_type(const char *name, enum kernel_kv *ret);

/* Quantises a row to the layout of the file, to nearest; Q8_0 and Q4_0. n_in: a multiple of 32. */
void kernel_quantise(enum kernel_type type, const float *x, uint32_t n_in, void *row);

/* Converts one row of a *packed* matrix to floats, so that a tied embedding is stored once. */
void kernel_dequant_packed(const struct kernel_mat *w, uint32_t row, float *to);

/* Products of float matrices by OpenBLAS (kernel_blas.c), which is faster for many rows. The bits
 * depend on m, from, to and the CPU: the promise of same bits does not hold for these products. */
/* Called before the first product. Returns OpenBLAS's name for this CPU. */
const char *kernel_blas_init(void);
/* Like k->matmul(), which it calls where OpenBLAS is not faster. panel: kernel_blas_floats(w)
 * floats of the calling thread. */
void kernel_blas_matmul(const struct kernel *k, const struct kernel_mat *w, const void *x,
                        size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t from,
                        uint32_t to, float *panel);
/* Floats of a panel for w; 0 if w needs no widening or OpenBLAS does not read it. */
size_t kernel_blas_floats(const struct kernel_mat *w);

/* Our own exp: the same operations in every tier. Relative error below 2^-22; exp(-inf) is 0. */
float kernel_expf(float x);
uint16_t kernel_f16_of(float x);
float kernel_f16_to(uint16_t h);
