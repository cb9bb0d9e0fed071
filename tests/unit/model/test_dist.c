/* test_dist.c - the steps from logits to a distribution, and the draw against its definition. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"
#include "lib/oracles/plain_dist.h"
#include "model/dist.h"

#define V 8

static const struct dist_params plain = {.temperature = 1, .top_p = 1, .repetition = 1};

static struct dist *dist_of(uint32_t n_vocab)
{
    struct dist *d = NULL;
    assert_int_equal(dist_new(n_vocab, &plain_kernel, &d), 0);
    return d;
}

static void set_probs(const float *logits, const struct dist_params *p,
                      const struct dist_counts *counts, const uint64_t *mask, double *probs)
{
    AUTO(dist_free) struct dist *d = dist_of(V);
    dist_set(d, logits, p, counts, mask);
    dist_probs(d, probs);
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) < 1e-12))
        fail_msg("%.17g is not %.17g", a, b);
}

static double sum_of(const double *p, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += p[i];
    return sum;
}

static void without_options_it_is_the_softmax(void **state)
{
    (void)state;
    const float logits[V] = {0, 1, 2, 3, -1, -2, -3, 0.5f};
    double probs[V], sum = 0;
    set_probs(logits, &plain, NULL, NULL, probs);
    for (int i = 0; i < V; i++)
        sum += exp(logits[i]);
    for (int i = 0; i < V; i++)
        assert_near(probs[i], exp(logits[i]) / sum);
}

static void temperature_zero_is_the_lowest_of_the_largest(void **state)
{
    (void)state;
    const float logits[V] = {0, 1, 3, 3, -1, 3, -3, 0.5f};
    struct dist_params p = plain;
    p.temperature = 0;
    double probs[V];
    set_probs(logits, &p, NULL, NULL, probs);
    for (int i = 0; i < V; i++)
        assert_near(probs[i], i == 2);
    AUTO(dist_free) struct dist *d = dist_of(V);
    dist_set(d, logits, &p, NULL, NULL);
    assert_int_equal(dist_draw(d, 1, 2), 2);
}

static void top_k_breaks_ties_to_the_lowest_ids(void **state)
{
    (void)state;
    const float logits[V] = {-0.0f, 1, 0, 0, 0, 1, 0, 0};
    struct dist_params p = plain;
    p.top_k = 4;
    double probs[V];
    set_probs(logits, &p, NULL, NULL, probs);
    const bool kept[V] = {true, true, true, false, false, true, false, false};
    for (int i = 0; i < V; i++)
        assert_int_equal(probs[i] > 0, kept[i]);
    assert_near(sum_of(probs, V), 1);
}

static void top_p_keeps_the_token_that_reaches_it(void **state)
{
    (void)state;
    float logits[V]; // 0.5, 0.25, 0.125, ... with the last two equal
    for (int i = 0; i < V; i++)
        logits[i] = -(float)(i < V - 1 ? i : i - 1) * 0.69314718f;
    struct dist_params p = plain;
    const struct {
        float top_p;
        uint32_t n;
    } cases[] = {{0, 1}, {0.49f, 1}, {0.51f, 2}, {0.74f, 2}, {0.76f, 3}, {0.999f, 8}};
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        double probs[V];
        p.top_p = cases[c].top_p;
        set_probs(logits, &p, NULL, NULL, probs);
        for (uint32_t i = 0; i < V; i++)
            assert_int_equal(probs[i] > 0, i < cases[c].n);
    }
}

static void equal_tokens_reach_top_p_exactly(void **state)
{
    (void)state;
    float logits[V];
    struct dist_params p = plain;
    for (int i = 0; i < V; i++)
        logits[i] = i % 2 && i < 8 ? 1 : -INFINITY; // four tokens of 0.25
    p.top_p = 0.5F;
    double probs[V];
    set_probs(logits, &p, NULL, NULL, probs);
    for (uint32_t i = 0; i < V; i++)
        assert_true(probs[i] == (i == 1 || i == 3 ? 0.5 : 0));
}

static void min_p_is_relative_to_the_best(void **state)
{
    (void)state;
    float logits[V];
    for (int i = 0; i < V; i++)
        logits[i] = 5 + logf(1.0f - 0.1f * (float)i);
    struct dist_params p = plain;
    p.min_p = 0.55f;
    double probs[V];
    set_probs(logits, &p, NULL, NULL, probs);
    for (int i = 0; i < V; i++)
        assert_int_equal(probs[i] > 0, i <= 4);
    p.min_p = 1;
    set_probs(logits, &p, NULL, NULL, probs);
    assert_near(probs[0], 1);
}

static void each_penalty_uses_its_own_counts(void **state)
{
    (void)state;
    AUTO(dist_counts_free) struct dist_counts *counts = NULL;
    assert_int_equal(dist_counts_new(4, &counts), 0);
    dist_counts_add(counts, 1, false);
    dist_counts_add(counts, 2, true);
    dist_counts_add(counts, 2, true);
    dist_counts_add(counts, 3, false);
    const float logits[V] = {0, 2, 2, -2, 0, 0, 0, 0};
    const float expected[V] = {0, 1, 1 - 2 * 0.25f - 0.5f, -4, 0, 0, 0, 0};
    struct dist_params p = plain;
    p.repetition = 2;
    p.frequency = 0.25f;
    p.presence = 0.5f;
    double got[V], want[V];
    set_probs(logits, &p, counts, NULL, got);
    set_probs(expected, &plain, NULL, NULL, want);
    for (int i = 0; i < V; i++)
        assert_near(got[i], want[i]);
}

static void counts_taken_back_leave_no_trace(void **state)
{
    (void)state;
    enum { n_vocab = 40, max = 20 };
    AUTO(dist_free) struct dist *d = dist_of(n_vocab);
    AUTO(dist_counts_free) struct dist_counts *counts = NULL;
    assert_int_equal(dist_counts_new(max, &counts), 0);
    const float logits[n_vocab] = {1, -1, 2};
    double before[n_vocab], after[n_vocab];
    struct dist_params p = plain;
    p.repetition = 2;
    p.frequency = 0.25f;
    dist_counts_add(counts, 0, false);
    dist_counts_add(counts, 2, true);
    dist_set(d, logits, &p, counts, NULL);
    dist_probs(d, before);
    uint32_t ahead[3 * (max - 2)];
    for (int round = 0; round < 200; round++) { // the table must survive many rounds
        for (uint32_t i = 0; i < ARRAY_LEN(ahead); i++) {
            ahead[i] =
                i < ARRAY_LEN(ahead) / 2 ? (i + (uint32_t)round) % (max - 2) + 2 : ahead[i / 3];
            dist_counts_add(counts, ahead[i], true);
        }
        for (uint32_t i = ARRAY_LEN(ahead); i-- > 0;)
            dist_counts_take_back(counts, ahead[i]);
        dist_set(d, logits, &p, counts, NULL);
        dist_probs(d, after);
        assert_memory_equal(before, after, sizeof(before));
    }
}

static void weights_list_the_tokens_that_can_come(void **state)
{
    (void)state;
    const float logits[V] = {0, 1, 3, NAN, -1, 3, -3, 0.5f};
    const uint32_t top_ks[] = {0, 3};
    AUTO(dist_free) struct dist *d = dist_of(V);
    for (size_t i = 0; i < ARRAY_LEN(top_ks); i++) {
        struct dist_params p = plain;
        p.top_k = top_ks[i];
        double probs[V], sum = 0;
        set_probs(logits, &p, NULL, NULL, probs);
        dist_set(d, logits, &p, NULL, NULL);
        struct dist_weights w = dist_weights(d);
        assert_int_equal(w.n_vocab, V);
        assert_int_equal(w.n_kept, p.top_k ? 3 : V - 1);
        for (uint32_t k = 0; k < w.n_kept; k++)
            sum += w.weights[w.kept[k]];
        assert_near(sum, w.sum);
        for (uint32_t k = 0; k < V; k++)
            assert_near(w.weights[k] / w.sum, probs[k]);
    }
}

static void bias_comes_before_the_mask(void **state)
{
    (void)state;
    const float logits[V] = {0};
    const struct dist_bias bias[] = {{1, 2}, {2, 100}, {1, 1}, {V + 5, 3}};
    uint64_t mask = ~(uint64_t)4; // all but token 2
    struct dist_params p = plain;
    p.bias = bias;
    p.n_bias = ARRAY_LEN(bias);
    double probs[V];
    set_probs(logits, &p, NULL, &mask, probs);
    assert_near(probs[2], 0);
    assert_near(probs[1] / probs[0], exp(3));
}

static void a_mask_forbids_exactly_the_banned_tokens(void **state)
{
    (void)state;
    enum { n_vocab = 130 };
    const uint32_t banned[] = {0, 63, 64, 129, 63, n_vocab, 191, UINT32_MAX};
    uint64_t mask[4] = {0, 0, 0, 5}; // the last word is not the mask's
    assert_int_equal(dist_mask_words(n_vocab), 3);
    assert_int_equal(dist_mask_words(128), 2);
    dist_mask_ban(mask, n_vocab, banned, ARRAY_LEN(banned));
    float logits[n_vocab] = {0}, to[n_vocab];
    dist_adjust(logits, n_vocab, &plain, NULL, mask, to);
    for (uint32_t i = 0; i < n_vocab; i++) {
        bool allowed = i != 0 && i != 63 && i != 64 && i != 129;
        assert_int_equal(dist_mask_allows(mask, i), allowed);
        assert_true(to[i] == (allowed ? 0 : -INFINITY));
    }
    assert_int_equal(mask[3], 5);
}

static void nan_is_never_drawn_and_infinity_always(void **state)
{
    (void)state;
    const float logits[V] = {NAN, 1, NAN, 2, -INFINITY, 0, 0, 0};
    const float surely[V] = {NAN, 1, NAN, 2, -INFINITY, INFINITY, 0, 0};
    double probs[V];
    for (float t = 0; t < 2; t++) {
        struct dist_params p = plain;
        p.temperature = t;
        set_probs(logits, &p, NULL, NULL, probs);
        assert_near(probs[0] + probs[2] + probs[4], 0);
        assert_near(sum_of(probs, V), 1);
        set_probs(surely, &p, NULL, NULL, probs);
        assert_near(probs[5], 1);
    }
}

static void with_no_token_left_the_lowest_allowed_one_is_kept(void **state)
{
    (void)state;
    float logits[V];
    for (uint32_t i = 0; i < V; i++)
        logits[i] = NAN;
    const uint64_t from_3_on = ~(uint64_t)7, none = 0;
    double probs[V];
    set_probs(logits, &plain, NULL, &from_3_on, probs);
    assert_near(probs[3], 1);
    set_probs((const float[V]){0}, &plain, NULL, &none, probs);
    assert_near(probs[0], 1);
    AUTO(dist_free) struct dist *d = dist_of(V);
    dist_set(d, logits, &plain, NULL, &none);
    assert_int_equal(dist_draw(d, 5, 5), 0);
}

static void extreme_temperatures_stay_distributions(void **state)
{
    (void)state;
    const float logits[V] = {FLT_MAX, -FLT_MAX, 1, 2, 3, 4, 5, FLT_MAX};
    const float temperatures[] = {FLT_TRUE_MIN, 1e-30f, 1e-3f, 1, 100, FLT_MAX};
    for (size_t i = 0; i < ARRAY_LEN(temperatures); i++) {
        struct dist_params p = plain;
        p.temperature = temperatures[i];
        p.top_p = 0.99f;
        p.min_p = 0.01f;
        double probs[V];
        set_probs(logits, &p, NULL, NULL, probs);
        assert_near(sum_of(probs, V), 1);
        assert_near(probs[0], probs[7]);
    }
}

/* ---- random cases ---- */

