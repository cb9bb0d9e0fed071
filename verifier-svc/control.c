/* control.c - three policies over learnt chances and measured times. */
#include <math.h>
#include "verifier-svc/control.h"

#define START_EMA 0.7
#define EMA_WEIGHT 0.1
#define SEQ_FADE 0.9f   // of a sequence's own counts, per draft
#define SEQ_TRUST 40.0f // tokens that its proposer's rates weigh against its own counts
#define GIVEN_WEIGHT 0.1f
#define BEND 0.9        // of the best goodput: the hope that more tokens pay after all ends here
#define MARGIN 1.04     // drafts promise so many times what goes without them
#define TRY_SHARE 0.004 // of the time may go into trying
#define TRY_MIN_ROUNDS 16
#define TRY_MAX_ROUNDS 4096
#define LESS_SHARE 0.002 // into drafting less than seems best, or one round of LESS_MAX_ROUNDS
#define LESS_MIN_ROUNDS 4
#define LESS_MAX_ROUNDS 64
#define LEFT_MAX 512 // tokens that an answer has left, as most end before they must
#define TRY_K 2
#define HELD_UP 8.0     // a pass beside a reader counts as at most so many that were expected
#define FIRST_TRIES 8   // of a proposer, while it seems to bring nothing: they are due at once
#define TRY_WAIT_US 1e9 // as long as the proposer's answers take

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

void control_init(struct control *c, const struct control_options *options, const struct cost *cost)
{
    *c = (struct control){.options = *options, .cost = *cost, .acceptance_ema = START_EMA};
}

void control_seq_init(struct control_seq *s)
{
    *s = (struct control_seq){.ema = START_EMA, .given = 1, .n_asked = 1};
}

void control_forget(struct control *c, unsigned proposer)
{
    c->proposers[proposer] = (struct control_proposer){0};
}

/* ---- chances ---- */

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
    const struct chance *chance = &c->proposers[v->proposer].chance;
    uint8_t depth[ACCEPT_MAX];
    double factor = luck(v->s);
    for (uint32_t i = 0; i < v->n; i++) {
        int32_t parent = v->parents[i];
        depth[i] = parent < 0 ? 0 : (uint8_t)(depth[parent] + 1);
        double rate = chance_said(chance, depth[i], said_alone(v, i));
        v->chance[i] = clamped(rate * factor) * (parent < 0 ? 1 : v->chance[parent]);
    }
}

/* The same for tokens that nobody has drafted yet. */
static void fill_hopes(const struct control *c, struct control_item *v)
{
    const struct chance *chance = &c->proposers[v->proposer].chance;
    double factor = luck(v->s), all = v->s->given;
    for (uint32_t i = 0; i < v->n; i++)
        v->chance[i] = (float)(all *= clamped(chance_at(chance, i) * factor));
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
        if (t->k < min_u32(t->most, limit) && (!best || t->chance[t->k] > best->chance[best->k]))
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

/* Gives rows to the tokens with the best chances, at most `limit` to each sequence, as long as
 * there are some and that pays; ends where the goodput has dropped to this share of the best: 1 is
 * the first drop, less looks over a bend in the times. beside_us: the time that goes by without the
 * pass. */
static struct goodput share(const struct control *c, const struct control_round *r,
                            struct control_item *v, uint32_t n, uint32_t limit, double beside_us,
                            double drop)
{
    struct cost_pass pass = r->pass;
    pass.drafted = limit > 0;
    struct goodput g = {r->n_decoding, cost_us(&c->cost, &pass) + beside_us}, best = g;
    uint32_t n_given = 0, n_behind = 0; // tokens in all, and behind the best
    for (uint32_t i = 0; i < n; i++)
        v[i].k = 0;
    for (;;) {
        struct control_item *next = next_to_give(v, n, limit);
        if (!next || n_given == r->draft_rows || g.tokens * best.us < drop * best.tokens * g.us)
            break;
        add_row(&pass, next->context);
        g.tokens += next->chance[next->k++];
        g.us = cost_us(&c->cost, &pass) + beside_us;
        n_given++;
        n_behind++;
        if (g.tokens * best.us > best.tokens * g.us) {
            best = g;
            n_behind = 0;
        }
    }
    take_back(v, n, n_behind);
    return best;
}

/* What it takes until all have their drafts of up to k tokens. */
static double slowest_us(const struct control *c, const struct control_item *v, uint32_t n,
                         uint32_t k)
{
    uint32_t longest[DRAFTS_MAX] = {0}, n_asked[DRAFTS_MAX] = {0};
    double us = 0;
    for (uint32_t i = 0; i < n; i++) {
        unsigned p = v[i].proposer;
        if (!v[i].most)
            continue;
        longest[p] = max_u32(longest[p], min_u32(k, v[i].most));
        n_asked[p]++;
        us = fmax(us, answer_time_us(&c->proposers[p].answer, longest[p], n_asked[p]));
    }
    return us;
}

static const uint8_t limits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20};

