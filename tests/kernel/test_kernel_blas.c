/* test_kernel_blas.c - products of floats by OpenBLAS against the exact ones: every type, few and
 * many rows, ragged tiles, several panels. */
#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "kernel/kernel_impl.h"
#include "lib/rigs/guard.h"
#include "lib/lib.h"
#include "lib/models/weights.h"

#define UNTOUCHED 12345

struct product {
    struct kernel_mat w;
    const float *x; // (m, stride)
    float *y;       // (m, n_out)
    uint32_t m, stride;
};

static const enum kernel_type types[] = {KERNEL_F32, KERNEL_F16, KERNEL_BF16};

/* The error of a sum in any order: one rounding per addition. Roundings partly cancel, and OpenBLAS
 * adds in more than one chain. */
static void check_row(const struct product *p, uint32_t r, uint32_t from, uint32_t to)
{
    float *w = weights_alloc(p->w.n_in * sizeof(float));
    for (uint32_t c = 0; c < p->w.n_out; c++) {
        double sum = 0, size = 0;
        float got = p->y[(size_t)r * p->w.n_out + c];
        kernel_dequant_packed(&p->w, c, w);
        for (uint32_t k = 0; k < p->w.n_in; k++) {
            double product = (double)w[k] * p->x[(size_t)r * p->stride + k];
            sum += product;
            size += fabs(product);
        }
        if (c < from || c >= to)
            assert_true(got == UNTOUCHED);
        else if (!(fabs(got - sum) <= size * 4e-6))
            fail_msg("type %u, %u rows, K %u: row %u column %u: %g is not %g", p->w.type, p->m,
                     p->w.n_in, r, c, got, sum);
    }
    free(w);
}

/* Columns [from, to) of m rows; every operand ends at a guard page. */
static void check(enum kernel_type type, uint32_t m, uint32_t n_out, uint32_t n_in, uint32_t from,
                  uint32_t to)
{
    const struct kernel *k;
    assert_int_equal(kernel_init(&k), 0);
    size_t x_bytes = kernel_form_bytes(kernel_form_of(type), n_in);
    void *rows = weights_random(type, n_out, n_in, 1, false);
    float *floats = weights_floats(m, n_in, 2, false);
    struct product p = {weights_pack(type, rows, n_out, n_in), NULL,
                        guard_alloc((size_t)m * n_out * sizeof(float)), m,
                        (uint32_t)(x_bytes / sizeof(float))};
    void *packed = (void *)p.w.data;
    p.w.data = guard_copy(packed, kernel_packed_bytes(type, n_out, n_in));
    uint8_t *x = guard_alloc(m * x_bytes);
    for (uint32_t r = 0; r < m; r++)
        k->prepare(kernel_form_of(type), floats + (size_t)r * n_in, n_in, r, m, x, x_bytes);
    p.x = (const float *)(const void *)x;
    for (size_t i = 0; i < (size_t)m * n_out; i++)
        p.y[i] = UNTOUCHED;
    float *panel = guard_alloc(kernel_blas_floats(&p.w) * sizeof(float));
    kernel_blas_matmul(k, &p.w, x, x_bytes, m, p.y, n_out, from, to, panel);
    for (uint32_t r = 0; r < m; r += 37)
        check_row(&p, r, from, to);
    guard_free_all();
    free(packed);
    free(rows);
    free(floats);
}

static void products_are_near_the_exact_ones(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        check(types[t], 1, 37, 100, 0, 37);
        check(types[t], 130, 37, 100, 0, 37);
        check(types[t], 130, 37, 45, 16, 32);
        check(types[t], 511, 70, 256, 32, 70);
    }
}

/* Rows so long that a panel holds two tiles, or less than one. */
static void long_rows_take_several_panels(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        check(types[t], 128, 85, 32768, 0, 85);
        check(types[t], 128, 37, 80000, 16, 37);
    }
}

int main(void)
{
    kernel_thread_init();
    kernel_blas_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_near_the_exact_ones),
        cmocka_unit_test(long_rows_take_several_panels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