static uint64_t dice_state;

static uint32_t dice(uint32_t n)
{
    return (uint32_t)((dice_state = rng_splitmix64(dice_state)) % n);
}

static struct dist_params random_params(const struct dist_bias *bias)
{
    const float temperatures[] = {0, 0.3f, 0.7f, 1, 1.5f}, top_ps[] = {1, 1, 0.95f, 0.7f, 0.3f};
    const float min_ps[] = {0, 0, 0.05f, 0.3f, 1}, penalties[] = {0, 0.3f, 1.1f, -0.5f};
    const uint32_t top_ks[] = {0, 0, 1, 5, 40, 1000};
    return (struct dist_params){
        .temperature = temperatures[dice(5)],
        .top_k = top_ks[dice(6)],
        .top_p = top_ps[dice(5)],
        .min_p = min_ps[dice(5)],
        .repetition = dice(2) ? 1 : 1.3f,
        .presence = penalties[dice(4)],
        .frequency = penalties[dice(4)],
        .bias = bias,
        .n_bias = dice(4),
    };
}

/* No mask, one that bans up to two tokens, or one that allows a part of the vocabulary. */
static uint64_t *random_mask(uint64_t *words, uint32_t n_vocab)
{
    const uint32_t banned[] = {0, n_vocab - 1};
    uint32_t kind = dice(3);
    dist_mask_ban(words, n_vocab, banned, dice(3));
    for (uint32_t i = 0; i < n_vocab && kind == 2; i++)
        if (dice(3))
            words[i / 64] &= ~((uint64_t)1 << i % 64);
    return kind ? words : NULL;
}

