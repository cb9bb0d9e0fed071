/* test_kernel_attn.c - attention of a row: against float64, and the same bits in every tier, for
 * every placement of the positions and for heads taken together or alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "kernel/kernel_impl.h"
#include "lib/guard.h"
#include "lib/lib.h"
#include "lib/tiers.h"
#include "lib/weights.h"

#define MAX_POS 1100

/* K and V of MAX_POS positions and a row's queries; position p lies in slot places[p]. */
struct scene {
    uint32_t n_group, head_dim, n_pos, n_base;
    uint32_t blocks[MAX_POS / 16 + 1], tail[MAX_POS];
    float *q;
    const float *k, *v; // (MAX_POS, head_dim), by position
    uint16_t *pool;     // (slots, 2, head_dim)
};

#define SLOTS ((MAX_POS / 16 + 1) * 16 * 2)

/* Whole blocks of the first n_base positions in falling order, the others scattered behind them. */
static void place(struct scene *s, uint32_t n_pos, uint32_t n_base, uint32_t salt)
{
    uint32_t d = s->head_dim;
    s->n_pos = n_pos;
    s->n_base = n_base;
    for (uint32_t b = 0; b * 16 < n_base; b++)
        s->blocks[b] = (MAX_POS / 16 - b + salt) % (MAX_POS / 16 + 1);
    for (uint32_t i = 0; i < n_pos - n_base; i++)
        s->tail[i] = SLOTS / 2 + (i * 7 + salt) % (SLOTS / 2);
    memset(s->pool, 0x7e, SLOTS * 2 * d * sizeof(uint16_t)); // NaN: slots of no position
    for (uint32_t p = 0; p < n_pos; p++) {
        uint32_t slot = p < n_base ? s->blocks[p / 16] * 16 + p % 16 : s->tail[p - n_base];
        kernel_tier("c")->to_f16(s->k + p * d, d, s->pool + (2 * slot) * d);
        kernel_tier("c")->to_f16(s->v + p * d, d, s->pool + (2 * slot + 1) * d);
    }
}

static struct scene scene_of(uint32_t n_group, uint32_t head_dim)
{
    struct scene s = {.n_group = n_group, .head_dim = head_dim};
    s.q = weights_floats(n_group, head_dim, 1, false);
    s.k = weights_floats(MAX_POS, head_dim, 2, false);
    s.v = weights_floats(MAX_POS, head_dim, 3, false);
    s.pool = guard_alloc(SLOTS * 2 * head_dim * sizeof(uint16_t));
    return s;
}

static void scene_done(struct scene *s)
{
    free(s->q);
    free((void *)s->k);
    free((void *)s->v);
    guard_free_all();
}

/* Heads [h, h + n) into out (n_group, head_dim). */
static void attend(const struct kernel *k, const struct scene *s, uint32_t h, uint32_t n,
                   float *out)
{
    uint32_t d = s->head_dim;
    float *scratch = weights_alloc(n * (KERNEL_PIECE + d + 2) * sizeof(float));
    k->attn(&(struct kernel_attn){
        .q = s->q + h * d,
        .out = out + h * d,
        .n_group = n,
        .head_dim = d,
        .scale = 1 / sqrtf((float)d),
        .n_pos = s->n_pos,
        .blocks = s->blocks,
        .n_base = s->n_base,
        .tail = s->tail,
        .k = s->pool,
        .v = s->pool + d,
        .stride = 2 * d,
        .scratch = scratch,
    });
    free(scratch);
}

static void check_float64(const struct scene *s, const float *out)
{
    uint32_t d = s->head_dim;
    for (uint32_t h = 0; h < s->n_group; h++) {
        static double w[MAX_POS];
        double sum = 0;
        for (uint32_t p = 0; p < s->n_pos; p++) {
            double dot = 0;
            for (uint32_t i = 0; i < d; i++)
                dot += (double)s->q[h * d + i] * kernel_f16_to(kernel_f16_of(s->k[p * d + i]));
            sum += w[p] = exp(dot / sqrt(d));
        }
        for (uint32_t i = 0; i < d; i++) {
            double want = 0;
            for (uint32_t p = 0; p < s->n_pos; p++)
                want += w[p] / sum * kernel_f16_to(kernel_f16_of(s->v[p * d + i]));
            if (!(fabs(out[h * d + i] - want) <
                  2e-6)) // V is about 1; sums are short chains of floats
                fail_msg("%u positions, head %u, %u: %g is not %g", s->n_pos, h, i, out[h * d + i],
                         want);
        }
    }
}

static const uint32_t positions[] = {1,   2,   15,  16,  17,  250,  255,
                                     256, 257, 511, 512, 513, 1025, 1100};

