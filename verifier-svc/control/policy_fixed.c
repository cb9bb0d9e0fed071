/* policy_fixed.c - every sequence requests k tokens, and all of them are verified. For measuring,
 * and for pairs of models that are known to pay. */
#include <math.h>
#include "verifier-svc/control/policy.h"

static double fixed_ask(struct control *c, const struct control_round *r, struct control_item *v,
                        uint32_t n)
{
    (void)c;
    (void)r;
    for (uint32_t i = 0; i < n; i++)
        v[i].nodes = v[i].allowed; // which is k at most
    return INFINITY;
}

const struct policy_ops policy_fixed = {.name = "fixed", .k = 5, .ask = fixed_ask};
