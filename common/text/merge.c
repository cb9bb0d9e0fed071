/* merge.c - joins neighbouring symbols, best pair first. */
#include <errno.h>
#include <stdlib.h>
#include "base/err.h"
#include "text/merge.h"

void merge_done(struct merge *m)
{
    free(m->symbols);
    free(m->items);
}

int merge_reserve(struct merge *m, size_t n)
{
    m->n = n;
    if (n <= m->cap)
        return 0;
    size_t cap = n < 256 ? 256 : n + n / 2;
    free(m->symbols);
    free(m->items);
    m->cap = 0;
    m->symbols = malloc(cap * sizeof(*m->symbols));
    m->items = malloc(2 * cap * sizeof(*m->items)); // a join takes one and adds at most two
    if (!m->symbols || !m->items)
        return fail(-ENOMEM, "tokenizer: no memory for a text of %zu symbols", n);
    m->cap = cap;
    return 0;
}

/* ---- a binary heap, least key first ---- */

static void sift_down(struct merge *m, size_t at)
{
    struct merge_item item = m->items[at];
    for (size_t child; (child = 2 * at + 1) < m->n_items; at = child) {
        if (child + 1 < m->n_items && m->items[child + 1].key < m->items[child].key)
            child++;
        if (m->items[child].key >= item.key)
            break;
        m->items[at] = m->items[child];
    }
    m->items[at] = item;
}

static void push(struct merge *m, struct merge_item item)
{
    size_t at = m->n_items++;
    for (size_t parent; at > 0; at = parent) {
        parent = (at - 1) / 2;
        if (m->items[parent].key <= item.key)
            break;
        m->items[at] = m->items[parent];
    }
    m->items[at] = item;
}

static struct merge_item pop(struct merge *m)
{
    struct merge_item item = m->items[0];
    m->items[0] = m->items[--m->n_items];
    if (m->n_items > 0)
        sift_down(m, 0);
    return item;
}

/* ---- the loop ---- */

static bool make_item(const struct merge *m, const struct merge_rule *rule, const char *text,
                      uint32_t left, uint32_t right, struct merge_item *ret)
{
    const struct merge_symbol *l = &m->symbols[left], *r = &m->symbols[right];
    uint32_t order, id;
    if (!rule->pair(rule->arg, text, l, r, &order, &id))
        return false;
    *ret = (struct merge_item){(uint64_t)order << 32 | left, id, l->len + r->len};
    return true;
}

static void link_symbols(struct merge *m, const struct merge_rule *rule, const char *text)
{
    m->n_items = 0;
    for (size_t i = 0; i < m->n; i++) {
        m->symbols[i].prev = i > 0 ? (uint32_t)i - 1 : MERGE_END;
        m->symbols[i].next = i + 1 < m->n ? (uint32_t)i + 1 : MERGE_END;
    }
    for (size_t i = 1; i < m->n; i++)
        if (make_item(m, rule, text, (uint32_t)i - 1, (uint32_t)i, &m->items[m->n_items]))
            m->n_items++;
    for (size_t i = m->n_items / 2; i-- > 0;)
        sift_down(m, i);
}

void merge_run(struct merge *m, const struct merge_rule *rule, const char *text)
{
    struct merge_item fresh;
    link_symbols(m, rule, text);
    while (m->n_items > 0) {
        struct merge_item item = pop(m);
        uint32_t left = (uint32_t)item.key;
        struct merge_symbol *l = &m->symbols[left];
        if (l->len == 0 || l->next == MERGE_END)
            continue;
        struct merge_symbol *r = &m->symbols[l->next];
        if (l->len + r->len != item.len)
            continue;
        l->len = item.len;
        l->id = item.id;
        l->next = r->next;
        r->len = 0;
        if (l->next != MERGE_END)
            m->symbols[l->next].prev = left;
        if (l->prev != MERGE_END && make_item(m, rule, text, l->prev, left, &fresh))
            push(m, fresh);
        if (l->next != MERGE_END && make_item(m, rule, text, left, l->next, &fresh))
            push(m, fresh);
    }
}
