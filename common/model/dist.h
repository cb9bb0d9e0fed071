/* dist.h - from logits to a distribution to a token.
 *
 * Order of the steps: penalties, bias, mask, temperature, top-k, top-p, min-p. The draw is keyed:
 * token = argmax over the kept tokens of logit/T - log E (rng.h); ties go to the lowest id. It
 * depends only on (seed, choice, position) and the logits, never on a draft.
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

/* The sampling parameters of a request. Proposers that draw drafts need them, too: a new member
 * also goes through pack_sampling() in verifier-svc/drafts/drafts_wire.c and sampling_of() in
 * proposer-svc/batch.c. Without it drafts match the target less often.
 * test_round_message.c does not compile until it has the new member. */
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

/* A mask: bit t % 64 of word t / 64 is set if token t may come now. Functions that take a mask
 * accept NULL: every token may come. Bits outside the vocabulary have no effect. */
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

/* The number of times each token occurs in a context. dist_counts_new() allocates space for `max`
 * different tokens. Tokens are added in the order of the context. To look at a row of a draft, the
 * caller adds the draft tokens before that row, and takes them back afterwards. */
struct dist_counts;
int dist_counts_new(uint32_t max, struct dist_counts **ret);                    // -ENOMEM
int dist_counts_copy(const struct dist_counts *from, struct dist_counts **ret); // -ENOMEM
void dist_counts_free(struct dist_counts *c);
DEFINE_AUTO(struct dist_counts, dist_counts_free)
void dist_counts_add(struct dist_counts *c, uint32_t token, bool generated);
/* Takes back a generated token: it must be the latest one that is still counted. */
void dist_counts_take_back(struct dist_counts *c, uint32_t token);

struct dist; // holds one distribution over the vocabulary; no call after dist_new() allocates
size_t dist_bytes(uint32_t n_vocab); // memory of one
int dist_new(uint32_t n_vocab, const struct kernel *kernel, struct dist **ret);
void dist_free(struct dist *d);
DEFINE_AUTO(struct dist, dist_free)

/* The first three steps alone: writes a row of raw logits (n_vocab) with penalties, bias and mask
 * to `to`. A token that the mask forbids gets -inf. counts: NULL without penalties. NaN logits
 * count as -inf, +inf as the largest float. */
void dist_adjust(const float *logits, uint32_t n_vocab, const struct dist_params *p,
                 const struct dist_counts *counts, const uint64_t *mask, float *to);
/* True if a penalty is in effect, so that dist_adjust() needs counts. */
bool dist_penalises(const struct dist_params *p);

/* Applies all steps to a row of raw logits; the first three are those of dist_adjust(). If no token
 * is left, the lowest id that the mask allows is kept. */
void dist_set(struct dist *d, const float *logits, const struct dist_params *p,
              const struct dist_counts *counts, const uint64_t *mask);
/* The keyed draw from the tokens that dist_set() kept; at temperature 0 their argmax. */
uint32_t dist_draw(struct dist *d, uint64_t key, uint32_t position);

/* The distribution that dist_set() made, for acceptance rules that compare it with another one. The
 * probability of a token is its weight divided by `sum`. */
struct dist_weights {
    uint32_t n_vocab, n_kept;
    double *weights;      // (n_vocab) 0: the token cannot come
    const uint32_t *kept; // (n_kept) the tokens that can come, each once, in a fixed order
    double sum;
};
/* Computes the weights. The caller may change them until the next call with d. */
struct dist_weights dist_weights(struct dist *d);
/* Probability of each token after dist_set(); their sum is 1 (one-hot at temperature 0). */
void dist_probs(struct dist *d, double *to);

struct dist_top {
    uint32_t token;
    float logprob;
};
/* log-softmax of raw logits: of one token and of the n best; ties go to the lowest id. n is at most
 * DIST_MAX_TOP and the vocabulary. NaN logits count as -inf. The distribution of dist_set() stays
 * valid. */
#define DIST_MAX_TOP 20
void dist_logprobs(struct dist *d, const float *logits, uint32_t token, uint32_t n,
                   float *ret_logprob, struct dist_top *top);
