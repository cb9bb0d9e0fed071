/* kernel_c.c - the reference tier: plain C, complete, for every CPU. */
#include "kernel/kernel_impl.h"
#include <math.h>
#include <string.h>

#define LANES for (int i = 0; i < 16; i++)
#define DOT_ROWS 1
#define DOT_COLS(rows) 1
#define DOT_EACH_ROWS(X) X(1)
#define DOT_AHEAD 64
#define DOT_FEW 8
#define DOT_MAX_ROWS 16
#define DOT_PART 256
#define DOT_TILES 1
#define INT8_MAX_ROWS 1 // not interleaved
#define BF16_ROWS 1
#define BF16_EACH_ROWS(X) X(1)
#define V_SUMS 4
#define V_PARTS 1
#define V_TURNED 1
#define V_TILES 1
#define I_TILES 1
#define I_HEADS 1
#define I_PARTS 1
#define DELTA_BLOCKS 1

typedef struct {
    float l[16];
} vf;
typedef struct {
    int32_t l[16];
} vi, va;
typedef struct {
    uint8_t l[16][4];
} vk;
typedef struct {
    int8_t l[16][4];
} vv;
typedef struct {
    int8_t q[4];
} vq;
typedef struct {
    int16_t t[4];
} vt;
typedef struct {
    double l[16];
} vd;

INLINE vf v_set(float x)
{
    vf r;
    LANES r.l[i] = x;
    return r;
}

INLINE vf v_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof(r));
    return r;
}

/* Loads the first n of p; the other lanes are `fill`. */
INLINE vf v_load_n(const float *p, uint32_t n, float fill)
{
    vf r = v_set(fill);
    memcpy(&r, p, n * sizeof(*p));
    return r;
}

INLINE void v_store(float *p, vf a)
{
    memcpy(p, &a, sizeof(a));
}

INLINE void v_store_n(float *p, uint32_t n, vf a)
{
    memcpy(p, &a, n * sizeof(*p));
}

INLINE vf v_half_load(const uint16_t *p)
{
    vf r;
    LANES r.l[i] = kernel_f16_to(p[i]);
    return r;
}

INLINE vf v_half_load_n(const uint16_t *p, uint32_t n)
{
    vf r = v_set(0);
    for (uint32_t i = 0; i < n; i++)
        r.l[i] = kernel_f16_to(p[i]);
    return r;
}

/* Transposes 16 rows of 16 halfs and widens them: to[16 c + r]. */
INLINE void v_half_turn(const uint16_t *rows, size_t stride, float *to)
{
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++)
            to[16 * c + r] = kernel_f16_to(rows[(size_t)r * stride + (size_t)c]);
}

INLINE void v_half_store(uint16_t *p, vf a)
{
    LANES p[i] = kernel_f16_of(a.l[i]);
}

/* Loads sixteen pairs of bf16: `even` gets the first of each pair, `odd` the second. */
INLINE void v_bf16_load(const uint8_t *p, vf *even, vf *odd)
{
    uint32_t pairs[16];
    memcpy(pairs, p, sizeof(pairs));
    LANES even->l[i] = kernel_float(pairs[i] << 16);
    LANES odd->l[i] = kernel_float(pairs[i] & 0xffff0000);
}

INLINE vf v_add(vf a, vf b)
{
    LANES a.l[i] += b.l[i];
    return a;
}

INLINE vf v_sub(vf a, vf b)
{
    LANES a.l[i] -= b.l[i];
    return a;
}

INLINE vf v_mul(vf a, vf b)
{
    LANES a.l[i] *= b.l[i];
    return a;
}

INLINE vf v_div(vf a, vf b)
{
    LANES a.l[i] /= b.l[i];
    return a;
}

/* a * b + c, rounded once. */
INLINE vf v_fma(vf a, vf b, vf c)
{
    LANES a.l[i] = fmaf(a.l[i], b.l[i], c.l[i]);
    return a;
}

/* a > b ? a : b, so the result is b if one of them is a NaN. v_min() does the same with <. */
INLINE vf v_max(vf a, vf b)
{
    LANES a.l[i] = a.l[i] > b.l[i] ? a.l[i] : b.l[i];
    return a;
}

