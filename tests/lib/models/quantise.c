/* quantise.c - the inverse of kernel_dequant(), up to rounding. */
#include "lib/models/quantise.h"
#include "base/mem.h"
#include "kernel/kernel_impl.h"
#include "lib/lib.h"
#include <math.h>

static void put_half(float x, uint8_t *to)
{
    uint16_t h = kernel_f16_of(x);
    memcpy(to, &h, sizeof(h));
}

static float inverse(float x)
{
    return x != 0 ? 1 / x : 0;
}

static int limited(float x, int low, int high)
{
    long q = lrintf(x);
    return (int)(q < low ? low : q > high ? high : q);
}

/* The number with the largest magnitude, with its sign. */
static float furthest(const float *x, unsigned n)
{
    float most = 0;
    for (unsigned i = 0; i < n; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    return most;
}

static void range_of(const float *x, float *ret_low, float *ret_high)
{
    *ret_low = *ret_high = x[0];
    for (unsigned i = 1; i < KERNEL_BLOCK; i++) {
        *ret_low = fminf(*ret_low, x[i]);
        *ret_high = fmaxf(*ret_high, x[i]);
    }
}

/* Q4_1, Q5_0, Q5_1: d [, m] [, 32 fifth bits], nibbles of k and k + 16 in a byte. */
static void put_q4_q5(const struct kernel_layout *l, const float *x, uint8_t *to)
{
    int top = l->hi_bits ? 31 : 15;
    float d, m = 0, high;
    uint8_t *at = to + 2;
    if (l->has_min) {
        range_of(x, &m, &high);
        d = (high - m) / (float)top;
        put_half(m, at);
        at += 2;
    } else {
        d = furthest(x, KERNEL_BLOCK) / (float)-l->offset;
    }
    float by = inverse(d);
    put_half(d, to);
    uint32_t fifth = 0;
    uint8_t *nibbles = at + (l->hi_bits ? 4 : 0);
    memset(nibbles, 0, 16);
    for (unsigned k = 0; k < KERNEL_BLOCK; k++) {
        unsigned q = (unsigned)limited((x[k] - m) * by + (float)l->offset, 0, top);
        fifth |= (uint32_t)(q >> 4) << k;
        nibbles[k % 16] |= (uint8_t)((q & 15) << (k < 16 ? 0 : 4));
    }
    if (l->hi_bits)
        memcpy(at, &fifth, 4);
}

/* Eight scales and mins of 6 bits in 12 bytes. */
static void put_k_scales(const uint8_t *scale, const uint8_t *min, uint8_t *to)
{
    for (unsigned i = 0; i < 4; i++) {
        to[i] = (uint8_t)(scale[i] | scale[i + 4] >> 4 << 6);
        to[i + 4] = (uint8_t)(min[i] | min[i + 4] >> 4 << 6);
        to[i + 8] = (uint8_t)((scale[i + 4] & 15) | (min[i + 4] & 15) << 4);
    }
}

/* Q4_K, Q5_K: d, dmin, scales [, 32 bytes of fifth bits], nibbles of blocks 2n and 2n + 1. */
static void put_q4k_q5k(const struct kernel_layout *l, const float *x, uint8_t *to)
{
    float low[8], step[8], d = 0, d_min = 0;
    int top = l->hi_bits ? 31 : 15;
    for (unsigned i = 0; i < 8; i++) {
        float high;
        range_of(x + i * KERNEL_BLOCK, &low[i], &high);
        low[i] = fminf(low[i], 0);
        step[i] = (high - low[i]) / (float)top;
        d = fmaxf(d, step[i] / 63);
        d_min = fmaxf(d_min, -low[i] / 63);
    }
    put_half(d, to);
    put_half(d_min, to + 2);
    uint8_t scale[8], min[8], *fifth = to + 16, *nibbles = fifth + (l->hi_bits ? 32 : 0);
    memset(fifth, 0, l->n_bytes - 16u);
    for (unsigned i = 0; i < 8; i++) {
        scale[i] = (uint8_t)limited(step[i] * inverse(d), 0, 63);
        min[i] = (uint8_t)limited(-low[i] * inverse(d_min), 0, 63);
        float m = d_min * min[i], by = inverse(d * scale[i]);
        for (unsigned k = 0; k < KERNEL_BLOCK; k++) {
            unsigned q = (unsigned)limited((x[i * KERNEL_BLOCK + k] + m) * by, 0, top);
            nibbles[i / 2 * 32 + k] |= (uint8_t)((q & 15) << i % 2 * 4);
            if (l->hi_bits)
                fifth[k] |= (uint8_t)(q >> 4 << i);
        }
    }
    put_k_scales(scale, min, to + 4);
}

/* Q6_K: 128 bytes of nibbles, 64 of two high bits, 16 scales, d; see kernel_layout.c. */
static void put_q6k(const float *x, uint8_t *to)
{
    float step[16];
    memset(to, 0, 192);
    for (unsigned i = 0; i < 16; i++)
        step[i] = furthest(x + i * 16, 16) / -32;
    float d = furthest(step, 16) / -128, by = inverse(d);
    put_half(d, to + 208);
    for (unsigned i = 0; i < 16; i++) {
        int scale = limited(step[i] * by, -128, 127);
        to[192 + i] = (uint8_t)(int8_t)scale;
        float by_scale = inverse(d * (float)scale);
        unsigned h = i / 8, j = i / 2 % 4;
        for (unsigned k = i % 2 * 16, end = k + 16; k < end; k++) {
            unsigned q = (unsigned)(limited(x[i / 2 * 32 + k] * by_scale, -32, 31) + 32);
            to[64 * h + 32 * (j % 2) + k] |= (uint8_t)((q & 15) << (j < 2 ? 0 : 4));
            to[128 + 32 * h + k] |= (uint8_t)(q >> 4 << 2 * j);
        }
    }
}

/* The nearest value of the codebook. */
static unsigned nearest(const struct kernel_layout *l, float x)
{
    const uint8_t *book = kernel_codebooks[l->book];
    unsigned best = 0;
    for (unsigned q = 1; q < 16; q++)
        if (fabsf(x - (float)(book[q] - l->offset)) < fabsf(x - (float)(book[best] - l->offset)))
            best = q;
    return best;
}

/* Indices into the codebook, two per byte as in Q4_0. by: one over the scale. */
static void put_indices(const struct kernel_layout *l, const float *x, float by, uint8_t *to)
{
    memset(to, 0, 16);
    for (unsigned k = 0; k < KERNEL_BLOCK; k++)
        to[k % 16] |= (uint8_t)(nearest(l, x[k] * by) << (k < 16 ? 0 : 4));
}

/* The scale by which the largest number is 4 to 8 (OCP Microscaling Formats 1.0, section 6.3). */
static void put_mxfp4(const struct kernel_layout *l, const float *x, uint8_t *to)
{
    int exponent;
    frexpf(furthest(x, KERNEL_BLOCK), &exponent); // 2^(exponent - 1) or more
    to[0] = (uint8_t)(exponent - 3 + 127);
    put_indices(l, x, ldexpf(1, 128 - to[0]), to + 1);
}

/* The number of largest magnitude in the codebook is its first, -127. */
static float book_scale(const float *x)
{
    return furthest(x, KERNEL_BLOCK) / -127;
}

static void put_iq4nl(const struct kernel_layout *l, const float *x, uint8_t *to)
{
    float d = book_scale(x);
    put_half(d, to);
    put_indices(l, x, inverse(d), to + 2);
}

/* IQ4_XS: d, the upper bits of eight scales, their lower ones, nibbles; see kernel_layout.c. */
static void put_iq4xs(const struct kernel_layout *l, const float *x, uint8_t *to)
{
    float step[8];
    for (unsigned i = 0; i < 8; i++)
        step[i] = book_scale(x + i * KERNEL_BLOCK);
    float d = furthest(step, 8) / -32, by = inverse(d);
    uint16_t upper = 0;
    put_half(d, to);
    memset(to + 4, 0, 4);
    for (unsigned i = 0; i < 8; i++) {
        int scale = limited(step[i] * by, -32, 31);
        unsigned bits = (unsigned)(scale + 32);
        upper |= (uint16_t)(bits >> 4 << 2 * i);
        to[4 + i / 2] |= (uint8_t)((bits & 15) << 4 * (i % 2));
        put_indices(l, x + i * KERNEL_BLOCK, inverse(d * (float)scale), to + 8 + 16 * i);
    }
    memcpy(to + 2, &upper, sizeof(upper));
}

static void put_block(enum kernel_type type, const struct kernel_layout *l, const float *x,
                      uint8_t *to)
{
    if (type == KERNEL_Q8_0 || type == KERNEL_Q4_0)
        kernel_quantise(type, x, l->n_weights, to);
    else if (type == KERNEL_Q6_K)
        put_q6k(x, to);
    else if (type == KERNEL_IQ4_XS)
        put_iq4xs(l, x, to);
    else if (type == KERNEL_IQ4_NL)
        put_iq4nl(l, x, to);
    else if (type == KERNEL_MXFP4)
        put_mxfp4(l, x, to);
    else if (l->n_weights == 256)
        put_q4k_q5k(l, x, to);
    else
        put_q4_q5(l, x, to);
}

static void put_float(enum kernel_type type, float x, uint8_t *to)
{
    uint32_t bits = kernel_bits(x);
    uint16_t upper = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); // ties to even
    if (type == KERNEL_F32)
        memcpy(to, &bits, sizeof(bits));
    else if (type == KERNEL_F16)
        put_half(x, to);
    else
        memcpy(to, &upper, sizeof(upper));
}

