/* test_kernel_tiers.c - every tier gives the bits of the C tier: products of every type, for any
 * number of rows and any split of the columns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "kernel/kernel_impl.h"
#include "lib/rigs/guard.h"
#include "lib/lib.h"
#include "lib/rigs/kernel_tiers.h"
#include "lib/models/weights.h"

#define MAX_ROWS 64
#define MANY_ROWS 530 // more than any tier takes at a time

/* A product's operands, of which weights and prepared rows end at guard pages, and the C tier's
 * result for all rows. */
struct product {
    struct kernel_mat w;
    float *x;          // (n_rows, n_in)
    uint8_t *prepared; // memory for all rows
    size_t room;
    float *y; // (n_rows, n_out)
};

/* Rows from first_row on, prepared by k so that the last ends at the guard page. */
static const uint8_t *prepare(const struct product *p, const struct kernel *k, uint32_t first_row,
                              uint32_t m, size_t *ret_bytes)
{
    enum kernel_form form = k->form(p->w.type, m);
    size_t bytes = kernel_form_bytes(form, p->w.n_in), n = m;
    if (form == KERNEL_FORM_TILES || form == KERNEL_FORM_TILES_256)
        n = (m + KERNEL_ROWS - 1) / KERNEL_ROWS * KERNEL_ROWS;
    uint8_t *to = p->prepared + p->room - n * bytes;
    *ret_bytes =
        weights_prepare(k, p->w.type, p->x + (size_t)first_row * p->w.n_in, m, p->w.n_in, to);
    return to;
}

static struct product product_of(enum kernel_type type, uint32_t n_out, uint32_t n_in,
                                 uint32_t n_rows, bool extreme)
{
    const struct kernel *c = kernel_tier("c");
    struct product p = {.x = weights_floats(n_rows, n_in, 12, extreme),
                        .room = weights_room(type, n_in, n_rows)};
    void *rows = weights_random(type, n_out, n_in, 11, extreme);
    p.w = weights_pack(type, rows, n_out, n_in);
    void *packed = (void *)p.w.data;
    p.w.data = guard_copy(packed, kernel_packed_bytes(type, n_out, n_in));
    p.prepared = guard_alloc(p.room);
    p.y = weights_alloc(n_rows * n_out * sizeof(float));
    size_t x_bytes;
    const uint8_t *x = prepare(&p, c, 0, n_rows, &x_bytes);
    c->matmul(&p.w, x, x_bytes, n_rows, p.y, n_out, 0, n_out);
    free(packed);
    free(rows);
    return p;
}

static void product_done(struct product *p)
{
    guard_free_all();
    free(p->x);
    free(p->y);
}

static void check_same(const struct product *p, const float *y, size_t y_stride, uint32_t first_row,
                       uint32_t m, uint32_t from, uint32_t to, const char *tier)
{
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t c = from; c < to; c++) {
            float want = p->y[(first_row + r) * p->w.n_out + c], got = y[r * y_stride + c];
            if (memcmp(&want, &got, 4) != 0)
                fail_msg("%s, type %u, K %u: row %u of %u, column %u: %a is not %a", tier,
                         p->w.type, p->w.n_in, r, m, c, got, want);
        }
}

/* Rows [0, m) in one call, columns cut at `cut`; nothing else is written. */
static void check_rows(const struct product *p, const struct kernel *k, uint32_t first_row,
                       uint32_t m, uint32_t cut)
{
    uint32_t n = p->w.n_out;
    size_t stride = n + 3;
    float *y = weights_alloc(m * stride * sizeof(float));
    memset(y, 0xa5, m * stride * sizeof(float));
    size_t x_bytes;
    const uint8_t *x = prepare(p, k, first_row, m, &x_bytes);
    k->matmul(&p->w, x, x_bytes, m, y, stride, 0, cut);
    if (cut < n) {
        for (uint32_t r = 0; r < m; r++)
            assert_int_equal(kernel_bits(y[r * stride + cut]), 0xa5a5a5a5);
        k->matmul(&p->w, x, x_bytes, m, y, stride, cut, n);
    }
    for (uint32_t r = 0; r < m; r++)
        assert_int_equal(kernel_bits(y[r * stride + n]), 0xa5a5a5a5);
    check_same(p, y, stride, first_row, m, 0, n, k->name);
    free(y);
}

