/* hint.c - the position in the hint, and the search for a new one. */
#include <string.h>
#include "proposer-svc/hint.h"

#define MATCH_MAX 32 // most tokens that are compared
#define NEAR 32      // a match of one token counts this far after the lost position

void hint_cut(struct hint *h, uint32_t keep)
{
    h->is_lost |= keep < h->n_compared;
}

/* Counts how many of the output's last `max` tokens are before position `at` of the hint. Returns 0
 * if a first comparison shows that the match is not longer than `longest`. */
static uint32_t match_length(const struct hint *h, const struct prop_context *c, uint32_t at,
                             uint32_t max, uint32_t longest)
{
    uint32_t m = 0;
    if (longest >= at || h->tokens[at - longest - 1] != c->tokens[c->n - longest - 1])
        return 0;
    while (m < max && m < at && h->tokens[at - m - 1] == c->tokens[c->n - m - 1])
        m++;
    return m;
}

/* Searches the new position: the longest match, and the nearest of equally long ones. */
static void find_position(struct hint *h, const struct prop_context *c)
{
    uint32_t best = 0, longest = 0, n_ahead = h->n - h->at, max = c->n - c->n_prompt;
    if (max > MATCH_MAX)
        max = MATCH_MAX;
    for (uint32_t i = 0; i < h->n && longest < max; i++) { // nearest first
        uint32_t at = i < n_ahead ? h->at + 1 + i : h->n - i;
        uint32_t m = match_length(h, c, at, max, longest);
        if (m <= longest)
            continue;
        best = at;
        longest = m;
    }
    bool is_near = best > h->at && best - h->at <= NEAR; // false without a match
    h->is_lost = longest < 2 && !is_near;
    if (h->is_lost)
        return;
    h->at = best;
    h->n_agreed = longest;
}

/* Copies n tokens of the hint. After m tokens that agreed, the next one agrees with probability
 * (m + 1) / (m + 2): Laplace's rule of succession. */
static void copy_tokens(const struct hint *h, uint32_t n, struct draft *to)
{
    memcpy(to->tokens, h->tokens + h->at, n * sizeof(to->tokens[0]));
    for (uint32_t i = 0; i < n; i++)
        to->survival[i] = (float)(h->n_agreed + 1) / (float)(h->n_agreed + i + 2);
    to->n = n;
    to->tree = false;
    to->q_mode = DRAFT_POINT;
}

bool hint_draft(struct hint *h, const struct prop_context *c, uint32_t k, struct draft *to)
{
    if (!h->n || c->n < c->n_prompt)
        return false;
    if (h->n_compared < c->n_prompt ||
        c->n == c->n_prompt) { // the output begins, at the start of the hint
        h->n_compared = c->n_prompt;
        h->at = h->n_agreed = 0;
        h->is_lost = false;
    }
    for (; !h->is_lost && h->n_compared < c->n && h->at < h->n;
         h->at++, h->n_compared++, h->n_agreed++)
        if (c->tokens[h->n_compared] != h->tokens[h->at])
            break;
    if (c->n > c->n_prompt && (h->is_lost || h->n_compared < c->n))
        find_position(h, c);
    h->n_compared = c->n;
    uint32_t left = h->n - h->at;
    if (h->is_lost || !left)
        return false;
    copy_tokens(h, left < k ? left : k, to);
    return true;
}
