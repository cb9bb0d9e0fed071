/* control.c - the part of both decisions that all policies share, and all updates. */
#include <math.h>
#include "verifier-svc/control/control.h"
#include "base/minmax.h"
#include "verifier-svc/control/policy.h"

#define START_EMA 0.7      // acceptance before the first draft
#define EMA_WEIGHT 0.1     // of the last draft
#define SEQ_FADE 0.9f      // of A and E of a sequence, per draft
#define GRANTED_WEIGHT 0.1 // of the last answer in g
#define GRANTED_FADE 0.98f // of a proposer's counts of requests, per answer
#define EMPTY_WEIGHT 0.2   // of the last answer without tokens in their latency
#define DELAY_MAX 8.0      // x expected: cap of a delayed answer, or of a pass beside a reader

static const struct policy_ops *const policies[] = {
    [CONTROL_GOODPUT] = &policy_goodput,
    [CONTROL_FIXED] = &policy_fixed,
    [CONTROL_EMA] = &policy_ema,
};

const struct policy_ops *control_policy_ops(enum control_policy policy)
{
    return (unsigned)policy < sizeof(policies) / sizeof(policies[0]) ? policies[policy] : NULL;
}

void control_init(struct control *c, const struct control_options *options,
                  const struct pass_time *pass_time)
{
    *c =
        (struct control){.options = *options, .pass_time = *pass_time, .acceptance_ema = START_EMA};
}

void control_seq_init(struct control_seq *s)
{
    *s = (struct control_seq){.ema = START_EMA, .granted = -1, .n_batch = 1};
}

void control_forget(struct control *c, unsigned proposer)
{
    c->proposers[proposer] = (struct control_proposer){0};
}

void control_seq_forget(struct control_seq *s, unsigned proposer)
{
    if (s->prefill.proposer == proposer)
        control_unread(s);
    if (s->granted_by == proposer)
        s->granted = -1;
}

/* ---- decisions ---- */

/* Starts an item: it may have n tokens and has none yet. */
static void allow_tokens(struct control_item *v, uint32_t n)
{
    v->allowed = v->considered = n;
    v->nodes = v->depth = 0;
}

/* A fixed item gets all tokens that it may have. Returns whether an item got some. */
static bool grant_fixed(struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        v[i].nodes = v[i].fixed ? v[i].allowed : v[i].nodes;
        any |= v[i].fixed && v[i].nodes;
    }
    return any;
}

/* The answers of a round count once, when the next round requests drafts. The pass waits for the
 * last answer. */
static void update_latency(struct control_proposer *p)
{
    if (p->answers.us > 0)
        draft_latency_seen(&p->latency, p->answers.k, p->answers.n, p->answers.us);
    p->answers.us = 0;
}

/* A request is a chain, so both limits hold for its number of tokens. */
static uint32_t tokens_to_request(const struct control *c, const struct control_round *r,
                                  const struct control_item *v)
{
    uint32_t off_from = c->options.disable_batch_size;
    if (off_from && r->n_running >= off_from)
        return 0;
    return min_u32(min_u32(v->max_nodes, v->max_depth), c->options.k);
}

double control_ask(struct control *c, const struct control_round *r, struct control_item *v,
                   uint32_t n)
{
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++)
        update_latency(&c->proposers[i]);
    for (uint32_t i = 0; i < n; i++)
        allow_tokens(&v[i], tokens_to_request(c, r, &v[i]));
    double wait_us = policies[c->options.policy]->ask(c, r, v, n);
    bool all_fixed = r->n_fixed == r->n_decoding;
    bool any_fixed = grant_fixed(v, n);
    for (uint32_t i = 0; i < n; i++) {
        v[i].depth = v[i].nodes;
        if (!v[i].nodes)
            prefill_price_abandoned(&v[i].s->prefill);
    }
    return any_fixed && all_fixed ? INFINITY : wait_us; // others do not wait for a fixed draft
}

/* Fills in the depth of each token of the draft, from 1, up to the first that exceeds a limit.
 * Returns the number of tokens before that one. */
static uint32_t tokens_to_verify(struct control_item *v)
{
    uint32_t n = min_u32(v->draft->n, v->max_nodes);
    for (uint32_t i = 0; i < n; i++) {
        int32_t parent = v->draft->parents[i];
        v->token_depth[i] = parent < 0 ? 1 : (uint8_t)(v->token_depth[parent] + 1);
        if (v->token_depth[i] > v->max_depth)
            return i;
    }
    return n;
}

void control_cut(const struct control *c, const struct control_round *r, struct control_item *v,
                 uint32_t n)
{
    const struct policy_ops *policy = policies[c->options.policy];
    for (uint32_t i = 0; i < n; i++) {
        allow_tokens(&v[i], tokens_to_verify(&v[i]));
        v[i].nodes = policy->cut ? 0 : v[i].allowed;
    }
    if (policy->cut)
        policy->cut(c, r, v, n);
    grant_fixed(v, n);
}

/* ---- updates ---- */

static void add_to_round(struct control_proposer *p, uint32_t k, uint32_t n, double us)
{
    bool first = p->answers.us <= 0;
    p->answers.k = first ? k : max_u32(k, p->answers.k);
    p->answers.n = first ? n : max_u32(n, p->answers.n);
    p->answers.us = fmax(us, p->answers.us);
}

