/* test_kernel_delta.c - the kernels of gated delta nets: against float64, and every tier against
 * the reference. */
#include "base/mem.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/models/weights.h"
#include "lib/rigs/kernel_tiers.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_ROWS 9
#define MAX_DIM 144

/* Operands of one head, and its result. */
struct head {
    uint32_t k_dim, v_dim;
    float *state, *q, *k, *v, *gates, *out;
};

static float *floats(size_t n, uint64_t seed, float from, float to)
{
    float *x = weights_alloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        x[i] = from + (to - from) * (float)rng_uniform(rng_splitmix64(seed * 7919 + i));
    return x;
}

static struct head random_head(uint32_t k_dim, uint32_t v_dim)
{
    struct head h = {.k_dim = k_dim, .v_dim = v_dim};
    h.state = floats((size_t)k_dim * v_dim, 1, -1, 1);
    h.q = floats((size_t)N_ROWS * MAX_DIM, 2, -0.2f, 0.2f);
    h.k = floats((size_t)N_ROWS * MAX_DIM, 3, -0.2f, 0.2f);
    h.v = floats((size_t)N_ROWS * MAX_DIM, 4, -2, 2);
    h.gates = floats((size_t)N_ROWS * 3, 5, 0.2f, 1);
    h.out = calloc(N_ROWS * (size_t)MAX_DIM, sizeof(float));
    return h;
}

static void free_head(struct head *h)
{
    free(h->state);
    free(h->q);
    free(h->k);
    free(h->v);
    free(h->gates);
    free(h->out);
}

static void run(const struct kernel *kernel, struct head *h, uint32_t from, uint32_t n, bool out)
{
    kernel->delta(&(struct kernel_delta){.state = h->state,
                                         .q = out ? h->q + from * MAX_DIM : NULL,
                                         .k = h->k + from * MAX_DIM,
                                         .v = h->v + from * MAX_DIM,
                                         .row_stride = MAX_DIM,
                                         .gates = h->gates + from * 3,
                                         .gates_stride = 3,
                                         .out = h->out + from * MAX_DIM,
                                         .out_stride = MAX_DIM,
                                         .scale = 0.25f,
                                         .n_rows = n,
                                         .k_dim = h->k_dim,
                                         .v_dim = h->v_dim});
}

/* The output of row `row` in double. s: [value][key]. */
static void plain_row(const struct head *h, uint32_t row, double *s, double *out)
{
    const float *q = h->q + row * MAX_DIM, *k = h->k + row * MAX_DIM, *v = h->v + row * MAX_DIM;
    const double decay = h->gates[row * 3], beta = h->gates[row * 3 + 1];
    for (uint32_t i = 0; i < h->v_dim; i++) {
        double there = 0, *at = s + (size_t)i * h->k_dim;
        for (uint32_t j = 0; j < h->k_dim; j++)
            there += decay * at[j] * (double)k[j];
        out[i] = 0;
        for (uint32_t j = 0; j < h->k_dim; j++) {
            at[j] = decay * at[j] + (double)k[j] * beta * ((double)v[i] - there);
            out[i] += 0.25 * at[j] * (double)q[j];
        }
    }
}

static void a_head_agrees_with_float64(void **state)
{
    (void)state;
    struct head h = random_head(128, 144);
    double *s = calloc((size_t)h.k_dim * h.v_dim, sizeof(*s)), out[MAX_DIM];
    for (uint32_t i = 0; i < h.v_dim; i++)
        for (uint32_t j = 0; j < h.k_dim; j++)
            s[(size_t)i * h.k_dim + j] = (double)h.state[(i / 16 * h.k_dim + j) * 16 + i % 16];
    run(kernel_tier("c"), &h, 0, N_ROWS, true);
    for (uint32_t row = 0; row < N_ROWS; row++) {
        plain_row(&h, row, s, out);
        for (uint32_t i = 0; i < h.v_dim; i++)
            assert_true(fabs((double)h.out[row * MAX_DIM + i] - out[i]) < 1e-5);
    }
    free(s);
    free_head(&h);
}

