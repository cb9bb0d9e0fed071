/* asker.h - an engine without a model: sequences that grow by a rule and ask for drafts.
 *
 * A sequence's next token is a function of its position, so every draft can be judged. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "verifier-svc/drafts/drafts.h"

#define ASKER_VOCAB 512
#define ASKER_CONTEXT_MAX 200000

struct asker;

/* targets: addresses of proposers. Ends the test when it cannot. */
struct asker *asker_new(const char *const *targets, unsigned n_targets, uint32_t max_sequences);
void asker_free(struct asker *a);
DEFINE_AUTO(struct asker, asker_free)
struct drafts *asker_drafts(struct asker *a);

/* The token at a position of any sequence: periodic, so that the n-gram proposer is right. */
uint32_t asker_token(uint32_t position);

/* Connected, described and not given up. */
bool asker_usable(struct asker *a, unsigned i);
/* Until proposer i is usable (or is not), at most 20 s. */
bool asker_wait_usable(struct asker *a, unsigned i, bool wanted);
/* Asks proposer i for n sequences (first_seq on) of base_len and waits for their drafts for at most
 * wait_us, which is their budget too (at least 50 ms); returns how many came, and of their tokens
 * how many were right. */
unsigned asker_round(struct asker *a, unsigned i, uint64_t first_seq, unsigned n, uint32_t base_len,
                     uint32_t k, int64_t wait_us, unsigned *ret_right);
/* The longest that one drafts_ask() took, in microseconds of this thread's CPU time. */
int64_t asker_longest_ask_us(struct asker *a);
