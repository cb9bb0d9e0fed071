/* draft_latency.h - estimator: how long a proposer takes to answer with drafts.
 *
 * For drafts of k tokens for n sequences in one message:
 *     t(k, n) = base + k (token + (n - 1) other)
 * A Kalman filter (Kalman 1960) tracks the three times; its state is a random walk. If all recent
 * answers have the same k, they cannot separate the three times. The uncertainty then grows, so
 * the next answer with another k corrects the times strongly.
 *
 * Threads: the engine's; plain data, starts as zeros. */
#pragma once
#include <stdint.h>

#define DRAFT_LATENCY_N 3 // base, token, other

struct draft_latency {
    double us[DRAFT_LATENCY_N];
    double covariance[DRAFT_LATENCY_N][DRAFT_LATENCY_N];
};

/* t(k, n). k and n are at least 1. 0: no answer was seen. */
double draft_latency_us(const struct draft_latency *a, uint32_t k, uint32_t n);

/* Updates the times by an answer to (k, n) that took us. */
void draft_latency_seen(struct draft_latency *a, uint32_t k, uint32_t n, double us);
