/* weights.c - random weights and activations for tests and benches of kernels. */
#include "lib/models/weights.h"
#include "base/rng.h"
#include "lib/lib.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct weights_type weights_types[WEIGHTS_TYPES] = {
    {KERNEL_F32, "F32"},       {KERNEL_F16, "F16"},     {KERNEL_BF16, "BF16"},
    {KERNEL_Q8_0, "Q8_0"},     {KERNEL_Q4_0, "Q4_0"},   {KERNEL_Q4_1, "Q4_1"},
    {KERNEL_Q5_0, "Q5_0"},     {KERNEL_Q5_1, "Q5_1"},   {KERNEL_Q4_K, "Q4_K"},
    {KERNEL_Q5_K, "Q5_K"},     {KERNEL_Q6_K, "Q6_K"},   {KERNEL_IQ4_NL, "IQ4_NL"},
    {KERNEL_IQ4_XS, "IQ4_XS"}, {KERNEL_MXFP4, "MXFP4"},
};

static uint64_t next(uint64_t *state)
{
    return *state = *state * 6364136223846793005u + 1442695040888963407u, *state >> 20;
}

/* Sum of four uniform numbers: variance 1, within +-3.5. */
static float normal(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(next(state) & 0xffffff) * 0x1p-24f;
    return (sum - 2) * 1.7320508f;
}

void *weights_alloc(size_t bytes)
{
    void *p = aligned_alloc(KERNEL_ALIGN, (bytes + KERNEL_ALIGN) / KERNEL_ALIGN * KERNEL_ALIGN);
    if (!p)
        fail_msg("no memory for %zu bytes", bytes);
    return p;
}

static void put_scale(uint8_t *p, uint64_t *state, bool extreme)
{
    static const uint16_t odd[] = {0, 0x8000, 1, 0x8203, 0x03ff, 0x7bff, 0xfbff, 0xb000};
    uint16_t h = kernel_f16_of(0.01f + (float)(next(state) & 0xffff) * 0x1p-22f);
    if (extreme && next(state) % 2)
        h = odd[next(state) % 8];
    memcpy(p, &h, 2);
}

static void put_exponent(uint8_t *p, uint64_t *state, bool extreme)
{
    static const uint8_t odd[] = {0, 1, 2, 3, 64, 127, 140, 190};
    *p = (uint8_t)(118 + next(state) % 4);
    if (extreme && next(state) % 2)
        *p = odd[next(state) % 8];
}

/* Offsets of the f16 scales in a block of the file; -1: none. */
static void scale_places(enum kernel_type type, int at[2])
{
    at[0] = type == KERNEL_Q6_K ? 208 : 0;
    at[1] = type == KERNEL_Q4_1 || type == KERNEL_Q5_1 || type == KERNEL_Q4_K || type == KERNEL_Q5_K
                ? 2
                : -1;
}

static void *random_floats(enum kernel_type type, uint32_t n_out, uint32_t n_in, uint64_t seed,
                           bool extreme)
{
    float *f = weights_floats(n_out, n_in, seed, extreme && type != KERNEL_F16);
    uint16_t *h = (uint16_t *)f;
    for (size_t i = 0; i < (size_t)n_out * n_in && type != KERNEL_F32; i++) {
        uint32_t bits;
        memcpy(&bits, f + i, 4); // the halfs are written in place, after the floats that were read
        float x = f[i];
        if (type == KERNEL_F16 && extreme && i % 5 == 0)
            x *= i % 2 ? 0x1p-16f : 0x1p13f;
        h[i] = type == KERNEL_F16 ? kernel_f16_of(x) : (uint16_t)(bits >> 16);
    }
    return f;
}

void *weights_random(enum kernel_type type, uint32_t n_out, uint32_t n_in, uint64_t seed,
                     bool extreme)
{
    uint32_t per, bytes;
    if (kernel_type_block(type, &per, &bytes) < 0)
        fail_msg("type %u", type);
    if (per == 1)
        return random_floats(type, n_out, n_in, seed, extreme);
    size_t n = (size_t)n_out * (n_in / per);
    uint8_t *rows = weights_alloc(n * bytes);
    uint64_t state = rng_splitmix64(seed);
    int at[2];
    scale_places(type, at);
    for (size_t b = 0; b < n; b++) {
        uint8_t *p = rows + b * bytes;
        for (uint32_t i = 0; i < bytes; i++)
            p[i] = (uint8_t)next(&state);
        if (extreme && next(&state) % 3 == 0)
            memset(p, (int)(next(&state) % 2 ? 0x80 : next(&state) & 255), bytes);
        for (int i = 0; i < 2; i++)
            if (at[i] >= 0 && type == KERNEL_MXFP4)
                put_exponent(p, &state, extreme);
            else if (at[i] >= 0)
                put_scale(p + at[i], &state, extreme);
    }
    return rows;
}

