/* prefill_price.c - the sums of a sequence, moved to its proposer when the context is read. */
#include "verifier-svc/control/prefill_price.h"

#define FADE 0.95             // of the price, per sequence that was read
#define MIN_PASSES 16         // pass limit: so many,
#define POSITIONS_PER_PASS 16 // and one more per so many positions

void prefill_price_requested(struct prefill_price_seq *s, unsigned proposer, uint32_t positions)
{
    bool known = s->positions || (s->done && !positions);
    if (s->proposer != proposer || !known)
        *s = (struct prefill_price_seq){
            .proposer = proposer, .done = !positions, .positions = positions};
}

void prefill_price_reported(struct prefill_price_seq *s, uint32_t positions)
{
    if (!s->positions || s->reported)
        return;
    s->positions = positions;
    s->reported = true;
}

void prefill_price_answered(struct prefill_price_seq *s, struct prefill_price *price)
{
    if (prefill_price_running(s)) {
        price->us = FADE * price->us + s->us;
        price->positions = FADE * price->positions + s->positions;
    }
    *s = (struct prefill_price_seq){.proposer = s->proposer, .done = true};
}

void prefill_price_abandoned(struct prefill_price_seq *s)
{
    if (prefill_price_running(s))
        *s = (struct prefill_price_seq){.proposer = s->proposer};
}

static uint32_t pass_limit(const struct prefill_price_seq *s)
{
    return MIN_PASSES + s->positions / POSITIONS_PER_PASS;
}

bool prefill_price_running(const struct prefill_price_seq *s)
{
    return s->positions && s->n_passes <= pass_limit(s);
}

bool prefill_price_passed(struct prefill_price_seq *s, struct prefill_price *price,
                          double excess_us)
{
    if (s->done) {
        price->us += excess_us;
        return true;
    }
    s->us += excess_us;
    s->n_passes++;
    return s->n_passes <= pass_limit(s);
}

bool prefill_price_is_unread(const struct prefill_price_seq *s, unsigned proposer)
{
    return s->proposer != proposer || !(s->done || s->positions);
}

double prefill_price_us(const struct prefill_price_seq *s, const struct prefill_price *price,
                        unsigned proposer, uint32_t positions)
{
    bool costs = prefill_price_is_unread(s, proposer) && price->positions > 0;
    return costs ? price->us / price->positions * positions : 0;
}
