/* control_world.h - a controller with sequences, for tests of the policies. Its proposer is number
 * 0, all contexts have 100 positions, and what is right is drawn from one row of numbers. */
#pragma once
#include "verifier-svc/control.h"

#define N_MAX 64

/* A controller, N_MAX sequences, and passes that take first_us and row_us for each further row. */
struct world {
    struct control c;
    struct control_seq seqs[N_MAX];
    struct control_item items[N_MAX];
};

/* Static, one at a time. */
struct world *world_of(enum control_policy policy, uint32_t k, uint32_t off_from, double first_us,
                       double row_us);

/* What the first of n sequences asks for, each of which may have so many draft tokens and has so
 * many tokens left. */
uint32_t asked_with(struct world *w, uint32_t n, uint32_t allowed, uint32_t left);
uint32_t asked(struct world *w, uint32_t n, uint32_t allowed); // with 1000 left
/* How much is verified of a draft that the first sequence has alone. */
uint32_t cut(struct world *w, const int32_t *parents, const float *said, uint32_t n);

/* One of n that are asked together; its proposer has 100 positions to read first, unless it has. */
void ask(struct control_seq *s, uint32_t n);

#define CHAIN 16
extern const int32_t chain[CHAIN]; // parents
extern const float silent[CHAIN];

/* A sequence's draft of k tokens of which n are right. */
void see(struct world *w, struct control_seq *s, uint32_t k, uint32_t n);
/* How many of k tokens are right before the first that is not, each with probability alpha. */
uint32_t right_tokens(double alpha, uint32_t k);
/* Drafts of k tokens of which each is right with probability alpha. */
void feed(struct world *w, unsigned seq, double alpha, uint32_t k, unsigned n_drafts);
