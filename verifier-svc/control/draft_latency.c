/* draft_latency.c - a Kalman filter over three times. docs/controller.md, "Latency", has the
 * formulas. */
#include <math.h>
#include "verifier-svc/control/draft_latency.h"

#define NOISE 0.15      // standard deviation of a latency, relative to it
#define DRIFT 0.03      // change of each part between two answers, relative to the latency
#define OUTLIER 2.0     // cap of a delayed answer, in standard deviations
#define START_OTHER 0.2 // first estimate of `other`, relative to `token`

/* How often each of the three times typically is in a latency. */
static const double typical[DRAFT_LATENCY_N] = {1, 4, 16};

static void factors(uint32_t k, uint32_t n, double f[DRAFT_LATENCY_N])
{
    f[0] = 1;
    f[1] = k;
    f[2] = k * (n - 1.0);
}

static double dot(const double x[DRAFT_LATENCY_N], const double f[DRAFT_LATENCY_N])
{
    double sum = 0;
    for (unsigned i = 0; i < DRAFT_LATENCY_N; i++)
        sum += x[i] * f[i];
    return sum;
}

double draft_latency_us(const struct draft_latency *a, uint32_t k, uint32_t n)
{
    double f[DRAFT_LATENCY_N];
    factors(k, n, f);
    return dot(a->us, f);
}

/* First answer: half of its time is `base`, half is for tokens. The variances are the squares. */
static void start(struct draft_latency *a, uint32_t k, uint32_t n, double us)
{
    double token_us = us / 2 / k / (1 + START_OTHER * (n - 1));
    *a = (struct draft_latency){.us = {us / 2, token_us, START_OTHER * token_us}};
    for (unsigned i = 0; i < DRAFT_LATENCY_N; i++)
        a->covariance[i][i] = a->us[i] * a->us[i];
}

void draft_latency_seen(struct draft_latency *a, uint32_t k, uint32_t n, double us)
{
    double expected = draft_latency_us(a, k, n);
    if (expected <= 0) {
        start(a, k, n, us);
        return;
    }
    double f[DRAFT_LATENCY_N], gain[DRAFT_LATENCY_N], noise = NOISE * expected; // gain: P f'
    factors(k, n, f);
    for (unsigned i = 0; i < DRAFT_LATENCY_N; i++) {
        double step = DRIFT * expected / typical[i];
        a->covariance[i][i] += step * step;
    }
    for (unsigned i = 0; i < DRAFT_LATENCY_N; i++)
        gain[i] = dot(a->covariance[i], f);
    double variance = dot(gain, f) + noise * noise;
    if (!(variance > 0)) { // the covariance has lost its precision
        start(a, k, n, us);
        return;
    }
    double error = fmin(us - expected, OUTLIER * sqrt(variance));
    for (unsigned i = 0; i < DRAFT_LATENCY_N; i++) {
        a->us[i] = fmax(0, a->us[i] + gain[i] * error / variance);
        for (unsigned j = 0; j < DRAFT_LATENCY_N; j++)
            a->covariance[i][j] -= gain[i] * gain[j] / variance;
    }
}