static void check_type(const struct kernel *k, enum kernel_type type, uint32_t n_out, uint32_t n_in,
                       bool extreme)
{
    struct product p = product_of(type, n_out, n_in, MAX_ROWS, extreme);
    for (uint32_t m = 1; m <= MAX_ROWS; m += kernel_tiers_step())
        check_rows(&p, k, (MAX_ROWS - m) / 2, m, n_out);
    for (uint32_t cut = 16; cut < n_out; cut += 16)
        for (uint32_t m = 1; m <= 9; m += 4)
            check_rows(&p, k, 5, m, cut);
    product_done(&p);
}

/* Several parts of K, for more rows than one pass takes. */
static void check_many_rows(const struct kernel *k, enum kernel_type type, uint32_t n_out,
                            uint32_t n_in)
{
    struct product p = product_of(type, n_out, n_in, MANY_ROWS, false);
    static const uint32_t rows[] = {MANY_ROWS, 512, 270, 257, 256, 250, 129, 96, 81, 65};
    for (unsigned i = 0; i < ARRAY_LEN(rows); i += (kernel_tiers_step() + 1) / 2)
        check_rows(&p, k, MANY_ROWS - rows[i], rows[i], 32);
    product_done(&p);
}

static void check_tier(const struct kernel *k)
{
    for (int t = 0; t < WEIGHTS_TYPES; t++) {
        enum kernel_type type = weights_types[t].type;
        int64_t start = clock_us();
        check_type(k, type, 150, 256, false);
        check_type(k, type, 81, 512, true);
        check_type(k, type, 40, 1280, true); // several parts of K
        uint32_t per, bytes;
        assert_int_equal(kernel_type_block(type, &per, &bytes), 0);
        if (per == 32) // an odd number of blocks, and a single one
            check_type(k, type, 33, 288, true);
        if (per <= 32)
            check_type(k, type, 70, 32, false);
        if (type == KERNEL_Q8_0 || type == KERNEL_Q4_1 || type == KERNEL_Q4_K ||
            type == KERNEL_Q6_K || type == KERNEL_IQ4_XS)
            check_many_rows(k, type, 33, 2560);
        if (per == 1) {
            check_type(k, type, 35, 77, false);
            check_many_rows(k, type, 70, 2336);
        }
        printf("%s %s: %.1f ms\n", k->name, weights_types[t].name,
               (double)(clock_us() - start) / 1e3);
    }
}

static void products_of_all_tiers_are_those_of_c(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_to_compare(k);
    for (unsigned t = 1; t < n_tiers; t++)
        check_tier(k[t]);
}

/* Of 10 tiles: each number of tiles side by side, with a rest and without, prefetched or not. */
static void check_walks(const struct kernel *k, enum kernel_type type)
{
    static const uint32_t rows[] = {1, 2, 5, 13, 17};
    struct product p = product_of(type, 150, 512, MAX_ROWS, true);
    for (uint8_t n = 1; n <= KERNEL_STREAMS; n++)
        for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
            const struct kernel_walk walk = {n, n % 2 ? 2048 : 0}, never = {n == 1 ? 8 : 1, 64};
            p.w.one = rows[i] == 1 ? walk : never;
            p.w.more = rows[i] == 1 ? never : walk;
            check_rows(&p, k, 3, rows[i], 150);
        }
    product_done(&p);
}

static void all_walks_give_the_same_bits(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_to_compare(k);
    for (unsigned t = 1; t < n_tiers; t++)
        for (int i = 0; i < WEIGHTS_TYPES; i++)
            check_walks(k[t], weights_types[i].type);
}

/* All weights of a block have one byte pattern, and all its integer scales another. So the sums of
 * 256, and the partial sums of a tier, reach both ends of their ranges. */
struct corner {
    enum kernel_type type;
    uint8_t weights, scales;
    int sum; // of a weight: times its scale, less the minimum
};

static const struct corner corners[] = {
    {KERNEL_Q4_K, 0xff, 0xff, 15 * 63 - 63}, {KERNEL_Q4_K, 0x00, 0xff, -63},
    {KERNEL_Q5_K, 0xff, 0xff, 31 * 63 - 63}, {KERNEL_Q5_K, 0x00, 0xff, -63},
    {KERNEL_Q6_K, 0x00, 0x80, -32 * -128}, // the largest of all: 127 * 256 * 4096 < 2^27
    {KERNEL_Q6_K, 0x00, 0x7f, -32 * 127},    {KERNEL_Q6_K, 0xff, 0x80, 31 * -128},
    {KERNEL_Q6_K, 0xff, 0x7f, 31 * 127},     {KERNEL_IQ4_XS, 0x00, 0x00, -127 * -32},
    {KERNEL_IQ4_XS, 0x00, 0xff, -127 * 31},  {KERNEL_IQ4_XS, 0xff, 0x00, 113 * -32},
    {KERNEL_IQ4_XS, 0xff, 0xff, 113 * 31},
};

