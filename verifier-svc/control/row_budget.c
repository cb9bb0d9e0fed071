/* row_budget.c - one row after the other, by probability of survival. */
#include <math.h>
#include "verifier-svc/control/row_budget.h"
#include "base/minmax.h"

#define BEND 0.9 // the search over bends ends below this part of the best goodput

/* Tokens per sequence, tried in this order. */
static const uint8_t limits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20};

static void add_row(struct pass_time_work *pass, uint32_t context)
{
    pass->rows++;
    pass->attended += context;
}

/* ---- a heap of items, ordered by the survival of their next token ---- */

static bool ranks_above(const struct control_item *v, uint32_t a, uint32_t b)
{
    float next_a = v[a].survival[v[a].nodes], next_b = v[b].survival[v[b].nodes];
    return next_a > next_b || (next_a == next_b && a < b);
}

/* Restores the order of a heap of n items after its place i has changed. */
static void sift_down(struct control_item *v, uint32_t n, uint32_t i)
{
    uint32_t item = v[i].heap_item, below;
    for (; (below = 2 * i + 1) < n; i = below) {
        if (below + 1 < n && ranks_above(v, v[below + 1].heap_item, v[below].heap_item))
            below++;
        if (!ranks_above(v, v[below].heap_item, item))
            break;
        v[i].heap_item = v[below].heap_item;
    }
    v[i].heap_item = item;
}

/* Tokens that the item may have under this limit per sequence. */
static uint32_t usable_tokens(const struct control_item *v, uint32_t limit)
{
    return v->excluded || v->no_row ? 0 : min_u32(v->considered, limit);
}

/* Removes all tokens, and builds the heap of items that may have some. Returns its size. */
static uint32_t build_heap(struct control_item *v, uint32_t n, uint32_t limit)
{
    uint32_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        v[i].nodes = 0;
        if (usable_tokens(&v[i], limit))
            v[n_heap++].heap_item = i;
    }
    for (uint32_t i = n_heap / 2; i-- > 0;)
        sift_down(v, n_heap, i);
    return n_heap;
}

/* Gives a row to the token that is most likely to survive. Returns its item. */
static const struct control_item *grant_row(struct control_item *v, uint32_t *n_heap,
                                            uint32_t limit)
{
    struct control_item *t = &v[v[0].heap_item];
    if (++t->nodes == min_u32(t->considered, limit))
        v[0].heap_item = v[--*n_heap].heap_item;
    sift_down(v, *n_heap, 0);
    return t;
}

static void grant_rows(struct control_item *v, uint32_t n, uint32_t limit, uint32_t n_rows)
{
    uint32_t n_heap = build_heap(v, n, limit);
    while (n_rows--)
        grant_row(v, &n_heap, limit);
}

/* ---- the wait ---- */

struct wait {
    double us;
    unsigned slowest; // the proposer whose drafts arrive last
};

/* Of the items with tokens: all requests to a proposer are one message. */
static struct wait wait_for(const struct control *c, const struct control_item *v, uint32_t n)
{
    uint32_t longest[DRAFT_MAX_PROPOSERS] = {0}, n_requests[DRAFT_MAX_PROPOSERS] = {0};
    struct wait w = {0};
    for (uint32_t i = 0; i < n; i++) {
        unsigned p = v[i].proposer;
        if (!v[i].nodes)
            continue;
        longest[p] = max_u32(longest[p], v[i].nodes);
        double us = control_state_latency_us(c, p, longest[p], ++n_requests[p]);
        if (us >= w.us)
            w = (struct wait){us, p};
    }
    return w;
}

/* The wait if every item requests as many tokens as this limit allows. Changes nodes. */
static double longest_wait_us(const struct control *c, struct control_item *v, uint32_t n,
                              uint32_t limit)
{
    for (uint32_t i = 0; i < n; i++)
        v[i].nodes = usable_tokens(&v[i], limit);
    return wait_for(c, v, n).us;
}

/* ---- goodput ---- */

static bool is_better(const struct row_budget *a, const struct row_budget *b)
{
    return a->tokens * b->us > b->tokens * a->us;
}

/* The number of rows with the best goodput, at most `limit` per item. wait_us: the wait in U. The
 * search ends at the first drop of goodput or, over bends, when it has dropped below BEND of the
 * best. Changes nodes; grant_rows() sets them to the result. */