static uint32_t limit_below(uint32_t k)
{
    unsigned i = 0;
    while (i < sizeof(limits) && limits[i] < k)
        i++;
    return i ? limits[i - 1] : 0;
}

/* The best limit of tokens per sequence; 0: none. */
static uint32_t best_limit(const struct control *c, const struct control_round *r,
                           struct control_item *v, uint32_t n)
{
    double best_rate = MARGIN * r->n_decoding / cost_us(&c->cost, &r->pass);
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

/* What it costs that the item's proposer reads its context first; 0: it has, or does. */
static double price_us(const struct control *c, const struct control_item *v)
{
    return reading_us(&v->s->reading, &c->proposers[v->proposer].reading, v->proposer, v->unread);
}

/* Leaves out those whose tokens will not bring back what it costs to read them. True: there are
 * such. g: what a round of all promises. */
static bool leave_out_unread(const struct control *c, const struct control_round *r,
                             struct control_item *v, uint32_t n, const struct goodput *g)
{
    double none_us = cost_us(&c->cost, &r->pass) / r->n_decoding; // per token, as all here
    double saved_us = none_us / MARGIN - g->us / g->tokens;
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        if (v[i].fixed || price_us(c, &v[i]) <= saved_us * min_u32(v[i].left, LEFT_MAX))
            continue;
        v[i].most = 0;
        any = true;
    }
    return any;
}

/* Shares by the best of all limits; returns that. */
static uint32_t share_best(struct control *c, const struct control_round *r, struct control_item *v,
                           uint32_t n, struct goodput *ret)
{
    uint32_t limit = best_limit(c, r, v, n);
    c->beside_us = limit ? slowest_us(c, v, n, limit) : 0;
    *ret = share(c, r, v, n, limit, c->beside_us, BEND);
    return limit;
}

/* The same for those that are worth asking for. */
static uint32_t choose(struct control *c, const struct control_round *r, struct control_item *v,
                       uint32_t n, struct goodput *ret)
{
    uint32_t limit = share_best(c, r, v, n, ret);
    return limit && leave_out_unread(c, r, v, n, ret) ? share_best(c, r, v, n, ret) : limit;
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
    return cost_us(&c->cost, &pass) +
           (k ? answer_time_us(&c->proposers[v->proposer].answer, k, 1) : 0);
}

/* Rounds, which take us, from one try to the next if that costs extra_us. */
static uint32_t rounds_between(double extra_us, double us)
{
    return (uint32_t)fmin(fmax(extra_us / (TRY_SHARE * us), TRY_MIN_ROUNDS), TRY_MAX_ROUNDS);
}

/* One that was read costs least to try, then the one that has not for longest. */
static bool tries_before(const struct control_seq *a, const struct control_seq *b)
{
    return a->reading.done != b->reading.done ? a->reading.done : a->since_try > b->since_try;
}

static void let_try(struct control_item *v)
{
    v->k = try_k(v);
    v->s->trying = v->k > 0;
}

/* A try of which the context is still being read goes on. Else finds the item that is next to try.
 */
static struct control_item *next_to_try(struct control_item *v, uint32_t n)
{
    struct control_item *next = NULL;
    bool goes_on = false;
    for (uint32_t i = 0; i < n; i++) {
        struct control_seq *s = v[i].s;
        s->since_try++;
        s->trying &= reading_goes_on(&s->reading);
        if (s->trying)
            let_try(&v[i]);
        goes_on |= s->trying;
        if (!v[i].fixed && try_k(&v[i]) > v[i].k && (!next || tries_before(s, next->s)))
            next = &v[i];
    }
    return goes_on ? NULL : next;
}

/* Is it time? us: what the round takes without. */
static bool try_is_due(struct control *c, const struct control_round *r,
                       const struct control_item *v, double us)
{
    if (!v->k && c->proposers[v->proposer].n_tries < FIRST_TRIES)
        return true;
    double extra_us = alone_us(c, r, v, try_k(v)) - alone_us(c, r, v, v->k);
    return ++c->since_try >= rounds_between(extra_us + price_us(c, v), us);
}

/* Of the sequences that could try, one does if it is time. */
static void try_one(struct control *c, const struct control_round *r, struct control_item *v,
                    uint32_t n, double us)
{
    struct control_item *next = next_to_try(v, n);
    if (!next || !try_is_due(c, r, next, us))
        return;
    c->since_try = next->s->since_try = 0;
    let_try(next);
    c->proposers[next->proposer].n_tries++;
}

/* While a context is read there is nothing to wait for. */
static bool awaits_try(const struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= v[i].s->trying && !reading_goes_on(&v[i].s->reading);
    return any;
}

static bool any_being_read(const struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++)
        any |= reading_goes_on(&v[i].s->reading);
    return any;
}

/* While all rounds draft the same, no pass shows what they would take with less: now and then one
 * has less, not less often if that seems to cost much, for that may be wrong. g: what the round
 * promises. */