/* Its block in the file, with d and dmin of 1. */
static uint32_t corner_block(const struct corner *c, uint8_t *p)
{
    uint32_t per, bytes;
    assert_int_equal(kernel_type_block(c->type, &per, &bytes), 0);
    const bool q6 = c->type == KERNEL_Q6_K, has_min = kernel_layout(c->type)->has_min;
    const uint16_t one = kernel_f16_of(1);
    memset(p, c->weights, bytes);
    memset(p + (q6 ? 192 : 2), c->scales, q6 ? 16 : has_min ? 14 : 6);
    memcpy(p + (q6 ? 208 : 0), &one, 2);
    if (has_min)
        memcpy(p + 2, &one, 2);
    return bytes;
}

static void check_corner(const struct corner *c)
{
    static const uint32_t rows[] = {1, 7, 16, 40, 130};
    enum { N_OUT = 16, N_IN = 512, MOST = 130 };
    uint8_t block[256], *file = weights_alloc(N_OUT * N_IN);
    const uint32_t bytes = corner_block(c, block), n = N_OUT * N_IN / KERNEL_GROUP;
    for (uint32_t b = 0; b < n; b++)
        memcpy(file + (size_t)b * bytes, block, bytes);
    struct kernel_mat w = weights_pack(c->type, file, N_OUT, N_IN);
    float *x = weights_alloc(MOST * N_IN * sizeof(float)), y[MOST][N_OUT];
    uint8_t *prepared = weights_alloc(weights_room(c->type, N_IN, MOST));
    const float sum = 127.f * N_IN * (float)c->sum;
    for (uint32_t i = 0; i < MOST * N_IN; i++)
        x[i] = i / N_IN % 2 ? -127 : 127;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned t = 0; t < n_tiers; t++)
        for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
            size_t x_bytes = weights_prepare(k[t], c->type, x, rows[i], N_IN, prepared);
            k[t]->matmul(&w, prepared, x_bytes, rows[i], y[0], N_OUT, 0, N_OUT);
            for (uint32_t r = 0; r < rows[i]; r++)
                for (uint32_t o = 0; o < N_OUT; o++)
                    if (y[r][o] != (r % 2 ? -sum : sum))
                        fail_msg("%s, type %u, weights %02x, scales %02x, %u rows: %a is not %a",
                                 k[t]->name, c->type, c->weights, c->scales, rows[i], y[r][o],
                                 r % 2 ? -sum : sum);
        }
    free((void *)w.data);
    free(file);
    free(x);
    free(prepared);
}

static void the_extreme_sums_are_exact(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ARRAY_LEN(corners); i++)
        check_corner(&corners[i]);
}

/* A file may hold any scale. A hostile one turns activations into NaNs or infinities. MXFP4 has
 * finite ones only. */
static void put_hostile_scales(enum kernel_type type, uint8_t *rows, uint32_t n_in)
{
    static const uint16_t hostile[] = {0x7c00, 0xfc00, 0x7e00}; // infinities, a NaN
    uint32_t per, bytes;
    assert_int_equal(kernel_type_block(type, &per, &bytes), 0);
    const uint32_t n_blocks = n_in / per, at = type == KERNEL_Q6_K ? 208 : 0;
    for (unsigned i = 0; i < ARRAY_LEN(hostile) && type != KERNEL_MXFP4; i++)
        memcpy(rows + ((3 + 12 * i) * n_blocks + i % n_blocks) * bytes + at, &hostile[i], 2);
    if (kernel_layout(type)->has_min)
        memcpy(rows + 5 * n_blocks * bytes + 2, &hostile[1], 2);
}

static bool is_hostile_column(enum kernel_type type, uint32_t c)
{
    return type != KERNEL_MXFP4 &&
           (c == 3 || c == 15 || c == 27 || (c == 5 && kernel_layout(type)->has_min));
}

enum { HOSTILE_OUT = 33, HOSTILE_IN = 512, HOSTILE_ROWS = 130 };

typedef float hostile_y[HOSTILE_ROWS][HOSTILE_OUT];