static double deviation_of(enum kernel_type type, const uint8_t *rows, size_t row_bytes,
                           uint32_t n_out, uint32_t n_in)
{
    double sum = 0;
    float *row = weights_alloc(n_in * sizeof(float));
    for (uint32_t r = 0; r < n_out; r++) {
        kernel_dequant(type, rows + r * row_bytes, n_in, row);
        for (uint32_t i = 0; i < n_in; i++)
            sum += (double)row[i] * row[i];
    }
    free(row);
    return sqrt(sum / ((double)n_out * n_in));
}

static void multiply(enum kernel_type type, uint8_t *block, float by)
{
    int at[2];
    uint16_t h;
    if (type == KERNEL_F32 || type == KERNEL_BF16) { // the upper half of a float is a bf16
        float x = 0;
        size_t n = type == KERNEL_F32 ? 4 : 2;
        memcpy((char *)&x + 4 - n, block, n);
        x *= by;
        memcpy(block, (char *)&x + 4 - n, n);
        return;
    }
    if (type == KERNEL_MXFP4) { // a power of two
        block[0] = (uint8_t)(block[0] + lrintf(log2f(by)));
        return;
    }
    scale_places(type, at); // an F16 weight is handled like the first scale of a block
    for (int i = 0; i < 2; i++)
        if (at[i] >= 0) {
            memcpy(&h, block + at[i], 2);
            h = kernel_f16_of(kernel_f16_to(h) * by);
            memcpy(block + at[i], &h, 2);
        }
}

/* The second scale of types with a minimum, so that the mean is 0: w = d q + m or d s q - m' t. */
static void centre(enum kernel_type type, uint8_t *block)
{
    float half = type == KERNEL_Q4_1 || type == KERNEL_Q4_K ? 7.5f : 15.5f; // of the largest q
    int at[2];
    uint16_t h;
    scale_places(type, at);
    if (at[1] < 0)
        return;
    memcpy(&h, block, 2);
    h = kernel_f16_of(kernel_f16_to(h) *
                      (type == KERNEL_Q4_1 || type == KERNEL_Q5_1 ? -half : half));
    memcpy(block + 2, &h, 2);
}

void weights_scale(enum kernel_type type, void *rows, uint32_t n_out, uint32_t n_in,
                   float deviation)
{
    uint32_t per, bytes;
    if (kernel_type_block(type, &per, &bytes) < 0)
        fail_msg("type %u", type);
    size_t n = (size_t)n_out * (n_in / per);
    for (size_t b = 0; b < n && per > 1; b++)
        centre(type, (uint8_t *)rows + b * bytes);
    double by = deviation / deviation_of(type, rows, (size_t)(n_in / per) * bytes, n_out, n_in);
    for (size_t b = 0; b < n; b++)
        multiply(type, (uint8_t *)rows + b * bytes, (float)by);
}

float *weights_floats(uint32_t n_rows, uint32_t n, uint64_t seed, bool extreme)
{
    float *x = weights_alloc((size_t)n_rows * n * sizeof(float));
    uint64_t state = rng_splitmix64(seed);
    static const float odd[] = {0, 1e-42f, 1e-37f, 1e-30f, 1e12f, 1e30f};
    float scale = 1;
    for (size_t i = 0; i < (size_t)n_rows * n; i++) {
        if (extreme && i % 32 == 0)
            scale = next(&state) % 2 ? odd[next(&state) % 6] : 1;
        x[i] = normal(&state) * scale;
    }
    return x;
}

struct kernel_mat weights_pack(enum kernel_type type, const void *rows, uint32_t n_out,
                               uint32_t n_in)
{
    void *data = weights_alloc(kernel_packed_bytes(type, n_out, n_in));
    kernel_pack(type, rows, n_out, n_in, 0, n_out, data);
    return (struct kernel_mat){.type = type, .n_out = n_out, .n_in = n_in, .data = data};
}

size_t weights_room(enum kernel_type type, uint32_t n_in, uint32_t m)
{
    size_t rows = m * kernel_form_bytes(kernel_form_of(type), n_in);
    size_t many = (m + KERNEL_ROWS - 1) / KERNEL_ROWS * KERNEL_ROWS;
    size_t tiles = many * kernel_form_bytes(KERNEL_FORM_TILES, n_in);
    size_t tiles_256 = many * kernel_form_bytes(KERNEL_FORM_TILES_256, n_in);
    tiles = tiles > tiles_256 ? tiles : tiles_256;
    return rows > tiles ? rows : tiles;
}

size_t weights_prepare(const struct kernel *k, enum kernel_type type, const float *x, uint32_t m,
                       uint32_t n_in, void *to)
{
    enum kernel_form form = k->form(type, m);
    size_t bytes = kernel_form_bytes(form, n_in);
    for (uint32_t r = 0; r < m; r++)
        k->prepare(form, x + (size_t)r * n_in, n_in, r, m, to, bytes);
    return bytes;
}
