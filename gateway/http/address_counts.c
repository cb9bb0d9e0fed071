/* address_counts.c - how many connections each client address holds. */
#include <stdlib.h>
#include "gateway/http/address_counts.h"

static struct address_count **slot_of(struct address_counts *t, const struct address *site)
{
    return &t->slots[address_hash(site, t->secret) % ADDRESS_COUNTS_SLOTS];
}

struct address_count *address_counts_take(struct address_counts *t, const struct address *a)
{
    struct address site = address_site(a);
    struct address_count **slot = slot_of(t, &site), *c = *slot;
    while (c && !address_equal(&c->site, &site))
        c = c->next;
    if (!c) {
        c = calloc(1, sizeof(*c));
        if (!c)
            return NULL;
        c->site = site;
        c->next = *slot;
        *slot = c;
        t->n++;
    }
    c->n_refs++;
    return c;
}

void address_counts_drop(struct address_counts *t, struct address_count *c)
{
    if (!c || --c->n_refs)
        return;
    struct address_count **at = slot_of(t, &c->site);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    t->n--;
    free(c);
}