size_t quantise_row(enum kernel_type type, const float *x, uint32_t n, uint8_t *to)
{
    const struct kernel_layout *l = kernel_layout(type);
    for (uint32_t i = 0; i < n / l->n_weights; i++) {
        if (l->group)
            put_block(type, l, x + (size_t)i * l->n_weights, to + (size_t)i * l->n_bytes);
        else
            put_float(type, x[i], to + (size_t)i * l->n_bytes);
    }
    return (size_t)(n / l->n_weights) * l->n_bytes;
}

static const enum gguf_type gguf_types[] = {
    [KERNEL_F32] = GGUF_F32,       [KERNEL_F16] = GGUF_F16,     [KERNEL_BF16] = GGUF_BF16,
    [KERNEL_Q4_0] = GGUF_Q4_0,     [KERNEL_Q4_1] = GGUF_Q4_1,   [KERNEL_Q5_0] = GGUF_Q5_0,
    [KERNEL_Q5_1] = GGUF_Q5_1,     [KERNEL_Q8_0] = GGUF_Q8_0,   [KERNEL_Q4_K] = GGUF_Q4_K,
    [KERNEL_Q5_K] = GGUF_Q5_K,     [KERNEL_Q6_K] = GGUF_Q6_K,   [KERNEL_IQ4_NL] = GGUF_IQ4_NL,
    [KERNEL_IQ4_XS] = GGUF_IQ4_XS, [KERNEL_MXFP4] = GGUF_MXFP4,
};

enum gguf_type quantise_to_gguf(enum kernel_type type)
{
    return gguf_types[type];
}

enum kernel_type quantise_from_gguf(enum gguf_type type)
{
    for (size_t i = 0; i < ARRAY_LEN(gguf_types); i++)
        if (gguf_types[i] == type)
            return (enum kernel_type)i;
    fail_msg("no kernel for GGUF type %u", (unsigned)type);
    return KERNEL_F32;
}
