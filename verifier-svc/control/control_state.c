/* control_state.c - estimates that combine a proposer's state with a sequence's. */
#include <math.h>
#include "verifier-svc/control/control_state.h"

#define GRANTED_PRIOR 2.0f // requests assumed to be granted before the first
#define NEW_SEQ_FACTOR 4.0 // g of a new sequence, relative to the proposer's average

bool control_state_has_answer(const struct control_seq *s, unsigned p)
{
    return s->granted >= 0 && s->granted_by == p;
}

double control_state_granted(const struct control *c, unsigned p, const struct control_seq *s)
{
    const struct control_proposer *of = &c->proposers[p];
    double rate = (of->granted + GRANTED_PRIOR) / (of->wished + GRANTED_PRIOR);
    return control_state_has_answer(s, p) ? s->granted : fmin(NEW_SEQ_FACTOR * rate, 1);
}

double control_state_latency_us(const struct control *c, unsigned p, uint32_t k, uint32_t n)
{
    double us = draft_latency_us(&c->proposers[p].latency, k, n);
    return us > 0 ? us : c->proposers[p].empty_us;
}

double control_state_prefill_us(const struct control *c, const struct control_item *v)
{
    return prefill_price_us(&v->s->prefill, &c->proposers[v->proposer].prefill_price, v->proposer,
                            v->unread);
}

double control_state_none_us(const struct control *c, const struct control_round *r)
{
    return pass_time_us(&c->pass_time, &r->pass) / r->n_decoding;
}
