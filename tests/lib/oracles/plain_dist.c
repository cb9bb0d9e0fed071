/* plain_dist.c - the oracle of the distribution tests. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include "base/exact_math.h"
#include "base/rng.h"
#include "lib/oracles/plain_dist.h"

static uint32_t plain_argmax(const float *x, uint32_t n)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(x[i]) && (best == n || x[i] > x[best]))
            best = i;
    return best;
}

static double plain_logsumexp(const float *x, uint32_t n)
{
    double largest = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = fmax(largest, x[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp(x[i] - largest);
    return largest + log(sum);
}

static void plain_weigh(const float *x, uint32_t n, double divisor, double max, double *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = exact_math_exp((double)x[i] / divisor - max);
}

static void plain_noise(uint64_t key, uint32_t position, const uint32_t *tokens, uint32_t n,
                        uint64_t *w)
{
    for (uint32_t i = 0; i < n; i++)
        w[i] = rng_u64(key, RNG_TARGET_DRAW, position, 0, tokens[i]);
}

const struct kernel plain_kernel = {.name = "plain",
                                    .argmax = plain_argmax,
                                    .logsumexp = plain_logsumexp,
                                    .weigh = plain_weigh,
                                    .noise = plain_noise};

struct item {
    uint32_t token;
    float logit;
    double weight;
};

static int by_logit(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

/* The logit of a token with penalties and bias applied. */
static float adjust_logit(float x, uint32_t token, const struct dist_params *p,
                          const uint32_t *context, uint32_t n_prompt, uint32_t n_generated)
{
    uint32_t n_all = 0, n_in_output = 0;
    for (uint32_t i = 0; i < n_prompt + n_generated; i++)
        if (context[i] == token) {
            n_all++;
            n_in_output += i >= n_prompt;
        }
    if (n_all)
        x = x > 0 ? x / p->repetition : x * p->repetition;
    if (n_in_output)
        x = x - (float)n_in_output * p->frequency - p->presence;
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].token == token)
            x += p->bias[i].bias;
    return isnan(x) ? -INFINITY : x;
}

/* The number of items that top_p keeps: the first ones whose weights reach top_p of the sum. */
static uint32_t cut_top_p(struct item *items, uint32_t n, double top_p)
{
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += items[i].weight;
    for (uint32_t i = 0; i < n; i++) {
        sum += items[i].weight;
        if (sum >= top_p * total)
            return i + 1;
    }
    return n;
}

void plain_dist(const float *logits, uint32_t n_vocab, const struct dist_params *p,
                const uint32_t *context, uint32_t n_prompt, uint32_t n_generated,
                const uint64_t *mask, double *probs)
{
    struct item *items = calloc(n_vocab, sizeof(*items));
    assert(items);
    for (uint32_t t = 0; t < n_vocab; t++) {
        probs[t] = 0;
        items[t] =
            (struct item){t, adjust_logit(logits[t], t, p, context, n_prompt, n_generated), 0};
        if (mask && !(mask[t / 64] & (uint64_t)1 << t % 64))
            items[t].logit = -INFINITY;
    }
    qsort(items, n_vocab, sizeof(*items), by_logit);
    uint32_t n = 0;
    while (n < n_vocab && items[n].logit > -INFINITY)
        n++;
    if (p->temperature == 0 || n == 0)
        n = n ? 1 : 0;
    double temperature = p->temperature > 0 ? p->temperature : 1;
    for (uint32_t i = 0; i < n; i++)
        items[i].weight = exp(((double)items[i].logit - items[0].logit) / temperature);
    if (p->top_k && p->top_k < n)
        n = p->top_k;
    if (p->top_p < 1)
        n = cut_top_p(items, n, p->top_p);
    while (n > 1 && items[n - 1].weight < p->min_p)
        n--;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += items[i].weight;
    for (uint32_t i = 0; i < n; i++)
        probs[items[i].token] = items[i].weight / sum;
    free(items);
}

double plain_chi2_tail(double chi2, double n)
{
    double z = (cbrt(chi2 / n) - (1 - 2 / (9 * n))) / sqrt(2 / (9 * n));
    return 0.5 * erfc(z / sqrt(2));
}
