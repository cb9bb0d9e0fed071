/* chances.h - the exact result of an acceptance rule. Enumerates every random outcome: the tokens
 * that the proposer draws, the flips and draws of the rule, and the tokens after the draft. The
 * expected acceptance and the joint distribution of the tokens are therefore exact. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "verifier-svc/accept/accept.h"

#define V 4        // size of the vocabulary, at most
#define N_NODES 16 // nodes of a draft, at most
#define N_LAW 256u // V^4: joint distributions of up to four tokens
#define EXACT 1e-12

/* Weights of the next token after `before`. Those of a q are whole numbers. */
typedef void law_fn(const uint32_t *before, unsigned n, double w[V]);
law_fn law_bin_p, law_bin_q, law_a_p, law_a_q, law_b_p, law_b_q, law_tilted_p, law_even_q;
law_fn law_a_q_best;                     // one-hot
law_fn law_a_q_top2;                     // cut to its two best
law_fn law_no_third_p;                   // a grammar forbids the third token of A
law_fn law_markov_p, law_markov_q;       // depends on the previous token
law_fn law_penalised_p, law_penalised_q; // B without repeated tokens

/* Members of a world. */
#define BIN .v = 2, .p = law_bin_p, .q = law_bin_q
#define A .v = 3, .p = law_a_p, .q = law_a_q
#define B .v = 4, .p = law_b_p, .q = law_b_q

enum form { DENSE, SPARSE, ONE_HOT };

struct chances_world {
    enum accept_rule rule;
    double parameter;
    unsigned v, depth, width; // of the draft: each node has `width` children
    law_fn *p, *q;
    bool without_replacement;
    enum form form; // in which q is reported
    /* Mistakes, to show that they are detected. */
    law_fn *p_told, *q_told; // instead of p and q
    bool one_uniform;        // the same for drawing and accepting a token
    unsigned (*judged)(const uint32_t *tokens, unsigned n); // shortens a chain, knowing its tokens
    bool matches_best;                                      // accepts the best token of p
};

struct outcome {
    double accepted;   // expected
    double law[N_LAW]; // probabilities of the first depth + 1 tokens
    double first[V];   // probabilities of the first token
};

struct outcome chances_outcome(const struct chances_world *w);
/* The largest difference from the joint distribution of p. */
double chances_law_error(const struct chances_world *w, const struct outcome *o);
double chances_first_error(const struct outcome *o, const double *law, unsigned n);
void assert_near(double a, double b, double within);
/* The expected number of accepted tokens. Ends the test if the rule changes the distribution. */
double chances_accepted(struct chances_world w);
/* Checks the expected number of accepted tokens and the distribution, for q in the forms DENSE and
 * SPARSE. */
void assert_exact(struct chances_world w, double accepted);
