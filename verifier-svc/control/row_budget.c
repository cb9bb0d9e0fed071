/* row_budget.c - one token after the other, by chance. */
#include <math.h>
#include "verifier-svc/control/row_budget.h"
#include "base/minmax.h"

#define BEND 0.9 // of the best goodput: the hope that more tokens pay after all ends here

/* What a sequence may be limited to. */
static const uint8_t limits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20};

static void add_row(struct pass_time_work *pass, uint32_t context)
{
    pass->rows++;
    pass->sees += context;
}

/* ---- the order of chances ---- */

static bool ranks_above(const struct control_item *v, uint32_t a, uint32_t b)
{
    float chance_a = v[a].chance[v[a].k], chance_b = v[b].chance[v[b].k];
    return chance_a > chance_b || (chance_a == chance_b && a < b);
}

/* Moves the item in place i down to where it belongs in the heap of n, whose first is the item
 * whose next token has the best chance. */
static void sink(struct control_item *v, uint32_t n, uint32_t i)
{
    uint32_t item = v[i].in_heap, below;
    for (; (below = 2 * i + 1) < n; i = below) {
        if (below + 1 < n && ranks_above(v, v[below + 1].in_heap, v[below].in_heap))
            below++;
        if (!ranks_above(v, v[below].in_heap, item))
            break;
        v[i].in_heap = v[below].in_heap;
    }
    v[i].in_heap = item;
}

static uint32_t most_of(const struct control_item *v, uint32_t limit)
{
    return v->out || v->no_row ? 0 : min_u32(v->most, limit);
}

/* Nobody has a token yet. Returns how many may have some: the size of the heap. */
static uint32_t start_giving(struct control_item *v, uint32_t n, uint32_t limit)
{
    uint32_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        v[i].k = 0;
        if (most_of(&v[i], limit))
            v[n_heap++].in_heap = i;
    }
    for (uint32_t i = n_heap / 2; i-- > 0;)
        sink(v, n_heap, i);
    return n_heap;
}

/* Gives the token with the best chance a row. */
static const struct control_item *give(struct control_item *v, uint32_t *n_heap, uint32_t limit)
{
    struct control_item *t = &v[v[0].in_heap];
    if (++t->k == min_u32(t->most, limit))
        v[0].in_heap = v[--*n_heap].in_heap;
    sink(v, *n_heap, 0);
    return t;
}

static void give_rows(struct control_item *v, uint32_t n, uint32_t limit, uint32_t n_rows)
{
    uint32_t n_heap = start_giving(v, n, limit);
    while (n_rows--)
        give(v, &n_heap, limit);
}

/* ---- the wait ---- */

/* For the drafts of k tokens of those that have some. */
struct wait {
    double us;
    unsigned last; // the proposer whose drafts come last
};

static struct wait wait_of(const struct control *c, const struct control_item *v, uint32_t n)
{
    uint32_t longest[DRAFTS_MAX] = {0}, n_asked[DRAFTS_MAX] = {0};
    struct wait w = {0};
    for (uint32_t i = 0; i < n; i++) {
        unsigned p = v[i].proposer;
        if (!v[i].k)
            continue;
        longest[p] = max_u32(longest[p], v[i].k);
        double us = control_answer_us(c, p, longest[p], ++n_asked[p]);
        w = us >= w.us ? (struct wait){us, p} : w;
    }
    return w;
}

/* If all have as many as they may. */
static double longest_wait_us(const struct control *c, struct control_item *v, uint32_t n,
                              uint32_t limit)
{
    for (uint32_t i = 0; i < n; i++)
        v[i].k = most_of(&v[i], limit);
    return wait_of(c, v, n).us;
}

/* ---- what pays ---- */

static bool is_better(const struct row_budget *a, const struct row_budget *b)
{
    return a->tokens * b->us > b->tokens * a->us;
}

/* The best number of rows for the tokens with the best chances, at most `limit` to each sequence,
 * as far as there are some and that pays; the search ends at the first drop of the goodput or, over
 * bends in the times, where it has dropped to BEND of the best. beside_us: the time that goes by
 * without the pass. */
