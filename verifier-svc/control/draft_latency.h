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

#define ANSWER_TIME_N 3 // base, token, other

struct answer_time {
    double us[ANSWER_TIME_N];
    double covariance[ANSWER_TIME_N][ANSWER_TIME_N];
};

/* k, n: at least 1. 0 before any was seen. */
double answer_time_us(const struct answer_time *a, uint32_t k, uint32_t n);
/* An answer took us. */
void answer_time_seen(struct answer_time *a, uint32_t k, uint32_t n, double us);
