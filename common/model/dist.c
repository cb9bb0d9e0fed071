/* dist.c - from logits to a distribution to a token.
 *
 * Every step is a fixed sequence of operations. The same logits and parameters therefore keep the
 * same tokens, and the same token is drawn, on every machine. */
#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/exact_math.h"
#include "base/err.h"
#include "model/dist.h"

struct dist {
    uint32_t n_vocab, n_kept;
    const struct kernel *kernel;
    float *logits;   // (n_vocab) after penalties, bias and mask; -inf: the token cannot come
    double *weights; // (n_vocab) of kept tokens: exp(logit/T - largest); not always computed
    uint32_t *kept;  // (n_vocab) ids of the kept tokens; each step leaves a fixed order
    uint64_t *keys;  // (n_vocab) see key_of()
    uint64_t *spare; // (n_vocab) used by sort_keys()
    double temperature;
    uint32_t best; // the lowest id with the largest logit
    bool uncut;    // no step has cut a token that can come; `kept` is not set
};

/* ---- counts ---- */

struct count {
    uint32_t token, generated, all;
};

struct dist_counts {
    struct count *v; // (max) in the order of first occurrence
    uint32_t n, max;
    uint32_t *slots;  // (n_slots) open hash table: index into v plus 1; 0: free
    uint32_t n_slots; // a power of two
};

int dist_counts_new(uint32_t max, struct dist_counts **ret)
{
    AUTO(dist_counts_free) struct dist_counts *c = calloc(1, sizeof(*c));
    if (!c)
        return fail(-ENOMEM, "dist: no memory for token counts");
    c->max = max;
    for (c->n_slots = 4; c->n_slots / 2 < max;)
        c->n_slots *= 2;
    c->v = malloc((size_t)max * sizeof(*c->v) + 1);
    c->slots = calloc(c->n_slots, sizeof(*c->slots));
    if (!c->v || !c->slots)
        return fail(-ENOMEM, "dist: no memory for %u token counts", max);
    *ret = TAKE(c);
    return 0;
}

void dist_counts_free(struct dist_counts *c)
{
    if (!c)
        return;
    free(c->v);
    free(c->slots);
    free(c);
}

/* The slot of the token, or the free slot where it would be inserted. */
static uint32_t *find_slot(const struct dist_counts *c, uint32_t token)
{
    uint32_t i = (uint32_t)rng_splitmix64(token) & (c->n_slots - 1);
    while (c->slots[i] && c->v[c->slots[i] - 1].token != token)
        i = (i + 1) & (c->n_slots - 1);
    return &c->slots[i];
}

int dist_counts_copy(const struct dist_counts *from, struct dist_counts **ret)
{
    int err = dist_counts_new(from->max, ret);
    if (err < 0)
        return err;
    struct dist_counts *c = *ret;
    c->n = from->n;
    memcpy(c->v, from->v, c->n * sizeof(*c->v));
    memcpy(c->slots, from->slots, c->n_slots * sizeof(*c->slots));
    return 0;
}

void dist_counts_add(struct dist_counts *c, uint32_t token, bool generated)
{
    uint32_t *slot = find_slot(c, token);
    if (!*slot) {
        assert(c->n < c->max);
        c->v[c->n++] = (struct count){.token = token};
        *slot = c->n;
    }
    c->v[*slot - 1].generated += generated;
    c->v[*slot - 1].all++;
}

void dist_counts_take_back(struct dist_counts *c, uint32_t token)
{
    uint32_t *slot = find_slot(c, token);
    struct count *count = &c->v[*slot - 1];
    count->generated--;
    if (--count->all)
        return;
    assert(*slot == c->n); // inserted last, so no other token's search passed over its slot
    c->n--;
    *slot = 0;
}

/* ---- logits ---- */

size_t dist_bytes(uint32_t n_vocab)
{
    struct dist *d;
    return sizeof(*d) + n_vocab * (sizeof(*d->logits) + sizeof(*d->weights) + sizeof(*d->kept) +
                                   sizeof(*d->keys) + sizeof(*d->spare));
}

