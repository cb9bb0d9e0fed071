/* row_budget.h - distributes the draft rows of a pass among the draft tokens of all sequences.
 *
 * Rows go to tokens in the order of their probability of survival h, highest first, while that
 * raises the expected committed tokens per second:
 *     goodput = T / U      T: expected committed tokens, U: time of the pass plus the wait
 * A pass waits for the slowest proposer. Therefore the search is repeated without sequences that
 * received no row, and without the slowest proposer. docs/controller.md, "Distribution of rows",
 * lists the steps.
 *
 * Of an item the functions read proposer, context, considered and survival, and set nodes. For n
 * items with d rows the search takes (n + d) log n steps per limit, at most twice per proposer.
 *
 * Threads: the engine's; the only state is that of the controller. */
#pragma once
#include "verifier-svc/control/control_state.h"

struct row_budget {
    double tokens;   // T
    double us;       // U
    double wait_us;  // the wait in U
    uint32_t n_rows; // draft rows
    bool limited;    // a larger limit per sequence may give more
};

/* Chooses how many tokens to request, with the best limit per sequence. Sets c->expected_wait_us
 * and the nodes of all items. Returns the limit; 0: no token is worth its row. Drafts may still be
 * worse than none: the caller compares *ret with a round without drafts. */
uint32_t row_budget_best(struct control *c, const struct control_round *r, struct control_item *v,
                         uint32_t n, struct row_budget *ret);

/* Chooses how many tokens of present drafts to verify. U includes c->expected_wait_us: the drafts
 * have arrived, but the next round has a wait too. over_bends: false ends the search at the first
 * drop of goodput. True continues: it may rise again after a bend in the pass times. */
void row_budget_drafts(const struct control *c, const struct control_round *r,
                       struct control_item *v, uint32_t n, bool over_bends);

/* The longest L_p(k, n) over the proposers of all items with tokens: the time until all drafts have
 * arrived. */
double row_budget_wait_us(const struct control *c, const struct control_item *v, uint32_t n);

/* The largest limit per sequence below k that row_budget_best() tries; 0: none. */
uint32_t row_budget_limit_below(uint32_t k);