static bool less_is_due(struct control *c, const struct control_round *r, const struct goodput *g)
{
    double lost_us = cost_us(&c->cost, &r->pass) - r->n_decoding * g->us / g->tokens;
    double rounds = fmax(lost_us / (LESS_SHARE * g->us), LESS_MIN_ROUNDS);
    return !r->n_fixed && ++c->since_less >= fmin(rounds, LESS_MAX_ROUNDS);
}

/* By turns nothing, the next limit below and half. */
static void try_less(struct control *c, struct control_item *v, uint32_t n, uint32_t limit)
{
    unsigned turn = c->n_less++ % 3;
    uint32_t k = turn == 0 ? 0 : turn == 1 ? limit_below(limit) : limit / 2;
    c->since_less = 0;
    for (uint32_t i = 0; i < n; i++) {
        v[i].k = min_u32(k, v[i].most);
        v[i].s->trying = v[i].k > 0;
    }
    c->beside_us = k ? slowest_us(c, v, n, k) : 0;
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
    if (!knows_costs(c, v, n) || !n || !r->n_decoding)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        fill_hopes(c, &v[i]);
    struct goodput g;
    uint32_t limit = choose(c, r, v, n, &g);
    if (limit && !any_being_read(v, n) && less_is_due(c, r, &g)) {
        try_less(c, v, n, limit);
        return c->beside_us > 0 ? TRY_WAIT_US : 0;
    }
    try_one(c, r, v, n, g.us);
    if (!limit)
        return awaits_try(v, n) ? TRY_WAIT_US : 0;
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

/* Those that were asked for together have come when the last has. */
static void learn_answer(struct control_proposer *p)
{
    if (p->answered.us > 0)
        answer_time_seen(&p->answer, p->answered.k, p->answered.n, p->answered.us);
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
        c->options.policy == CONTROL_GOODPUT ? ask_goodput(c, r, v, n) : ask_simple(c, v, n);
    bool all_fixed = r->n_fixed == r->n_decoding; // who is not waits for what pays, no longer
    bool any_fixed = give_fixed(v, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!v[i].k)
            reading_left(&v[i].s->reading);
    }
    return any_fixed && all_fixed ? INFINITY : wait_us;
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
        for (uint32_t i = 0; i < n; i++) {
            v[i].most = v[i].n;
            fill_chances(c, &v[i]);
        }
        share(c, r, v, n, ACCEPT_MAX, c->beside_us, any_drawn(v, n) ? 1 : BEND);
        for (uint32_t i = 0; i < n; i++)
            v[i].k = v[i].s->trying ? v[i].n : v[i].k;
    }
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

void control_asked(struct control_seq *s, unsigned proposer, uint32_t to_read, uint32_t n)
{
    s->n_asked = n;
    reading_asked(&s->reading, proposer, to_read);
}

void control_unread(struct control_seq *s)
{
    s->reading = (struct reading){0};
}

static void note_given(struct control_seq *s, bool given)
{
    s->given += GIVEN_WEIGHT * ((given ? 1.0f : 0.0f) - s->given);
}

void control_put_off(struct control_seq *s, uint32_t unread)
{
    reading_told(&s->reading, unread);
    if (!reading_goes_on(&s->reading))
        note_given(s, false);
}

void control_answered(struct control *c, struct control_seq *s, unsigned proposer, uint32_t k,
                      double us, bool given)
{
    struct control_proposer *p = &c->proposers[proposer];
    bool was_read = s->reading.done && s->reading.proposer == proposer;
    note_given(s, given);
    if (given && was_read)
        note_answer(p, k, s->n_asked, us);
    else if (given)
        s->given = 1; // it only had to read the context
    if (s->reading.proposer == proposer)
        reading_answered(&s->reading, &p->reading);
}

/* That a proposer reads the sequence's context made the pass slow. */
static bool is_excused(struct control *c, struct control_seq *beside, double expected_us, double us)
{
    struct reading *r = &beside->reading;
    double longer_us = fmin(us, HELD_UP * expected_us) - expected_us;
    return longer_us >= 0 && reading_passed(r, &c->proposers[r->proposer].reading, longer_us);
}

void control_passed(struct control *c, const struct cost_pass *pass, double us,
                    struct control_seq *beside)
{
    if (beside && is_excused(c, beside, cost_us(&c->cost, pass), us))
        return;
    cost_seen(&c->cost, pass, us);
    c->since_less = pass->drafted ? c->since_less : 0;
}

/* The children of `node` were all that could follow; committed is what did. Returns the child that
 * it is, or -1. */
static int32_t try_children(struct control *c, struct control_seq *s, const struct control_item *v,
                            const uint32_t *tokens, int32_t node, uint32_t depth,
                            uint32_t committed)
{
    struct chance *chance = &c->proposers[v->proposer].chance;
    int32_t found = -1;
    for (uint32_t i = (uint32_t)(node + 1); i < v->n; i++) {
        if (v->parents[i] != node)
            continue;
        bool kept = found < 0 && tokens[i] == committed;
        double said = said_alone(v, i);
        s->expected += (float)chance_said(chance, depth, said);
        s->kept += kept ? 1 : 0;
        chance_seen(chance, depth, said, kept);
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
