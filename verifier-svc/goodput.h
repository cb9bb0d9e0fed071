/* goodput.h - the policy goodput, and how it stays right where what it knows is not.
 *
 * What pays by the times and chances that were learnt is shared out by share.h. It must promise
 * 4 % more than going without drafts, as all of this is learnt from noisy times, and bring back
 * what it costs that a proposer first has to read a sequence's context (reading.h). And it is put
 * to the test:
 *   tries  Now and then one sequence asks for more than seems best, so often that trying costs
 *          0.4 % of the time: of those that their proposer has read, if there are such, the one
 *          that has not tried for longest. It asks for two tokens where there are none, else for
 *          twice as many as seem best. All of a try are verified: it shows what passes of that size
 *          and drafts of that length take, whatever was thought of them. The first eight tries of a
 *          proposer that seems to bring nothing come one after the other.
 *   less   Where all rounds draft, one of 64 or fewer has less than seems best, by turns none, a
 *          little less and half.
 *
 * Threads: the engine's; no state but the controller's. */
#pragma once
#include "verifier-svc/control.h"

/* As control_ask() and control_cut() have it, but for those that are fixed: the caller's. When
 * asking, most is given. */
double goodput_ask(struct control *c, const struct control_round *r, struct control_item *v,
                   uint32_t n);
void goodput_cut(const struct control *c, const struct control_round *r, struct control_item *v,
                 uint32_t n);
