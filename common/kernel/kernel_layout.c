/* kernel_layout.c - the weight types (floats, and ggml's quantised blocks) as model files store
 * them, and their packed form, which kernel_impl.h describes. */
#include "base/err.h"
#include "kernel/kernel_impl.h"
#include <assert.h>
#include <errno.h>
#include <string.h>

#define LAYOUT(type, bytes, lo, hi, off, in_group, min, halves, in_book)                           \
    [KERNEL_##type] = {.name = #type,                                                              \
                       .n_weights = (in_group) == 8 ? 256 : 32,                                    \
                       .n_bytes = (bytes),                                                         \
                       .form = (in_group) == 8 ? KERNEL_FORM_INT8_256 : KERNEL_FORM_INT8,          \
                       .group = (in_group),                                                        \
                       .lo_bits = (lo),                                                            \
                       .hi_bits = (hi),                                                            \
                       .offset = (off),                                                            \
                       .has_min = (min),                                                           \
                       .has_halves = (halves),                                                     \
                       .book = (in_book),                                                          \
                       .head = KERNEL_HEAD_BYTES(in_group, min, halves),                           \
                       .block = KERNEL_BLOCK_BYTES(lo, hi)},

static const struct kernel_layout layouts[] = {
    [KERNEL_F32] = {.name = "F32", .n_weights = 1, .n_bytes = 4, .form = KERNEL_FORM_F32},
    [KERNEL_F16] = {.name = "F16", .n_weights = 1, .n_bytes = 2, .form = KERNEL_FORM_F32},
    [KERNEL_BF16] = {.name = "BF16", .n_weights = 1, .n_bytes = 2, .form = KERNEL_FORM_BF16},
    KERNEL_INT8_TYPES(LAYOUT)};

/* kvalues_iq4nl and kvalues_mxfp4 of ggml-common.h. */
const uint8_t kernel_codebooks[][16] = {
    [KERNEL_BOOK_IQ4] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
    [KERNEL_BOOK_E2M1] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4}};

const struct kernel_layout *kernel_layout(enum kernel_type type)
{
    unsigned t = (unsigned)type;
    return t < sizeof(layouts) / sizeof(*layouts) && layouts[t].n_bytes ? &layouts[t] : NULL;
}

int kernel_type_block(enum kernel_type type, uint32_t *ret_weights, uint32_t *ret_bytes)
{
    const struct kernel_layout *l = kernel_layout(type);
    if (!l)
        return fail(-ENOTSUP, "kernel: weights of type %u are not supported", (unsigned)type);
    *ret_weights = l->n_weights;
    *ret_bytes = l->n_bytes;
    return 0;
}

const char *kernel_type_name(enum kernel_type type)
{
    return layouts[type].name;
}

enum kernel_form kernel_form_of(enum kernel_type type)
{
    const struct kernel_layout *l = kernel_layout(type);
    assert(l);
    return l->form;
}

