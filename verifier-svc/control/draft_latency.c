/* draft_latency.c - a Kalman filter over three times. */
#include <math.h>
#include "verifier-svc/control/draft_latency.h"

#define NOISE 0.15      // standard deviation of an answer's time, of that time
#define DRIFT 0.03      // by which each part may have changed since the last, of that time
#define OUTLIER 2.0     // an answer that was held up counts as so many standard deviations
#define START_OTHER 0.2 // of a token's time, for each other sequence

/* How often each time is in an answer, in general. */
static const double typical[DRAFT_LATENCY_N] = {1, 4, 16};

static void parts(uint32_t k, uint32_t n, double f[DRAFT_LATENCY_N])
{
    f[0] = 1;
    f[1] = k;
    f[2] = k * (n - 1.0);
}

static double sum_of(const double a[DRAFT_LATENCY_N], const double f[DRAFT_LATENCY_N])
{
    double sum = 0;
    for (unsigned i = 0; i < DRAFT_LATENCY_N; i++)
        sum += a[i] * f[i];
    return sum;
}

double draft_latency_us(const struct draft_latency *a, uint32_t k, uint32_t n)
{
    double f[DRAFT_LATENCY_N];
    parts(k, n, f);
    return sum_of(a->us, f);
}

/* Half of the first one's time is taken to be for its tokens. */
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
    double f[DRAFT_LATENCY_N], gain[DRAFT_LATENCY_N], noise = NOISE * expected;
    parts(k, n, f);
    for (unsigned i = 0; i < DRAFT_LATENCY_N; i++) {
        double step = DRIFT * expected / typical[i];
        a->covariance[i][i] += step * step;
    }
    for (unsigned i = 0; i < DRAFT_LATENCY_N; i++)
        gain[i] = sum_of(a->covariance[i], f);
    double variance = sum_of(gain, f) + noise * noise;
    if (!(variance > 0)) { // what was seen differs by more than the arithmetic can hold
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
