/* test_draws.c - keyed draws follow the distribution: chi-square against exact probabilities, with
 * controls that must fail. TANDEM_TEST_LONG=1 makes ten times as many draws. */
#include "lib/lib.h"
#include "lib/oracles/plain_dist.h"
#include "model/dist.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define V 12
#define N_DRAWS 1000000
/* A correct generator fails one time in a million; a wrong one fails by a wide margin. */
#define SURELY_WRONG 1e-6

static uint32_t n_draws(void)
{
    return getenv("TANDEM_TEST_LONG") ? 10 * N_DRAWS : N_DRAWS;
}

static double tail_of(const uint32_t *count, const double *probs, uint32_t n_vocab, uint32_t n)
{
    double chi2 = 0;
    uint32_t n_cells = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (probs[i] == 0) {
            assert_int_equal(count[i], 0);
            continue;
        }
        double expected = probs[i] * n;
        assert_true(expected > 5);
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
        n_cells++;
    }
    return plain_chi2_tail(chi2, n_cells - 1);
}

static const float logits[V] = {2.5f, -1, 0.5f, 3, 3, -2, 1, 0, 2, -4, 1.5f, -0.5f};

static void assert_drawn(const struct dist_params *p, const char *what)
{
    AUTO(dist_free) struct dist *d = NULL;
    uint32_t count[V] = {0}, n = n_draws();
    double probs[V];
    assert_int_equal(dist_new(V, &plain_kernel, &d), 0);
    plain_dist(logits, V, p, NULL, 0, 0, NULL, probs);
    dist_set(d, logits, p, NULL, NULL);
    for (uint32_t i = 0; i < n; i++) // 1,000 positions per seed, many seeds
        count[dist_draw(d, rng_key(i / 1000, i % 3), i % 1000)]++;
    double tail = tail_of(count, probs, V, n);
    printf("%s: %u draws, p = %.3g\n", what, n, tail);
    assert_true(tail > SURELY_WRONG);
}

static void draws_follow_the_softmax(void **state)
{
    (void)state;
    assert_drawn(&(struct dist_params){.temperature = 1, .top_p = 1, .repetition = 1}, "softmax");
}

static void draws_follow_every_option(void **state)
{
    (void)state;
    struct dist_params p = {.temperature = 0.7f, .top_p = 1, .repetition = 1};
    assert_drawn(&p, "temperature 0.7");
    p = (struct dist_params){.temperature = 1.5f, .top_k = 6, .top_p = 1, .repetition = 1};
    assert_drawn(&p, "temperature 1.5, top-k 6");
    p = (struct dist_params){.temperature = 1, .top_p = 0.8f, .repetition = 1};
    assert_drawn(&p, "top-p 0.8");
    p = (struct dist_params){.temperature = 1, .top_p = 1, .min_p = 0.1f, .repetition = 1};
    assert_drawn(&p, "min-p 0.1");
}

/* Draws at neighbouring positions of one key must be independent, too. */
static void positions_of_one_seed_are_independent(void **state)
{
    (void)state;
    const struct dist_params p = {.temperature = 1, .top_k = 4, .top_p = 1, .repetition = 1};
    AUTO(dist_free) struct dist *d = NULL;
    uint32_t pairs[V * V] = {0}, last = 0, n = n_draws();
    double probs[V], both[V * V];
    assert_int_equal(dist_new(V, &plain_kernel, &d), 0);
    plain_dist(logits, V, &p, NULL, 0, 0, NULL, probs);
    dist_set(d, logits, &p, NULL, NULL);
    for (uint32_t i = 0; i < 2 * n; i++) {
        uint32_t token = dist_draw(d, rng_key(42, 0), i);
        if (i % 2)
            pairs[last * V + token]++;
        last = token;
    }
    for (uint32_t i = 0; i < V * V; i++)
        both[i] = probs[i / V] * probs[i % V];
    double tail = tail_of(pairs, both, V * V, n);
    printf("pairs: p = %.3g\n", tail);
    assert_true(tail > SURELY_WRONG);
}

/* ---- controls ---- */

/* The noise is scaled for another temperature than the logits: the test must fail. */
static void a_wrong_scale_is_detected(void **state)
{
    (void)state;
    const struct dist_params p = {.temperature = 1, .top_p = 1, .repetition = 1};
    const struct dist_params q = {.temperature = 1.02f, .top_p = 1, .repetition = 1};
    AUTO(dist_free) struct dist *d = NULL;
    uint32_t count[V] = {0};
    double probs[V];
    assert_int_equal(dist_new(V, &plain_kernel, &d), 0);
    plain_dist(logits, V, &p, NULL, 0, 0, NULL, probs);
    dist_set(d, logits, &q, NULL, NULL);
    for (uint32_t i = 0; i < N_DRAWS; i++)
        count[dist_draw(d, rng_key(i / 1000, 0), i % 1000)]++;
    assert_true(tail_of(count, probs, V, N_DRAWS) < SURELY_WRONG);
}