int dist_new(uint32_t n_vocab, const struct kernel *kernel, struct dist **ret)
{
    if (n_vocab == 0)
        return fail(-EINVAL, "dist: the vocabulary is empty");
    AUTO(dist_free) struct dist *d = calloc(1, sizeof(*d));
    if (!d)
        return fail(-ENOMEM, "dist: no memory");
    d->n_vocab = n_vocab;
    d->kernel = kernel;
    d->logits = calloc(n_vocab, sizeof(*d->logits));
    d->weights = calloc(n_vocab, sizeof(*d->weights));
    d->kept = calloc(n_vocab, sizeof(*d->kept));
    d->keys = calloc(n_vocab, sizeof(*d->keys));
    d->spare = calloc(n_vocab, sizeof(*d->spare));
    if (!d->logits || !d->weights || !d->kept || !d->keys || !d->spare)
        return fail(-ENOMEM, "dist: no memory for a vocabulary of %u", n_vocab);
    *ret = TAKE(d);
    return 0;
}

void dist_free(struct dist *d)
{
    if (!d)
        return;
    free(d->logits);
    free(d->weights);
    free(d->kept);
    free(d->keys);
    free(d->spare);
    free(d);
}

/* Maps NaN to -inf, +inf to the largest float and -0 to 0. */
static inline float sanitise(float x)
{
    x = x != x ? -INFINITY : x;
    return (x > FLT_MAX ? FLT_MAX : x) + 0.0f;
}

bool dist_penalises(const struct dist_params *p)
{
    return p->repetition != 1 || p->presence != 0 || p->frequency != 0;
}

static void penalise(float *logits, uint32_t n_vocab, const struct dist_params *p,
                     const struct dist_counts *counts)
{
    for (uint32_t i = 0; i < counts->n; i++) {
        const struct count *c = &counts->v[i];
        if (c->token >= n_vocab)
            continue;
        float x = logits[c->token];
        x = x > 0 ? x / p->repetition : x * p->repetition;
        if (c->generated)
            x = x - (float)c->generated * p->frequency - p->presence;
        logits[c->token] = sanitise(x);
    }
}

void dist_mask_ban(uint64_t *mask, uint32_t n_vocab, const uint32_t *banned, uint32_t n)
{
    memset(mask, 0xff, dist_mask_words(n_vocab) * sizeof(*mask));
    for (uint32_t i = 0; i < n; i++)
        if (banned[i] < n_vocab)
            mask[banned[i] / 64] &= ~((uint64_t)1 << banned[i] % 64);
}

static void apply_mask(float *logits, uint32_t n_vocab, const uint64_t *mask)
{
    for (uint32_t first = 0; first < n_vocab; first += 64) {
        uint32_t end = n_vocab - first < 64 ? n_vocab : first + 64;
        if (mask[first / 64] == UINT64_MAX)
            continue;
        for (uint32_t i = first; i < end; i++)
            logits[i] = dist_mask_allows(mask, i) ? logits[i] : -INFINITY;
    }
}

void dist_adjust(const float *logits, uint32_t n_vocab, const struct dist_params *p,
                 const struct dist_counts *counts, const uint64_t *mask, float *to)
{
    for (uint32_t i = 0; i < n_vocab; i++)
        to[i] = sanitise(logits[i]);
    if (counts && dist_penalises(p))
        penalise(to, n_vocab, p, counts);
    for (uint32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].token < n_vocab)
            to[p->bias[i].token] = sanitise(to[p->bias[i].token] + p->bias[i].bias);
    if (mask)
        apply_mask(to, n_vocab, mask);
}

static uint32_t lowest_allowed(uint32_t n_vocab, const uint64_t *mask)
{
    for (uint32_t i = 0; mask && i < n_vocab; i++)
        if (dist_mask_allows(mask, i))
            return i;
    return 0; // no mask, or one that allows no token
}

/* ---- which tokens are kept ---- */

static double score_of(const struct dist *d, uint32_t token)
{
    return (double)d->logits[token] / d->temperature;
}

/* Sets all weights: exp(score - largest score), 0 for tokens that cannot come. Returns their sum,
 * added up in eight lanes. */
static double weigh_all(struct dist *d)
{
    double largest = score_of(d, d->best), sums[8] = {0}, sum = 0;
    d->kernel->weigh(d->logits, d->n_vocab, d->temperature, largest, d->weights);
    for (uint32_t i = 0; i < d->n_vocab; i++)
        sums[i % 8] += d->weights[i];
    for (int i = 0; i < 8; i++)
        sum += sums[i];
    return sum;
}

/* The kernel computes the weights of the whole vocabulary in the time that a part of it, this one,
 * takes one by one. */
#define WEIGH_PARTS 4

/* Sets the weights of the tokens in `kept`; those of others have any value. Returns their sum,
 * added up in their order. */