static void random_options_agree_with_the_plain_definition(void **state)
{
    (void)state;
    enum { n_vocab = 300 };
    AUTO(dist_free) struct dist *d = dist_of(n_vocab);
    const struct dist_bias bias[] = {{7, 2.5f}, {290, -3}, {31, 0.25f}};
    for (dice_state = 1; dice_state < 400; dice_state++) {
        uint64_t seed = dice_state;
        struct dist_params p = random_params(bias);
        uint64_t words[n_vocab / 64 + 1], *mask = random_mask(words, n_vocab);
        AUTO(dist_counts_free) struct dist_counts *counts = NULL;
        assert_int_equal(dist_counts_new(50, &counts), 0);
        float logits[n_vocab];
        uint32_t context[50];
        for (int i = 0; i < n_vocab; i++) // coarse, so that there are ties
            logits[i] = ((float)dice(200) - 100) * 0.0625f;
        for (uint32_t i = 0; i < 50; i++) {
            context[i] = dice(n_vocab);
            dist_counts_add(counts, context[i], i >= 20);
        }
        double want[n_vocab], got[n_vocab];
        dist_set(d, logits, &p, counts, mask);
        dist_probs(d, got);
        plain_dist(logits, n_vocab, &p, context, 20, 30, mask, want);
        for (int i = 0; i < n_vocab; i++)
            if (!(fabs(got[i] - want[i]) < 1e-12))
                fail_msg("seed %d token %d: %g is not %g", (int)seed, i, got[i], want[i]);
        dice_state = seed;
    }
}