/* Two tokens share their noise: the lower id wins all their ties. */
static void noise_shared_between_tokens_is_detected(void **state)
{
    (void)state;
    uint32_t count[V] = {0};
    double probs[V];
    const struct dist_params p = {.temperature = 1, .top_p = 1, .repetition = 1};
    plain_dist(logits, V, &p, NULL, 0, 0, NULL, probs);
    for (uint32_t i = 0; i < N_DRAWS; i++) {
        uint32_t best = 0;
        double score[V];
        for (uint32_t t = 0; t < V; t++) {
            uint64_t w = rng_u64(rng_key(i / 1000, 0), RNG_TARGET_DRAW, i % 1000, 0, t / 2);
            score[t] = (double)logits[t] - rng_log_exp(w);
            best = score[t] > score[best] ? t : best;
        }
        count[best]++;
    }
    assert_true(tail_of(count, probs, V, N_DRAWS) < SURELY_WRONG);
}

/* ---- a large vocabulary with all probability on one token ---- */

#define BIG 128000
#define N_BIG 3000
#define SURE 77777

static float *peaked(void)
{
    float *x = calloc(BIG, sizeof(*x));
    assert_non_null(x);
    x[SURE] = 40; // the other tokens have a probability of 5e-13 in all
    return x;
}

static void a_certain_token_among_128000_is_always_drawn(void **state)
{
    (void)state;
    const struct dist_params p = {.temperature = 1, .top_p = 1, .repetition = 1};
    AUTO(dist_free) struct dist *d = NULL;
    AUTO(mem_free) float *x = peaked();
    assert_int_equal(dist_new(BIG, &plain_kernel, &d), 0);
    dist_set(d, x, &p, NULL, NULL);
    for (uint32_t i = 0; i < N_BIG; i++)
        assert_int_equal(dist_draw(d, rng_key(1, 0), i), SURE);
}

/* In float32, u may round to 1, where -log(-log u) is infinite: a wrong token is drawn. */
static void float32_noise_is_detected(void **state)
{
    (void)state;
    AUTO(mem_free) float *x = peaked();
    uint32_t n_wrong = 0;
    for (uint32_t i = 0; i < N_BIG; i++) {
        float best = -INFINITY;
        uint32_t token = 0;
        for (uint32_t t = 0; t < BIG; t++) {
            uint64_t w = rng_splitmix64((uint64_t)i * BIG + t);
            if (w >> 46 != 0x3ffff && t != SURE) // too little noise to win: no logarithm needed
                continue;
            float score = x[t] - logf(-logf((float)rng_uniform(w)));
            if (score > best) {
                best = score;
                token = t;
            }
        }
        n_wrong += token != SURE;
    }
    printf("float32 noise: %u of %d wrong\n", n_wrong, N_BIG);
    assert_true(n_wrong > 0);
}

/* All 128,000 tokens are equally likely; the cells of the test hold 1,000 tokens. */
static void a_flat_large_vocabulary_is_drawn_evenly(void **state)
{
    (void)state;
    const struct dist_params p = {.temperature = 1, .top_p = 1, .repetition = 1};
    AUTO(dist_free) struct dist *d = NULL;
    AUTO(mem_free) float *x = calloc(BIG, sizeof(*x));
    uint32_t count[BIG / 1000] = {0};
    double probs[BIG / 1000];
    assert_int_equal(dist_new(BIG, &plain_kernel, &d), 0);
    dist_set(d, x, &p, NULL, NULL);
    for (uint32_t i = 0; i < N_BIG; i++)
        count[dist_draw(d, rng_key(2, 0), i) / 1000]++;
    for (uint32_t i = 0; i < BIG / 1000; i++)
        probs[i] = 1000.0 / BIG;
    double tail = tail_of(count, probs, BIG / 1000, N_BIG);
    printf("flat: p = %.3g\n", tail);
    assert_true(tail > SURELY_WRONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(draws_follow_every_option),
        cmocka_unit_test(positions_of_one_seed_are_independent),
        cmocka_unit_test(a_wrong_scale_is_detected),
        cmocka_unit_test(noise_shared_between_tokens_is_detected),
        cmocka_unit_test(a_certain_token_among_128000_is_always_drawn),
        cmocka_unit_test(float32_noise_is_detected),
        cmocka_unit_test(a_flat_large_vocabulary_is_drawn_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
