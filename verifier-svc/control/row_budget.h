/* row_budget.h - which draft tokens have a row in a pass, and what that promises: the reckoning of the
 * policy goodput (policy_goodput.h).
 *
 * Rows go to the tokens of all sequences in the order of their chance to be kept, as long as that
 * makes more committed tokens per second. A pass waits for the slowest of those that are asked:
 * what all would bring is weighed against what is left without the slowest proposer, and so on,
 * each also without those that have no row beside the others. Of an item proposer, context, most
 * and chance count; k is found. For n items with d rows it takes the time of (n + d) log n per
 * limit, up to twice per proposer.
 *
 * Threads: the engine's; no state but the controller's. */
#pragma once
#include "verifier-svc/control/control.h"

struct row_budget {
    double tokens, us; // expected to be committed by a pass, and its time with the wait
    double beside_us;  // the wait
    uint32_t n_rows;   // of drafts
    bool limited;      // a greater limit would have been looked at further
};

/* Tokens to ask for: of all limits to each sequence the best. Leaves in c->beside_us what the
 * drafts take beside the pass. Returns the limit, though none at all may be better; 0: no token is
 * worth its row. */
uint32_t row_budget_best(struct control *c, const struct control_round *r, struct control_item *v,
                         uint32_t n, struct row_budget *ret);
/* Tokens to verify of the drafts that are here. over_bends: does not end at the first drop of the
 * goodput, as it may rise again behind a bend in the times. */
void row_budget_drafts(const struct control *c, const struct control_round *r,
                       struct control_item *v, uint32_t n, bool over_bends);

/* What it takes until all have their drafts of k tokens. */
double row_budget_beside_us(const struct control *c, const struct control_item *v, uint32_t n);
/* The next limit below k that is considered; 0: none. */
uint32_t row_budget_limit_below(uint32_t k);
