/* test_architectures.c - every architecture and weight type, against a simple forward pass in
 * double. */
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/rigs/model_rig.h"
#include "lib/models/tiny.h"
#include "lib/models/weights.h"
#include <math.h>
#include <stdio.h>

#define N 40

/* Root mean square of the difference, divided by the root mean square of the logits. */
static double distance(const struct tiny *t, const struct tiny *believed)
{
    size_t len;
    void *file = tiny_write(t, &len);
    static double want[N * TINY_VOCAB];
    static float got[N * TINY_VOCAB];
    uint32_t tokens[N];
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = (uint32_t)(rng_splitmix64(i) % TINY_VOCAB);
    tiny_logits(believed, file, len, tokens, N, want);
    struct model_rig rig;
    model_rig_open_memory(&rig, file, len, &(struct model_rig_options){0});
    struct kv_seq seq = model_rig_seq(&rig);
    model_rig_feed(&rig, &seq, tokens, N, 0, got);
    kv_seq_done(rig.kv, &seq);
    model_rig_close(&rig);
    free(file);
    double off = 0, all = 0;
    for (uint32_t i = 0; i < N * TINY_VOCAB; i++) {
        off += (got[i] - want[i]) * (got[i] - want[i]);
        all += want[i] * want[i];
    }
    assert_true(all > 0);
    return sqrt(off / all);
}

static void check(const struct tiny *t, const char *what, double tolerance)
{
    double off = distance(t, t);
    printf("%s %s: off by %.2g of the logits\n", t->arch, what, off);
    if (!(off < tolerance))
        fail_msg("%s %s: off by %g, more than %g", t->arch, what, off, tolerance);
}

/* Float weights: the only difference is rounding (K and V as f16 can round to either neighbour). */
#define FLOAT_TOLERANCE 2e-4

static void llama_is_as_defined(void **state)
{
    (void)state;
    struct tiny t = {.arch = "llama", .seed = 1};
    check(&t, "F32", FLOAT_TOLERANCE);
    t.tied = true;
    check(&t, "tied", FLOAT_TOLERANCE);
    t.halves = true;
    check(&t, "F16 norms", FLOAT_TOLERANCE);
    t.rope_dim = 24;
    check(&t, "partial rotation", FLOAT_TOLERANCE);
}

static void rope_is_scaled_as_defined(void **state)
{
    (void)state;
    struct tiny t = {.arch = "llama", .factors = true, .seed = 2};
    check(&t, "frequency factors", FLOAT_TOLERANCE);
    t = (struct tiny){.arch = "llama", .scaling = "linear", .seed = 3};
    check(&t, "linear scaling", FLOAT_TOLERANCE);
    t = (struct tiny){.arch = "qwen2", .scaling = "yarn", .seed = 4};
    check(&t, "YaRN", FLOAT_TOLERANCE);
    t = (struct tiny){.arch = "qwen2", .scaling = "none", .seed = 5};
    check(&t, "scaling none", FLOAT_TOLERANCE);
}

static void qwen2_is_as_defined(void **state)
{
    (void)state;
    struct tiny t = {.arch = "qwen2", .seed = 6};
    check(&t, "F32", FLOAT_TOLERANCE);
    t.halves = true;
    t.rope_dim = 16;
    check(&t, "F16 biases, partial rotation", FLOAT_TOLERANCE);
}

static void qwen3_is_as_defined(void **state)
{
    (void)state;
    struct tiny t = {.arch = "qwen3", .seed = 7};
    check(&t, "F32", FLOAT_TOLERANCE);
    t.tied = true;
    check(&t, "tied", FLOAT_TOLERANCE);
}

static void experts_are_as_defined(void **state)
{
    static const enum kernel_type types[] = {KERNEL_Q4_K, KERNEL_Q8_0, KERNEL_F16};
    static const char *const archs[] = {"qwen2moe", "qwen3moe", "gpt-oss"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(archs); i++) {
        struct tiny t = {.arch = archs[i], .seed = 50 + i, .flat_router = true};
        check(&t, "all experts are equal", FLOAT_TOLERANCE);
        t.flat_router = false;
        check(&t, "F32", FLOAT_TOLERANCE);
        for (size_t k = 0; k < ARRAY_LEN(types); k++) {
            t.type = types[k];
            t.head_type = KERNEL_Q8_0;
            t.mixed = k == 0;
            check(&t, "quantised", 0.06);
        }
    }
}

/* Activations of 8 bits per 32 have an error near 0.5 % per matrix; bf16 rounds to 0.2 %. */
static void qwen35_is_as_defined(void **state)
{
    (void)state;
    struct tiny t = {.arch = "qwen35", .seed = 17, .n_layers = 4, .rope_dim = 16};
    check(&t, "F32", FLOAT_TOLERANCE);
    t.n_layers = 3;
    check(&t, "a delta net last", FLOAT_TOLERANCE);
    t = (struct tiny){.arch = "qwen35moe", .seed = 18, .rope_dim = 16};
    check(&t, "F32", FLOAT_TOLERANCE);
}

static void every_weight_type_is_as_defined(void **state)
{
    (void)state;
    for (int i = 0; i < WEIGHTS_TYPES; i++) {
        enum kernel_type type = weights_types[i].type;
        struct tiny t = {.arch = i % 2 ? "qwen3" : "llama",
                         .type = type,
                         .head_type = type,
                         .seed = 10 + (uint64_t)i};
        enum kernel_form form = kernel_form_of(type);
        check(&t, weights_types[i].name, form == KERNEL_FORM_F32 ? FLOAT_TOLERANCE : 0.04);
    }
}

static void types_may_differ_by_tensor(void **state)
{
    (void)state;
    struct tiny t = {
        .arch = "llama", .type = KERNEL_Q4_K, .head_type = KERNEL_Q6_K, .mixed = true, .seed = 30};
    check(&t, "Q4_K with Q6_K", 0.04);
    t = (struct tiny){
        .arch = "qwen2", .type = KERNEL_Q8_0, .head_type = KERNEL_F16, .mixed = true, .seed = 31};
    check(&t, "Q8_0 with F16", 0.04);
    t = (struct tiny){
        .arch = "qwen2", .type = KERNEL_BF16, .head_type = KERNEL_Q4_0, .mixed = true, .seed = 32};
    check(&t, "BF16 with Q4_0", 0.04);
}

/* Shows that the comparison detects a wrong definition. */
static void a_wrong_definition_is_far_off(void **state)
{
    (void)state;
    struct tiny t = {.arch = "llama", .type = KERNEL_Q8_0, .head_type = KERNEL_Q8_0, .seed = 40};
    struct tiny linear = t, narrow = t;
    linear.scaling = "linear";
    narrow.rope_dim = 28;
    double off_linear = distance(&t, &linear), off_narrow = distance(&t, &narrow);
    printf("off by %.2g and %.2g of the logits\n", off_linear, off_narrow);
    assert_true(off_linear > 0.1 && off_narrow > 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_is_as_defined),
        cmocka_unit_test(rope_is_scaled_as_defined),
        cmocka_unit_test(qwen2_is_as_defined),
        cmocka_unit_test(qwen3_is_as_defined),
        cmocka_unit_test(experts_are_as_defined),
        cmocka_unit_test(qwen35_is_as_defined),
        cmocka_unit_test(every_weight_type_is_as_defined),
        cmocka_unit_test(types_may_differ_by_tensor),
        cmocka_unit_test(a_wrong_definition_is_far_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
