/* test_kernel_known.c - the known bits of every kernel on ordinary input. They are the same on
 * every CPU and in every tier. A change of the order of sums makes this test fail. */
#include "kernel/kernel_impl.h"
#include "lib/lib.h"
#include "lib/rigs/kernel_tiers.h"
#include "lib/models/weights.h"
#include <stdio.h>
#include <stdlib.h>

#define ROWS 33
#define N_OUT 40
#define N_IN 768

/* FNV-1a */
static uint32_t digest(const void *data, size_t bytes)
{
    uint32_t h = 0x811c9dc5;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x01000193;
    return h;
}

static void must_be(uint32_t got, uint32_t want, const char *tier, const char *what)
{
    if (got != want)
        fail_msg("%s, %s: the digest is 0x%08x, not 0x%08x", tier, what, got, want);
}

static uint32_t digest_of_products(const struct kernel *k, enum kernel_type type)
{
    void *rows = weights_random(type, N_OUT, N_IN, 1, false);
    float *x = weights_floats(ROWS, N_IN, 2, false);
    struct kernel_mat w = weights_pack(type, rows, N_OUT, N_IN);
    uint8_t *prepared = weights_alloc(weights_room(type, N_IN, ROWS));
    static float y[ROWS][N_OUT];
    size_t x_bytes = weights_prepare(k, type, x, ROWS, N_IN, prepared);
    k->matmul(&w, prepared, x_bytes, ROWS, y[0], N_OUT, 0, N_OUT);
    free(rows);
    free(x);
    free(prepared);
    free((void *)w.data);
    return digest(y, sizeof(y));
}

static void products_have_the_known_bits(void **state)
{
    (void)state;
    static const uint32_t known[WEIGHTS_TYPES] = {
        // as weights_types
        0xbd934e2f, 0x8d4817f1, 0xedcd0305, 0xa3e0d8f3, 0xad2bc657, 0xce725192, 0xc17fab57,
        0x61df4c1b, 0x66477e64, 0x8c170c3e, 0x5778792f, 0x092534c6, 0x85a46979, 0x1e9ca2ea};
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned t = 0; t < n_tiers; t++)
        for (int i = 0; i < WEIGHTS_TYPES; i++)
            must_be(digest_of_products(k[t], weights_types[i].type), known[i], k[t]->name,
                    weights_types[i].name);
}

static void row_operations_have_the_known_bits(void **state)
{
    (void)state;
    float *x = weights_floats(1, N_IN, 3, false), *w = weights_floats(1, N_IN, 4, false);
    static uint32_t tokens[N_IN];
    for (uint32_t i = 0; i < N_IN; i++)
        tokens[i] = i;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned t = 0; t < n_tiers; t++) {
        float y[N_IN];
        uint16_t half[N_IN];
        k[t]->rmsnorm(x, w, N_IN, 1e-5f, y);
        must_be(digest(y, sizeof(y)), 0x1db242d2, k[t]->name, "rmsnorm");
        k[t]->swiglu(x, w, N_IN, y);
        must_be(digest(y, sizeof(y)), 0xd7ff1ec7, k[t]->name, "swiglu");
        k[t]->to_f16(y, N_IN, half);
        k[t]->swiglu_clamped(x, w, N_IN, y);
        must_be(digest(y, sizeof(y)), 0x4a7c2932, k[t]->name, "swiglu_clamped");
        must_be(digest(half, sizeof(half)), 0x0fbca399, k[t]->name, "to_f16");
        double sum = k[t]->logsumexp(x, N_IN);
        must_be(digest(&sum, sizeof(sum)), 0x499c866d, k[t]->name, "logsumexp");
        double weighed[N_IN];
        k[t]->weigh(x, N_IN, 0.7, 1, weighed);
        must_be(digest(weighed, sizeof(weighed)), 0xd89bc9fa, k[t]->name, "weigh");
        uint64_t words[N_IN];
        k[t]->noise(5, 6, tokens, N_IN, words);
        must_be(digest(words, sizeof(words)), 0xba49c0aa, k[t]->name, "noise");
    }
    free(x);
    free(w);
}

/* Four heads of 64 over two pieces and a bit. */
static void attention_has_the_known_bits(void **state)
{
    (void)state;
    enum { HEADS = 4, DIM = 64, POSITIONS = 600, BLOCKS = (POSITIONS + 15) / 16 };
    float *q = weights_floats(HEADS, DIM, 5, false);
    float *kv = weights_floats(2 * POSITIONS, DIM, 6, false), out[HEADS * DIM];
    static _Alignas(KERNEL_ALIGN) float scratch[KERNEL_ATTN_SCRATCH(DIM)];
    static const uint32_t known[] = {
        [KERNEL_KV_F16] = 0x2654022e, [KERNEL_KV_F32] = 0xcf04f046, [KERNEL_KV_INT8] = 0x5a108c01};
    uint32_t blocks[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = i;
    const struct kernel *k[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(k);
    for (enum kernel_kv type = KERNEL_KV_F16; type <= KERNEL_KV_INT8; type++) {
        size_t block = kernel_kv_bytes(type, DIM);
        char *pool = weights_alloc(BLOCKS * block);
        for (uint32_t p = 0; p < POSITIONS; p++)
            kernel_c.kv_put(type, kv + p * DIM, kv + (POSITIONS + p) * DIM, DIM, p % 16,
                            pool + p / 16 * block);
        const struct kernel_attn a = {.q = q,
                                      .out = out,
                                      .sights = &(struct kernel_sight){.n_base = POSITIONS},
                                      .n_rows = 1,
                                      .n_heads = HEADS,
                                      .head_dim = DIM,
                                      .scale = 0.125f,
                                      .blocks = blocks,
                                      .type = type,
                                      .kv = pool,
                                      .block = block,
                                      .scratch = scratch};
        for (unsigned t = 0; t < n_tiers; t++) {
            k[t]->attn(&a);
            must_be(digest(out, sizeof(out)), known[type], k[t]->name, kernel_kv_name(type));
        }
        free(pool);
    }
    free(q);
    free(kv);
}

int main(void)
{
    kernel_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_known_bits),
        cmocka_unit_test(row_operations_have_the_known_bits),
        cmocka_unit_test(attention_has_the_known_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
