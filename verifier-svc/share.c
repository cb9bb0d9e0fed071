/* share.c - one token after the other, by chance. */
#include <math.h>
#include "verifier-svc/share.h"

#define BEND 0.9 // of the best goodput: the hope that more tokens pay after all ends here

/* What a sequence may be limited to. */
static const uint8_t limits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20};

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

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
 * there are some and that pays; ends at the first drop of the goodput or, over bends in the times,
 * where it has dropped to BEND of the best. beside_us: the time that goes by without the pass. */
static struct share give_rows(const struct control *c, const struct control_round *r,
                              struct control_item *v, uint32_t n, uint32_t limit, double beside_us,
                              bool over_bends)
{
    struct cost_pass pass = r->pass;
    pass.drafted = limit > 0;
    struct share g = {r->n_decoding, cost_us(&c->cost, &pass) + beside_us}, best = g;
    double drop = over_bends ? BEND : 1;
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

/* The best limit of tokens per sequence; 0: none. */
static uint32_t best_limit(const struct control *c, const struct control_round *r,
                           struct control_item *v, uint32_t n)
{
    double best_rate = SHARE_MARGIN * r->n_decoding / cost_us(&c->cost, &r->pass);
    uint32_t best = 0;
    for (unsigned i = 0; i < sizeof(limits) && (!i || limits[i - 1] < c->options.k); i++) {
        struct share g =
            give_rows(c, r, v, n, limits[i], share_beside_us(c, v, n, limits[i]), true);
        if (g.tokens <= best_rate * g.us)
            continue;
        best_rate = g.tokens / g.us;
        best = limits[i];
    }
    return best;
}

uint32_t share_best(struct control *c, const struct control_round *r, struct control_item *v,
                    uint32_t n, struct share *ret)
{
    uint32_t limit = best_limit(c, r, v, n);
    c->beside_us = share_beside_us(c, v, n, limit);
    *ret = give_rows(c, r, v, n, limit, c->beside_us, true);
    return limit;
}

void share_drafts(const struct control *c, const struct control_round *r, struct control_item *v,
                  uint32_t n, bool over_bends)
{
    give_rows(c, r, v, n, ACCEPT_MAX, c->beside_us, over_bends);
}

double share_beside_us(const struct control *c, const struct control_item *v, uint32_t n,
                       uint32_t k)
{
    uint32_t longest[DRAFTS_MAX] = {0}, n_asked[DRAFTS_MAX] = {0};
    double us = 0;
    for (uint32_t i = 0; i < n; i++) {
        unsigned p = v[i].proposer;
        uint32_t wanted = min_u32(k, v[i].most);
        if (!wanted)
            continue;
        longest[p] = max_u32(longest[p], wanted);
        n_asked[p]++;
        us = fmax(us, answer_time_us(&c->proposers[p].answer, longest[p], n_asked[p]));
    }
    return us;
}

uint32_t share_limit_below(uint32_t k)
{
    uint32_t below = 0;
    for (unsigned i = 0; i < sizeof(limits) && limits[i] < k; i++)
        below = limits[i];
    return below;
}
