/* policy_goodput.h - the policy goodput, and how it stays right where what it knows is not.
 *
 * What pays by the times and chances that were learnt is shared out by share.h. It must promise
 * 2 % more than going without drafts, as all of this is learnt from noisy times, and bring back
 * what it costs that a proposer first has to read a sequence's context (reading.h). And it is put
 * to the test:
 *   tries  Where none draft, now and then all that were read have the drafts that would be best, so
 *          often that what they are thought to fall short of none is 0.4 % of the time. Who has
 *          none then tries by itself, for another 0.4 %: one sequence asks for two tokens, or where
 *          they draft, for twice as many as seem best: one of a new proposer, then of those that
 *          were read the one that has not for longest. Tries are 16 rounds apart at least, and ten
 *          minutes at most, so that a proposer that has become better is found, however dear a try
 *          was; but while a proposer has been tried in fewer than eight rounds and seems to bring
 *          nothing, the next comes at once. All of a try are verified, whatever was thought of
 *          them. Nobody tries while the context of one that does is read.
 *   less   Where all rounds draft, one of 64 or fewer has less than seems best, by turns none, a
 *          little less and half.
 *
 * Threads: the engine's; no state but the controller's. */
#pragma once
#include "verifier-svc/control/control.h"

/* As control_ask() and control_cut() have it, but for those that are fixed: the caller's. When
 * asking, most is given. */
double policy_goodput_ask(struct control *c, const struct control_round *r, struct control_item *v,
                          uint32_t n);
void policy_goodput_cut(const struct control *c, const struct control_round *r,
                        struct control_item *v, uint32_t n);
