/* test_blas_logits.c - logits of a float model with OpenBLAS equal those with our kernels, except
 * for rounding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/rigs/model_rig.h"
#include "lib/models/tiny.h"

#define N 300 // tokens of a prompt, enough rows for OpenBLAS

static void logits_of(const void *file, size_t len, bool blas, float *to)
{
    struct model_rig rig;
    uint32_t tokens[N];
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = (uint32_t)(rng_splitmix64(i) % TINY_VOCAB);
    model_rig_open_memory(&rig, file, len,
                          &(struct model_rig_options){.blas = blas, .n_threads = 3, .max_rows = N});
    struct kv_seq seq = model_rig_seq(&rig);
    model_rig_feed(&rig, &seq, tokens, N, 0, to);
    kv_seq_done(rig.kv, &seq);
    model_rig_close(&rig);
}

/* Root mean square of the difference, divided by the root mean square of the logits. 0 only if all
 * bits are equal. */
static double distance(const struct tiny *t)
{
    size_t len, n = N * TINY_VOCAB;
    AUTO(mem_free) void *file = tiny_write(t, &len);
    AUTO(mem_free) float *own = calloc(n, sizeof(*own)), *blas = calloc(n, sizeof(*blas));
    double off = 0, all = 0;
    logits_of(file, len, false, own);
    logits_of(file, len, true, blas);
    for (size_t i = 0; i < n; i++) {
        off += (own[i] - blas[i]) * (own[i] - blas[i]);
        all += own[i] * own[i];
    }
    printf("off by %.2g of the logits\n", sqrt(off / all));
    return sqrt(off / all);
}

/* A different order of sums can round K and V (f16) and activations (BF16) to another neighbour. */
static void floats_by_openblas_are_near_our_own(void **state)
{
    (void)state;
    const enum kernel_type types[] = {KERNEL_F32, KERNEL_F16, KERNEL_BF16};
    const double bounds[] = {2e-4, 2e-4, 4e-3};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        double off = distance(
            &(struct tiny){.arch = "llama", .type = types[i], .head_type = types[i], .seed = i});
        assert_true(off > 0 && off < bounds[i]);
    }
}

static void quantised_matrices_do_not_use_openblas(void **state)
{
    (void)state;
    assert_true(distance(&(struct tiny){
                    .arch = "llama", .type = KERNEL_Q8_0, .head_type = KERNEL_Q6_K}) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_by_openblas_are_near_our_own),
        cmocka_unit_test(quantised_matrices_do_not_use_openblas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
