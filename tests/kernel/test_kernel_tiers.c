/* test_kernel_tiers.c - every tier gives the bits of the C tier: products of every type, for any
 * number of rows and any split of the columns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "kernel/kernel_impl.h"
#include "lib/guard.h"
#include "lib/lib.h"
#include "lib/tiers.h"
#include "lib/weights.h"

#define MAX_ROWS 64
#define MANY_ROWS 530 // more than any tier takes at a time

/* A product's operands, of which weights and prepared rows end at guard pages, and the C tier's
 * result for all rows. */
struct product {
    struct kernel_mat w;
    float *x;          // (n_rows, n_in)
    uint8_t *prepared; // room for all rows
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

/* Rows [0, m) at once, columns cut at `cut`; nothing else is written. */
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
    for (uint32_t m = 1; m <= MAX_ROWS; m++)
        check_rows(&p, k, (MAX_ROWS - m) / 2, m, n_out);
    for (uint32_t cut = 16; cut < n_out; cut += 16)
        for (uint32_t m = 1; m <= 9; m += 4)
            check_rows(&p, k, 5, m, cut);
    product_done(&p);
}

/* More parts of K than one, for more rows than one pass takes. */
static void check_many_rows(const struct kernel *k, enum kernel_type type, uint32_t n_out,
                            uint32_t n_in)
{
    struct product p = product_of(type, n_out, n_in, MANY_ROWS, false);
    static const uint32_t rows[] = {MANY_ROWS, 512, 270, 257, 256, 250, 129, 96, 81, 65};
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++)
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
        check_type(k, type, 40, 1280, true); // more parts of K than one
        uint32_t per, bytes;
        assert_int_equal(kernel_type_block(type, &per, &bytes), 0);
        if (per == 32) // an odd number of blocks, and one alone
            check_type(k, type, 33, 288, true);
        if (per <= 32)
            check_type(k, type, 70, 32, false);
        if (type == KERNEL_Q8_0 || type == KERNEL_Q4_1 || type == KERNEL_Q4_K ||
            type == KERNEL_Q6_K || type == KERNEL_IQ4_XS)
            check_many_rows(k, type, 33, 2304);
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
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
    for (unsigned t = 1; t < n_tiers; t++)
        check_tier(k[t]);
}

/* Blocks of types of 256 whose sums of 256 are the furthest from 0 that there are, with d and dmin
 * of 1, and activations of 127. */
static double furthest_block(enum kernel_type type, uint8_t *p)
{
    uint32_t per, bytes;
    assert_int_equal(kernel_type_block(type, &per, &bytes), 0);
    const bool has_min = kernel_layout(type)->has_min;
    const uint16_t one = kernel_f16_of(1);
    memset(p, has_min ? 0xff : 0, bytes);
    if (type == KERNEL_Q6_K)
        memset(p + 192, 0x80, 16); // scales; the weights are -32
    memcpy(p + (type == KERNEL_Q6_K ? 208 : 0), &one, 2);
    if (has_min)
        memcpy(p + 2, &one, 2);
    return 127 * 256. *
           (type == KERNEL_Q4_K   ? 63 * 15 - 63
            : type == KERNEL_Q5_K ? 63 * 31 - 63
            : type == KERNEL_Q6_K ? -128 * -32
                                  : -32 * -127);
}

static void the_furthest_sums_are_exact(void **state)
{
    (void)state;
    static const enum kernel_type types[] = {KERNEL_Q4_K, KERNEL_Q5_K, KERNEL_Q6_K, KERNEL_IQ4_XS};
    static const uint32_t rows[] = {1, 7, 16, 40, 130};
    const uint32_t n_out = 16, n_in = 512, most = 130;
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
    for (unsigned i = 0; i < ARRAY_LEN(types); i++) {
        uint8_t block[256], *file = weights_alloc((size_t)n_out * n_in);
        uint32_t per, bytes;
        assert_int_equal(kernel_type_block(types[i], &per, &bytes), 0);
        const double sum = furthest_block(types[i], block) * n_in / per;
        for (uint32_t b = 0; b < n_out * n_in / per; b++)
            memcpy(file + (size_t)b * bytes, block, bytes);
        struct kernel_mat w = weights_pack(types[i], file, n_out, n_in);
        float *x = weights_alloc(most * n_in * sizeof(float)), y[130 * 16];
        uint8_t *prepared = weights_alloc(weights_room(types[i], n_in, most));
        for (uint32_t c = 0; c < most * n_in; c++)
            x[c] = c / n_in % 2 ? -127 : 127;
        for (unsigned t = 0; t < n_tiers; t++)
            for (unsigned n = 0; n < ARRAY_LEN(rows); n++) {
                size_t x_bytes = weights_prepare(k[t], types[i], x, rows[n], n_in, prepared);
                k[t]->matmul(&w, prepared, x_bytes, rows[n], y, n_out, 0, n_out);
                for (uint32_t c = 0; c < rows[n] * n_out; c++)
                    if (y[c] != (c / n_out % 2 ? -sum : sum))
                        fail_msg("%s, type %u, %u rows: %a is not %a", k[t]->name, types[i],
                                 rows[n], y[c], sum);
            }
        free((void *)w.data);
        free(file);
        free(x);
        free(prepared);
    }
}

static void prepared_rows_are_the_same_bytes(void **state)
{
    (void)state;
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
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
        cmocka_unit_test(the_furthest_sums_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