static double weigh_kept(struct dist *d)
{
    double largest = score_of(d, d->best), sum = 0;
    const bool all = d->n_kept > d->n_vocab / WEIGH_PARTS;
    if (all)
        d->kernel->weigh(d->logits, d->n_vocab, d->temperature, largest, d->weights);
    for (uint32_t i = 0; i < d->n_kept; i++) {
        uint32_t t = d->kept[i];
        if (!all)
            d->weights[t] = exact_math_exp(score_of(d, t) - largest);
        sum += d->weights[t];
    }
    return sum;
}

/* Keeps the tokens that can come and have a logit of at least `least`, by rising id. */
static void keep_from(struct dist *d, float least)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_vocab; i++) {
        d->kept[n] = i;
        n += d->logits[i] > -INFINITY && d->logits[i] >= least;
    }
    d->n_kept = n;
}

/* A key that sorts by falling logit, then by rising id: the best token has the smallest key. */
static uint64_t key_of(float logit, uint32_t token)
{
    uint32_t bits;
    memcpy(&bits, &logit, sizeof(bits));
    bits = bits >> 31 ? bits : ~bits & 0x7fffffffu; // rises as the logit falls
    return (uint64_t)bits << 32 | token;
}

#define DIGITS 3 // of a key's logit
#define DIGIT_BITS 11

static uint32_t digit_of(uint64_t key, int i)
{
    return (uint32_t)(key >> (32 + DIGIT_BITS * i)) & ((1u << DIGIT_BITS) - 1);
}

/* Sorts n keys that are in the order of rising ids. It is a radix sort, so its time does not depend
 * on the logits. */
static void sort_keys(struct dist *d, uint32_t n)
{
    uint32_t at[DIGITS][1 << DIGIT_BITS] = {0}; // number of keys, then next position
    for (uint32_t i = 0; i < n; i++)
        for (int k = 0; k < DIGITS; k++)
            at[k][digit_of(d->keys[i], k)]++;
    for (int k = 0; k < DIGITS; k++) {
        uint32_t sum = 0;
        for (int v = 0; v < 1 << DIGIT_BITS; v++) {
            uint32_t first = sum;
            sum += at[k][v];
            at[k][v] = first;
        }
        for (uint32_t i = 0; i < n; i++)
            d->spare[at[k][digit_of(d->keys[i], k)]++] = d->keys[i];
        uint64_t *sorted = d->spare;
        d->spare = d->keys;
        d->keys = sorted;
    }
}

/* Reorders `kept` from rising ids to best first. */
static void sort_kept(struct dist *d)
{
    for (uint32_t i = 0; i < d->n_kept; i++)
        d->keys[i] = key_of(d->logits[d->kept[i]], d->kept[i]);
    sort_keys(d, d->n_kept);
    for (uint32_t i = 0; i < d->n_kept; i++)
        d->kept[i] = (uint32_t)d->keys[i];
}

/* A lower bound of the k-th largest logit: the k-th largest of the maxima of more than k ranges.
 * -inf: the search would not pay, or no bound was found. */
static float bound_of_top_k(struct dist *d, uint32_t k)
{
    uint32_t step = d->n_vocab / 4 / k, n = 0;
    if (step < 8)
        return -INFINITY;
    for (uint32_t from = 0; from + step <= d->n_vocab; from += step, n++) {
        uint32_t best = from;
        for (uint32_t i = from + 1; i < from + step; i++)
            best = d->logits[i] > d->logits[best] ? i : best;
        d->keys[n] = key_of(d->logits[best], best);
    }
    sort_keys(d, n);
    return d->logits[(uint32_t)d->keys[k - 1]];
}

/* Keeps the k best tokens, best first; fewer if fewer can come. */
static void keep_top_k(struct dist *d, uint32_t k)
{
    keep_from(d, bound_of_top_k(d, k));
    sort_kept(d);
    d->n_kept = d->n_kept < k ? d->n_kept : k;
}

/* Cuts `kept`, which is sorted best first, to the shortest prefix that weighs at least `wanted`. */
static void cut_sorted(struct dist *d, double wanted)
{
    double sum = 0;
    uint32_t n = 0;
    while (n < d->n_kept && (n == 0 || sum < wanted))
        sum += d->weights[d->kept[n++]];
    d->n_kept = n;
}

#define BINS 257 // each a quarter of a unit of score; the last holds all lower scores

