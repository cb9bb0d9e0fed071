/* control_world.h - a controller with sequences, for tests of the policies.
 *
 * The proposer is number 0, and every context has 100 positions. Accepted tokens are drawn from one
 * fixed series of pseudo-random numbers, so that a test always sees the same ones. */
#pragma once
#include "verifier-svc/control/control.h"

#define WORLD_SEQS 64
#define WORLD_CHAIN 16 // tokens of a draft, at most

struct control_world {
    struct control c;
    struct control_seq seqs[WORLD_SEQS];
    struct control_item items[WORLD_SEQS + 1]; // with one that no call may touch
    uint64_t n_drawn;                          // position in the series
};

/* A world whose passes are expected to take first_us, and row_us for each further row. Its proposer
 * is not new. off_from: disable_batch_size. The world is static: only the last one is valid. */
struct control_world *world_of(enum control_policy policy, uint32_t k, uint32_t off_from,
                               double first_us, double row_us);

/* The item after the first n has no sequence. world_unguard() fails if a call has changed it. */
void world_guard(struct control_world *w, uint32_t n);
void world_unguard(const struct control_world *w, uint32_t n);

/* Runs control_ask() for n sequences, each of which may have `allowed` tokens in a draft and may
 * still generate `left`. Returns the tokens of the first. */
uint32_t world_asked_with(struct control_world *w, uint32_t n, uint32_t allowed, uint32_t left);
uint32_t world_asked(struct control_world *w, uint32_t n, uint32_t allowed); // left: 1000

/* Runs control_cut() for the first sequence, with a chain of n tokens. Returns how many of them are
 * verified. predicted: survival estimates; NULL: none. */
uint32_t world_cut(struct control_world *w, const float *predicted, uint32_t n);

/* A request of this sequence is sent, one of n in its message. If the proposer has not read the
 * context, it has 100 positions to read first. */
void world_ask(struct control_seq *s, uint32_t n);

/* A sequence requests k tokens, which arrive after us; another round follows. */
void world_answer(struct control_world *w, unsigned seq, uint32_t k, double us);

/* A chain of n tokens. tokens: NULL: all 0. predicted: survival estimates; NULL: none. */
struct draft world_draft(uint32_t n, const uint32_t *tokens, const float *predicted);

/* A draft of k tokens was compared with committed tokens: the first n of it are accepted. */
void world_see(struct control_world *w, struct control_seq *s, uint32_t k, uint32_t n);

/* Draws how many of k tokens are accepted, each with probability alpha if its parent is. */
uint32_t world_right_tokens(struct control_world *w, double alpha, uint32_t k);

/* Compares n_drafts drafts of k tokens, each accepted with probability alpha if its parent is. */
void world_feed(struct control_world *w, unsigned seq, double alpha, uint32_t k, unsigned n_drafts);