/* The same rows in one call or in several, with or without outputs, in every tier. */
static void tiers_and_pieces_have_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t dims[][2] = {{16, 16}, {32, 48}, {128, 128}, {144, 16}};
    const struct kernel *k[KERNEL_TIERS_MAX];
    const unsigned n_tiers = kernel_tiers_here(k);
    for (unsigned d = 0; d < ARRAY_LEN(dims); d++) {
        struct head want = random_head(dims[d][0], dims[d][1]);
        const size_t state_bytes = (size_t)want.k_dim * want.v_dim * sizeof(float);
        run(kernel_tier("c"), &want, 0, N_ROWS, true);
        for (unsigned t = 0; t < n_tiers; t++) {
            struct head got = random_head(dims[d][0], dims[d][1]);
            run(k[t], &got, 0, 2, true);
            run(k[t], &got, 2, N_ROWS - 2, true);
            assert_memory_equal(got.state, want.state, state_bytes);
            assert_memory_equal(got.out, want.out, N_ROWS * MAX_DIM * sizeof(float));
            free_head(&got);
            got = random_head(dims[d][0], dims[d][1]);
            run(k[t], &got, 0, N_ROWS, false);
            assert_memory_equal(got.state, want.state, state_bytes);
            for (uint32_t i = 0; i < N_ROWS * MAX_DIM; i++)
                assert_true(got.out[i] == 0);
            free_head(&got);
        }
        free_head(&want);
    }
}

static void convolutions_agree_with_float64_in_every_tier(void **state)
{
    (void)state;
    enum { N = 48, TAPS = 4 };
    const struct kernel *k[KERNEL_TIERS_MAX];
    const unsigned n_tiers = kernel_tiers_here(k);
    AUTO(mem_free) float *x = floats(TAPS * N, 6, -3, 3), *w = floats(TAPS * (N + 16), 7, -1, 1);
    const float *rows[TAPS];
    float got[N], first[N];
    for (unsigned j = 0; j < TAPS; j++)
        rows[j] = x + j * N;
    for (uint32_t n_taps = 1; n_taps <= TAPS; n_taps++)
        for (unsigned t = 0; t < n_tiers; t++) {
            k[t]->conv_silu(rows, w, N + 16, n_taps, N, got);
            for (unsigned i = 0; i < N; i++) {
                double sum = 0;
                for (unsigned j = 0; j < n_taps; j++)
                    sum += (double)x[j * N + i] * (double)w[j * (N + 16) + i];
                const double want = sum / (1 + exp(-sum));
                assert_true(fabs((double)got[i] - want) <= 1e-5);
            }
            if (t == 0)
                memcpy(first, got, sizeof(first));
            assert_memory_equal(got, first, sizeof(first));
        }
}

static void norms_and_gates_agree_with_float64_in_every_tier(void **state)
{
    (void)state;
    enum { N = 32 };
    const struct kernel *k[KERNEL_TIERS_MAX];
    const unsigned n_tiers = kernel_tiers_here(k);
    AUTO(mem_free) float *x = floats(N, 8, -3, 3), *gate = floats(N, 9, -100, 100);
    float norm[N], gated[N], first[2 * N];
    double sum = 0;
    for (unsigned i = 0; i < N; i++)
        sum += (double)x[i] * (double)x[i];
    for (unsigned t = 0; t < n_tiers; t++) {
        k[t]->l2norm(x, N, 0.5f, norm);
        memcpy(gated, x, sizeof(gated));
        k[t]->mul_sigmoid(gate, N, gated);
        for (unsigned i = 0; i < N; i++) {
            const double want = (double)x[i] / (1 + exp(-(double)gate[i]));
            assert_true(fabs((double)norm[i] - (double)x[i] / sqrt(sum + 0.5)) < 1e-6);
            assert_true(fabs((double)gated[i] - want) <= 1e-6 * fabs(want) + 1e-30);
        }
        if (t == 0) {
            memcpy(first, norm, sizeof(norm));
            memcpy(first + N, gated, sizeof(gated));
        }
        assert_memory_equal(norm, first, sizeof(norm));
        assert_memory_equal(gated, first + N, sizeof(gated));
    }
}

int main(void)
{
    kernel_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_agrees_with_float64),
        cmocka_unit_test(tiers_and_pieces_have_the_same_bits),
        cmocka_unit_test(convolutions_agree_with_float64_in_every_tier),
        cmocka_unit_test(norms_and_gates_agree_with_float64_in_every_tier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
