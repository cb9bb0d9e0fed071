/* address_counts.c - how many connections each client address holds. */
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "gateway/http/address_counts.h"

static struct address_count **slot_of(struct address_counts *t, const struct address *site)
{
    uint64_t words[2];
    memcpy(words, site->ip, sizeof(words));
    uint64_t hash = rng_splitmix64(rng_splitmix64(t->secret ^ words[0]) ^ words[1]);
    return &t->slots[hash % ADDRESS_COUNTS_SLOTS];
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
    free(c);
}
