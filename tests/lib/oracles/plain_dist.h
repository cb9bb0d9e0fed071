/* plain_dist.h - the distribution written plainly from its definition, as an oracle: sorts
 * everything, libm's exp, no shortcuts. */
#pragma once
#include <stdint.h>
#include "kernel/kernel.h"
#include "model/dist.h"

/* Only what a distribution takes, so that these tests do not lean on the kernels. */
extern const struct kernel plain_kernel;

/* context: the prompt's tokens, then n_generated more. Probabilities of all tokens. */
void plain_dist(const float *logits, uint32_t n_vocab, const struct dist_params *p,
                const uint32_t *context, uint32_t n_prompt, uint32_t n_generated,
                const uint64_t *mask, double *probs);

/* Upper tail of the chi-square distribution with n degrees of freedom (Wilson, Hilferty 1931). */
double plain_chi2_tail(double chi2, double n);