static struct row_budget reckon(const struct control *c, const struct control_round *r,
                                struct control_item *v, uint32_t n, uint32_t limit,
                                double beside_us, bool over_bends)
{
    struct pass_time_work pass = r->pass;
    pass.drafted = limit > 0;
    struct row_budget g = {.tokens = r->n_decoding, .beside_us = beside_us}, best;
    g.us = pass_time_us(&c->cost, &pass) + beside_us;
    best = g;
    double drop = over_bends ? BEND : 1;
    uint32_t n_heap = start_giving(v, n, limit);
    while (n_heap && g.n_rows < r->draft_rows && g.tokens * best.us >= drop * best.tokens * g.us) {
        const struct control_item *given = give(v, &n_heap, limit);
        add_row(&pass, given->context);
        g.tokens += given->chance[given->k - 1];
        g.us = pass_time_us(&c->cost, &pass) + beside_us;
        g.n_rows++;
        g.limited |= given->k == limit && given->most > limit;
        if (is_better(&g, &best))
            best = g;
    }
    best.limited = g.limited;
    return best;
}

/* Of all limits the best; 0: no token is worth its row. */
static uint32_t best_limit(const struct control *c, const struct control_round *r,
                           struct control_item *v, uint32_t n, struct row_budget *ret)
{
    uint32_t best = 0;
    struct row_budget g = {.limited = true};
    for (unsigned i = 0; i < sizeof(limits) && g.limited; i++) {
        g = reckon(c, r, v, n, limits[i], longest_wait_us(c, v, n, limits[i]), true);
        if (!g.n_rows || (best && !is_better(&g, ret)))
            continue;
        best = limits[i];
        *ret = g;
    }
    return best;
}

/* Gives the rows that were reckoned with; only who has some is waited for. Returns the proposer
 * whose drafts come last. */
static unsigned settle(const struct control *c, struct control_item *v, uint32_t n, uint32_t limit,
                       struct row_budget *g)
{
    give_rows(v, n, limit, g->n_rows);
    struct wait w = wait_of(c, v, n);
    g->us += w.us - g->beside_us;
    g->beside_us = w.us;
    return w.last;
}

/* True: some had none, though they might. */
static bool leave_out_rowless(struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        any |= !v[i].k && most_of(&v[i], 1);
        v[i].no_row = !v[i].k;
    }
    return any;
}

/* Its rows may be others' now. */
static void leave_out_proposer(struct control_item *v, uint32_t n, unsigned proposer)
{
    for (uint32_t i = 0; i < n; i++) {
        v[i].out |= v[i].proposer == proposer;
        v[i].no_row = false;
    }
}

static void note_best(struct control_item *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        v[i].best_k = v[i].k;
}

/* All wait for the slowest, so that less may be more: once without those that had no row, then
 * with them but without the proposer that is waited for, until nobody is left or has a row. A wait
 * makes rows cheap: without who had none, those of the others may not pay any more. */
uint32_t row_budget_best(struct control *c, const struct control_round *r, struct control_item *v,
                         uint32_t n, struct row_budget *ret)
{
    uint32_t limit, best = 0;
    unsigned last = 0;
    bool again = false;
    struct row_budget g;
    *ret = reckon(c, r, v, n, 0, 0, true);
    for (uint32_t i = 0; i < n; i++)
        v[i].best_k = 0;
    while ((limit = best_limit(c, r, v, n, &g)) || again) {
        last = limit ? settle(c, v, n, limit, &g) : last;
        if (limit && (!best || is_better(&g, ret))) {
            best = limit;
            *ret = g;
            note_best(v, n);
        }
        again = !again && leave_out_rowless(v, n);
        if (!again)
            leave_out_proposer(v, n, last);
    }
    for (uint32_t i = 0; i < n; i++) {
        v[i].k = v[i].best_k;
        v[i].out = v[i].no_row = false;
    }
    c->beside_us = ret->beside_us;
    return best;
}

void row_budget_drafts(const struct control *c, const struct control_round *r,
                       struct control_item *v, uint32_t n, bool over_bends)
{
    struct row_budget best = reckon(c, r, v, n, ACCEPT_MAX, c->beside_us, over_bends);
    give_rows(v, n, ACCEPT_MAX, best.n_rows);
}

double row_budget_beside_us(const struct control *c, const struct control_item *v, uint32_t n)
{
    return wait_of(c, v, n).us;
}

uint32_t row_budget_limit_below(uint32_t k)
{
    uint32_t below = 0;
    for (unsigned i = 0; i < sizeof(limits) && limits[i] < k; i++)
        below = limits[i];
    return below;
}