/* As above, with few or nearly all of many tokens kept. This covers the searches that first look at
 * a part of the tokens. */
static void cuts_of_many_agree_with_the_plain_definition(void **state)
{
    (void)state;
    enum { n_vocab = 20000 };
    static float logits[n_vocab];
    static double want[n_vocab], got[n_vocab];
    AUTO(dist_free) struct dist *d = dist_of(n_vocab);
    const float spreads[] = {0.01f, 1, 20}, top_ps[] = {1, 0, 0.5f, 0.99f, 0.9999999f};
    const uint32_t top_ks[] = {0, 7, 200, 3000, n_vocab - 1};
    dice_state = 11;
    for (uint32_t i = 0; i < 75; i++) {
        struct dist_params p = plain;
        p.temperature = (const float[]){0.5f, 1, 100}[i % 3];
        p.top_k = top_ks[i % 5];
        p.top_p = top_ps[i / 5 % 5];
        for (int k = 0; k < n_vocab; k++) // ties where the spread is small
            logits[k] = dice(9) ? (float)(dice(1001) + dice(1001)) * 0.004f * spreads[i / 25] : NAN;
        dist_set(d, logits, &p, NULL, NULL);
        dist_probs(d, got);
        plain_dist(logits, n_vocab, &p, NULL, 0, 0, NULL, want);
        for (int k = 0; k < n_vocab; k++)
            if (!(fabs(got[k] - want[k]) < 1e-12))
                fail_msg("case %d token %d: %g is not %g", (int)i, k, got[k], want[k]);
    }
}

