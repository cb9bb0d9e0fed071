/* test_kernel_matmul.c - every weight type: packing, and products against a float64 oracle. */
#include "base/mem.h"
#include "kernel/kernel_impl.h"
#include "lib/lib.h"
#include "lib/models/weights.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t row_bytes(enum kernel_type type, uint32_t n_in)
{
    uint32_t per, bytes;
    assert_int_equal(kernel_type_block(type, &per, &bytes), 0);
    return (size_t)n_in / per * bytes;
}

static void a_packed_row_dequantises_as_the_row_of_the_file(void **state)
{
    (void)state;
    for (int t = 0; t < WEIGHTS_TYPES; t++) {
        enum kernel_type type = weights_types[t].type;
        uint32_t n_out = 37, n_in = 768;
        uint8_t *rows = weights_random(type, n_out, n_in, 1, true);
        struct kernel_mat w = weights_pack(type, rows, n_out, n_in);
        for (uint32_t r = 0; r < n_out; r++) {
            float a[768], b[768];
            kernel_dequant(type, rows + r * row_bytes(type, n_in), n_in, a);
            kernel_dequant_packed(&w, r, b);
            assert_memory_equal(a, b, sizeof(a));
        }
        free(rows);
        free((void *)w.data);
    }
}

static void packing_in_ranges_equals_packing_in_one_call(void **state)
{
    (void)state;
    for (int t = 0; t < WEIGHTS_TYPES; t++) {
        enum kernel_type type = weights_types[t].type;
        uint32_t n_out = 53, n_in = 256;
        uint8_t *rows = weights_random(type, n_out, n_in, 2, false);
        struct kernel_mat w = weights_pack(type, rows, n_out, n_in);
        size_t bytes = kernel_packed_bytes(type, n_out, n_in);
        uint8_t *parts = weights_alloc(bytes);
        kernel_pack(type, rows, n_out, n_in, 48, 53, parts);
        kernel_pack(type, rows, n_out, n_in, 0, 16, parts);
        kernel_pack(type, rows, n_out, n_in, 16, 48, parts);
        assert_memory_equal(parts, w.data, bytes);
        free(rows);
        free(parts);
        free((void *)w.data);
    }
}

/* The activation that a prepared row represents. */
static double prepared_at(enum kernel_form form, const void *row, uint32_t k)
{
    if (form == KERNEL_FORM_INT8_256) {
        const struct kernel_x256 *x = (const struct kernel_x256 *)row + k / KERNEL_GROUP;
        return (double)x->q[k % KERNEL_GROUP] * x->d;
    }
    if (form != KERNEL_FORM_INT8)
        return ((const float *)row)[k];
    const struct kernel_x *x = (const struct kernel_x *)row + k / KERNEL_BLOCK;
    return (double)x->q[k % KERNEL_BLOCK] * x->d;
}

/* A sum of n products in float differs from the exact one by at most n 2^-24 of the products'
 * sizes. Lanes and blocks make the chains far shorter. Rounding d_w d_x once more is within it. */
static void check_against_float64(const struct kernel *kernel, enum kernel_type type, uint32_t m,
                                  uint32_t n_out, uint32_t n_in)
{
    enum kernel_form form = kernel_form_of(type);
    size_t x_bytes = kernel_form_bytes(form, n_in);
    uint8_t *rows = weights_random(type, n_out, n_in, 3, false);
    struct kernel_mat w = weights_pack(type, rows, n_out, n_in);
    float *x = weights_floats(m, n_in, 4, false), *y = weights_alloc(m * n_out * sizeof(float));
    float *wf = weights_alloc(n_in * sizeof(float));
    uint8_t *px = weights_alloc(m * x_bytes);
    for (uint32_t r = 0; r < m; r++)
        kernel->prepare(form, x + r * n_in, n_in, r, m, px, x_bytes);
    kernel->matmul(&w, px, x_bytes, m, y, n_out, 0, n_out);
    for (uint32_t c = 0; c < n_out; c++) {
        kernel_dequant(type, rows + c * row_bytes(type, n_in), n_in, wf);
        for (uint32_t r = 0; r < m; r++) {
            double sum = 0, size = 0;
            for (uint32_t k = 0; k < n_in; k++) {
                double p = wf[k] * prepared_at(form, px + r * x_bytes, k);
                sum += p;
                size += fabs(p);
            }
            if (fabs(y[r * n_out + c] - sum) > size * 4e-6)
                fail_msg("type %u row %u column %u: %g is not %g", type, r, c, y[r * n_out + c],
                         sum);
        }
    }
    free(rows);
    free(x);
    free(y);
    free(wf);
    free(px);
    free((void *)w.data);
}

static void products_agree_with_float64(void **state)
{
    (void)state;
    for (int t = 0; t < WEIGHTS_TYPES; t++)
        check_against_float64(kernel_tier("c"), weights_types[t].type, 3, 37, 768);
    check_against_float64(kernel_tier("c"), KERNEL_F16, 2, 5, 100);
    check_against_float64(kernel_tier("c"), KERNEL_F32, 2, 5, 7);
    check_against_float64(kernel_tier("c"), KERNEL_BF16, 2, 5, 45);
    check_against_float64(kernel_tier("c"), KERNEL_Q8_0, 2, 5, 288);
}

/* int8: at most half a step of the largest in 32 or 256. bf16: 2^-9 of each. */
static void prepared_rows_are_near_the_activations(void **state)
{
    (void)state;
    static const enum kernel_form forms[] = {KERNEL_FORM_INT8, KERNEL_FORM_INT8_256,
                                             KERNEL_FORM_BF16};
    float *x = weights_floats(1, 512, 5, false);
    for (unsigned i = 0; i < ARRAY_LEN(forms); i++) {
        uint8_t *to = weights_alloc(kernel_form_bytes(forms[i], 512));
        kernel_tier("c")->prepare(forms[i], x, 512, 0, 1, to, 0);
        for (uint32_t k = 0; k < 512; k++) {
            float step = forms[i] == KERNEL_FORM_BF16 ? fabsf(x[k]) * 0x1p-7f
                         : forms[i] == KERNEL_FORM_INT8
                             ? ((struct kernel_x *)(void *)to)[k / KERNEL_BLOCK].d
                             : ((struct kernel_x256 *)(void *)to)[k / KERNEL_GROUP].d;
            assert_true(fabs(prepared_at(forms[i], to, k) - x[k]) <= step * 0.500001);
        }
        free(to);
    }
    free(x);
}

int main(void)
{
    kernel_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packed_row_dequantises_as_the_row_of_the_file),
        cmocka_unit_test(packing_in_ranges_equals_packing_in_one_call),
        cmocka_unit_test(products_agree_with_float64),
        cmocka_unit_test(prepared_rows_are_near_the_activations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
