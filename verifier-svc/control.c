/* control.c - three policies over learnt chances and measured times. */
#include <math.h>
#include <stdlib.h>
#include "verifier-svc/control.h"

#define START_EMA 0.7
#define EMA_WEIGHT 0.1
#define FADE 0.99f      // of a proposer's rate, per token tried
#define SEQ_FADE 0.9f   // of a sequence's own counts, per draft
#define SEQ_TRUST 20.0f // tokens that its proposer's rates weigh against its own counts
#define PRIOR_TRIED 2.0 // tokens that a rate weighs before any was tried
#define GIVEN_WEIGHT 0.1f
#define BEND 0.9       // of the best goodput: the hope that more tokens pay after all ends here
#define TRY_SHARE 0.01 // of the time may go into trying
#define TRY_MIN_ROUNDS 16
#define TRY_MAX_ROUNDS 512
#define TRY_K 2

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void control_init(struct control *c, const struct control_options *options, const struct cost *cost)
{
    *c = (struct control){.options = *options, .cost = *cost, .acceptance_ema = START_EMA};
}

void control_seq_init(struct control_seq *s)
{
    *s = (struct control_seq){.ema = START_EMA, .given = 1};
}

void control_forget(struct control *c, unsigned proposer)
{
    c->proposers[proposer] = (struct control_proposer){0};
}

/* ---- chances ---- */

static unsigned place_of(uint32_t depth)
{
    return depth < 3 ? depth : depth < 6 ? 3 : depth < 10 ? 4 : 5;
}

static const double said_above[CONTROL_SAID] = {0, .2, .4, .6, .8, .95};
static const double said_means[CONTROL_SAID] = {.1, .3, .5, .7, .88, .97};

static unsigned said_of(double chance)
{
    unsigned i = CONTROL_SAID - 1;
    while (i && chance < said_above[i])
        i--;
    return i;
}

static double rate_of(const struct control_rate *r, double prior)
{
    return (r->kept + PRIOR_TRIED * prior) / (r->tried + PRIOR_TRIED);
}

/* The chance at a place of a draft, whatever was said; a place that was never reached is like the
 * one before it. */
static double rate_at(const struct control_proposer *p, unsigned place)
{
    double rate = START_EMA;
    for (unsigned i = 0; i <= place; i++)
        rate = rate_of(&p->all[i], rate);
    return rate;
}

/* said: the proposer's own word; 1 if it is silent. */
static double rate_said(const struct control_proposer *p, unsigned place, double said)
{
    if (said >= 1)
        return rate_of(&p->silent[place], rate_at(p, place));
    return rate_of(&p->said[said_of(said)], said_means[said_of(said)]);
}

/* How much better or worse the sequence fares than the rates say. */
static double luck(const struct control_seq *s)
{
    return (s->kept + SEQ_TRUST) / (s->expected + SEQ_TRUST);
}

static float clamped(double chance)
{
    return (float)(chance < 0.01 ? 0.01 : chance > 0.99 ? 0.99 : chance);
}

static double said_alone(const struct control_item *v, uint32_t node)
{
    double above = v->parents[node] < 0 ? 1 : v->said[v->parents[node]];
    return above > 0 ? v->said[node] / above : 0;
}

/* The chance of each token of a draft that it and all before it are kept. */
static void fill_chances(const struct control *c, struct control_item *v)
{
    const struct control_proposer *p = &c->proposers[v->proposer];
    uint8_t depth[ACCEPT_MAX];
    double factor = luck(v->s);
    for (uint32_t i = 0; i < v->n; i++) {
        int32_t parent = v->parents[i];
        depth[i] = parent < 0 ? 0 : (uint8_t)(depth[parent] + 1);
        double rate = rate_said(p, place_of(depth[i]), said_alone(v, i));
        v->chance[i] = clamped(rate * factor) * (parent < 0 ? 1 : v->chance[parent]);
    }
}

/* The same for tokens that nobody has drafted yet. */
static void fill_hopes(const struct control *c, struct control_item *v)
{
    const struct control_proposer *p = &c->proposers[v->proposer];
    double factor = luck(v->s), chance = v->s->given;
    for (uint32_t i = 0; i < v->n; i++)
        v->chance[i] = (float)(chance *= clamped(rate_at(p, place_of(i)) * factor));
}

/* ---- goodput ---- */

