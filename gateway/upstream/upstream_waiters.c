/* upstream_waiters.c - the requests that wait for a model to load. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "gateway/upstream/upstream.h"
#include "gateway/upstream/upstream_waiters.h"

struct upstream_waiters_payer {
    struct upstream_waiters_payer *next;
    unsigned n;
    char name[];
};

int upstream_waiters_full(void)
{
    return fail(-EHOSTDOWN, "%d requests already wait for the model to load; try again",
                UPSTREAM_WAITING_MAX);
}

static struct upstream_waiters_payer *find_payer(const struct upstream_waiters *s, const char *name)
{
    struct upstream_waiters_payer *payer = s->payers;
    while (payer && strcmp(payer->name, name) != 0)
        payer = payer->next;
    return payer;
}

static struct upstream_waiters_payer *add_payer(struct upstream_waiters *s, const char *name)
{
    struct upstream_waiters_payer *payer = calloc(1, sizeof(*payer) + strlen(name) + 1);
    if (!payer)
        return NULL;
    memcpy(payer->name, name, strlen(name) + 1);
    payer->next = s->payers;
    s->payers = payer;
    return payer;
}

static void drop_payer(struct upstream_waiters *s, struct upstream_waiters_payer *payer)
{
    struct upstream_waiters_payer **at = &s->payers;
    while (*at != payer)
        at = &(*at)->next;
    *at = payer->next;
    free(payer);
}

/* Where the list points to the newest waiter of the payer with most. NULL: none has more than n. */
static struct upstream_waiter **find_victim(struct upstream_waiters *s, unsigned n)
{
    const struct upstream_waiters_payer *most = NULL;
    struct upstream_waiter **at = &s->first;
    for (const struct upstream_waiters_payer *p = s->payers; p; p = p->next)
        if (p->n > (most ? most->n : n))
            most = p;
    while (most && (*at)->payer != most)
        at = &(*at)->next;
    return most ? at : NULL;
}

int upstream_waiters_add(struct upstream_waiters *s, struct upstream_waiter *w, const char *payer,
                         struct upstream_waiter **ret_displaced)
{
    struct upstream_waiter **victim = NULL;
    *ret_displaced = NULL;
    w->payer = find_payer(s, payer);
    if (s->n == UPSTREAM_WAITING_MAX && !(victim = find_victim(s, w->payer ? w->payer->n + 1 : 1)))
        return upstream_waiters_full();
    if (!w->payer && !(w->payer = add_payer(s, payer)))
        return fail(-ENOMEM, "no memory");
    if (victim)
        *ret_displaced = upstream_waiters_remove(s, victim);
    w->payer->n++;
    w->next = s->first;
    s->first = w;
    s->n++;
    return 0;
}

struct upstream_waiter *upstream_waiters_remove(struct upstream_waiters *s,
                                                struct upstream_waiter **at)
{
    struct upstream_waiter *w = *at;
    *at = w->next;
    s->n--;
    if (--w->payer->n == 0)
        drop_payer(s, w->payer);
    return w;
}
