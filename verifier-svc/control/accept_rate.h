/* accept_rate.h - how often a proposer's draft tokens are kept if those before them were.
 *
 * Learnt from what the proposer said of such tokens, for all places of a draft at once, or from the
 * place in the draft where it said nothing. Old tokens fade.
 *
 * Threads: the engine's; plain data, starts as zeros. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define ACCEPT_RATE_PLACES 6 // in a draft: 1st, 2nd, 3rd, 4-6th, 7-10th, behind
#define ACCEPT_RATE_WORDS 6  // of a proposer: below .2, .4, .6, .8, .95, 1

/* How often what was tried was kept; both fade. */
struct accept_rate_estimate {
    float tried, kept;
};

struct accept_rate {
    struct accept_rate_estimate said[ACCEPT_RATE_WORDS];
    struct accept_rate_estimate
        silent[ACCEPT_RATE_PLACES]; // that it said nothing of, or was sure of
    struct accept_rate_estimate all[ACCEPT_RATE_PLACES];
};

/* Of a token behind `depth` others of which nobody has said anything, or that is not drafted yet.
 * One that is deeper than any that was tried is like the deepest. */
double accept_rate_at(const struct accept_rate *c, uint32_t depth);
/* said: the proposer's own word; 1 if it is silent. */
double accept_rate_predicted(const struct accept_rate *c, uint32_t depth, double said);
/* What was said of a draft's token i alone, if those before it are kept, where said[i] is of it and
 * all before it. */
double accept_rate_alone(const int32_t *parents, const float *said, uint32_t i);
/* It was kept, or not. */
void accept_rate_seen(struct accept_rate *c, uint32_t depth, double said, bool kept);
