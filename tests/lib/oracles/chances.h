/* chances.h - a rule that tests a draft against p, run through every chance there is: what the
 * drafter draws, what the rule flips and draws, and how the generation goes on. So acceptance and
 * the joint law of the tokens come out exact. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "verifier-svc/accept/accept.h"

#define V 4        // tokens at most
#define N_NODES 16 // of a draft at most
#define N_LAW 256u // V^4: joint laws of up to four tokens
#define EXACT 1e-12

/* Weights of the next token behind `before`, whole numbers where the law is a q. */
typedef void law_fn(const uint32_t *before, unsigned n, double w[V]);
law_fn law_bin_p, law_bin_q, law_a_p, law_a_q, law_b_p, law_b_q, law_tilted_p, law_even_q;
law_fn law_a_q_best;                     // one-hot
law_fn law_a_q_top2;                     // cut to its two best
law_fn law_no_third_p;                   // a grammar forbids the third token of A
law_fn law_markov_p, law_markov_q;       // by the token before
law_fn law_penalised_p, law_penalised_q; // B, where no token stands twice

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
    enum form form; // that q is told in
    /* What can go wrong. */
    law_fn *p_told, *q_told; // instead of p and q
    bool one_uniform;        // the same for drawing a token and for accepting it
    unsigned (*judged)(const uint32_t *tokens, unsigned n); // of a chain's n tokens, knowing them
    bool matches_best;                                      // a token stays because it is p's best
};

struct outcome {
    double accepted;   // expected
    double law[N_LAW]; // of the first depth + 1 tokens
    double first[V];   // of the first alone
};

struct outcome chances_outcome(const struct chances_world *w);
/* From the joint law of p itself: the largest difference. */
double chances_law_error(const struct chances_world *w, const struct outcome *o);
double chances_first_error(const struct outcome *o, const double *law, unsigned n);
void assert_near(double a, double b, double within);
/* Of a rule that keeps the law, which is checked: the accepted tokens expected. */
double chances_accepted(struct chances_world w);
/* They are as many as said, in each form that can tell this q. */
void assert_exact(struct chances_world w, double accepted);