/* argmax of score - log E over all tokens with a probability above 0; none is skipped. */
static uint32_t plain_draw(const double *probs, const float *logits, uint32_t n_vocab, float t,
                           uint64_t key, uint32_t position)
{
    uint32_t token = n_vocab;
    double best = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (probs[i] == 0)
            continue;
        double score = (double)logits[i] / (double)t -
                       rng_log_exp(rng_u64(key, RNG_TARGET_DRAW, position, 0, i));
        if (token == n_vocab || score > best) {
            best = score;
            token = i;
        }
    }
    return token;
}

static void skipping_tokens_never_changes_a_draw(void **state)
{
    (void)state;
    enum { n_vocab = 2000 };
    AUTO(dist_free) struct dist *d = dist_of(n_vocab);
    float logits[n_vocab];
    double probs[n_vocab];
    dice_state = 3;
    for (uint32_t n = 0; n < 400; n++) {
        struct dist_params p = plain;
        p.temperature = (const float[]){0.2f, 0.8f, 1, 3}[dice(4)];
        p.top_k = dice(2) ? 0 : 500;
        for (int i = 0; i < n_vocab; i++)
            logits[i] = (float)dice(1000) * (n % 2 ? 0.01f : 0.1f);
        dist_set(d, logits, &p, NULL, NULL);
        dist_probs(d, probs);
        uint64_t key = rng_key((int64_t)n, n % 3);
        assert_int_equal(dist_draw(d, key, n),
                         plain_draw(probs, logits, n_vocab, p.temperature, key, n));
    }
}

static void a_draw_depends_on_key_and_position_alone(void **state)
{
    (void)state;
    const float logits[V] = {0, 0, 0, 0, 0, 0, 0, 0};
    AUTO(dist_free) struct dist *d = dist_of(V);
    uint32_t first[64], n_other_key = 0, n_other_position = 0;
    dist_set(d, logits, &plain, NULL, NULL);
    for (uint32_t i = 0; i < 64; i++)
        first[i] = dist_draw(d, rng_key(1, 0), i);
    for (uint32_t i = 64; i-- > 0;) {
        dist_set(d, logits, &plain, NULL, NULL);
        assert_int_equal(dist_draw(d, rng_key(1, 0), i), first[i]);
        n_other_key += dist_draw(d, rng_key(1, 1), i) != first[i];
        n_other_position += dist_draw(d, rng_key(1, 0), i + 1) != first[i];
    }
    assert_true(n_other_key > 40 && n_other_position > 40);
}

static void equal_scores_draw_the_lowest_id(void **state)
{
    (void)state;
    const float logits[V] = {1,     -1e30f, 1e30f, 5,
                             1e30f, 0,      1e30f, 2}; // too large for the noise to matter
    AUTO(dist_free) struct dist *d = dist_of(V);
    for (uint32_t i = 0; i < 50; i++) {
        struct dist_params p = plain;
        p.top_p = i % 2 ? 1 : 0.99f;
        dist_set(d, logits, &p, NULL, NULL);
        assert_int_equal(dist_draw(d, i, i), 2);
    }
}

/* ---- counts, logprobs ---- */

static void counts_and_their_copies_hold_many_tokens(void **state)
{
    (void)state;
    enum { n_vocab = 5000 };
    AUTO(dist_counts_free) struct dist_counts *first = NULL, *counts = NULL;
    assert_int_equal(dist_counts_new(n_vocab, &first), 0);
    static float logits[n_vocab];
    for (uint32_t i = 0; i < n_vocab; i++) {
        logits[i] = 1;
        if (i == n_vocab / 2) // only the copy continues
            assert_int_equal(dist_counts_copy(first, &counts), 0);
        for (uint32_t k = 0; k < 1 + i % 3; k++)
            dist_counts_add(counts ? counts : first, i * 7 % n_vocab, true);
    }
    AUTO(dist_free) struct dist *d = dist_of(n_vocab);
    struct dist_params p = plain;
    p.frequency = 1;
    static double probs[n_vocab];
    dist_set(d, logits, &p, counts, NULL);
    dist_probs(d, probs);
    for (uint32_t i = 0; i < n_vocab; i++)
        assert_near(probs[i * 7 % n_vocab] / probs[0], exp(-(double)(i % 3)));
}

