/* prompt_places.c - which requests with several prompts may run one more prompt. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "gateway/serve/prompt_places.h"

struct prompt_places_payer {
    struct prompt_places_payer *next;
    unsigned n_requests, n;                     // n: places taken
    struct prompt_places_request *first, *last; // that wait
    char name[];
};

/* With the lock. The payer of this name, which may be new. NULL: no memory. */
static struct prompt_places_payer *find_payer(struct prompt_places *p, const char *name)
{
    struct prompt_places_payer *payer = p->payers;
    while (payer && strcmp(payer->name, name) != 0)
        payer = payer->next;
    if (payer || !(payer = calloc(1, sizeof(*payer) + strlen(name) + 1)))
        return payer;
    memcpy(payer->name, name, strlen(name) + 1);
    payer->next = p->payers;
    p->payers = payer;
    return payer;
}

int prompt_places_join(struct prompt_places *p, struct prompt_places_request *r, const char *payer)
{
    pthread_mutex_lock(&p->mu);
    r->payer = find_payer(p, payer);
    if (r->payer)
        r->payer->n_requests++;
    pthread_mutex_unlock(&p->mu);
    return r->payer ? 0 : fail(-ENOMEM, "no memory for this request");
}

void prompt_places_leave(struct prompt_places *p, struct prompt_places_request *r)
{
    struct prompt_places_payer *payer = TAKE(r->payer), **at = &p->payers;
    if (!payer)
        return;
    pthread_mutex_lock(&p->mu);
    if (--payer->n_requests == 0) {
        while (*at != payer)
            at = &(*at)->next;
        *at = payer->next;
        free(payer);
    }
    pthread_mutex_unlock(&p->mu);
}

/* With the lock. */
static void take_place(struct prompt_places *p, struct prompt_places_payer *payer)
{
    payer->n++;
    p->n++;
}

/* With the lock. */
static void append_waiting(struct prompt_places_payer *payer, struct prompt_places_request *r)
{
    r->waits = true;
    r->prev = payer->last;
    r->next = NULL;
    *(r->prev ? &r->prev->next : &payer->first) = r;
    payer->last = r;
}

/* With the lock. */
static void remove_waiting(struct prompt_places_payer *payer, struct prompt_places_request *r)
{
    r->waits = false;
    *(r->prev ? &r->prev->next : &payer->first) = r->next;
    *(r->next ? &r->next->prev : &payer->last) = r->prev;
}

/* Where places are free, nobody waits who may have one: prompt_places_give() passes them on. */
bool prompt_places_take(struct prompt_places *p, struct prompt_places_request *r)
{
    struct prompt_places_payer *payer = r->payer;
    pthread_mutex_lock(&p->mu);
    bool may = payer->n < PROMPT_PLACES_OF_PAYER && p->n < PROMPT_PLACES_MAX;
    if (may) {
        take_place(p, payer);
    } else {
        append_waiting(payer, r);
    }
    pthread_mutex_unlock(&p->mu);
    return may;
}

/* With the lock. The payer that gets a free place; NULL: none. */
static struct prompt_places_payer *next_payer(const struct prompt_places *p)
{
    struct prompt_places_payer *found = NULL;
    for (struct prompt_places_payer *payer = p->payers; payer; payer = payer->next)
        if (payer->first && payer->n < PROMPT_PLACES_OF_PAYER && (!found || payer->n < found->n))
            found = payer;
    return found;
}

struct prompt_places_request *prompt_places_give(struct prompt_places *p,
                                                 struct prompt_places_request *r)
{
    struct prompt_places_request *heir = NULL;
    pthread_mutex_lock(&p->mu);
    r->payer->n--;
    p->n--;
    struct prompt_places_payer *payer = next_payer(p);
    if (payer) {
        heir = payer->first;
        remove_waiting(payer, heir);
        take_place(p, payer);
    }
    pthread_mutex_unlock(&p->mu);
    return heir;
}

bool prompt_places_cancel(struct prompt_places *p, struct prompt_places_request *r)
{
    pthread_mutex_lock(&p->mu);
    bool waited = r->waits;
    if (waited)
        remove_waiting(r->payer, r);
    pthread_mutex_unlock(&p->mu);
    return waited;
}
