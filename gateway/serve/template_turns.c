/* template_turns.c - the turns of payers, and the pauses of failing templates. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/rng.h"
#include "gateway/serve/template_turns.h"

struct payer {
    struct payer *next; // whose turn is later
    struct template_turn *first, *last;
    unsigned n;
    char name[];
};

/* A template that has failed for a payer. */
struct failing {
    uint64_t key;
    unsigned n;       // failures in a row; 0: the entry is free
    int64_t until_us; // end of its pause
    bool runs;
};

struct template_turns {
    struct payer *payers; // with waiting chats, in the order of their turns
    unsigned n, max;
    int64_t wait_us;
    uint64_t secret; // clients must not choose keys that collide
    struct failing failing[TEMPLATE_TURNS_FAILING];
};

int template_turns_new(unsigned max, int64_t wait_us, struct template_turns **ret)
{
    struct template_turns *t = calloc(1, sizeof(*t));
    if (!t)
        return fail(-ENOMEM, "template: no memory");
    t->max = max;
    t->wait_us = wait_us;
    t->secret = rng_secret();
    *ret = t;
    return 0;
}

void template_turns_free(struct template_turns *t)
{
    free(t);
}

/* ---- failing templates ---- */

/* NULL: it is not failing. */
static struct failing *find_failing(struct template_turns *t, uint64_t key)
{
    for (unsigned i = 0; i < TEMPLATE_TURNS_FAILING; i++)
        if (t->failing[i].n && t->failing[i].key == key)
            return &t->failing[i];
    return NULL;
}

/* A free entry, or the one whose pause ended first and that does not run. NULL: all run. */
static struct failing *add_failing(struct template_turns *t, uint64_t key)
{
    struct failing *oldest = NULL;
    for (unsigned i = 0; i < TEMPLATE_TURNS_FAILING && !(oldest && !oldest->n); i++) {
        struct failing *f = &t->failing[i];
        if (!f->runs && (!oldest || !f->n || f->until_us < oldest->until_us))
            oldest = f;
    }
    if (oldest)
        *oldest = (struct failing){.key = key};
    return oldest;
}

static int64_t pause_us(unsigned n_failures)
{
    unsigned doublings = n_failures < 2 ? 0 : n_failures - 2;
    int64_t s = n_failures < 2 ? 0 : doublings < 6 ? 1 << doublings : TEMPLATE_TURNS_MAX_PAUSE_S;
    return s * 1000000;
}

/* The turn that probes ends the probe; its entry is kept until then. */
bool template_turns_end(struct template_turns *t, const struct template_turn *turn,
                        enum template_turns_result result, int64_t now_us)
{
    struct failing *f = find_failing(t, turn->key);
    if (f && turn->probes)
        f->runs = false;
    if (result == TEMPLATE_TURNS_FAILED)
        f = f ? f : add_failing(t, turn->key);
    if (f && result == TEMPLATE_TURNS_FAILED) {
        f->n++;
        f->until_us = now_us + pause_us(f->n);
    } else if (f && result == TEMPLATE_TURNS_DONE && !f->runs) {
        *f = (struct failing){0};
    }
    return turn->probes;
}

/* ---- turns ---- */

static struct payer *find_payer(struct template_turns *t, const char *name)
{
    struct payer *payer = t->payers;
    while (payer && strcmp(payer->name, name) != 0)
        payer = payer->next;
    return payer;
}

static void append_payer(struct template_turns *t, struct payer *payer)
{
    struct payer **at = &t->payers;
    while (*at)
        at = &(*at)->next;
    payer->next = NULL;
    *at = payer;
}

/* The payer of this name, which may be new. NULL: no memory. */
static struct payer *take_payer(struct template_turns *t, const char *name)
{
    struct payer *payer = find_payer(t, name);
    size_t len = strlen(name) + 1;
    if (payer || !(payer = calloc(1, sizeof(*payer) + len)))
        return payer;
    memcpy(payer->name, name, len);
    append_payer(t, payer);
    return payer;
}

int template_turns_enter(struct template_turns *t, struct template_turn *turn, const char *name,
                         const void *source, size_t len, int64_t now_us)
{
    const struct payer *known = find_payer(t, name);
    if (t->n == t->max)
        return fail(-EAGAIN, "%u chats already wait for their templates; try again", t->n);
    if (known && known->n + 1 > t->max - t->n - 1)
        return fail(-EDQUOT, "%u of your chats already wait for their templates; try again",
                    known->n);
    struct payer *payer = take_payer(t, name);
    if (!payer)
        return fail(-ENOMEM, "template: no memory");
    uint64_t seed = XXH3_64bits_withSeed(name, strlen(name), t->secret);
    *turn =
        (struct template_turn){.key = XXH3_64bits_withSeed(source, len, seed), .since_us = now_us};
    *(payer->first ? &payer->last->next : &payer->first) = turn;
    payer->last = turn;
    payer->n++;
    t->n++;
    return 0;
}

/* Takes the first chat of the payer, whose next turn comes after all others. */
static struct template_turn *take_from(struct template_turns *t, struct payer **at)
{
    struct payer *payer = *at;
    struct template_turn *turn = payer->first;
    payer->first = turn->next;
    payer->n--;
    t->n--;
    *at = payer->next;
    if (payer->first)
        append_payer(t, payer);
    else
        free(payer);
    return turn;
}

static int judge(struct template_turns *t, struct template_turn *turn, struct failing *f,
                 int64_t now_us)
{
    int64_t left_us = f ? f->until_us - now_us : 0;
    if (now_us - turn->since_us > t->wait_us)
        return fail(-ETIMEDOUT,
                    "the chat has waited for its template for the longest time allowed, %g s; try "
                    "again later",
                    (double)t->wait_us / 1e6);
    if (left_us > 0) {
        turn->retry_s = (unsigned)((left_us + 999999) / 1000000);
        return fail(-EBUSY,
                    "the chat template took too long or failed %u times in a row; it is tried "
                    "again in %.1f s",
                    f->n, (double)left_us / 1e6);
    }
    if (f)
        f->runs = turn->probes = true;
    return 0;
}

int template_turns_next(struct template_turns *t, int64_t now_us, struct template_turn **ret)
{
    *ret = NULL;
    for (struct payer **at = &t->payers; *at; at = &(*at)->next) {
        struct failing *f = find_failing(t, (*at)->first->key);
        if (f && f->runs)
            continue;
        *ret = take_from(t, at);
        return judge(t, *ret, f, now_us);
    }
    return 0;
}

struct template_turn *template_turns_drop(struct template_turns *t)
{
    return t->payers ? take_from(t, &t->payers) : NULL;
}
