/* accept.c - the own-draw rule. */
#include <stddef.h>
#include "verifier-svc/accept/accept.h"

struct accept_q accept_q_of(const struct draft *d, uint32_t node)
{
    const struct draft_q *q = d->q;
    if (!q)
        return (struct accept_q){0};
    uint32_t row = q->row[node];
    size_t at = (size_t)row * q->width;
    return (struct accept_q){q->width, q->ids ? q->ids + at : NULL, q->weights + at, q->sums[row]};
}

/* The first child of `node` (-1: the last committed token) that is `token`; -1: none.
 * ret_leaf: the node has no children at all. */
static int32_t child_of(const struct draft *t, int32_t node, uint32_t token, bool *ret_leaf)
{
    *ret_leaf = true;
    for (uint32_t i = (uint32_t)(node + 1); i < t->n; i++) {
        if (t->parents[i] != node)
            continue;
        *ret_leaf = false;
        if (t->tokens[i] == token)
            return (int32_t)i;
    }
    return -1;
}

void accept_own_draw(const struct draft *t, accept_draw_fn *draw, void *arg,
                     struct accept_result *ret)
{
    int32_t node = -1;
    bool goes_on, leaf;
    ret->n_tokens = ret->n_accepted = 0;
    do {
        goes_on = draw(arg, (uint32_t)(node + 1), &ret->token);
        ret->n_tokens++;
        node = child_of(t, node, ret->token, &leaf);
        if (node >= 0)
            ret->path[ret->n_accepted++] = (uint32_t)node;
    } while (goes_on && node >= 0);

    if (node >= 0)
        ret->last = ACCEPT_ACCEPTED;
    else if (!leaf)
        ret->last = ACCEPT_CORRECTION;
    else
        ret->last = t->n ? ACCEPT_BONUS : ACCEPT_TARGET;
}