static void attention_agrees_with_float64(void **state)
{
    (void)state;
    for (uint32_t d = 24; d <= 72; d += 24) {
        struct scene s = scene_of(3, d);
        float *out = weights_alloc(s.n_group * d * sizeof(float));
        for (unsigned i = 0; i < sizeof(positions) / sizeof(*positions); i++) {
            place(&s, positions[i], positions[i] / 2, 5);
            attend(kernel_tier("c"), &s, 0, s.n_group, out);
            check_float64(&s, out);
        }
        free(out);
        scene_done(&s);
    }
}

static void check_tiers(uint32_t n_group, uint32_t d)
{
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
    struct scene s = scene_of(n_group, d);
    size_t bytes = n_group * d * sizeof(float);
    float *want = weights_alloc(bytes), *out = weights_alloc(bytes);
    for (unsigned i = 0; i < sizeof(positions) / sizeof(*positions); i++) {
        place(&s, positions[i], positions[i] - positions[i] / 5, i);
        attend(kernel_tier("c"), &s, 0, n_group, want);
        for (unsigned t = 0; t < n_tiers; t++) {
            memset(out, 0xff, bytes);
            attend(k[t], &s, 0, n_group, out);
            assert_memory_equal(out, want, bytes);
            memset(out, 0xff, bytes);
            for (uint32_t h = 0; h < n_group; h++)
                attend(k[t], &s, h, 1, out);
            assert_memory_equal(out, want, bytes);
        }
    }
    free(want);
    free(out);
    scene_done(&s);
}

static void tiers_and_groups_of_heads_give_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 8}, dims[] = {8, 16, 20, 64, 80, 96, 128, 256};
    bool all = getenv("TANDEM_TEST_LONG");
    for (unsigned g = 0; g < 6; g++)
        for (unsigned i = 0; i < 8; i++)
            if (all || (g + i) % 3 == 0)
                check_tiers(groups[g], dims[i]);
}

/* A path through a tree is the chain of the same tokens, wherever both lie. */
static void where_positions_lie_changes_no_bit(void **state)
{
    (void)state;
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
    struct scene s = scene_of(4, 64);
    size_t bytes = 4 * 64 * sizeof(float);
    float *want = weights_alloc(bytes), *out = weights_alloc(bytes);
    for (unsigned t = 0; t < n_tiers; t++) {
        for (unsigned i = 0; i < sizeof(positions) / sizeof(*positions); i++) {
            uint32_t n = positions[i];
            place(&s, n, n, 0);
            attend(k[t], &s, 0, 4, want);
            uint32_t bases[] = {0, 1, n / 2, n - 1, n > 20 ? n - 20 : 0, n};
            for (unsigned b = 0; b < 6; b++) {
                place(&s, n, bases[b], b);
                attend(k[t], &s, 0, 4, out);
                assert_memory_equal(out, want, bytes);
            }
        }
    }
    free(want);
    free(out);
    scene_done(&s);
}

static void cost_grows_with_positions_alone(void **state)
{
    (void)state;
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
    struct scene s = scene_of(4, 64);
    float *out = weights_alloc(4 * 64 * sizeof(float));
    place(&s, MAX_POS, MAX_POS, 0);
    for (unsigned t = 0; t < n_tiers; t++) {
        int64_t best = INT64_MAX;
        for (int i = 0; i < 20; i++) {
            int64_t start = clock_us();
            attend(k[t], &s, 0, 4, out);
            int64_t us = clock_us() - start;
            best = us < best ? us : best;
        }
        printf("%s: 4 heads of 64 over %u positions %lld us\n", k[t]->name, MAX_POS,
               (long long)best);
    }
    free(out);
    scene_done(&s);
}

/* Scores so large that exp of any but the largest is 0, and of both signs. */
static void large_scores_neither_overflow_nor_vanish(void **state)
{
    (void)state;
    const struct kernel *k[TIERS_MAX];
    unsigned n_tiers = tiers_here(k);
    struct scene s = scene_of(2, 32);
    float *out = weights_alloc(2 * 32 * sizeof(float));
    for (uint32_t i = 0; i < 2 * 32; i++)
        s.q[i] *= 1e4f;
    place(&s, 600, 600, 0);
    for (unsigned t = 0; t < n_tiers; t++) {
        attend(k[t], &s, 0, 2, out);
        for (uint32_t i = 0; i < 2 * 32; i++)
            assert_true(fabsf(out[i]) < 4);
    }
    free(out);
    scene_done(&s);
}

int main(void)
{
    kernel_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees_with_float64),
        cmocka_unit_test(tiers_and_groups_of_heads_give_the_same_bits),
        cmocka_unit_test(where_positions_lie_changes_no_bit),
        cmocka_unit_test(large_scores_neither_overflow_nor_vanish),
        cmocka_unit_test(cost_grows_with_positions_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