/* Keeps a superset of the best tokens that weigh `wanted`, with few tokens more. */
static void keep_weighing(struct dist *d, double wanted)
{
    double bins[BINS][4] = {0}, weight = 0; // four sums per bin: independent additions
    double largest = (double)d->logits[d->best], per_logit = 4 / d->temperature;
    for (uint32_t i = 0; i < d->n_vocab; i++) {
        double below = (largest - (double)d->logits[i]) * per_logit;
        bins[below < BINS - 1 ? (uint32_t)below : BINS - 1][i % 4] += d->weights[i];
    }
    uint32_t n = 0;
    for (; n < BINS && weight < wanted * (1 + 1e-9); n++)
        weight += bins[n][0] + bins[n][1] + bins[n][2] + bins[n][3];
    double least = n < BINS ? largest - (n + 0.001) / per_logit : -FLT_MAX;
    keep_from(d, (float)fmax(least, -FLT_MAX));
}

/* Keeps the shortest prefix of the best tokens that holds at least top_p of the whole weight. */
static void keep_top_p(struct dist *d, double top_p)
{
    double wanted = weigh_all(d) * top_p;
    keep_weighing(d, wanted);
    sort_kept(d);
    cut_sorted(d, wanted);
}

/* Keeps tokens that are at least min_p times as probable as the best one. */
static void keep_min_p(struct dist *d, double min_p)
{
    double largest = score_of(d, d->best), about = exact_math_log(min_p);
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_kept; i++) {
        double below = score_of(d, d->kept[i]) - largest;
        /* Most are far from min_p, which saves the exact test. No bit depends on it. */
        if (below >= about + 1e-6 || (below >= about - 1e-6 && exact_math_exp(below) >= min_p))
            d->kept[n++] = d->kept[i];
    }
    d->n_kept = n;
}

static void keep_one(struct dist *d, uint32_t token)
{
    d->best = d->kept[0] = token;
    d->n_kept = 1;
    d->uncut = false;
}

/* Greedy without penalties, bias and mask: nothing but the best token is needed. False: there may
 * be an infinity or no number. */
static bool keep_greedy(struct dist *d, const float *logits)
{
    uint32_t best = d->kernel->argmax(logits, d->n_vocab);
    if (best >= d->n_vocab || !(fabsf(logits[best]) <= FLT_MAX))
        return false;
    d->logits[best] = sanitise(logits[best]);
    d->temperature = 1;
    keep_one(d, best);
    return true;
}

void dist_set(struct dist *d, const float *logits, const struct dist_params *p,
              const struct dist_counts *counts, const uint64_t *mask)
{
    const bool raw = !mask && !p->n_bias && !(counts && dist_penalises(p));
    if (raw && !(p->temperature > 0) && keep_greedy(d, logits))
        return;
    dist_adjust(logits, d->n_vocab, p, counts, mask, d->logits);
    d->temperature = p->temperature > 0 ? p->temperature : 1;
    d->best = d->kernel->argmax(d->logits, d->n_vocab);
    if (d->best >= d->n_vocab || d->logits[d->best] == -INFINITY) {
        keep_one(d, lowest_allowed(d->n_vocab, mask));
        d->logits[d->best] = 0;
        return;
    }
    if (!(p->temperature > 0)) {
        keep_one(d, d->best);
        return;
    }
    d->uncut = p->top_k == 0 && p->top_p >= 1 && !(p->min_p > 0);
    if (p->top_k > 0)
        keep_top_k(d, p->top_k);
    if (p->top_k > 0 && p->top_p < 1)
        cut_sorted(d, weigh_kept(d) * (double)p->top_p);
    else if (p->top_p < 1)
        keep_top_p(d, p->top_p);
    else if (p->top_k == 0 && !d->uncut)
        keep_from(d, -FLT_MAX);
    if (p->min_p > 0)
        keep_min_p(d, p->min_p);
}

/* ---- the draw ---- */

#define LEAST_LOG_E (-46.0) // log E >= log(2^-65) > -45.1

#define DRAW_TOKENS 256 // tokens per call of the noise kernel

/* Logits below these cannot win: whatever the noise is, and after a noise with z leading zeros.
 * They only save work. Each is a little lower than it must be. */
struct draw_bounds {
    float any, of_noise[65];
};

/* A logit whose score is `score` or less. */
static float logit_below(const struct dist *d, double score)
{
    double logit = score * d->temperature;
    return (float)(logit - fabs(logit) * 1e-6 - 1e-30);
}

/* E > u >= 2^-(z + 1), where z is the number of leading zeros of the noise. The factor is above
 * log 2, so that rounding cannot lose a winner. */
static void bound_draw(const struct dist *d, double best, struct draw_bounds *to)
{
    to->any = logit_below(d, best + LEAST_LOG_E);
    for (int z = 0; z <= 64; z++)
        to->of_noise[z] = logit_below(d, best - (z + 1) * 0.6931472);
}

