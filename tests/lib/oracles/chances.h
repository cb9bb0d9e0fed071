/* chances.h - the exact result of an acceptance rule. Enumerates every random outcome: the tokens
 * that the proposer draws, the flips and draws of the rule, and the tokens after the draft. The
 * expected acceptance and the joint distribution of the tokens are therefore exact. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "verifier-svc/accept/accept.h"

#define V 4                  // size of the vocabulary, at most
#define N_NODES 16           // nodes of a draft, at most
#define CHANCES_N_JOINT 256u // V^4: joint distributions of up to four tokens
#define EXACT 1e-12

/* Weights of the next token after `before`. Those of a q are whole numbers. */
typedef void chances_weights_fn(const uint32_t *before, unsigned n, double w[V]);
chances_weights_fn chances_bin_p, chances_bin_q, chances_a_p, chances_a_q, chances_b_p, chances_b_q,
    chances_tilted_p, chances_even_q;
chances_weights_fn chances_a_q_best;                   // one-hot
chances_weights_fn chances_a_q_top2;                   // cut to its two best
chances_weights_fn chances_no_third_p;                 // a grammar forbids the third token of A
chances_weights_fn chances_markov_p, chances_markov_q; // depends on the previous token
chances_weights_fn chances_penalised_p, chances_penalised_q; // B without repeated tokens

/* Members of a world. */
#define BIN .v = 2, .p = chances_bin_p, .q = chances_bin_q
#define A .v = 3, .p = chances_a_p, .q = chances_a_q
#define B .v = 4, .p = chances_b_p, .q = chances_b_q

enum form { DENSE, SPARSE, ONE_HOT };

struct chances_world {
    enum accept_rule rule;
    double parameter;
    unsigned v, depth, width; // of the draft: each node has `width` children
    chances_weights_fn *p, *q;
    bool without_replacement;
    enum form form; // in which q is reported
    /* Mistakes, to show that they are detected. */
    chances_weights_fn *p_told, *q_told; // instead of p and q
    bool one_uniform;                    // the same for drawing and accepting a token
    unsigned (*judged)(const uint32_t *tokens, unsigned n); // shortens a chain, knowing its tokens
    bool matches_best;                                      // accepts the best token of p
};

struct outcome {
    double accepted;               // expected
    double joint[CHANCES_N_JOINT]; // probabilities of the first depth + 1 tokens
    double first[V];               // probabilities of the first token
};

struct outcome chances_outcome(const struct chances_world *w);
/* The largest difference from the joint distribution of p. */
double chances_joint_error(const struct chances_world *w, const struct outcome *o);
double chances_first_error(const struct outcome *o, const double *p, unsigned n);
void assert_near(double a, double b, double within);
/* The expected number of accepted tokens. Ends the test if the rule changes the distribution. */
double chances_accepted(struct chances_world w);
/* Checks the expected number of accepted tokens and the distribution, for q in the forms DENSE and
 * SPARSE. */
void assert_exact(struct chances_world w, double accepted);
