/* policy_ema.c - the moving average m of a sequence's acceptance chooses the number of tokens:
 *
 *     m > 0.8   k
 *     m > 0.5   max(k - 2, 1)
 *     m > 0.3   1
 *     else      none, and one token every 32 rounds
 *
 * control_seen() updates m. Drafts that arrive too late to be verified count too. All tokens of a
 * draft are verified. */
#include <math.h>
#include "verifier-svc/control/policy.h"
#include "base/minmax.h"

#define PROBE_ROUNDS 32 // one try per so many rounds without drafts

/* A sequence without drafts tries one token from time to time: only drafts update its average. */
static uint32_t probe_tokens(struct control_seq *s)
{
    if (++s->off_rounds < PROBE_ROUNDS)
        return 0;
    s->off_rounds = 0;
    return 1;
}

static uint32_t tokens_for(struct control_seq *s, uint32_t k)
{
    if (s->ema > 0.8f)
        return k;
    if (s->ema > 0.5f)
        return k > 3 ? k - 2 : 1;
    return s->ema > 0.3f ? 1 : probe_tokens(s);
}

static double ema_ask(struct control *c, const struct control_round *r, struct control_item *v,
                      uint32_t n)
{
    (void)r;
    for (uint32_t i = 0; i < n; i++) {
        if (v[i].allowed)
            v[i].nodes = min_u32(v[i].allowed, tokens_for(v[i].s, c->options.k));
    }
    return INFINITY;
}

const struct policy_ops policy_ema = {
    .name = "ema", .k = 5, .disable_batch_size = 8, .ask = ema_ask};