static void hostile_product(const struct kernel *k, const struct kernel_mat *w, const float *x,
                            uint32_t m, hostile_y y)
{
    uint8_t *prepared = weights_alloc(weights_room(w->type, HOSTILE_IN, m));
    size_t x_bytes = weights_prepare(k, w->type, x, m, HOSTILE_IN, prepared);
    k->matmul(w, prepared, x_bytes, m, y[0], HOSTILE_OUT, 0, HOSTILE_OUT);
    free(prepared);
}

/* good: the result without NaNs and infinities; want: that of the C tier. */
static void check_hostile_at(const struct kernel *k, enum kernel_type type, uint32_t r, uint32_t c,
                             float good, float want, float y)
{
    const bool hostile = is_hostile_column(type, c), own_row = r == 2 || r == 4;
    if (kernel_bits(y) != kernel_bits(want) && !(isnan(y) && isnan(want)))
        fail_msg("%s, type %u: row %u, column %u: %a is not %a", k->name, type, r, c, y, want);
    if (hostile && isfinite(y))
        fail_msg("%s, type %u: row %u, column %u is finite", k->name, type, r, c);
    if (!hostile && !own_row && kernel_bits(y) != kernel_bits(good))
        fail_msg("%s, type %u: row %u, column %u is not as beside good ones", k->name, type, r, c);
}

static void check_hostile(const struct kernel *k, enum kernel_type type, uint32_t m)
{
    static hostile_y good, want, y;
    float *x = weights_floats(m, HOSTILE_IN, 21, false);
    uint8_t *rows = weights_random(type, HOSTILE_OUT, HOSTILE_IN, 22, false);
    struct kernel_mat w = weights_pack(type, rows, HOSTILE_OUT, HOSTILE_IN);
    hostile_product(kernel_tier("c"), &w, x, m, good);
    put_hostile_scales(type, rows, HOSTILE_IN);
    kernel_pack(type, rows, HOSTILE_OUT, HOSTILE_IN, 0, HOSTILE_OUT, (void *)w.data);
    x[2 * HOSTILE_IN + 300] = NAN;
    x[4 * HOSTILE_IN + 9] = -INFINITY;
    hostile_product(kernel_tier("c"), &w, x, m, want);
    hostile_product(k, &w, x, m, y);
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t c = 0; c < HOSTILE_OUT; c++)
            check_hostile_at(k, type, r, c, good[r][c], want[r][c], y[r][c]);
    free((void *)w.data);
    free(rows);
    free(x);
}

static void nans_and_infinities_stay_in_their_row_and_column(void **state)
{
    (void)state;
    static const uint32_t rows[] = {5, 40, 130};
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned t = 0; t < n_tiers; t++)
        for (int i = 0; i < WEIGHTS_TYPES; i++)
            for (unsigned n = 0; n < ARRAY_LEN(rows); n++)
                if (kernel_layout(weights_types[i].type)->group)
                    check_hostile(k[t], weights_types[i].type, rows[n]);
}

static void prepared_rows_are_the_same_bytes(void **state)
{
    (void)state;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_to_compare(k);
    for (unsigned t = 1; t < n_tiers; t++)
        for (uint32_t n = 1; n < 700; n += n < 40 ? 1 : 37)
            for (enum kernel_form form = KERNEL_FORM_INT8; form <= KERNEL_FORM_BF16; form++) {
                uint32_t len = form == KERNEL_FORM_INT8       ? n * 32
                               : form == KERNEL_FORM_INT8_256 ? n * 256
                                                              : n;
                size_t bytes = kernel_form_bytes(form, len);
                float *x = weights_floats(1, len, n, n % 2);
                uint8_t *a = weights_alloc(bytes), *b = weights_alloc(bytes);
                memset(a, 0, bytes);
                memset(b, 0, bytes);
                k[0]->prepare(form, x, len, 0, 1, a, bytes);
                k[t]->prepare(form, x, len, 0, 1, b, bytes);
                assert_memory_equal(a, b, bytes);
                free(x);
                free(a);
                free(b);
            }
}

int main(void)
{
    kernel_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prepared_rows_are_the_same_bytes),
        cmocka_unit_test(products_of_all_tiers_are_those_of_c),
        cmocka_unit_test(all_walks_give_the_same_bits),
        cmocka_unit_test(the_extreme_sums_are_exact),
        cmocka_unit_test(nans_and_infinities_stay_in_their_row_and_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
