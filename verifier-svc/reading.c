/* reading.c - sums of a sequence, moved to its proposer at the end. */
#include "verifier-svc/reading.h"

#define FADE 0.95           // of the price, per sequence that was read
#define LEAST_PASSES 16     // beside a reader, at most, and
#define POSITIONS_A_PASS 16 // as many more as a proposer that reads so many in each would take

static bool concerns(const struct reading *r, unsigned proposer)
{
    return r->proposer == proposer && (r->done || r->positions);
}

void reading_asked(struct reading *r, unsigned proposer, uint32_t positions)
{
    if (!concerns(r, proposer))
        *r = (struct reading){.proposer = proposer, .positions = positions};
}

void reading_answered(struct reading *r, struct reading_price *price)
{
    if (!r->positions)
        return;
    price->us = FADE * price->us + r->us;
    price->positions = FADE * price->positions + r->positions;
    r->done = true;
    r->positions = 0;
}

void reading_left(struct reading *r)
{
    r->positions = 0;
}

bool reading_passed(struct reading *r, double longer_us)
{
    r->us += longer_us;
    if (++r->n_passes <= LEAST_PASSES + r->positions / POSITIONS_A_PASS)
        return true;
    r->done = true;
    r->positions = 0;
    return false;
}

double reading_us(const struct reading *r, const struct reading_price *price, unsigned proposer,
                  uint32_t positions)
{
    bool known = price->positions > 0;
    return known && !concerns(r, proposer) ? price->us / price->positions * positions : 0;
}
