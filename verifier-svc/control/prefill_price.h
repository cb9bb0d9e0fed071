/* prefill_price.h - what it costs that a proposer reads a sequence's context before it drafts for it.
 *
 * Meanwhile passes take longer, as far as both share a machine. By how much is summed up while a
 * sequence is read, and divided by its positions once it has been: the price of a position. One
 * that takes very long is no excuse for slow passes any more, and costs nothing more.
 *
 * What the proposer has read its own book knows (drafts_ask()): a wish tells it here.
 *
 * Threads: the engine's; plain data, starts as zeros. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Of a proposer; both fade. */
struct prefill_price_quote {
    double us, positions;
};

/* Of a sequence. */
struct prefill_price {
    unsigned proposer;  // that reads it or has
    bool done;          // it has
    bool told;          // the positions are its own word
    uint32_t positions; // that it reads; 0: it does not
    uint32_t n_passes;  // beside that
    double us;          // that they took longer
};

/* It was asked for a draft, and reads so many positions first, as is thought; 0: it has read them.
 */
void prefill_price_asked(struct prefill_price *r, unsigned proposer, uint32_t positions);
/* It has answered that so many are left; the first time, that is all. */
void prefill_price_reported(struct prefill_price *r, uint32_t positions);
/* It has answered, not that it is still reading. */
void prefill_price_answered(struct prefill_price *r, struct prefill_price_quote *price);
/* Nobody asks it any more. */
void prefill_price_left(struct prefill_price *r);
/* It is being read, and not for so many passes that these have other reasons to be slow. */
bool prefill_price_continues(const struct prefill_price *r);
/* A pass that began while that was so took so much longer than thought. False: it was one too many.
 */
bool prefill_price_passed(struct prefill_price *r, struct prefill_price_quote *price,
                          double longer_us);

/* The proposer has not read it and does not. */
bool prefill_price_lacks(const struct prefill_price *r, unsigned proposer);
/* What reading the sequence, so many positions, would cost yet, in us: 0 if it is read, or was, or
 * the price is not known. */
double prefill_price_us(const struct prefill_price *r, const struct prefill_price_quote *price,
                        unsigned proposer, uint32_t positions);
