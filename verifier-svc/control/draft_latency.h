/* draft_latency.h - how long a proposer takes to answer, learnt from its answers.
 *
 * Of drafts of k tokens for n sequences at once
 *     t(k, n) = base + k * (token + (n - 1) * other)
 * The three are followed by a Kalman filter whose state walks at random (Kalman 1960): what the
 * answers of late do not tell apart, as all were of the same k, grows uncertain, so that one of
 * another k tells much of it.
 *
 * Threads: the engine's; plain data, starts as zeros. */
#pragma once
#include <stdint.h>

#define DRAFT_LATENCY_N 3 // base, token, other

struct draft_latency {
    double us[DRAFT_LATENCY_N];
    double covariance[DRAFT_LATENCY_N][DRAFT_LATENCY_N];
};

/* k, n: at least 1. 0 before any was seen. */
double draft_latency_us(const struct draft_latency *a, uint32_t k, uint32_t n);
/* An answer took us. */
void draft_latency_seen(struct draft_latency *a, uint32_t k, uint32_t n, double us);
