/* accept.c - drafts as trees, and the own-draw rule. */
#include "verifier-svc/accept/accept.h"

bool accept_valid(const struct accept_tree *t, uint32_t n_vocab)
{
    if (t->n > ACCEPT_MAX)
        return false;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->tokens[i] >= n_vocab || t->parents[i] < -1 || t->parents[i] >= (int32_t)i)
            return false;
    }
    return true;
}

uint32_t accept_trim(uint32_t *tokens, int32_t *parents, float *survival, uint8_t *q_row,
                     uint32_t n, uint32_t max_nodes, uint32_t max_depth)
{
    uint32_t depth[ACCEPT_MAX] = {0}, kept = 0;
    int32_t moved_to[ACCEPT_MAX] = {0};
    for (uint32_t i = 0; i < n && kept < max_nodes; i++) {
        int32_t parent = parents[i];
        depth[i] = parent < 0 ? 1 : depth[parent] + 1;
        if (depth[i] > max_depth)
            continue; // and so are all below it
        moved_to[i] = (int32_t)kept;
        tokens[kept] = tokens[i];
        survival[kept] = survival[i];
        q_row[kept] = q_row[i];
        parents[kept++] = parent < 0 ? -1 : moved_to[parent];
    }
    return kept;
}

uint32_t accept_cut(uint32_t *tokens, int32_t *parents, float *survival, uint8_t *q_row, uint32_t n,
                    float p_min, bool drawn)
{
    uint32_t kept = 0;
    int32_t moved_to[ACCEPT_MAX];
    bool unlikely = false;
    for (uint32_t i = 0; i < n && !(drawn && unlikely); i++) {
        int32_t parent = parents[i] < 0 ? -1 : moved_to[parents[i]];
        bool orphan = parents[i] >= 0 && parent < 0;
        unlikely = survival[i] < p_min * (parent < 0 ? 1 : survival[parent]);
        moved_to[i] = -1;
        if (orphan || (unlikely && !drawn))
            continue;
        moved_to[i] = (int32_t)kept;
        tokens[kept] = tokens[i];
        survival[kept] = survival[i];
        q_row[kept] = q_row[i];
        parents[kept++] = parent;
    }
    return kept;
}

/* The first child of `node` (-1: the last committed token) that is `token`; -1: none.
 * ret_leaf: the node has no children at all. */
static int32_t child_of(const struct accept_tree *t, int32_t node, uint32_t token, bool *ret_leaf)
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

void accept_own_draw(const struct accept_tree *t, accept_draw_fn *draw, void *arg,
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