INLINE vf v_min(vf a, vf b)
{
    LANES a.l[i] = a.l[i] < b.l[i] ? a.l[i] : b.l[i];
    return a;
}

INLINE vf v_abs(vf a)
{
    LANES a.l[i] = fabsf(a.l[i]);
    return a;
}

/* Every sum over lanes uses this tree. */
INLINE float v_sum(vf a)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            a.l[i] += a.l[i + half];
    return a.l[0];
}

INLINE vf v_sums(const vf a[16])
{
    vf r;
    LANES r.l[i] = v_sum(a[i]);
    return r;
}

INLINE float v_hmax(vf a)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            a.l[i] = a.l[i] > a.l[i + half] ? a.l[i] : a.l[i + half];
    return a.l[0];
}

INLINE vf v_maxs(const vf a[16])
{
    vf r;
    LANES r.l[i] = v_hmax(a[i]);
    return r;
}

/* Bit i is set if the lanes i are equal. */
INLINE uint32_t v_equal(vf a, vf b)
{
    uint32_t bits = 0;
    LANES bits |= (uint32_t)(a.l[i] == b.l[i]) << i;
    return bits;
}

/* p * 2^n, where t = n + 1.5 * 2^23. Two steps, as 2^n alone may be out of range. */
INLINE vf v_pow2(vf p, vf t)
{
    LANES
    {
        int32_t n = (int32_t)(kernel_bits(t.l[i]) - 0x4b400000u), half = n >> 1;
        p.l[i] *= kernel_float((uint32_t)(half + 127) << 23);
        p.l[i] *= kernel_float((uint32_t)(n - half + 127) << 23);
    }
    return p;
}

/* Rounds to integers in [-127, 127], to nearest, ties to even. Returns their sum. */
INLINE int v_quantise(vf a, int8_t *to)
{
    int sum = 0;
    a = v_add(v_max(v_min(a, v_set(127)), v_set(-127)), v_set(0x1.8p+23f));
    LANES
    {
        int q = (int)(kernel_bits(a.l[i]) - 0x4b400000u);
        to[i] = (int8_t)q;
        sum += q;
    }
    return sum;
}

INLINE vi vi_set(int32_t x)
{
    vi r;
    LANES r.l[i] = x;
    return r;
}

INLINE vi vi_load(const int32_t *p)
{
    vi r;
    memcpy(&r, p, sizeof(r));
    return r;
}

INLINE void vi_store(int32_t *p, vi a)
{
    memcpy(p, &a, sizeof(a));
}

INLINE vi vi_add(vi a, vi b)
{
    LANES a.l[i] += b.l[i];
    return a;
}

INLINE vf vi_float(vi a)
{
    vf r;
    LANES r.l[i] = (float)a.l[i];
    return r;
}

INLINE vk vk_load(const uint8_t *p)
{
    vk r;
    memcpy(&r, p, sizeof(r));
    return r;
}

INLINE vq vq_load(const int8_t *p)
{
    vq r;
    memcpy(&r, p, sizeof(r));
    return r;
}

INLINE vi vk_dot(vi a, vk k, vq x)
{
    LANES a.l[i] +=
        k.l[i][0] * x.q[0] + k.l[i][1] * x.q[1] + k.l[i][2] * x.q[2] + k.l[i][3] * x.q[3];
    return a;
}

INLINE vv vv_load(const uint8_t *p)
{
    vv r;
    memcpy(&r, p, sizeof(r));
    return r;
}

INLINE void vt_store(uint8_t *to, vf a)
{
    int16_t t[16];
    a = v_add(a, v_set(0x1.8p+23f));
    LANES t[i] = (int16_t)(kernel_bits(a.l[i]) - 0x4b400000u);
    memcpy(to, t, sizeof(t));
}

INLINE vt vt_load(const uint8_t *p, int group)
{
    vt r;
    memcpy(&r, p + (size_t)group * sizeof(r), sizeof(r));
    return r;
}

INLINE va va_zero(void)
{
    return vi_set(0);
}

INLINE va va_dot(va a, vv v, vt x)
{
    LANES a.l[i] +=
        v.l[i][0] * x.t[0] + v.l[i][1] * x.t[1] + v.l[i][2] * x.t[2] + v.l[i][3] * x.t[3];
    return a;
}

INLINE vi va_sum(va a)
{
    return a;
}