/* Collects tokens that any noise could let win: of all tokens or of `kept`, from index *at on.
 * Returns their number. */
static uint32_t next_tokens(const struct dist *d, float least, uint32_t *at,
                            uint32_t tokens[DRAW_TOKENS])
{
    const uint32_t end = d->uncut ? d->n_vocab : d->n_kept;
    uint32_t n = 0;
    for (; *at < end && n < DRAW_TOKENS; ++*at) {
        tokens[n] = d->uncut ? *at : d->kept[*at];
        n += d->logits[tokens[n]] >= least;
    }
    return n;
}

uint32_t dist_draw(struct dist *d, uint64_t key, uint32_t position)
{
    uint32_t token = d->best, tokens[DRAW_TOKENS];
    uint64_t words[DRAW_TOKENS];
    struct draw_bounds bounds;
    if (!d->uncut && d->n_kept == 1)
        return d->kept[0];
    double best =
        score_of(d, token) - rng_log_exp(rng_u64(key, RNG_TARGET_DRAW, position, 0, token));
    bound_draw(d, best, &bounds);
    for (uint32_t at = 0, n; (n = next_tokens(d, bounds.any, &at, tokens));) {
        d->kernel->noise(key, position, tokens, n, words);
        for (uint32_t i = 0; i < n; i++) {
            const int z = words[i] ? __builtin_clzll(words[i]) : 64;
            if (d->logits[tokens[i]] < bounds.of_noise[z])
                continue;
            double score = score_of(d, tokens[i]) - rng_log_exp(words[i]);
            if (score > best || (score == best && tokens[i] < token)) {
                best = score;
                token = tokens[i];
                bound_draw(d, best, &bounds);
            }
        }
    }
    return token;
}

/* The weights of tokens that are not in `kept` become 0. */
static void clear_others(struct dist *d)
{
    for (uint32_t i = 0; i < d->n_kept; i++)
        memcpy(&d->spare[i], &d->weights[d->kept[i]], sizeof(*d->spare));
    memset(d->weights, 0, d->n_vocab * sizeof(*d->weights));
    for (uint32_t i = 0; i < d->n_kept; i++)
        memcpy(&d->weights[d->kept[i]], &d->spare[i], sizeof(*d->spare));
}

struct dist_weights dist_weights(struct dist *d)
{
    if (d->uncut)
        keep_from(d, -FLT_MAX);
    struct dist_weights w = {d->n_vocab, d->n_kept, d->weights, d->kept, 0};
    if (d->uncut) {
        w.sum = weigh_all(d);
    } else {
        w.sum = weigh_kept(d);
        clear_others(d);
    }
    return w;
}

void dist_probs(struct dist *d, double *to)
{
    struct dist_weights w = dist_weights(d);
    for (uint32_t i = 0; i < d->n_vocab; i++)
        to[i] = w.weights[i] / w.sum;
}

/* ---- logprobs ---- */

static float logprob_of(float logit, double total)
{
    return logit > -INFINITY && total > -INFINITY ? (float)((double)logit - total) : -INFINITY;
}

/* Puts the n best tokens into `top` by insertion. The field logprob holds the logit for now. */
static void find_top(const float *logits, uint32_t n_vocab, uint32_t n, struct dist_top *top)
{
    uint32_t n_found = 0;
    for (uint32_t t = 0; t < n_vocab; t++) {
        float x = logits[t] != logits[t] ? -INFINITY : logits[t];
        if (n_found == n && x <= top[n - 1].logprob)
            continue;
        uint32_t i = n_found < n ? n_found++ : n - 1;
        for (; i > 0 && top[i - 1].logprob < x; i--)
            top[i] = top[i - 1];
        top[i] = (struct dist_top){t, x};
    }
}

void dist_logprobs(struct dist *d, const float *logits, uint32_t token, uint32_t n,
                   float *ret_logprob, struct dist_top *top)
{
    double total = d->kernel->logsumexp(logits, d->n_vocab);
    if (total != total || total == INFINITY) { // rare: a NaN or an infinity is among them
        float *clean = (float *)(void *)d->keys;
        for (uint32_t i = 0; i < d->n_vocab; i++)
            clean[i] = sanitise(logits[i]);
        logits = clean;
        total = d->kernel->logsumexp(logits, d->n_vocab);
    }
    *ret_logprob = logprob_of(logits[token], total);
    if (n == 0)
        return;
    find_top(logits, d->n_vocab, n, top);
    for (uint32_t i = 0; i < n; i++)
        top[i].logprob = logprob_of(top[i].logprob, total);
}
