/* prefill_price.h - estimator: the cost of a proposer's prefill, in time of the verifier.
 *
 * A proposer that has not read a sequence's context runs its own prefill first. If it shares cores
 * or memory bandwidth with the verifier, passes take longer meanwhile. While a context is read, the
 * excess of these passes over their expected time is summed up. When the proposer has answered, the
 * sum moves to the proposer:
 *     price = us / positions      both fade by 0.95 per sequence that was read
 * A prefill has a pass limit: 16 passes plus one per 16 positions. Beyond it, slow passes have
 * other causes: they update the pass time, and this prefill does not change the price.
 *
 * drafts_ask() knows which positions a proposer has read. prefill_price_requested() reports them.
 *
 * Threads: the engine's; plain data, starts as zeros. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Of a proposer. */
struct prefill_price {
    double us, positions;
};

/* Of a sequence. */
struct prefill_price_seq {
    unsigned proposer;  // that reads the context, or has read it
    bool done;          // the proposer has read it
    bool reported;      // `positions` is the proposer's own number
    uint32_t positions; // that the proposer is reading; 0: it is not reading
    uint32_t n_passes;  // since it began to read
    double us;          // excess of these passes
};

/* A request was sent. positions: estimate of what the proposer reads first; 0: it has read all. */
void prefill_price_requested(struct prefill_price_seq *s, unsigned proposer, uint32_t positions);

/* The proposer answered that so many positions are left. Its first answer replaces the estimate. */
void prefill_price_reported(struct prefill_price_seq *s, uint32_t positions);

/* The proposer answered, so it has read the context. Within the pass limit this updates the
 * price. */
void prefill_price_answered(struct prefill_price_seq *s, struct prefill_price *price);

/* Nothing is requested for the sequence any longer: its excess is dropped. */
void prefill_price_abandoned(struct prefill_price_seq *s);

/* True: the proposer is reading the context, within the pass limit. */
bool prefill_price_running(const struct prefill_price_seq *s);

/* A pass that began while the context was read took excess_us longer than expected. If the proposer
 * has answered meanwhile, the excess goes to the price immediately. False: the pass limit is
 * exceeded, so the pass counts as any other. */
bool prefill_price_passed(struct prefill_price_seq *s, struct prefill_price *price,
                          double excess_us);

/* True: the proposer has not read the context and is not reading it. */
bool prefill_price_is_unread(const struct prefill_price_seq *s, unsigned proposer);

/* Cost of a first request to this proposer, in us: price * positions. 0: the context is read or
 * being read, or the price is unknown. */
double prefill_price_us(const struct prefill_price_seq *s, const struct prefill_price *price,
                        unsigned proposer, uint32_t positions);
