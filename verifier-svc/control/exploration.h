/* exploration.h - tries that correct estimates which no draft would correct otherwise.
 *
 * Without drafts nothing shows that a proposer has become better. With drafts in every round
 * nothing shows what a pass without them takes. There are three kinds of tries:
 *     all   drafts do not pay: every sequence whose context was read requests the best distribution
 *     one   in all other rounds: one sequence requests twice its tokens, or 2 if it has none
 *     less  drafts pay: all sequences request less: in rotation none, the next lower limit, half
 * A try of the first two kinds that costs c us of extra time is made every
 *     max(min(c / 0.004, 600e6) / U, 16) rounds      U: time of a round as it is now
 * so that each kind takes at most 0.4 % of the time. A try is never more than ten minutes away, so
 * a proposer that has become better is found, however expensive its tries were. The first 8 tries
 * of a new proposer are due immediately. While a context is read, the tries "all" and "less" pause.
 *
 * Threads: the engine's; the only state is that of the controller. */
#pragma once
#include "verifier-svc/control/control_state.h"
#include "verifier-svc/control/row_budget.h"

#define EXPLORATION_WAIT_US 1e9 // the wait for a try: practically unlimited

/* Counts a round. Call it before the others. */
void exploration_begin_round(struct control *c);

/* Makes the round one with less drafts, if that is due. limit, g: the best distribution. True: the
 * round is a try, and c->expected_wait_us is its wait. */
bool exploration_less(struct control *c, const struct control_round *r, struct control_item *v,
                      uint32_t n, uint32_t limit, const struct row_budget *g);

/* Makes the round a try of all, if that is due. The items then keep the tokens of the best
 * distribution g, although g does not pay. True: the round is a try. */
bool exploration_all(struct control *c, const struct control_round *r, struct control_item *v,
                     uint32_t n, const struct row_budget *g);

/* The item whose turn it is to try alone; NULL: none may. pay: drafts pay, so items with tokens may
 * try more. Otherwise items with tokens in the best distribution only try together. */
struct control_item *exploration_next(const struct control *c, struct control_item *v, uint32_t n,
                                      bool pay);

/* Continues a try whose context is still being read. If there is none and a try is due, item `next`
 * makes it. next: may be NULL. round_us: time of the round without the try. */
void exploration_one(struct control *c, const struct control_round *r, struct control_item *v,
                     uint32_t n, struct control_item *next, double round_us);

/* True: an item makes a try whose draft can arrive in this round, because its context was read. */
bool exploration_is_awaited(const struct control_item *v, uint32_t n);
