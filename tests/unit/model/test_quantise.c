/* test_quantise.c - the quantiser of synthetic models: rows stay close to the encoded floats. */
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/models/quantise.h"
#include "lib/models/weights.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define N 1024

static const struct {
    enum kernel_type type;
    double limit; // of the distance; a third more than what was measured
} types[] = {{KERNEL_F32, 0},      {KERNEL_F16, 2.8e-4}, {KERNEL_BF16, 2.3e-3},
             {KERNEL_Q8_0, 7e-3},  {KERNEL_Q4_0, 0.11},  {KERNEL_Q4_1, 0.1},
             {KERNEL_Q5_0, 0.055}, {KERNEL_Q5_1, 0.048}, {KERNEL_Q4_K, 0.1},
             {KERNEL_Q5_K, 0.05},  {KERNEL_Q6_K, 0.024}, {KERNEL_IQ4_NL, 0.1},
             {KERNEL_IQ4_XS, 0.1}, {KERNEL_MXFP4, 0.16}};

/* What a quantised row means. */
static const float *there_and_back(enum kernel_type type, const float *x)
{
    static uint8_t packed[N * 4];
    static float back[N];
    uint32_t per, bytes;
    assert_int_equal(kernel_type_block(type, &per, &bytes), 0);
    assert_int_equal(quantise_row(type, x, N, packed), N / per * bytes);
    kernel_dequant(type, packed, N, back);
    return back;
}

static void every_type_is_as_near_as_its_bits_allow(void **state)
{
    (void)state;
    float *x = weights_floats(1, N, 1, false);
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        const float *back = there_and_back(types[i].type, x);
        double off = 0, all = 0;
        for (uint32_t k = 0; k < N; k++) {
            off += (double)(back[k] - x[k]) * (double)(back[k] - x[k]);
            all += (double)x[k] * (double)x[k];
        }
        printf("type %u: %.2g\n", types[i].type, sqrt(off / all));
        assert_true(sqrt(off / all) <= types[i].limit);
    }
    free(x);
}

static void zeros_stay_zeros(void **state)
{
    (void)state;
    static const float x[N];
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        const float *back = there_and_back(types[i].type, x);
        for (uint32_t k = 0; k < N; k++)
            assert_true(back[k] == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_as_near_as_its_bits_allow),
        cmocka_unit_test(zeros_stay_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
