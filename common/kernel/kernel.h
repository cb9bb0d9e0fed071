/* kernel.h - the arithmetic of a forward pass as a table of functions, one table per CPU tier.
 *
 * kernel_c.c is the reference and always complete; each kernel_<isa>.c overrides what it does
 * better. All tiers give the same bits for a row, whatever the other rows, their number M, the
 * thread that computes it and the range of output columns it is asked for. So every sum has one
 * written order:
 *
 *   types of 32        activations are quantised per 32 of K to [-127, 127] with a float scale
 *                      dx = amax/127; sums inside 32 are exact integers; then per block in rising
 *                      order acc = fmaf((float)isum, dw * dx, acc); types with a minimum m per
 *                      32 go on with acc = fmaf(m, dx * (float)sum of q, acc).
 *   types of 256       (Q4_K, Q5_K, Q6_K, IQ4_XS) activations are quantised per 256 likewise. Of
 *                      256, the blocks' sums times their integer scales add up to an exact integer,
 *                      |isum| < 2^27; then acc = fmaf((float)isum, dw * dx, acc). Sums of q times
 *                      integer minima are another one: acc = fmaf((float)imin, -dmin * dx, acc).
 *   INT8 K and V       a query is quantised like a row of K; a score is (float)isum * (dk * (dq *
 *                      scale)). Of a piece, the weights exp(score - max) times dv become integers,
 *                      the greatest 32767; their sums with V are exact, then once made floats.
 *   F16, F32           sixteen lanes: lane l takes k = l, l + 16, ... by fmaf; joined as
 *                      ((0+8)+(4+12))+((2+10)+(6+14)) + ... : lanes i += i + 8, then 4, 2, 1.
 *                      Norms, scores and softmax sums use the same sixteen lanes and tree.
 *   BF16               activations rounded to bf16; per 32 of K one fmaf chain over even and one
 *                      over odd k, their sum added to the accumulator (what TDPBF16PS does).
 *
 * Compiled with -ffp-contract=off: a multiply-add is fused only where fmaf or an intrinsic says so.
 * exp, silu and the like are our own, the same operations in every tier. Threads that call kernels
 * run kernel_thread_init() first (flush-to-zero, denormals-are-zero).
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
};

#define KERNEL_TILE 16   // output columns that a packed layout interleaves
#define KERNEL_PIECE 256 // positions in a piece of attention; pieces start at multiples of it
#define KERNEL_ALIGN 64  // alignment of packed weights and prepared activations

/* A weight matrix y = W x with n_out rows of n_in weights, in the layout of kernel_pack(). */
struct kernel_mat {
    enum kernel_type type;
    uint32_t n_out, n_in;
    const void *data;
};

/* What prepared (quantised, rounded or copied) activations look like depends on the weights they
 * meet, and on the tier: rows of int8 blocks, of f32, or of floats rounded to bf16; or int8 blocks
 * of up to KERNEL_ROWS rows together (tiles). What is prepared for one type serves every type of
 * the same form. */
enum kernel_form {
    KERNEL_FORM_INT8,     // for types of 32
    KERNEL_FORM_INT8_256, // for types of 256
    KERNEL_FORM_F32,
    KERNEL_FORM_BF16,
    KERNEL_FORM_TILES,     // as INT8
    KERNEL_FORM_TILES_256, // as INT8_256
};
#define KERNEL_FORMS 6
#define KERNEL_ROWS 16

/* What a row's attention sees: position p < n_base in slot blocks[p / 16] * 16 + p % 16 of its
 * sequence, then n_tail positions in slots of their own: a draft row's ancestors, itself last. */
struct kernel_sight {
    uint32_t n_base, n_tail;
    const uint32_t *tail;
};

/* How K and V are kept. INT8: a row of a head has one scale for K and one for V, maxabs / 127, and
 * integers of [-127, 127], to nearest, ties to even. */
enum kernel_kv { KERNEL_KV_F16, KERNEL_KV_F32, KERNEL_KV_INT8 };
#define KERNEL_KV_BLOCK 16 // positions in a block

/* Attention of rows of one sequence under one KV head. What several rows see is read and widened
 * once for all of them; the bits of a row are those it has alone. */
struct kernel_attn {
    const float *q; // (n_heads, head_dim) of the first row; the next row's row_stride floats on
    float *out;     // the same
    size_t row_stride;
    const struct kernel_sight *sights; // (n_rows)
    uint32_t n_rows, n_heads, head_dim;
    float scale; // on q.k
    const uint32_t *blocks;
    enum kernel_kv type;
    const char *kv; // blocks under the head, as kv_put() writes them
    size_t block;   // bytes from block to block
    float *scratch; // KERNEL_ATTN_SCRATCH(head_dim) floats, aligned
};
#define KERNEL_ATTN_QUERIES 32 // rows times heads that walk K and V together
#define KERNEL_ATTN_SCRATCH(head_dim)                                                              \
    (KERNEL_ATTN_QUERIES * (KERNEL_PIECE + 8 * ((size_t)(head_dim) + 16)))

struct kernel {
    const char *name; // "c", "avx2", "avxvnni", "avx512", "amx"

    /* y[m][from..to) = W x_m. x: m rows prepared in form(w->type, m), x_bytes apart; y: rows
     * y_stride floats apart. from and to are multiples of KERNEL_TILE or n_out. Any m >= 1. */
    void (*matmul)(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m, float *y,
                   size_t y_stride, uint32_t from, uint32_t to);
    /* The form that m rows have for weights of this type: one for few rows, one for many. */
    enum kernel_form (*form)(enum kernel_type type, uint32_t m);
    /* Row r of m, n floats, into its form. to: all m rows, aligned, to_bytes (kernel_form_bytes()
     * or more) apart; for tiles there is room for m rounded up to KERNEL_ROWS. Any thread,
     * different rows. */
    void (*prepare)(enum kernel_form form, const float *x, uint32_t n, uint32_t r, uint32_t m,
                    void *to, size_t to_bytes);