INLINE vd vd_zero(void)
{
    return (vd){{0}};
}

INLINE vd vd_add(vd a, vf b)
{
    LANES a.l[i] += (double)b.l[i];
    return a;
}

INLINE double vd_sum(vd a)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            a.l[i] += a.l[i + half];
    return a.l[0];
}

#include "kernel/kernel_body.h"

/* The 32 weights of a column, minus their offset, times the integer scales. */
static void column_of(const struct kernel_unpacked *u, unsigned c, int offset,
                      int16_t w[KERNEL_BLOCK])
{
    for (unsigned k = 0; k < KERNEL_BLOCK; k++)
        w[k] = (int16_t)((u->q[k / 4][c][k % 4] - offset) * u->sub[k / 16][c]);
}

static int dot(const int16_t *w, const int8_t *x, int n)
{
    int sum = 0;
    for (int k = 0; k < n; k++)
        sum += w[k] * x[k];
    return sum;
}

/* Adds the products of block b of a tile to all rows of y. */
static void int8_block(const struct kernel_layout *l, const struct kernel_unpacked *u, uint32_t b,
                       const uint8_t *x, size_t x_bytes, uint32_t m, float *y, size_t y_stride,
                       uint32_t n_cols)
{
    for (uint32_t c = 0; c < n_cols; c++) {
        int16_t w[KERNEL_BLOCK];
        column_of(u, c, l->offset, w);
        for (uint32_t r = 0; r < m; r++) {
            const struct kernel_x *xb = (const struct kernel_x *)(x + r * x_bytes) + b;
            float *acc = &y[r * y_stride + c];
            *acc = fmaf((float)dot(w, xb->q, KERNEL_BLOCK), u->d[c] * xb->d, *acc);
            if (l->has_min)
                *acc = fmaf(u->m[c], xb->sum, *acc);
        }
    }
}

/* Adds the products of a group of types of 256 to all rows of y. */
static void int8_group(const struct kernel_layout *l, const struct kernel_unpacked u[8],
                       uint32_t group, const uint8_t *x, size_t x_bytes, uint32_t m, float *y,
                       size_t y_stride, uint32_t n_cols)
{
    for (uint32_t c = 0; c < n_cols; c++) {
        int16_t w[KERNEL_GROUP];
        for (unsigned i = 0; i < 8; i++)
            column_of(&u[i], c, l->offset, w + i * KERNEL_BLOCK);
        for (uint32_t r = 0; r < m; r++) {
            const struct kernel_x256 *xg = (const struct kernel_x256 *)(x + r * x_bytes) + group;
            float *acc = &y[r * y_stride + c];
            *acc = fmaf((float)dot(w, xg->q, KERNEL_GROUP), u[0].d[c] * xg->d, *acc);
            int min = 0;
            for (unsigned i = 0; i < 8; i++)
                min += u[i].sub_m[c] * xg->sum[i];
            if (l->has_min)
                *acc = fmaf((float)min, -u[0].m[c] * xg->d, *acc);
        }
    }
}

static void matmul_int8(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                        float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    const struct kernel_layout *l = kernel_layout(w->type);
    size_t tile_bytes = kernel_tile_bytes(l, w->n_in);
    for (uint32_t col = from; col < to; col += KERNEL_TILE) {
        const uint8_t *tile = (const uint8_t *)w->data + col / KERNEL_TILE * tile_bytes;
        uint32_t n_cols = MIN(to - col, KERNEL_TILE);
        for (uint32_t r = 0; r < m; r++)
            memset(y + r * y_stride + col, 0, n_cols * sizeof(*y));
        const uint32_t n_at_once = l->group == 8 ? 8 : 1;
        for (uint32_t b = 0; b < w->n_in / KERNEL_BLOCK; b += n_at_once) {
            struct kernel_unpacked u[8];
            for (uint32_t i = 0; i < n_at_once; i++)
                kernel_unpack(l, tile, b + i, &u[i]);
            if (l->group == 8)
                int8_group(l, u, b / 8, x, x_bytes, m, y + col, y_stride, n_cols);
            else
                int8_block(l, u, b, x, x_bytes, m, y + col, y_stride, n_cols);
        }
    }
}

const struct kernel kernel_c = KERNEL_TABLE("c", matmul, kernel_rows_form, prepare);