struct goodput {
    double tokens, us; // expected to be committed by a pass, and its time
};

static void add_row(struct cost_pass *pass, uint32_t context)
{
    pass->rows++;
    pass->sees += context;
}

/* The item whose next token has the best chance; NULL: all have as many as they may. */
static struct control_item *next_to_give(struct control_item *v, uint32_t n, uint32_t limit)
{
    struct control_item *best = NULL;
    for (uint32_t i = 0; i < n; i++) {
        struct control_item *t = &v[i];
        if (t->k < min_u32(t->n, limit) && (!best || t->chance[t->k] > best->chance[best->k]))
            best = t;
    }
    return best;
}

static void take_back(struct control_item *v, uint32_t n, uint32_t n_tokens)
{
    while (n_tokens--) {
        struct control_item *worst = NULL;
        for (uint32_t i = 0; i < n; i++) {
            struct control_item *t = &v[i];
            if (t->k && (!worst || t->chance[t->k - 1] < worst->chance[worst->k - 1]))
                worst = t;
        }
        if (worst)
            worst->k--;
    }
}

/* Gives rows to the tokens with the best chances, at most `limit` to each sequence, as long as that
 * pays; ends where the goodput has dropped to this share of the best: 1 is the first drop, less
 * looks over a bend in the times. beside_us: the time that goes by without the pass. */
static struct goodput share(const struct control *c, const struct control_round *r,
                            struct control_item *v, uint32_t n, uint32_t limit, double beside_us,
                            double drop)
{
    struct cost_pass pass = r->pass;
    pass.drafted = limit > 0;
    struct goodput g = {r->n_decoding, cost_us(&c->cost, &pass) + beside_us}, best = g;
    uint32_t n_behind = 0; // tokens behind the best
    for (uint32_t i = 0; i < n; i++)
        v[i].k = 0;
    for (;;) {
        struct control_item *next = next_to_give(v, n, limit);
        if (!next || g.tokens * best.us < drop * best.tokens * g.us)
            break;
        add_row(&pass, next->context);
        g.tokens += next->chance[next->k++];
        g.us = cost_us(&c->cost, &pass) + beside_us;
        n_behind++;
        if (g.tokens * best.us > best.tokens * g.us) {
            best = g;
            n_behind = 0;
        }
    }
    take_back(v, n, n_behind);
    return best;
}

/* What a proposer takes to answer with k tokens. */
static double answer_us(const struct control_proposer *p, uint32_t k)
{
    return p->base_us + p->token_us * k;
}

static double slowest_us(const struct control *c, const struct control_item *v, uint32_t n,
                         uint32_t k)
{
    double us = 0;
    for (uint32_t i = 0; i < n; i++)
        us = fmax(us, answer_us(&c->proposers[v[i].proposer], min_u32(k, v[i].n)));
    return us;
}

/* The best limit of tokens per sequence; 0: none. */
static uint32_t best_limit(const struct control *c, const struct control_round *r,
                           struct control_item *v, uint32_t n)
{
    static const uint8_t limits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20};
    double best_rate = r->n_decoding / cost_us(&c->cost, &r->pass);
    uint32_t best = 0;
    for (unsigned i = 0; i < sizeof(limits) && (!i || limits[i - 1] < c->options.k); i++) {
        struct goodput g = share(c, r, v, n, limits[i], slowest_us(c, v, n, limits[i]), BEND);
        if (g.tokens <= best_rate * g.us)
            continue;
        best_rate = g.tokens / g.us;
        best = limits[i];
    }
    return best;
}

/* What the item would try: more than seemed best. */
static uint32_t try_k(const struct control_item *v)
{
    return min_u32(v->k ? 2 * v->k : TRY_K, v->n);
}

/* What a pass takes in which only the item has a draft, of k tokens, and what that takes. */
static double alone_us(const struct control *c, const struct control_round *r,
                       const struct control_item *v, uint32_t k)
{
    struct cost_pass pass = r->pass;
    for (uint32_t i = 0; i < k; i++)
        add_row(&pass, v->context);
    return cost_us(&c->cost, &pass) + (k ? answer_us(&c->proposers[v->proposer], k) : 0);
}

/* Rounds, which take us, from one try to the next if that costs extra_us. */
static uint32_t rounds_between(double extra_us, double us)
{
    return (uint32_t)fmin(fmax(extra_us / (TRY_SHARE * us), TRY_MIN_ROUNDS), TRY_MAX_ROUNDS);
}