static struct row_budget best_rows(const struct control *c, const struct control_round *r,
                                   struct control_item *v, uint32_t n, uint32_t limit,
                                   double wait_us, bool over_bends)
{
    struct pass_time_work pass = r->pass;
    pass.drafted = limit > 0;
    struct row_budget g = {.tokens = r->n_decoding, .wait_us = wait_us}, best;
    g.us = pass_time_us(&c->pass_time, &pass) + wait_us;
    best = g;
    double drop = over_bends ? BEND : 1;
    uint32_t n_heap = build_heap(v, n, limit);
    while (n_heap && g.n_rows < r->draft_rows && g.tokens * best.us >= drop * best.tokens * g.us) {
        const struct control_item *granted = grant_row(v, &n_heap, limit);
        add_row(&pass, granted->context);
        g.tokens += granted->survival[granted->nodes - 1];
        g.us = pass_time_us(&c->pass_time, &pass) + wait_us;
        g.n_rows++;
        g.limited |= granted->nodes == limit && granted->considered > limit;
        if (is_better(&g, &best))
            best = g;
    }
    best.limited = g.limited;
    return best;
}

/* Tries all limits per item with their longest waits. Returns the best limit, and its rows in *ret.
 * 0: no token is worth its row. */
static uint32_t best_limit(const struct control *c, const struct control_round *r,
                           struct control_item *v, uint32_t n, struct row_budget *ret)
{
    uint32_t best = 0;
    struct row_budget g = {.limited = true};
    for (unsigned i = 0; i < sizeof(limits) && g.limited; i++) {
        g = best_rows(c, r, v, n, limits[i], longest_wait_us(c, v, n, limits[i]), true);
        if (!g.n_rows || (best && !is_better(&g, ret)))
            continue;
        best = limits[i];
        *ret = g;
    }
    return best;
}

/* Grants the rows of g, and replaces its wait by that for the items which received rows. Returns
 * the slowest proposer. */
static unsigned grant_budget(const struct control *c, struct control_item *v, uint32_t n,
                             uint32_t limit, struct row_budget *g)
{
    grant_rows(v, n, limit, g->n_rows);
    struct wait w = wait_for(c, v, n);
    g->us += w.us - g->wait_us;
    g->wait_us = w.us;
    return w.slowest;
}

/* Excludes the items that received no row. True: one of them could have received rows. */
static bool exclude_no_row(struct control_item *v, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        any |= !v[i].nodes && usable_tokens(&v[i], 1);
        v[i].no_row = !v[i].nodes;
    }
    return any;
}

/* Excludes the items of a proposer. All others may receive rows again. */
static void exclude_proposer(struct control_item *v, uint32_t n, unsigned proposer)
{
    for (uint32_t i = 0; i < n; i++) {
        v[i].excluded |= v[i].proposer == proposer;
        v[i].no_row = false;
    }
}

static void save_nodes(struct control_item *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        v[i].best_nodes = v[i].nodes;
}

/* The wait is a fixed cost that all sequences share, so a distribution among fewer may be better.
 * Each turn of the loop tries one set of items:
 *  - all of them,
 *  - then without those that received no row: without their tokens, the remaining drafts may no
 *    longer cover the wait,
 * - then all again, but without the slowest proposer, and so on, until no item or no row is
 * left. */
uint32_t row_budget_best(struct control *c, const struct control_round *r, struct control_item *v,
                         uint32_t n, struct row_budget *ret)
{
    uint32_t limit, best = 0;
    unsigned slowest = 0;
    bool no_row_excluded = false;
    struct row_budget g;
    *ret = best_rows(c, r, v, n, 0, 0, true);
    for (uint32_t i = 0; i < n; i++)
        v[i].best_nodes = 0;
    while ((limit = best_limit(c, r, v, n, &g)) || no_row_excluded) {
        slowest = limit ? grant_budget(c, v, n, limit, &g) : slowest;
        if (limit && (!best || is_better(&g, ret))) {
            best = limit;
            *ret = g;
            save_nodes(v, n);
        }
        no_row_excluded = !no_row_excluded && exclude_no_row(v, n);
        if (!no_row_excluded)
            exclude_proposer(v, n, slowest);
    }
    for (uint32_t i = 0; i < n; i++) {
        v[i].nodes = v[i].best_nodes;
        v[i].excluded = v[i].no_row = false;
    }
    c->expected_wait_us = ret->wait_us;
    return best;
}

void row_budget_drafts(const struct control *c, const struct control_round *r,
                       struct control_item *v, uint32_t n, bool over_bends)
{
    struct row_budget best =
        best_rows(c, r, v, n, DRAFT_MAX_NODES, c->expected_wait_us, over_bends);
    grant_rows(v, n, DRAFT_MAX_NODES, best.n_rows);
}

double row_budget_wait_us(const struct control *c, const struct control_item *v, uint32_t n)
{
    return wait_for(c, v, n).us;
}

uint32_t row_budget_limit_below(uint32_t k)
{
    uint32_t below = 0;
    for (unsigned i = 0; i < sizeof(limits) && limits[i] < k; i++)
        below = limits[i];
    return below;
}
