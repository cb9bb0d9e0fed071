/* prefill_price.c - sums of a sequence, moved to its proposer at the end. */
#include "verifier-svc/control/prefill_price.h"

#define FADE 0.95           // of the price, per sequence that was read
#define LEAST_PASSES 16     // beside a reader, at most, and
#define POSITIONS_A_PASS 16 // as many more as a proposer that reads so many in each would take

void reading_asked(struct reading *r, unsigned proposer, uint32_t positions)
{
    bool known = r->positions || (r->done && !positions);
    if (r->proposer != proposer || !known)
        *r = (struct reading){.proposer = proposer, .done = !positions, .positions = positions};
}

void reading_told(struct reading *r, uint32_t positions)
{
    if (!r->positions || r->told)
        return;
    r->positions = positions;
    r->told = true;
}

void reading_answered(struct reading *r, struct reading_price *price)
{
    if (reading_goes_on(r)) {
        price->us = FADE * price->us + r->us;
        price->positions = FADE * price->positions + r->positions;
    }
    *r = (struct reading){.proposer = r->proposer, .done = true};
}

void reading_left(struct reading *r)
{
    if (reading_goes_on(r))
        *r = (struct reading){.proposer = r->proposer};
}

static uint32_t most_passes(const struct reading *r)
{
    return LEAST_PASSES + r->positions / POSITIONS_A_PASS;
}

bool reading_goes_on(const struct reading *r)
{
    return r->positions && r->n_passes <= most_passes(r);
}

bool reading_passed(struct reading *r, struct reading_price *price, double longer_us)
{
    if (r->done) { // it has answered since: this was the last pass
        price->us += longer_us;
        return true;
    }
    r->us += longer_us;
    r->n_passes++;
    return r->n_passes <= most_passes(r);
}

bool reading_lacks(const struct reading *r, unsigned proposer)
{
    return r->proposer != proposer || !(r->done || r->positions);
}

double reading_us(const struct reading *r, const struct reading_price *price, unsigned proposer,
                  uint32_t positions)
{
    bool costs = reading_lacks(r, proposer) && price->positions > 0;
    return costs ? price->us / price->positions * positions : 0;
}