/* Of the sequences that could try, the one that has not for longest does, if it is time. us: what
 * the round takes without. */
static void try_one(struct control *c, const struct control_round *r, struct control_item *v,
                    uint32_t n, double us)
{
    struct control_item *next = NULL;
    for (uint32_t i = 0; i < n; i++) {
        v[i].s->trying = false;
        v[i].s->since_try++;
        if (!v[i].fixed && try_k(&v[i]) > v[i].k &&
            (!next || v[i].s->since_try > next->s->since_try))
            next = &v[i];
    }
    if (!next)
        return;
    double extra_us = alone_us(c, r, next, try_k(next)) - alone_us(c, r, next, next->k);
    if (++c->since_try < rounds_between(extra_us, us))
        return;
    c->since_try = next->s->since_try = 0;
    next->k = try_k(next);
    next->s->trying = true;
}

/* While all rounds draft, no pass shows what they would take without: now and then one goes
 * without. g: what the round promises with drafts. */
static bool none_is_due(struct control *c, const struct control_round *r, const struct goodput *g)
{
    double lost_us = cost_us(&c->cost, &r->pass) - r->n_decoding * g->us / g->tokens;
    if (++c->since_none < rounds_between(lost_us, g->us))
        return false;
    c->since_none = 0;
    return true;
}

/* False: passes were not timed, so nothing can be chosen by it. */
static bool knows_costs(const struct control *c, struct control_item *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        v[i].k = 0;
    return cost_us(&c->cost, &(struct cost_pass){.rows = 1}) > 0;
}

