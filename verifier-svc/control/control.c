/* control.c - the simple policies, and what is learnt for all. */
#include <math.h>
#include "verifier-svc/control/control.h"
#include "base/minmax.h"
#include "verifier-svc/control/policy_goodput.h"

#define START_EMA 0.7
#define EMA_WEIGHT 0.1
#define SEQ_FADE 0.9f // of a sequence's own counts, per draft
#define GIVEN_WEIGHT 0.1
#define GIVEN_FADE 0.98f // of a proposer's counts, per answer
#define GIVEN_PRIOR 2.0f // wishes that it is thought to have granted before any
#define NEW_HOPE 4.0     // times what others were granted, for who has not asked
#define EMPTY_WEIGHT 0.2 // of the last answer without tokens in what they take
#define HELD_UP 8.0      // times what was expected, that or a pass beside a reader counts at most

void control_init(struct control *c, const struct control_options *options,
                  const struct pass_time *cost)
{
    *c = (struct control){.options = *options, .cost = *cost, .acceptance_ema = START_EMA};
}

void control_seq_init(struct control_seq *s)
{
    *s = (struct control_seq){.ema = START_EMA, .given = -1, .n_asked = 1};
}

void control_forget(struct control *c, unsigned proposer)
{
    c->proposers[proposer] = (struct control_proposer){0};
}

void control_seq_forget(struct control_seq *s, unsigned proposer)
{
    if (s->reading.proposer == proposer)
        control_unread(s);
    if (s->given_by == proposer)
        s->given = -1;
}

/* ---- the simple policies ---- */

/* A sequence that goes on without a draft tries again when it is time. */
static uint32_t probe(struct control_seq *s)
{
    if (++s->off_rounds < CONTROL_EMA_PROBE_ROUNDS)
        return 0;
    s->off_rounds = 0;
    return 1;
}

static uint32_t ema_k(struct control_seq *s, uint32_t k)
{
    uint32_t wanted = s->ema > 0.8f   ? k
                      : s->ema > 0.5f ? (k > 3 ? k - 2 : 1)
                      : s->ema > 0.3f ? 1
                                      : probe(s);
    return min_u32(wanted, k);
}

static double ask_simple(const struct control *c, struct control_item *v, uint32_t n)
{
    uint32_t k = c->options.k;
    for (uint32_t i = 0; i < n; i++) {
        if (v[i].n)
            v[i].k = min_u32(v[i].n, c->options.policy == CONTROL_EMA ? ema_k(v[i].s, k) : k);
        else
            v[i].k = 0;
    }
    return INFINITY;
}

static void cut_nothing(struct control_item *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        v[i].k = v[i].n;
}

/* ---- what every policy does ---- */

/* Those that are fixed have all that they may. False: there are none. */
static bool give_fixed(struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        v[i].k = v[i].fixed ? v[i].n : v[i].k;
        any |= v[i].fixed && v[i].k;
    }
    return any;
}

/* Those that were asked for together have come when the last has. */
static void learn_answer(struct control_proposer *p)
{
    if (p->answered.us > 0)
        draft_latency_seen(&p->answer, p->answered.k, p->answered.n, p->answered.us);
    p->answered.us = 0;
}

double control_ask(struct control *c, const struct control_round *r, struct control_item *v,
                   uint32_t n)
{
    for (unsigned i = 0; i < DRAFTS_MAX; i++)
        learn_answer(&c->proposers[i]);
    uint32_t off_from = c->options.disable_batch_size;
    bool off = off_from && r->n_running >= off_from;
    for (uint32_t i = 0; i < n; i++)
        v[i].most = v[i].n = min_u32(off ? 0 : v[i].n, c->options.k);
    double wait_us =
        c->options.policy == CONTROL_GOODPUT ? policy_goodput_ask(c, r, v, n) : ask_simple(c, v, n);
    bool all_fixed = r->n_fixed == r->n_decoding; // who is not waits for what pays, no longer
    bool any_fixed = give_fixed(v, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!v[i].k)
            prefill_price_left(&v[i].s->reading);
    }
    return any_fixed && all_fixed ? INFINITY : wait_us;
}

void control_cut(const struct control *c, const struct control_round *r, struct control_item *v,
                 uint32_t n)
{
    if (c->options.policy == CONTROL_GOODPUT)
        policy_goodput_cut(c, r, v, n);
    else
        cut_nothing(v, n);
    give_fixed(v, n);
}

/* ---- learning ---- */

static void note_answer(struct control_proposer *p, uint32_t k, uint32_t n, double us)
{
    bool first = p->answered.us <= 0;
    p->answered.k = first ? k : max_u32(k, p->answered.k);
    p->answered.n = first ? n : max_u32(n, p->answered.n);
    p->answered.us = fmax(us, p->answered.us);
}

/* known_us: what was expected; 0: nothing. */
static void note_empty(struct control_proposer *p, double known_us, double us)
{
    double weight = p->empty_us > 0 ? EMPTY_WEIGHT : 1;
    us = known_us > 0 ? fmin(us, HELD_UP * known_us) : us;
    p->empty_us += weight * (us - p->empty_us);
}

