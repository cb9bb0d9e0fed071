/* prefill_price.c - sums of a sequence, moved to its proposer at the end. */
#include "verifier-svc/control/prefill_price.h"

#define FADE 0.95           // of the price, per sequence that was read
#define LEAST_PASSES 16     // beside a reader, at most, and
#define POSITIONS_A_PASS 16 // as many more as a proposer that reads so many in each would take

void prefill_price_asked(struct prefill_price *r, unsigned proposer, uint32_t positions)
{
    bool known = r->positions || (r->done && !positions);
    if (r->proposer != proposer || !known)
        *r = (struct prefill_price){
            .proposer = proposer, .done = !positions, .positions = positions};
}

void prefill_price_reported(struct prefill_price *r, uint32_t positions)
{
    if (!r->positions || r->told)
        return;
    r->positions = positions;
    r->told = true;
}

void prefill_price_answered(struct prefill_price *r, struct prefill_price_quote *price)
{
    if (prefill_price_continues(r)) {
        price->us = FADE * price->us + r->us;
        price->positions = FADE * price->positions + r->positions;
    }
    *r = (struct prefill_price){.proposer = r->proposer, .done = true};
}

void prefill_price_left(struct prefill_price *r)
{
    if (prefill_price_continues(r))
        *r = (struct prefill_price){.proposer = r->proposer};
}

static uint32_t most_passes(const struct prefill_price *r)
{
    return LEAST_PASSES + r->positions / POSITIONS_A_PASS;
}

bool prefill_price_continues(const struct prefill_price *r)
{
    return r->positions && r->n_passes <= most_passes(r);
}

bool prefill_price_passed(struct prefill_price *r, struct prefill_price_quote *price,
                          double longer_us)
{
    if (r->done) { // it has answered since: this was the last pass
        price->us += longer_us;
        return true;
    }
    r->us += longer_us;
    r->n_passes++;
    return r->n_passes <= most_passes(r);
}

bool prefill_price_lacks(const struct prefill_price *r, unsigned proposer)
{
    return r->proposer != proposer || !(r->done || r->positions);
}

double prefill_price_us(const struct prefill_price *r, const struct prefill_price_quote *price,
                        unsigned proposer, uint32_t positions)
{
    bool costs = prefill_price_lacks(r, proposer) && price->positions > 0;
    return costs ? price->us / price->positions * positions : 0;
}
