/* suffix_scan.c - the reference for prop_suffix. */
#include <stdbool.h>
#include "lib/oracles/suffix_scan.h"

#define MARK UINT32_MAX
#define LOOK_MAX 32
#define TEXT_MAX 8192

struct scan {
    const struct suffix_scan *how;
    const uint32_t *context, *text;
    uint32_t n, n_text;
    bool is_context;
    uint32_t matched[TEXT_MAX];              // by place: tokens of the match; 0: not examined
    uint32_t places[4 * LOOK_MAX], n_places; // that are examined, the latest first
};

static uint32_t match_length(const struct scan *s, uint32_t at)
{
    uint32_t m = 0;
    while (m < s->how->max_depth && m < at && m < s->n &&
           s->text[at - m - 1] == s->context[s->n - m - 1])
        m++;
    return m;
}

static uint32_t level_of(uint32_t matched)
{
    return matched >= 8 ? 8 : matched >= 4 ? 4 : matched >= 2 ? 2 : 1;
}

/* Finds the matches at all places. Per n-gram length, only the latest LOOK_MAX places stay. */
static void find_places(struct scan *s)
{
    for (uint32_t at = 1; at < s->n_text; at++)
        s->matched[at] = s->text[at] == MARK ? 0 : match_length(s, at);
    uint32_t later[9] = {0};
    s->n_places = 0;
    for (uint32_t at = s->n_text; at-- > 1;) {
        uint32_t m = s->matched[at];
        if (later[level_of(m)] >= LOOK_MAX)
            s->matched[at] = 0;
        if (s->matched[at])
            s->places[s->n_places++] = at;
        for (uint32_t level = 1; level <= 8; level *= 2)
            later[level] += m >= level;
    }
}

/* The token after a place; MARK: none. */
static uint32_t next_token(const struct scan *s, uint32_t at, const struct suffix_scan_draft *d)
{
    if (at < s->n_text)
        return s->text[at];
    return s->is_context ? d->tokens[at - s->n_text] : MARK;
}

/* Whether the text continues at this place with the draft's tokens. */
static bool is_alive(const struct scan *s, uint32_t at, uint32_t min_match,
                     const struct suffix_scan_draft *d)
{
    if (s->matched[at] < min_match)
        return false;
    for (uint32_t i = 0; i < d->n; i++)
        if (next_token(s, at + i, d) != d->tokens[i])
            return false;
    return true;
}

/* How many of the places that are alive continue with `token`. */
static uint32_t count_next(const struct scan *s, uint32_t m, const struct suffix_scan_draft *d,
                           uint32_t token)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_places; i++) {
        uint32_t at = s->places[i];
        n += is_alive(s, at, m, d) && next_token(s, at + d->n, d) == token;
    }
    return n;
}

/* Adds the most frequent token. On a tie that of the longest match, then that of the latest place.
 * False: the draft ends. */
static bool add_token(const struct scan *s, uint32_t m, struct suffix_scan_draft *d)
{
    uint32_t parent = 0, best = 0, best_match = 0, token = MARK;
    for (uint32_t i = 0; i < s->n_places; i++) {
        uint32_t at = s->places[i];
        if (!is_alive(s, at, m, d))
            continue;
        parent++;
        uint32_t t = next_token(s, at + d->n, d);
        if (t == MARK)
            continue;
        uint32_t c = t == token ? best : count_next(s, m, d, t);
        if (c < best || (c == best && s->matched[at] <= best_match))
            continue;
        best = c;
        best_match = s->matched[at];
        token = t;
    }
    float prob = (d->n ? d->survival[d->n - 1] : 1) * (parent ? (float)best / (float)parent : 0);
    if (token == MARK || (double)prob < s->how->min_prob)
        return false;
    d->tokens[d->n] = token;
    d->survival[d->n++] = prob;
    d->score += prob;
    return true;
}

static void scan_text(struct scan *s, uint32_t k, struct suffix_scan_draft *best)
{
    find_places(s);
    for (uint32_t m = s->how->max_depth; m >= 1; m--) {
        double limit = s->how->factor * m + s->how->offset;
        uint32_t max = limit < k ? (uint32_t)limit : k;
        struct suffix_scan_draft d = {0};
        while (d.n < max && add_token(s, m, &d))
            ;
        if (d.score > best->score)
            *best = d;
    }
}

struct suffix_scan_draft suffix_scan(const struct suffix_scan *how, const uint32_t *context,
                                     uint32_t n, const uint32_t *pool, uint32_t n_pool, uint32_t k)
{
    static struct scan s;
    struct suffix_scan_draft best = {0};
    s.how = how;
    s.context = s.text = context;
    s.n = s.n_text = n;
    s.is_context = true;
    scan_text(&s, k, &best);
    s.text = pool;
    s.n_text = n_pool;
    s.is_context = false;
    scan_text(&s, k, &best);
    return best;
}
