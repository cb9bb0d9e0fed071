/* draft.c - drafts as trees: checks, walks and cuts. */
#include <stdlib.h>
#include "model/draft.h"

struct draft *draft_new(void)
{
    struct draft *d = malloc(sizeof(*d));
    if (!d)
        return NULL;
    d->n = 0;
    d->tree = false;
    d->q_mode = DRAFT_POINT;
    d->q = NULL;
    return d;
}

void draft_free(struct draft *d)
{
    if (!d)
        return;
    free(d->q);
    free(d);
}

bool draft_valid(const struct draft *d, uint32_t n_vocab)
{
    if (d->n > DRAFT_MAX_NODES)
        return false;
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->tokens[i] >= n_vocab || d->parents[i] < -1 || d->parents[i] >= (int32_t)i)
            return false;
    }
    return true;
}

int32_t draft_follow(const struct draft *d, const uint32_t *tokens, uint32_t n)
{
    int32_t node = -1;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t i = (uint32_t)(node + 1);
        while (i < d->n && (d->parents[i] != node || d->tokens[i] != tokens[t]))
            i++;
        if (i == d->n)
            return -2;
        node = (int32_t)i;
    }
    return node;
}

bool draft_branches(const struct draft *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (d->parents[i] != (int32_t)i - 1)
            return true;
    return false;
}

/* Node `to` becomes what node `from` was, below `parent`. */
static void move_node(struct draft *d, uint32_t to, uint32_t from, int32_t parent)
{
    d->tokens[to] = d->tokens[from];
    d->survival[to] = d->survival[from];
    d->parents[to] = parent;
    if (d->q)
        d->q->row[to] = d->q->row[from];
}

void draft_trim(struct draft *d, uint32_t max_nodes, uint32_t max_depth)
{
    uint32_t depth[DRAFT_MAX_NODES] = {0}, n_kept = 0;
    int32_t moved_to[DRAFT_MAX_NODES] = {0};
    for (uint32_t i = 0; i < d->n && n_kept < max_nodes; i++) {
        int32_t parent = d->parents[i];
        depth[i] = parent < 0 ? 1 : depth[parent] + 1;
        if (depth[i] > max_depth)
            continue; // and so are all nodes below it
        moved_to[i] = (int32_t)n_kept;
        move_node(d, n_kept++, i, parent < 0 ? -1 : moved_to[parent]);
    }
    d->n = n_kept;
}

void draft_cut(struct draft *d, float p_min)
{
    uint32_t n_kept = 0;
    int32_t moved_to[DRAFT_MAX_NODES];
    bool drawn = d->q != NULL, unlikely = false;
    for (uint32_t i = 0; i < d->n && !(drawn && unlikely); i++) {
        int32_t parent = d->parents[i] < 0 ? -1 : moved_to[d->parents[i]];
        bool orphan = d->parents[i] >= 0 && parent < 0;
        unlikely = d->survival[i] < p_min * (parent < 0 ? 1 : d->survival[parent]);
        moved_to[i] = -1;
        if (orphan || (unlikely && !drawn))
            continue;
        moved_to[i] = (int32_t)n_kept;
        move_node(d, n_kept++, i, parent);
    }
    d->n = n_kept;
}

void draft_descend(struct draft *d, int32_t root)
{
    uint32_t n_kept = 0;
    int32_t moved_to[DRAFT_MAX_NODES];
    float above = root < 0 ? 1 : d->survival[root];
    for (uint32_t i = (uint32_t)(root + 1); i < d->n; i++) {
        int32_t parent = d->parents[i];
        bool below = parent == root || (parent > root && moved_to[parent] >= 0);
        moved_to[i] = below ? (int32_t)n_kept : -1;
        if (!below)
            continue;
        d->survival[i] = above > 0 ? d->survival[i] / above : 0;
        move_node(d, n_kept++, i, parent == root ? -1 : moved_to[parent]);
    }
    d->n = n_kept;
}

/* The child of `node` with the highest survival; -1: it has no children. */
static int32_t likeliest_child(const struct draft *d, int32_t node)
{
    int32_t best = -1;
    for (uint32_t i = (uint32_t)(node + 1); i < d->n; i++)
        if (d->parents[i] == node && (best < 0 || d->survival[i] > d->survival[best]))
            best = (int32_t)i;
    return best;
}

void draft_keep_likeliest(struct draft *d)
{
    uint32_t path[DRAFT_MAX_NODES], n = 0;
    for (int32_t i = likeliest_child(d, -1); i >= 0; i = likeliest_child(d, i))
        path[n++] = (uint32_t)i;
    for (uint32_t i = 0; i < n; i++)
        move_node(d, i, path[i], (int32_t)i - 1);
    d->n = n;
}
