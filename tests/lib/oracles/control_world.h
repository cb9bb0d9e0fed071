/* control_world.h - a controller with sequences, for tests of the policies. Its proposer is number
 * 0, all contexts have 100 positions, and what is right is drawn from one row of numbers. */
#pragma once
#include "verifier-svc/control/control.h"

#define WORLD_SEQS 64

/* A controller, WORLD_SEQS sequences, and passes that take first_us and row_us for each further
 * row. */
struct world {
    struct control c;
    struct control_seq seqs[WORLD_SEQS];
    struct control_item items[WORLD_SEQS];
    uint64_t n_drawn; // numbers that say what is right
};

/* Static, one at a time. */
struct world *world_of(enum control_policy policy, uint32_t k, uint32_t off_from, double first_us,
                       double row_us);

/* What the first of n sequences asks for, each of which may have so many draft tokens and has so
 * many tokens left. */
uint32_t world_asked_with(struct world *w, uint32_t n, uint32_t allowed, uint32_t left);
uint32_t world_asked(struct world *w, uint32_t n, uint32_t allowed); // with 1000 left
/* How much is verified of a draft that the first sequence has alone. */
uint32_t world_cut(struct world *w, const float *predicted, uint32_t n);

/* One of n that are asked together; its proposer has 100 positions to read first, unless it has. */
void world_ask(struct control_seq *s, uint32_t n);

#define WORLD_CHAIN 16
/* A chain of n tokens. tokens: NULL: all 0. predicted: survival estimates; NULL: none. */
struct draft world_draft(uint32_t n, const uint32_t *tokens, const float *predicted);

/* A sequence's draft of k tokens of which n are right. */
void world_see(struct world *w, struct control_seq *s, uint32_t k, uint32_t n);
/* How many of k tokens are right before the first that is not, each with probability alpha. */
uint32_t world_right_tokens(struct world *w, double alpha, uint32_t k);
/* Drafts of k tokens of which each is right with probability alpha. */
void world_feed(struct world *w, unsigned seq, double alpha, uint32_t k, unsigned n_drafts);
