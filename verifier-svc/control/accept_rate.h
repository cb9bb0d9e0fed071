/* accept_rate.h - estimator: the probability that a draft token is accepted if its parent is.
 *
 * Each class of tokens counts how many of its tokens were tried and accepted; both counts fade.
 * Classes are by the proposer's prediction of the token, or by its depth:
 *     predicted  tokens with a prediction below 1, at any depth
 *     silent     tokens without a prediction, or with prediction 1
 *     all        every token
 * docs/controller.md, "Acceptance of a draft token", has the formulas.
 *
 * Threads: the engine's; plain data, starts as zeros. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "model/draft.h"

#define ACCEPT_RATE_DEPTHS 6      // first, second, third, 4th to 6th, 7th to 10th, later
#define ACCEPT_RATE_PREDICTIONS 6 // below .2, .4, .6, .8, .95 and 1

struct accept_rate_counts {
    float tried, accepted;
};

struct accept_rate {
    struct accept_rate_counts predicted[ACCEPT_RATE_PREDICTIONS];
    struct accept_rate_counts silent[ACCEPT_RATE_DEPTHS];
    struct accept_rate_counts all[ACCEPT_RATE_DEPTHS];
};

/* r(d): rate of a token whose prediction is unknown, for example because it is not drafted yet.
 * depth: tokens before it in the draft. A depth that was never tried has the rate of the deepest
 * one that was. */
double accept_rate_at(const struct accept_rate *a, uint32_t depth);

/* r(d, s): rate of a token with prediction s; 1: the proposer made none. */
double accept_rate_predicted(const struct accept_rate *a, uint32_t depth, double predicted);

/* s: the proposer's prediction of draft token i alone: the survival estimate of the token and its
 * path, divided by that of its parent. */
double accept_rate_alone(const struct draft *d, uint32_t i);

/* Counts a token that was tried. */
void accept_rate_seen(struct accept_rate *a, uint32_t depth, double predicted, bool accepted);
