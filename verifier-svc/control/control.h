/* control.h - how many draft tokens to request for a sequence, and how many of them to verify.
 *
 * docs/controller.md explains the state, the estimators, the decision and the constants, with all
 * formulas. The calls of a round:
 *     control_cut()                         drafts have arrived, the pass is planned
 *     control_seen(), control_verified()    tokens are committed
 *     control_ask()                         the round ends
 *     control_asked()                       a request was sent
 *     control_answered(), control_still_reading() an answer arrives
 *     control_passed()                      the round has ended
 * A policy (policy.h) makes both decisions. All updates are the same for every policy, so that the
 * estimates are right when the policy changes.
 *
 * The controller is pure: it reads no clock and calls no other service. Times are arguments, in us.
 *
 * Threads: the engine's; plain data. */
#pragma once
#include "verifier-svc/control/control_state.h"

struct policy_ops;

/* The name, the defaults and the decisions of a policy; NULL: no such policy. */
const struct policy_ops *control_policy_ops(enum control_policy policy);

/* pass_time: as calibrate() measured it. Only the policy goodput needs it. */
void control_init(struct control *c, const struct control_options *options,
                  const struct pass_time *pass_time);
void control_seq_init(struct control_seq *s);

/* Another proposer takes this place: removes what is known of the previous one. */
void control_forget(struct control *c, unsigned proposer);
void control_seq_forget(struct control_seq *s, unsigned proposer);

/* Chooses how many tokens each of the n items requests: sets nodes and depth. Returns how long
 * waiting for these drafts pays, in us: up to then they bring more tokens than the wait costs. A
 * fixed draft does not extend the wait. INFINITY: no limit, because of the policy or because all
 * decoding sequences are fixed. Call it once per round, also without items: it counts rounds. */
double control_ask(struct control *c, const struct control_round *r, struct control_item *v,
                   uint32_t n);

/* Chooses how many tokens of each present draft are verified: the first `nodes` of them. */
void control_cut(const struct control *c, const struct control_round *r, struct control_item *v,
                 uint32_t n);

/* A draft request, one of n in this message, or a context upload was sent to the proposer. to_read:
 * positions that the proposer has to read first; 0: it has read the context. */
void control_asked(struct control_seq *s, unsigned proposer, uint32_t to_read, uint32_t n);

/* The proposer drops the context of the sequence, and has to read the context again. */
void control_unread(struct control_seq *s);

/* A proposer answered a request for k tokens after us. granted: with tokens. If the proposer is
 * still reading, call control_still_reading() instead. If the proposer had to read the context
 * first, the time does not count as latency. */
void control_answered(struct control *c, struct control_seq *s, unsigned proposer, uint32_t k,
                      double us, bool granted);

/* A proposer answered that it still has to read `unread` positions, at least one. Beyond the pass
 * limit of prefill_price.h, this counts as an answer without tokens. */
void control_still_reading(struct control_seq *s, unsigned proposer, uint32_t unread);

/* Compares the first n nodes of a draft with the n_committed tokens that were committed from its
 * start on. The draft may have been verified, cut, or have arrived too late. */
void control_seen(struct control *c, struct control_seq *s, unsigned proposer,
                  const struct draft *draft, uint32_t n, const uint32_t *committed,
                  uint32_t n_committed);

/* A round took us without its wait for drafts, and ran this pass. beside: a sequence whose context
 * a proposer was reading when the pass began; NULL: none. Reading may slow a pass down, so such a
 * pass updates the pass time only if it was faster than expected. */
void control_passed(struct control *c, const struct pass_time_work *pass, double us,
                    struct control_seq *beside);

/* A round verified n_drafted tokens and accepted n_accepted of them. */
void control_verified(struct control *c, uint32_t n_drafted, uint32_t n_accepted);
