/* dist.h - from logits to a distribution to a token.
 *
 * Order: penalties, bias, mask, temperature, top-k, top-p, min-p. The draw is keyed: token =
 * argmax over the kept tokens of logit/T - log E (rng.h), ties to the lowest id, so it depends on
 * (seed, choice, position) and the logits alone and never on a draft.
 *
 * Threads: one dist per thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/rng.h"
#include "kernel/kernel.h"

struct dist_bias {
    uint32_t token;
    float bias;
};

struct dist_params {
    float temperature;         // 0: greedy
    uint32_t top_k;            // 0: off
    float top_p;               // 1: off
    float min_p;               // 0: off
    float repetition;          // 1: off; counts prompt and generated tokens (Keskar et al. 2019)
    float presence, frequency; // 0: off; count generated tokens
    const struct dist_bias *bias;
    uint32_t n_bias;
};

/* A mask: bit t % 64 of word t / 64 says whether token t may come now. Where a mask is wanted, NULL
 * allows every token. Bits outside the vocabulary have no effect. */
static inline uint32_t dist_mask_words(uint32_t n_vocab)
{
    return n_vocab / 64 + (n_vocab % 64 != 0);
}
static inline bool dist_mask_allows(const uint64_t *mask, uint32_t token)
{
    return mask[token / 64] >> token % 64 & 1;
}
/* Fills a mask: every token but these n may come. Ids outside the vocabulary are ignored. */
void dist_mask_ban(uint64_t *mask, uint32_t n_vocab, const uint32_t *banned, uint32_t n);

/* How often tokens stand in a context, with room for `max` different ones from the start. A token
 * is added when it is committed, so the rows of a draft are looked at one after the other. */
struct dist_counts;
int dist_counts_new(uint32_t max, struct dist_counts **ret);                    // -ENOMEM
int dist_counts_copy(const struct dist_counts *from, struct dist_counts **ret); // -ENOMEM
void dist_counts_free(struct dist_counts *c);
DEFINE_AUTO(struct dist_counts, dist_counts_free)
void dist_counts_add(struct dist_counts *c, uint32_t token, bool generated);
/* Takes the latest generated token back that was added and not taken back. */
void dist_counts_take_back(struct dist_counts *c, uint32_t token);

struct dist; // room for one distribution over the vocabulary; nothing allocates after dist_new()
int dist_new(uint32_t n_vocab, const struct kernel *kernel, struct dist **ret);
void dist_free(struct dist *d);
DEFINE_AUTO(struct dist, dist_free)

/* The first three steps alone: writes a row of raw logits (n_vocab) with penalties, bias and mask to
 * `to`. A token that the mask forbids gets -inf. counts: NULL without penalties. NaN logits count as
 * -inf, +inf as the largest float. */
void dist_adjust(const float *logits, uint32_t n_vocab, const struct dist_params *p,
                 const struct dist_counts *counts, const uint64_t *mask, float *to);
/* Does a penalty need counts? */
bool dist_penalises(const struct dist_params *p);

/* Takes a row of raw logits through the steps above, the first as dist_adjust(). If nothing is
 * left, the lowest id that the mask allows is kept. */
void dist_set(struct dist *d, const float *logits, const struct dist_params *p,
              const struct dist_counts *counts, const uint64_t *mask);
/* The keyed draw (argmax at temperature 0) from what dist_set() left. */
uint32_t dist_draw(struct dist *d, uint64_t key, uint32_t position);

/* What dist_set() left, for acceptance rules that compare it with another: the probability of a
 * token is its weight over `sum`. */
struct dist_weights {
    uint32_t n_vocab, n_kept;
    double *weights;      // (n_vocab) 0: cannot come
    const uint32_t *kept; // (n_kept) all that can come, each once, in an order that is fixed
    double sum;
};
/* The weights are the caller's to change until the next call with d. */
struct dist_weights dist_weights(struct dist *d);
/* Probability of each token of the vocabulary after dist_set(), sum 1 (one-hot at temperature 0).
 */
void dist_probs(struct dist *d, double *to);

struct dist_top {
    uint32_t token;
    float logprob;
};
/* log-softmax of raw logits: of one token, and the n best, ties to the lowest id (n <= DIST_MAX_TOP
 * and the vocabulary). NaN logits count as -inf. dist_set()'s distribution stays. */
#define DIST_MAX_TOP 20
void dist_logprobs(struct dist *d, const float *logits, uint32_t token, uint32_t n,
                   float *ret_logprob, struct dist_top *top);