static double ask_goodput(struct control *c, const struct control_round *r, struct control_item *v,
                          uint32_t n)
{
    if (!n || !knows_costs(c, v, n))
        return 0;
    for (uint32_t i = 0; i < n; i++)
        fill_hopes(c, &v[i]);
    uint32_t limit = best_limit(c, r, v, n);
    c->beside_us = limit ? slowest_us(c, v, n, limit) : 0;
    struct goodput g = share(c, r, v, n, limit, c->beside_us, BEND);
    if (limit && none_is_due(c, r, &g)) {
        c->beside_us = 0;
        share(c, r, v, n, 0, 0, BEND);
        return 0;
    }
    try_one(c, r, v, n, g.us);
    if (!limit)
        return 0;
    return g.tokens * cost_us(&c->cost, &r->pass) / r->n_decoding - (g.us - c->beside_us);
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

double control_ask(struct control *c, const struct control_round *r, struct control_item *v,
                   uint32_t n)
{
    uint32_t off_from = c->options.disable_batch_size;
    bool off = off_from && r->n_running >= off_from;
    for (uint32_t i = 0; i < n; i++)
        v[i].n = min_u32(off ? 0 : v[i].n, c->options.k);
    double wait_us =
        c->options.policy == CONTROL_GOODPUT ? ask_goodput(c, r, v, n) : ask_simple(c, v, n);
    bool all_fixed = r->n_fixed == r->n_decoding; // who is not waits for what pays, no longer
    return give_fixed(v, n) && all_fixed ? INFINITY : wait_us;
}

/* Looking over a bend lets what comes behind a token decide whether it is verified, which it must
 * not where tokens are tested against the law that they were drawn from. */
static bool any_drawn(const struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= v[i].drawn;
    return any;
}

/* The wait for the drafts is over, but the next round has one, too: a time that is to bring most
 * tokens is that of a whole round. */
void control_cut(const struct control *c, const struct control_round *r, struct control_item *v,
                 uint32_t n)
{
    if (c->options.policy != CONTROL_GOODPUT) {
        for (uint32_t i = 0; i < n; i++)
            v[i].k = v[i].n;
        return;
    }
    if (n && knows_costs(c, v, n)) {
        for (uint32_t i = 0; i < n; i++)
            fill_chances(c, &v[i]);
        share(c, r, v, n, ACCEPT_MAX, c->beside_us, any_drawn(v, n) ? 1 : BEND);
        for (uint32_t i = 0; i < n; i++)
            v[i].k = v[i].s->trying ? v[i].n : v[i].k;
    }
    give_fixed(v, n);
}

/* ---- learning ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, unsigned n)
{
    qsort(v, n, sizeof(*v), by_size);
    return (v[(n - 1) / 2] + v[n / 2]) / 2;
}

/* The line that half of all pairs of answers are steeper than (Theil 1950, Sen 1968): answers that
 * were held up bend it little. Where all had the same k, half of the time is taken to be for the
 * tokens. */
static void fit_answers(struct control_proposer *p)
{
    double slopes[CONTROL_ANSWERS * CONTROL_ANSWERS / 2], us[CONTROL_ANSWERS] = {0};
    unsigned n = min_u32(p->n_answers, CONTROL_ANSWERS), n_slopes = 0;
    for (unsigned i = 0; i < n; i++) {
        us[i] = p->answers[i].us / p->answers[i].k;
        for (unsigned j = 0; j < i; j++) {
            double dk = p->answers[i].k - p->answers[j].k;
            if (dk != 0)
                slopes[n_slopes++] = (p->answers[i].us - p->answers[j].us) / dk;
        }
    }
    double all_us = median(us, n); // of a token, if nothing else took time
    p->token_us = n_slopes ? fmin(fmax(median(slopes, n_slopes), 0), all_us) : all_us / 2;
    for (unsigned i = 0; i < n; i++)
        us[i] = p->answers[i].us - p->token_us * p->answers[i].k;
    p->base_us = fmax(median(us, n), 0);
}

/* Of answers that came together the longest took the time. */
static void note_answer(struct control_proposer *p, uint32_t k, double us)
{
    unsigned last = (p->n_answers - 1) % CONTROL_ANSWERS;
    bool together = p->n_answers && p->answers[last].us == us;
    unsigned i = together ? last : p->n_answers++ % CONTROL_ANSWERS;
    p->answers[i].k = together ? fmax(p->answers[i].k, k) : k;
    p->answers[i].us = us;
}

void control_answered(struct control *c, struct control_seq *s, unsigned proposer, uint32_t k,
                      double us, bool given)
{
    struct control_proposer *p = &c->proposers[proposer];
    s->given += GIVEN_WEIGHT * ((given ? 1.0f : 0.0f) - s->given);
    if (given && s->introduced) {
        note_answer(p, k, us);
        fit_answers(p);
    }
    if (given && !s->introduced)
        s->given = 1; // it only had to learn the context
    s->introduced |= given;
}

static void note(struct control_rate *r, bool kept)
{
    r->tried = r->tried * FADE + 1;
    r->kept = r->kept * FADE + (kept ? 1 : 0);
}

/* The children of `node` were all that could follow; committed is what did. Returns the child that
 * it is, or -1. */
static int32_t try_children(struct control *c, struct control_seq *s, const struct control_item *v,
                            const uint32_t *tokens, int32_t node, uint32_t depth,
                            uint32_t committed)
{
    struct control_proposer *p = &c->proposers[v->proposer];
    unsigned place = place_of(depth);
    int32_t found = -1;
    for (uint32_t i = (uint32_t)(node + 1); i < v->n; i++) {
        if (v->parents[i] != node)
            continue;
        bool kept = found < 0 && tokens[i] == committed;
        double said = said_alone(v, i);
        s->expected += (float)rate_said(p, place, said);
        s->kept += kept ? 1 : 0;
        note(said >= 1 ? &p->silent[place] : &p->said[said_of(said)], kept);
        note(&p->all[place], kept);
        found = kept ? (int32_t)i : found;
    }
    return found;
}

void control_seen(struct control *c, struct control_seq *s, const struct control_item *draft,
                  const uint32_t *draft_tokens, const uint32_t *committed, uint32_t n_committed)
{
    if (!draft->n)
        return;
    int32_t node = -1;
    s->kept *= SEQ_FADE;
    s->expected *= SEQ_FADE;
    for (uint32_t i = 0; i < n_committed; i++) {
        node = try_children(c, s, draft, draft_tokens, node, i, committed[i]);
        if (node < 0)
            return;
    }
}

void control_verified(struct control *c, struct control_seq *s, uint32_t n_drafted,
                      uint32_t n_accepted)
{
    if (!n_drafted)
        return;
    double share = (double)n_accepted / n_drafted;
    s->ema += (float)(EMA_WEIGHT * (share - s->ema));
    c->acceptance_ema += EMA_WEIGHT * (share - c->acceptance_ema);
}
