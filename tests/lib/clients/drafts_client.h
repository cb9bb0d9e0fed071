/* drafts_client.h - a client of drafts.h in place of the engine: sequences that request drafts, no
 * model.
 *
 * The next token of a sequence is a function of its position, so every draft can be checked. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "verifier-svc/drafts/drafts.h"

#define DRAFTS_CLIENT_VOCAB 512
#define DRAFTS_CLIENT_CONTEXT_MAX 200000

struct drafts_client;

/* targets: addresses of proposers. Ends the test on errors. */
struct drafts_client *drafts_client_new(const char *const *targets, unsigned n_targets,
                                        uint32_t max_sequences);
void drafts_client_free(struct drafts_client *a);
DEFINE_AUTO(struct drafts_client, drafts_client_free)
struct drafts *drafts_client_drafts(struct drafts_client *a);

/* The token at a position of any sequence. Periodic, so the n-gram proposer predicts it. */
uint32_t drafts_client_token(uint32_t position);

/* Whether proposer i is connected, has described itself and is not benched. */
bool drafts_client_usable(struct drafts_client *a, unsigned i);
/* Waits at most 20 s until drafts_client_usable() is `wanted`. */
bool drafts_client_wait_usable(struct drafts_client *a, unsigned i, bool wanted);
/* Requests drafts from proposer i for n sequences (from first_seq) of base_len tokens. Waits at
 * most wait_us, which is also their time budget (at least 50 ms). Returns the number of drafts that
 * arrived; *ret_right: the number of their tokens that are correct. */
unsigned drafts_client_round(struct drafts_client *a, unsigned i, uint64_t first_seq, unsigned n,
                             uint32_t base_len, uint32_t k, int64_t wait_us, unsigned *ret_right);
/* The longest drafts_ask(), in microseconds of this thread's CPU time. */
int64_t drafts_client_longest_ask_us(struct drafts_client *a);
