/* drafts_client.h - a client of drafts.h in place of the engine: sequences that request drafts, no model.
 *
 * The next token of a sequence is a function of its position, so every draft can be checked. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "verifier-svc/drafts/drafts.h"

#define ASKER_VOCAB 512
#define ASKER_CONTEXT_MAX 200000

struct asker;

/* targets: addresses of proposers. Ends the test on errors. */
struct asker *asker_new(const char *const *targets, unsigned n_targets, uint32_t max_sequences);
void asker_free(struct asker *a);
DEFINE_AUTO(struct asker, asker_free)
struct drafts *asker_drafts(struct asker *a);

/* The token at a position of any sequence. Periodic, so the n-gram proposer predicts it. */
uint32_t asker_token(uint32_t position);

/* Whether proposer i is connected, has described itself and is not benched. */
bool asker_usable(struct asker *a, unsigned i);
/* Waits at most 20 s until asker_usable() is `wanted`. */
bool asker_wait_usable(struct asker *a, unsigned i, bool wanted);
/* Requests drafts from proposer i for n sequences (from first_seq) of base_len tokens. Waits at
 * most wait_us, which is also their time budget (at least 50 ms). Returns the number of drafts that
 * arrived; *ret_right: the number of their tokens that are correct. */
unsigned asker_round(struct asker *a, unsigned i, uint64_t first_seq, unsigned n, uint32_t base_len,
                     uint32_t k, int64_t wait_us, unsigned *ret_right);
/* The longest drafts_ask(), in microseconds of this thread's CPU time. */
int64_t asker_longest_ask_us(struct asker *a);
