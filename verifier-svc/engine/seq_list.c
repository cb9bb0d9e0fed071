/* seq_list.c - a bounded list of sequences in order of arrival. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "verifier-svc/engine/seq_list.h"

int seq_list_init(struct seq_list *l, uint32_t max)
{
    *l = (struct seq_list){.v = calloc(max, sizeof(*l->v)), .max = max};
    return l->v ? 0 : fail(-ENOMEM, "no memory for a list of %u sequences", max);
}

void seq_list_done(struct seq_list *l)
{
    free(l->v);
    *l = (struct seq_list){0};
}

void seq_list_add(struct seq_list *l, struct seq *s)
{
    if (l->n >= l->max)
        abort(); // admit.c has miscounted: better no service than a broken heap
    uint32_t at = l->n++;
    for (; at > 0 && l->v[at - 1]->order > s->order; at--)
        l->v[at] = l->v[at - 1];
    l->v[at] = s;
}

void seq_list_remove(struct seq_list *l, const struct seq *s)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->v[i] != s)
            continue;
        memmove(&l->v[i], &l->v[i + 1], (l->n - i - 1) * sizeof(*l->v));
        l->n--;
        return;
    }
}

struct seq *seq_list_find(const struct seq_list *l, uint64_t id)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->v[i]->id == id)
            return l->v[i];
    }
    return NULL;
}