    /* y = x / sqrt(mean(x^2) + eps) * w; y may be x. */
    void (*rmsnorm)(const float *x, const float *w, uint32_t n, float eps, float *y);
    /* y = silu(gate) * up, silu(x) = x / (1 + exp(-x)); y may be gate. */
    void (*swiglu)(const float *gate, const float *up, uint32_t n, float *y);
    /* y += x. */
    void (*add)(float *y, const float *x, uint32_t n);
    /* Rounds to f16 (to nearest, ties to even). */
    void (*to_f16)(const float *x, uint32_t n, uint16_t *y);
    void (*from_f16)(const uint16_t *x, uint32_t n, float *y);
    /* K and V of a head at a position into its place (0 .. 15) of a block of
     * kernel_kv_bytes(). What sees a position of INT8 with a NaN or an infinity gets NaNs. */
    void (*kv_put)(enum kernel_kv type, const float *k, const float *v, uint32_t head_dim,
                   uint32_t place, void *block);
    void (*attn)(const struct kernel_attn *a);

    /* max, then log(sum(exp(x - max))) + max, exp in float, the rest in double, sixteen lanes. NaN
     * if one of x is. */
    double (*logsumexp)(const float *x, uint32_t n);
    /* Index of the largest; ties to the lowest index; NaN never wins; n if all are NaN. */
    uint32_t (*argmax)(const float *x, uint32_t n);
    /* y = exact_math_exp(x / divisor - max) of double. */
    void (*weigh)(const float *x, uint32_t n, double divisor, double max, double *y);
    /* w = rng_u64(key, RNG_TARGET_DRAW, position, 0, token) of each token. */
    void (*noise)(uint64_t key, uint32_t position, const uint32_t *tokens, uint32_t n, uint64_t *w);
};

/* The best tier of this CPU, or the one that TANDEM_CPU (c, avx2, avxvnni, avx512, amx) names.
 * -ENOTSUP: that tier is not known, or this CPU lacks it, in one sentence. */
int kernel_init(const struct kernel **ret);
/* A tier by name; NULL: unknown, or this CPU lacks it. */
const struct kernel *kernel_tier(const char *name);
/* Every thread that calls kernels, once: FTZ and DAZ. */
void kernel_thread_init(void);

/* -ENOTSUP with a sentence for types without a kernel. */
int kernel_type_block(enum kernel_type type, uint32_t *ret_weights, uint32_t *ret_bytes);
/* The form of few rows, in every tier. */
enum kernel_form kernel_form_of(enum kernel_type type);
size_t kernel_form_bytes(enum kernel_form form, uint32_t n_in);

/* Bytes of the packed layout; the same for every tier. n_in is a multiple of the type's block;
 * n_out need not be one of KERNEL_TILE (the last tile is filled up with zeros). */
size_t kernel_packed_bytes(enum kernel_type type, uint32_t n_out, uint32_t n_in);
/* Output columns [from, to) (multiples of KERNEL_TILE or n_out) from the file's rows, which stand
 * one after the other at src. Any thread, disjoint ranges. */
void kernel_pack(enum kernel_type type, const void *src, uint32_t n_out, uint32_t n_in,
                 uint32_t from, uint32_t to, void *packed);
/* One row of the file's layout as floats; for the embedding and as an oracle. */
void kernel_dequant(enum kernel_type type, const void *row, uint32_t n_in, float *to);

/* K and V of a block under a head; a multiple of KERNEL_ALIGN. */
size_t kernel_kv_bytes(enum kernel_kv type, uint32_t head_dim);
/* A position from its place in a block into another one. */
void kernel_kv_move(enum kernel_kv type, uint32_t head_dim, const void *from, uint32_t place,
                    void *to, uint32_t to_place);
const char *kernel_kv_name(enum kernel_kv type); // "f16", "f32", "int8"
bool kernel_kv_type(const char *name, enum kernel_kv *ret);

/* The other way, to the nearest, for Q8_0 and Q4_0; n_in is a multiple of 32. */
void kernel_quantise(enum kernel_type type, const float *x, uint32_t n_in, void *row);

/* Row i of a *packed* matrix as floats: a tied embedding need not be kept twice. */
void kernel_dequant_packed(const struct kernel_mat *w, uint32_t row, float *to);

/* Products of float matrices by OpenBLAS (kernel_blas.c), where they are faster: of many rows.
 * Their bits depend on m, from, to and the CPU, so they serve no promise of same bits. */
const char *kernel_blas_init(void); // before the first; what OpenBLAS takes this CPU for
/* As k->matmul(), which takes what is left. panel: kernel_blas_floats(w) floats, the thread's own.
 */
void kernel_blas_matmul(const struct kernel *k, const struct kernel_mat *w, const void *x,
                        size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t from,
                        uint32_t to, float *panel);
/* 0 for matrices that are read as they are, or not by OpenBLAS. */
size_t kernel_blas_floats(const struct kernel_mat *w);

/* Our own exp: the same operations in every tier; relative error below 2^-22; exp(-inf) = 0. */
float kernel_expf(float x);
uint16_t kernel_f16_of(float x);
float kernel_f16_to(uint16_t h);