/* expected_us: 0: unknown. */
static void update_empty(struct control_proposer *p, double expected_us, double us)
{
    double weight = p->empty_us > 0 ? EMPTY_WEIGHT : 1;
    us = expected_us > 0 ? fmin(us, DELAY_MAX * expected_us) : us;
    p->empty_us += weight * (us - p->empty_us);
}

/* An answer with tokens takes longer than one without. If it arrives sooner than the average answer
 * without tokens, those were delayed, so it lowers their average. */
static void record_latency(struct control *c, unsigned proposer, uint32_t k, uint32_t n, double us,
                           bool granted)
{
    struct control_proposer *p = &c->proposers[proposer];
    if (granted)
        add_to_round(p, k, n, us);
    if (granted && us >= p->empty_us)
        return;
    double expected_us =
        p->empty_us > 0 ? p->empty_us : control_state_latency_us(c, proposer, k, n);
    update_empty(p, expected_us, us);
}

void control_asked(struct control_seq *s, unsigned proposer, uint32_t to_read, uint32_t n)
{
    s->n_batch = n;
    prefill_price_requested(&s->prefill, proposer, to_read);
}

void control_unread(struct control_seq *s)
{
    s->prefill = (struct prefill_price_seq){0};
}

/* g += 0.1 ((1 if tokens came) - g). before: g before this answer. */
static void update_granted(struct control_seq *s, unsigned proposer, double before, bool granted)
{
    s->granted = (float)(before + GRANTED_WEIGHT * (granted - before));
    s->granted_by = proposer;
}

/* A long prefill counts against this sequence only: it says nothing about other contexts. */
void control_still_reading(struct control_seq *s, unsigned proposer, uint32_t unread)
{
    if (s->prefill.proposer != proposer)
        return; // the sequence has changed its proposer
    prefill_price_reported(&s->prefill, unread);
    if (prefill_price_running(&s->prefill))
        return;
    double before = control_state_has_answer(s, proposer) ? s->granted : 1;
    update_granted(s, proposer, before, false);
}

void control_answered(struct control *c, struct control_seq *s, unsigned proposer, uint32_t k,
                      double us, bool granted)
{
    struct control_proposer *p = &c->proposers[proposer];
    double before = control_state_granted(c, proposer, s);
    p->wished = GRANTED_FADE * p->wished + 1;
    p->granted = GRANTED_FADE * p->granted + granted;
    if (s->prefill.proposer != proposer)
        return; // the sequence has changed its proposer
    update_granted(s, proposer, before, granted);
    if (s->prefill.done)
        record_latency(c, proposer, k, s->n_batch, us, granted);
    else if (granted)
        s->granted = 1; // earlier requests only had to wait for the prefill
    prefill_price_answered(&s->prefill, &p->prefill_price);
}

/* A proposer read the context of `beside` during the pass. Charges the excess of the pass over its
 * expected time to that prefill. Returns false if it must count as any other pass. */
static bool charge_prefill(struct control *c, struct control_seq *beside, double expected_us,
                           double us)
{
    struct prefill_price_seq *prefill = &beside->prefill;
    struct prefill_price *price = &c->proposers[prefill->proposer].prefill_price;
    double excess_us = fmin(us, DELAY_MAX * expected_us) - expected_us;
    return excess_us >= 0 && prefill_price_passed(prefill, price, excess_us);
}

void control_passed(struct control *c, const struct pass_time_work *pass, double us,
                    struct control_seq *beside)
{
    if (beside && charge_prefill(c, beside, pass_time_us(&c->pass_time, pass), us))
        return;
    pass_time_seen(&c->pass_time, pass, us);
    c->since_less = pass->drafted ? c->since_less : 0;
}

/* The committed tokens have reached `node`, so all its children are tried, and `committed` is the
 * next token. Returns the accepted child, or -1. */
static int32_t try_children(struct control *c, struct control_seq *s, unsigned proposer,
                            const struct draft *draft, uint32_t n, int32_t node, uint32_t depth,
                            uint32_t committed)
{
    struct accept_rate *rates = &c->proposers[proposer].accept_rate;
    int32_t found = -1;
    for (uint32_t i = (uint32_t)(node + 1); i < n; i++) {
        if (draft->parents[i] != node)
            continue;
        bool accepted = found < 0 && draft->tokens[i] == committed;
        double predicted = accept_rate_alone(draft, i);
        s->expected += (float)accept_rate_predicted(rates, depth, predicted);
        s->accepted += accepted ? 1 : 0;
        accept_rate_seen(rates, depth, predicted, accepted);
        found = accepted ? (int32_t)i : found;
    }
    return found;
}

void control_seen(struct control *c, struct control_seq *s, unsigned proposer,
                  const struct draft *draft, uint32_t n, const uint32_t *committed,
                  uint32_t n_committed)
{
    if (!n || !n_committed)
        return;
    int32_t node = -1;
    uint32_t n_accepted = 0;
    s->accepted *= SEQ_FADE;
    s->expected *= SEQ_FADE;
    for (uint32_t i = 0; i < n_committed; i++) {
        node = try_children(c, s, proposer, draft, n, node, i, committed[i]);
        if (node < 0)
            break;
        n_accepted++;
    }
    if (node < 0 || n_accepted == n) // else the other tokens of the draft are still to be verified
        s->ema += (float)(EMA_WEIGHT * ((double)n_accepted / n - s->ema));
}

void control_verified(struct control *c, uint32_t n_drafted, uint32_t n_accepted)
{
    if (n_drafted)
        c->acceptance_ema += EMA_WEIGHT * ((double)n_accepted / n_drafted - c->acceptance_ema);
}
