/* policy.h - what a policy is: two decisions and its defaults.
 *
 * Each policy is one file, policy_NAME.c, which defines policy_NAME. A new policy also needs a
 * value of enum control_policy, a line of the table in control.c, and a choice in
 * settings/verifier_options.c.
 *
 * control.c does what is the same for every policy. Before a call it sets `allowed` and
 * `considered` of each item to the number of tokens that the item may have, and nodes to 0. After
 * the call it gives each fixed item all tokens that the item may have.
 *
 * Threads: the engine's. */
#pragma once
#include "verifier-svc/control/control_state.h"

struct policy_ops {
    const char *name; // value of the setting `policy`
    /* The settings k and disable_batch_size, where they are not set. */
    uint32_t k, disable_batch_size;

    /* Chooses how many draft tokens to request: sets nodes of each of the n items, at most
     * `allowed`. Returns how long the engine may wait for these drafts, in us. INFINITY: the policy
     * sets no limit. Called once per round, so it may count rounds. */
    double (*ask)(struct control *c, const struct control_round *r, struct control_item *v,
                  uint32_t n);

    /* Chooses how many tokens of each present draft to verify: sets nodes, at most `allowed`.
     * NULL: all of them. */
    void (*cut)(const struct control *c, const struct control_round *r, struct control_item *v,
                uint32_t n);
};

extern const struct policy_ops policy_goodput; // most committed tokens per second
extern const struct policy_ops policy_fixed;   // always k tokens
extern const struct policy_ops policy_ema;     // by the sequence's recent acceptance