static void logprobs_are_of_the_raw_logits(void **state)
{
    (void)state;
    const float logits[V] = {0, 1, 2, 3, -1, 3, -3, 0.5f};
    AUTO(dist_free) struct dist *d = dist_of(V);
    struct dist_params p = plain;
    p.temperature = 0;
    dist_set(d, logits, &p, NULL, NULL);
    float logprob;
    struct dist_top top[4];
    dist_logprobs(d, logits, 2, 4, &logprob, top);
    double sum = 0;
    for (int i = 0; i < V; i++)
        sum += exp(logits[i]);
    assert_true(fabs(logprob - (2 - log(sum))) < 1e-6);
    const uint32_t order[] = {3, 5, 2, 1};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(top[i].token, order[i]);
        assert_true(fabs(top[i].logprob - (logits[order[i]] - log(sum))) < 1e-6);
    }
    assert_int_equal(dist_draw(d, 0, 0), 3);
}

static void logprobs_count_nan_as_minus_infinity(void **state)
{
    (void)state;
    const float logits[V] = {NAN, 1, -INFINITY, 1, NAN, NAN, NAN, NAN};
    AUTO(dist_free) struct dist *d = dist_of(V);
    float logprob;
    struct dist_top top[3];
    dist_logprobs(d, logits, 3, 3, &logprob, top);
    assert_true(fabs(logprob + log(2)) < 1e-6);
    assert_int_equal(top[0].token, 1);
    assert_int_equal(top[1].token, 3);
    assert_true(top[2].logprob == -INFINITY);
    const float nothing[V] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    dist_logprobs(d, nothing, 3, 0, &logprob, NULL);
    assert_true(logprob == -INFINITY);
}

static void an_empty_vocabulary_is_refused(void **state)
{
    (void)state;
    struct dist *d = NULL;
    assert_int_equal(dist_new(0, &plain_kernel, &d), -EINVAL);
    assert_null(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_it_is_the_softmax),
        cmocka_unit_test(temperature_zero_is_the_lowest_of_the_largest),
        cmocka_unit_test(top_k_breaks_ties_to_the_lowest_ids),
        cmocka_unit_test(top_p_keeps_the_token_that_reaches_it),
        cmocka_unit_test(equal_tokens_reach_top_p_exactly),
        cmocka_unit_test(min_p_is_relative_to_the_best),
        cmocka_unit_test(each_penalty_uses_its_own_counts),
        cmocka_unit_test(counts_taken_back_leave_no_trace),
        cmocka_unit_test(weights_list_the_tokens_that_can_come),
        cmocka_unit_test(bias_comes_before_the_mask),
        cmocka_unit_test(a_mask_forbids_exactly_the_banned_tokens),
        cmocka_unit_test(nan_is_never_drawn_and_infinity_always),
        cmocka_unit_test(with_no_token_left_the_lowest_allowed_one_is_kept),
        cmocka_unit_test(extreme_temperatures_stay_distributions),
        cmocka_unit_test(random_options_agree_with_the_plain_definition),
        cmocka_unit_test(cuts_of_many_agree_with_the_plain_definition),
        cmocka_unit_test(skipping_tokens_never_changes_a_draw),
        cmocka_unit_test(a_draw_depends_on_key_and_position_alone),
        cmocka_unit_test(equal_scores_draw_the_lowest_id),
        cmocka_unit_test(counts_and_their_copies_hold_many_tokens),
        cmocka_unit_test(logprobs_are_of_the_raw_logits),
        cmocka_unit_test(logprobs_count_nan_as_minus_infinity),
        cmocka_unit_test(an_empty_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