/* What comes sooner with tokens than others without shows that these were held up. */
static void note_time(struct control *c, unsigned proposer, uint32_t k, uint32_t n, double us,
                      bool given)
{
    struct control_proposer *p = &c->proposers[proposer];
    if (given)
        note_answer(p, k, n, us);
    if (!given || us < p->empty_us)
        note_empty(p, p->empty_us > 0 ? p->empty_us : control_answer_us(c, proposer, k, n), us);
}

void control_asked(struct control_seq *s, unsigned proposer, uint32_t to_read, uint32_t n)
{
    s->n_asked = n;
    prefill_price_asked(&s->reading, proposer, to_read);
}

void control_unread(struct control_seq *s)
{
    s->reading = (struct prefill_price){0};
}

static bool has_asked(const struct control_seq *s, unsigned proposer)
{
    return s->given >= 0 && s->given_by == proposer;
}

/* A new sequence may fare better than most: it is thought to until it has shown. */
double control_given(const struct control *c, unsigned p, const struct control_seq *s)
{
    const struct control_proposer *of = &c->proposers[p];
    double rate = (of->granted + GIVEN_PRIOR) / (of->wished + GIVEN_PRIOR);
    return has_asked(s, p) ? s->given : fmin(NEW_HOPE * rate, 1);
}

static void note_given(struct control_seq *s, unsigned proposer, double before, bool given)
{
    s->given = (float)(before + GIVEN_WEIGHT * (given - before));
    s->given_by = proposer;
}

/* That it takes so long to read one context says nothing of other sequences. */
void control_put_off(struct control_seq *s, unsigned proposer, uint32_t unread)
{
    if (s->reading.proposer != proposer)
        return; // another is asked by now
    prefill_price_reported(&s->reading, unread);
    if (!prefill_price_continues(&s->reading))
        note_given(s, proposer, has_asked(s, proposer) ? s->given : 1, false);
}

void control_answered(struct control *c, struct control_seq *s, unsigned proposer, uint32_t k,
                      double us, bool given)
{
    struct control_proposer *p = &c->proposers[proposer];
    double before = control_given(c, proposer, s);
    p->wished = GIVEN_FADE * p->wished + 1;
    p->granted = GIVEN_FADE * p->granted + given;
    if (s->reading.proposer != proposer) // another was asked since
        return;
    note_given(s, proposer, before, given);
    if (s->reading.done)
        note_time(c, proposer, k, s->n_asked, us, given);
    else if (given)
        s->given = 1; // it only had to read the context
    prefill_price_answered(&s->reading, &p->reading);
}

double control_answer_us(const struct control *c, unsigned p, uint32_t k, uint32_t n)
{
    double us = draft_latency_us(&c->proposers[p].answer, k, n);
    return us > 0 ? us : c->proposers[p].empty_us;
}

/* That a proposer reads the sequence's context made the pass slow. */
static bool is_excused(struct control *c, struct control_seq *beside, double expected_us, double us)
{
    struct prefill_price *r = &beside->reading;
    double longer_us = fmin(us, HELD_UP * expected_us) - expected_us;
    return longer_us >= 0 && prefill_price_passed(r, &c->proposers[r->proposer].reading, longer_us);
}

void control_passed(struct control *c, const struct pass_time_work *pass, double us,
                    struct control_seq *beside)
{
    if (beside && is_excused(c, beside, pass_time_us(&c->cost, pass), us))
        return;
    pass_time_seen(&c->cost, pass, us);
    c->since_less = pass->drafted ? c->since_less : 0;
}

/* The children of `node` were all that could follow; committed is what did. Returns the child that
 * it is, or -1. */
static int32_t try_children(struct control *c, struct control_seq *s, const struct control_item *v,
                            const uint32_t *tokens, int32_t node, uint32_t depth,
                            uint32_t committed)
{
    struct accept_rate *chance = &c->proposers[v->proposer].chance;
    int32_t found = -1;
    for (uint32_t i = (uint32_t)(node + 1); i < v->n; i++) {
        if (v->parents[i] != node)
            continue;
        bool kept = found < 0 && tokens[i] == committed;
        double said = accept_rate_alone(v->parents, v->said, i);
        s->expected += (float)accept_rate_predicted(chance, depth, said);
        s->kept += kept ? 1 : 0;
        accept_rate_seen(chance, depth, said, kept);
        found = kept ? (int32_t)i : found;
    }
    return found;
}

void control_seen(struct control *c, struct control_seq *s, const struct control_item *draft,
                  const uint32_t *draft_tokens, const uint32_t *committed, uint32_t n_committed)
{
    if (!draft->n || !n_committed)
        return;
    int32_t node = -1;
    uint32_t n_kept = 0;
    s->kept *= SEQ_FADE;
    s->expected *= SEQ_FADE;
    for (uint32_t i = 0; i < n_committed; i++) {
        node = try_children(c, s, draft, draft_tokens, node, i, committed[i]);
        if (node < 0)
            break;
        n_kept++;
    }
    if (node < 0 || n_kept == draft->n) // else what is left of it will be verified
        s->ema += (float)(EMA_WEIGHT * ((double)n_kept / draft->n - s->ema));
}

void control_verified(struct control *c, uint32_t n_drafted, uint32_t n_accepted)
{
    if (n_drafted)
        c->acceptance_ema += EMA_WEIGHT * ((double)n_accepted / n_drafted - c->acceptance_ema);
}
