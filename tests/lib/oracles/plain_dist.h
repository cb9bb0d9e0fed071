/* plain_dist.h - the distribution computed directly from its definition, as an oracle: it sorts all
 * tokens, uses libm's exp and takes no shortcuts. */
#pragma once
#include <stdint.h>
#include "kernel/kernel.h"
#include "model/dist.h"

/* Only the functions that a distribution calls: these tests do not depend on the real kernels. */
extern const struct kernel plain_kernel;

/* Writes the probabilities of all tokens. context: the tokens of the prompt, then n_generated
 * more. */
void plain_dist(const float *logits, uint32_t n_vocab, const struct dist_params *p,
                const uint32_t *context, uint32_t n_prompt, uint32_t n_generated,
                const uint64_t *mask, double *probs);

/* Upper tail of the chi-square distribution with n degrees of freedom (Wilson, Hilferty 1931). */
double plain_chi2_tail(double chi2, double n);