enum kernel_form kernel_rows_form(enum kernel_type type, uint32_t m)
{
    (void)m;
    return kernel_form_of(type);
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* The result is an odd number of cache lines: rows a multiple of 4096 bytes apart would share the
 * sets of L1. */
size_t kernel_form_bytes(enum kernel_form form, uint32_t n_in)
{
    size_t bytes = round_up(n_in, 32) * sizeof(float);
    if (form == KERNEL_FORM_INT8)
        bytes = (size_t)n_in / KERNEL_BLOCK * sizeof(struct kernel_x);
    if (form == KERNEL_FORM_INT8_256)
        bytes = (size_t)n_in / KERNEL_GROUP * sizeof(struct kernel_x256);
    if (form == KERNEL_FORM_TILES)
        bytes = (size_t)n_in / KERNEL_BLOCK * sizeof(struct kernel_unit) / KERNEL_ROWS;
    if (form == KERNEL_FORM_TILES_256)
        bytes = (size_t)n_in / KERNEL_GROUP * sizeof(struct kernel_unit256) / KERNEL_ROWS;
    return round_up(bytes, 64) | 64;
}

size_t kernel_group_bytes(const struct kernel_layout *l, uint32_t n_blocks)
{
    size_t bytes = (size_t)(n_blocks / l->group) * (l->head + l->group * (size_t)l->block);
    if (n_blocks % l->group)
        bytes += l->head + n_blocks % l->group * (size_t)l->block;
    return bytes;
}

uint32_t kernel_padded(const struct kernel_layout *l, uint32_t n_in)
{
    return (uint32_t)round_up(n_in, l->form == KERNEL_FORM_BF16 ? 32 : 64 / l->n_bytes);
}

size_t kernel_tile_bytes(const struct kernel_layout *l, uint32_t n_in)
{
    if (l->group)
        return round_up(kernel_group_bytes(l, n_in / KERNEL_BLOCK), KERNEL_ALIGN);
    return (size_t)kernel_padded(l, n_in) * l->n_bytes * KERNEL_TILE;
}

size_t kernel_packed_bytes(enum kernel_type type, uint32_t n_out, uint32_t n_in)
{
    const struct kernel_layout *l = kernel_layout(type);
    assert(l && n_in % l->n_weights == 0);
    return ((size_t)n_out + KERNEL_TILE - 1) / KERNEL_TILE * kernel_tile_bytes(l, n_in);
}

/* 32 weights of one row: w = d * sub[k / 16] * (q - offset) + m. For types with integer mins, the
 * last term is - m * sub_m. For types with a codebook, q is an index into it. */
struct block {
    uint8_t q[KERNEL_BLOCK];
    uint16_t d, m; // f16; of MXFP4: bf16
    int8_t sub[2];
    uint8_t sub_m;
};

static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static void read_q8(const uint8_t *p, struct block *b)
{
    b->d = u16_at(p);
    for (unsigned k = 0; k < KERNEL_BLOCK; k++)
        b->q[k] = p[2 + k] ^ 0x80;
}

/* d [, m] [, 32 fifth bits], 16 bytes: low nibbles are k = 0..15, high nibbles are k = 16..31. */
static void read_q4_q5(const struct kernel_layout *l, const uint8_t *p, struct block *b)
{
    b->d = u16_at(p);
    p += 2;
    if (l->has_min) {
        b->m = u16_at(p);
        p += 2;
    }
    uint32_t high = 0;
    if (l->hi_bits) {
        memcpy(&high, p, 4);
        p += 4;
    }
    for (unsigned k = 0; k < KERNEL_BLOCK; k++) {
        unsigned low = k < 16 ? p[k] & 15u : p[k - 16] >> 4;
        b->q[k] = (uint8_t)(low | (high >> k & 1) << 4);
    }
}

/* An exponent, and nibbles as in Q4_0. The values of the codebook are twice the weights, so the
 * scale is 2^(exponent - 128). Exponent 255 is no NaN: ggml_e8m0_to_fp32_half() in ggml-impl.h. */
static void read_mxfp4(const uint8_t *p, struct block *b)
{
    b->d = (uint16_t)(p[0] < 2 ? 0x20 << p[0] : (p[0] - 1) << 7); // bf16
    for (unsigned k = 0; k < KERNEL_BLOCK; k++)
        b->q[k] = k < 16 ? p[1 + k] & 15 : p[1 + k - 16] >> 4;
}

/* Eight 6-bit scales and eight 6-bit mins in 12 bytes. The first four of each are whole, in the low
 * bits of bytes 0..7. Of the others, the low nibbles are in bytes 8..11, and the high bits are the
 * top bits of bytes 0..7. */
static void read_k_scales(const uint8_t *p, unsigned i, struct block *b)
{
    if (i < 4) {
        b->sub[0] = (int8_t)(p[i] & 63);
        b->sub_m = p[i + 4] & 63;
    } else {
        b->sub[0] = (int8_t)((p[i + 4] & 15) | p[i - 4] >> 6 << 4);
        b->sub_m = (uint8_t)(p[i + 4] >> 4 | p[i] >> 6 << 4);
    }
    b->sub[1] = b->sub[0];
}

/* d, dmin, 12 bytes of scales [, 32 bytes of fifth bits], 128 of nibbles: 32 bytes hold blocks 2n
 * and 2n + 1. */
static void read_q4k_q5k(const struct kernel_layout *l, const uint8_t *p, unsigned i,
                         struct block *b)
{
    b->d = u16_at(p);
    b->m = u16_at(p + 2);
    read_k_scales(p + 4, i, b);
    const uint8_t *high = p + 16, *low = high + (l->hi_bits ? 32 : 0) + i / 2 * 32;
    for (unsigned k = 0; k < KERNEL_BLOCK; k++) {
        b->q[k] = i % 2 ? low[k] >> 4 : low[k] & 15;
        if (l->hi_bits)
            b->q[k] |= (uint8_t)((high[k] >> i & 1) << 4);
    }
}

/* d, 16 bits with the upper two of each scale, 4 bytes with the lower four, 128 bytes of nibbles.
 * 16 bytes of nibbles hold a block as in Q4_0. */
static void read_iq4xs(const uint8_t *p, unsigned i, struct block *b)
{
    unsigned low = p[4 + i / 2] >> 4 * (i % 2) & 15, high = u16_at(p + 2) >> 2 * i & 3;
    b->d = u16_at(p);
    b->sub[0] = b->sub[1] = (int8_t)((int)(low | high << 4) - 32);
    p += 8 + 16 * i;
    for (unsigned k = 0; k < KERNEL_BLOCK; k++)
        b->q[k] = k < 16 ? p[k] & 15 : p[k - 16] >> 4;
}

/* 128 bytes of low nibbles, 64 of two high bits, 16 scales, d. Half h has 128 weights, in blocks
 * 4h + j with j < 4. The low bits of weight k of a block are a nibble of byte 64h + 32 (j % 2) + k,
 * for j >= 2 its upper one. The high bits are in byte 32h + k, from bit 2j on. */
static void read_q6k(const uint8_t *p, unsigned i, struct block *b)
{
    unsigned h = i / 4, j = i % 4;
    const uint8_t *low = p + 64 * h + 32 * (j % 2), *high = p + 128 + 32 * h;
    for (unsigned k = 0; k < KERNEL_BLOCK; k++) {
        unsigned nibble = j < 2 ? low[k] & 15u : low[k] >> 4;
        b->q[k] = (uint8_t)(nibble | (high[k] >> 2 * j & 3) << 4);
    }
    b->sub[0] = (int8_t)p[192 + 2 * i];
    b->sub[1] = (int8_t)p[192 + 2 * i + 1];
    b->d = u16_at(p + 208);
}

/* Reads block i (32 weights) of a row in the layout of the file. */
static void read_block(const struct kernel_layout *l, const uint8_t *row, uint32_t i,
                       struct block *b)
{
    uint32_t per = l->n_weights / KERNEL_BLOCK;
    const uint8_t *p = row + (size_t)(i / per) * l->n_bytes;
    *b = (struct block){.sub = {1, 1}, .sub_m = 1};
    if (l->has_halves)
        read_q6k(p, i % per, b);
    else if (per == 8 && l->book)
        read_iq4xs(p, i % per, b);
    else if (per == 8)
        read_q4k_q5k(l, p, i % per, b);
    else if (l->book == KERNEL_BOOK_E2M1)
        read_mxfp4(p, b);
    else if (l->lo_bits == 8)
        read_q8(p, b);
    else
        read_q4_q5(l, p, b);
}

static float scale_of(const struct kernel_layout *l, uint16_t d)
{
    return l->book == KERNEL_BOOK_E2M1 ? kernel_float((uint32_t)d << 16) : kernel_f16_to(d);
}

/* The scales of a block as floats. */
static void block_scales(const struct kernel_layout *l, const struct block *b, float *d, float *m)
{
    *d = scale_of(l, b->d);
    *m = l->has_min ? kernel_f16_to(b->m) : 0;
    if (l->group == 8 && !l->has_halves) {
        *d *= b->sub[0]; // exact: 11 bits times 6
        *m *= -(float)b->sub_m;
    }
}

/* One weight as a float, with the order of operations of ggml. */
static float weight(const struct kernel_layout *l, float d, float m, int sub, unsigned q)
{
    int steps = (l->book ? kernel_codebooks[l->book][q] : (int)q) - l->offset;
    float w = (l->has_halves ? d * (float)sub : d) * (float)steps;
    return l->has_min ? w + m : w;
}

static float float_at(enum kernel_type type, const uint8_t *p)
{
    if (type == KERNEL_F32) {
        float f;
        memcpy(&f, p, 4);
        return f;
    }
    return type == KERNEL_F16 ? kernel_f16_to(u16_at(p)) : kernel_float((uint32_t)u16_at(p) << 16);
}

void kernel_dequant(enum kernel_type type, const void *row, uint32_t n_in, float *to)
{
    const struct kernel_layout *l = kernel_layout(type);
    if (!l->group) {
        for (uint32_t i = 0; i < n_in; i++)
            to[i] = float_at(type, (const uint8_t *)row + (size_t)i * l->n_bytes);
        return;
    }
    for (uint32_t i = 0; i < n_in / KERNEL_BLOCK; i++) {
        struct block b;
        float d, m;
        read_block(l, row, i, &b);
        block_scales(l, &b, &d, &m);
        for (unsigned k = 0; k < KERNEL_BLOCK; k++)
            to[i * KERNEL_BLOCK + k] = weight(l, d, m, b.sub[k / 16], b.q[k]);
    }
}

/* Addresses of the parts of block b of a tile. */
struct place {
    uint8_t *d, *m;       // f16 of column 0
    uint8_t *sub, *sub_m; // of column 0; columns are 2 bytes apart; halves: sub, sub + 1
    uint8_t *lo, *hi;
};

static struct place place_of(const struct kernel_layout *l, const uint8_t *tile, uint32_t b)
{
    uint32_t i = b % l->group;
    uint8_t *g = (uint8_t *)tile + (size_t)(b / l->group) * (l->head + l->group * (size_t)l->block);
    struct place p = {.lo = g + l->head + i * (size_t)l->block};
    p.hi = p.lo + 64 * l->lo_bits;
    p.d = l->group == 8 ? g : g + i * 32;
    p.m = l->group == 8 ? g + 32 : g + 64 + i * 32;
    p.sub = g + 64 + (l->has_halves ? i * 32 : i / 2 * 32 + i % 2);
    p.sub_m = g + 192 + i / 2 * 32 + i % 2;
    return p;
}

/* Writes column c of block b; the memory was zero. */
static void write_block(const struct kernel_layout *l, uint8_t *tile, uint32_t b, unsigned c,
                        const struct block *from)
{
    struct place p = place_of(l, tile, b);
    memcpy(p.d + 2 * c, &from->d, 2);
    if (l->has_min)
        memcpy(p.m + 2 * c, &from->m, 2);
    if (l->group == 8) {
        p.sub[2 * c] = (uint8_t)from->sub[0];
        if (l->has_halves)
            p.sub[2 * c + 1] = (uint8_t)from->sub[1];
        if (l->has_min)
            p.sub_m[2 * c] = from->sub_m;
    }
    for (unsigned k = 0; k < KERNEL_BLOCK; k++) {
        unsigned g = k / 4, at = c * 4 + k % 4, q = from->q[k];
        if (l->lo_bits == 8)
            p.lo[g * 64 + at] = (uint8_t)q;
        else
            p.lo[g % 4 * 64 + at] |= (uint8_t)((q & 15) << (g < 4 ? 0 : 4));
        if (l->hi_bits == 1)
            p.hi[at] |= (uint8_t)(q >> 4 << g);
        else if (l->hi_bits == 2)
            p.hi[g / 4 * 64 + at] |= (uint8_t)(q >> 4 << 2 * (g % 4));
    }
}

static unsigned stored_q(const struct kernel_layout *l, const struct place *p, unsigned c,
                         unsigned k)
{
    unsigned g = k / 4, at = c * 4 + k % 4;
    if (l->lo_bits == 8)
        return p->lo[g * 64 + at];
    unsigned q = p->lo[g % 4 * 64 + at] >> (g < 4 ? 0 : 4) & 15;
    if (l->hi_bits == 1)
        q |= (p->hi[at] >> g & 1u) << 4;
    else if (l->hi_bits == 2)
        q |= (p->hi[g / 4 * 64 + at] >> 2 * (g % 4) & 3u) << 4;
    return q;
}

/* Reads column c of a packed block, without its weights. */
static struct block stored_scales(const struct kernel_layout *l, const struct place *p, unsigned c)
{
    struct block b = {.sub = {1, 1}, .sub_m = 1};
    memcpy(&b.d, p->d + 2 * c, 2);
    if (l->has_min)
        memcpy(&b.m, p->m + 2 * c, 2);
    if (l->group == 8) {
        b.sub[0] = b.sub[1] = (int8_t)p->sub[2 * c];
        if (l->has_halves)
            b.sub[1] = (int8_t)p->sub[2 * c + 1];
        if (l->has_min)
            b.sub_m = p->sub_m[2 * c];
    }
    return b;
}

static void unpack_q(const struct kernel_layout *l, const struct place *p,
                     uint8_t q[8][KERNEL_TILE][4])
{
    uint8_t *to = &q[0][0][0];
    if (l->lo_bits == 8) {
        memcpy(to, p->lo, 512);
        return;
    }
    for (unsigned i = 0; i < 256; i++) {
        to[i] = p->lo[i] & 15;
        to[256 + i] = p->lo[i] >> 4;
    }
    for (unsigned i = 0; i < 512 && l->book; i++)
        to[i] = kernel_codebooks[l->book][to[i]];
    for (unsigned g = 0; g < 8 && l->hi_bits == 1; g++)
        for (unsigned i = 0; i < 64; i++)
            to[g * 64 + i] |= (uint8_t)((p->hi[i] >> g & 1) << 4);
    for (unsigned g = 0; g < 8 && l->hi_bits == 2; g++)
        for (unsigned i = 0; i < 64; i++)
            to[g * 64 + i] |= (uint8_t)((p->hi[g / 4 * 64 + i] >> 2 * (g % 4) & 3) << 4);
}

void kernel_unpack(const struct kernel_layout *l, const uint8_t *tile, uint32_t b,
                   struct kernel_unpacked *u)
{
    struct place p = place_of(l, tile, b);
    for (unsigned c = 0; c < KERNEL_TILE; c++) {
        const struct block s = stored_scales(l, &p, c);
        u->d[c] = scale_of(l, s.d);
        u->m[c] = l->has_min ? kernel_f16_to(s.m) : 0;
        u->sub[0][c] = s.sub[0];
        u->sub[1][c] = s.sub[1];
        u->sub_m[c] = (int8_t)s.sub_m;
    }
    unpack_q(l, &p, u->q);
}

static void pack_quantised(const struct kernel_layout *l, const uint8_t *src, unsigned n_cols,
                           uint32_t n_in, uint8_t *tile)
{
    size_t row = (size_t)n_in / l->n_weights * l->n_bytes;
    for (unsigned c = 0; c < n_cols; c++)
        for (uint32_t i = 0; i < n_in / KERNEL_BLOCK; i++) {
            struct block b;
            read_block(l, src + c * row, i, &b);
            write_block(l, tile, i, c, &b);
        }
}

/* Number of weights of a column that are contiguous in a tile of floats. */
static uint32_t run_of(const struct kernel_layout *l, uint32_t n_in)
{
    return l->form == KERNEL_FORM_BF16 ? 2 : n_in;
}

/* Address of the contiguous run that begins with weight k of column c. */
static const uint8_t *run_at(const struct kernel_layout *l, const uint8_t *tile, uint32_t n_in,
                             unsigned c, uint32_t k)
{
    size_t at = l->form == KERNEL_FORM_BF16 ? (size_t)k * KERNEL_TILE + c * 2
                                            : (size_t)c * kernel_padded(l, n_in) + k;
    return tile + at * l->n_bytes;
}

static uint32_t run_length(const struct kernel_layout *l, uint32_t k, uint32_t n_in)
{
    uint32_t run = run_of(l, n_in);
    return n_in - k < run ? n_in - k : run;
}

static void pack_floats(const struct kernel_layout *l, const uint8_t *src, unsigned n_cols,
                        uint32_t n_in, uint8_t *tile)
{
    for (unsigned c = 0; c < n_cols; c++, src += (size_t)n_in * l->n_bytes)
        for (uint32_t k = 0; k < n_in; k += run_of(l, n_in))
            memcpy((uint8_t *)run_at(l, tile, n_in, c, k), src + (size_t)k * l->n_bytes,
                   (size_t)run_length(l, k, n_in) * l->n_bytes);
}

void kernel_pack(enum kernel_type type, const void *src, uint32_t n_out, uint32_t n_in,
                 uint32_t from, uint32_t to, void *packed)
{
    const struct kernel_layout *l = kernel_layout(type);
    size_t tile_bytes = kernel_tile_bytes(l, n_in);
    size_t row = (size_t)n_in / l->n_weights * l->n_bytes;
    assert(from % KERNEL_TILE == 0 && (to % KERNEL_TILE == 0 || to == n_out));
    for (uint32_t col = from; col < to; col += KERNEL_TILE) {
        unsigned n_cols = n_out - col < KERNEL_TILE ? n_out - col : KERNEL_TILE;
        uint8_t *tile = (uint8_t *)packed + col / KERNEL_TILE * tile_bytes;
        memset(tile, 0, tile_bytes);
        if (l->group)
            pack_quantised(l, (const uint8_t *)src + col * row, n_cols, n_in, tile);
        else
            pack_floats(l, (const uint8_t *)src + col * row, n_cols, n_in, tile);
    }
}

void kernel_dequant_packed(const struct kernel_mat *w, uint32_t row, float *to)
{
    const struct kernel_layout *l = kernel_layout(w->type);
    unsigned c = row % KERNEL_TILE;
    const uint8_t *tile =
        (const uint8_t *)w->data + row / KERNEL_TILE * kernel_tile_bytes(l, w->n_in);
    for (uint32_t k = 0; k < w->n_in && !l->group; k += run_of(l, w->n_in))
        kernel_dequant(w->type, run_at(l, tile, w->n_in, c, k), run_length(l, k, w->n_in), to + k);
    for (uint32_t k = 0; k < w->n_in && l->group; k += KERNEL_BLOCK) {
        struct place p = place_of(l, tile, k / KERNEL_BLOCK);
        const struct block b = stored_scales(l, &p, c);
        float d, m;
        block_scales(l, &b, &d, &m);
        for (unsigned i = 0; i < KERNEL_BLOCK; i++)
            to[k + i] = weight(l, d, m, b.sub[i / 16], stored_q(l, &p, c, i));
    }
}
