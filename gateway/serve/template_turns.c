/* template_turns.c - the turns of payers, slow payers, and the pauses of failing templates. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/rng.h"
#include "gateway/http/others.h"
#include "gateway/serve/template_turns.h"

#define TOO_MANY "%u of your chats already wait for their templates; try again"

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

struct template_turns_entry {
    int64_t slow_until_us;
    int64_t served_us; // of the helpers' CPU time
    int64_t last_us;   // of it, for the last chat
    bool quick_large;  // the last large chat was quick
};

struct template_turns {
    struct payer *payers; // with waiting chats, in the order of their turns
    unsigned n, max, n_helpers;
    int64_t wait_us;
    uint64_t secret; // clients must not choose keys that collide
    struct failing failing[TEMPLATE_TURNS_FAILING];
    struct template_turns_entry entries[TEMPLATE_TURNS_ENTRIES];
    struct template_turn *running; // are rendered
    int64_t most_served_us;        // the largest that any entry has had
    struct others others;          // by entry
};

int template_turns_new(unsigned n_helpers, unsigned max, int64_t wait_us,
                       struct template_turns **ret)
{
    struct template_turns *t = calloc(1, sizeof(*t));
    if (!t)
        return fail(-ENOMEM, "template: no memory");
    t->n_helpers = n_helpers;
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
static void end_try(struct template_turns *t, const struct template_turn *turn,
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
}

/* ---- slow payers ---- */

/* A chat that came from a slow payer stays slow while it waits. Otherwise many slow payers, which
 * wait long for each other, would all be quick again at their next turns. */
static bool is_slow(const struct template_turn *turn, int64_t now_us)
{
    const struct template_turns_entry *e = turn->entry;
    return (turn->is_large && !e->quick_large) || turn->was_slow || now_us < e->slow_until_us;
}

/* Helpers that slow payers use now, also those whose rendering has not ended yet. */
static unsigned n_slow_helpers(const struct template_turns *t, int64_t now_us)
{
    unsigned n = 0;
    for (const struct template_turn *turn = t->running; turn; turn = turn->next)
        n += is_slow(turn, now_us) || now_us - turn->since_us > TEMPLATE_TURNS_SLOW_US;
    return n;
}

/* Whether the last helper is kept for quick payers. */
static bool is_last_kept(const struct template_turns *t, int64_t now_us)
{
    unsigned most = t->n_helpers > 1 ? t->n_helpers - 1 : 1;
    return n_slow_helpers(t, now_us) >= most;
}

/* ---- the time that payers were served ---- */

static void serve(struct template_turns *t, struct template_turns_entry *e, int64_t us)
{
    e->served_us += us;
    if (e->served_us > t->most_served_us)
        t->most_served_us = e->served_us;
}

/* A payer that starts to wait has little credit for the time in which it did not. */
static void level(struct template_turns *t, struct template_turns_entry *e)
{
    int64_t least_us = t->most_served_us;
    for (const struct payer *payer = t->payers; payer; payer = payer->next)
        if (payer->first->entry->served_us < least_us)
            least_us = payer->first->entry->served_us;
    if (e->served_us < least_us - TEMPLATE_TURNS_CREDIT_US)
        e->served_us = least_us - TEMPLATE_TURNS_CREDIT_US;
}

bool template_turns_end(struct template_turns *t, const struct template_turn *turn,
                        enum template_turns_result result, int64_t took_us, int64_t now_us)
{
    struct template_turn **at = &t->running;
    while (*at != turn)
        at = &(*at)->next;
    *at = turn->next;
    bool was_slow = is_slow(turn, now_us);
    if (took_us > TEMPLATE_TURNS_SLOW_US)
        turn->entry->slow_until_us = now_us + TEMPLATE_TURNS_SLOW_FOR_US;
    serve(t, turn->entry, took_us - turn->charged_us);
    turn->entry->last_us = took_us;
    if (turn->is_large)
        turn->entry->quick_large = took_us <= TEMPLATE_TURNS_SLOW_US;
    end_try(t, turn, result, now_us);
    return turn->probes || was_slow || is_slow(turn, now_us);
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

static struct payer *new_payer(const char *name)
{
    size_t len = strlen(name) + 1;
    struct payer *payer = calloc(1, sizeof(*payer) + len);
    if (payer)
        memcpy(payer->name, name, len);
    return payer;
}

/* Takes the chat after `before`, NULL: the first. A payer without chats is removed. */
static struct template_turn *take_out(struct template_turns *t, struct payer **at,
                                      struct template_turn *before)
{
    struct payer *payer = *at;
    struct template_turn **link = before ? &before->next : &payer->first, *turn = *link;
    *link = turn->next;
    if (!turn->next)
        payer->last = before;
    payer->n--;
    t->n--;
    if (!payer->n) {
        *at = payer->next;
        free(payer);
    }
    return turn;
}

/* The same; of equal payers, the turn of this one comes after all others. */
static struct template_turn *take_from(struct template_turns *t, struct payer **at,
                                       struct template_turn *before)
{
    struct payer *payer = *at;
    bool more = payer->n > 1;
    struct template_turn *turn = take_out(t, at, before);
    if (more) {
        *at = payer->next;
        append_payer(t, payer);
    }
    return turn;
}

/* Removes the newest chat of the payer with the most. NULL: none has more than n. */
static struct template_turn *displace(struct template_turns *t, unsigned n)
{
    struct payer **most = NULL;
    for (struct payer **at = &t->payers; *at; at = &(*at)->next)
        if ((*at)->n > n) {
            n = (*at)->n;
            most = at;
        }
    if (!most)
        return NULL;
    struct template_turn *before = NULL, *turn = (*most)->first;
    for (; turn->next; turn = turn->next)
        before = turn;
    fail(-EDQUOT, TOO_MANY, n);
    return take_out(t, most, before);
}

/* -EDQUOT, -EAGAIN. */
static int make_place(struct template_turns *t, const struct payer *payer,
                      struct template_turn **ret_displaced)
{
    if (t->n < t->max || (*ret_displaced = displace(t, payer ? payer->n + 1 : 1)))
        return 0;
    if (payer)
        return fail(-EDQUOT, TOO_MANY, payer->n);
    return fail(-EAGAIN, "%u chats already wait for their templates; try again", t->n);
}

int template_turns_enter(struct template_turns *t, struct template_turn *turn, const char *name,
                         const void *source, size_t len, int64_t now_us,
                         struct template_turn **ret_displaced)
{
    struct payer *known = find_payer(t, name), *payer = known ? known : new_payer(name);
    uint64_t seed = XXH3_64bits_withSeed(name, strlen(name), t->secret);
    struct template_turns_entry *entry = &t->entries[seed % TEMPLATE_TURNS_ENTRIES];
    *ret_displaced = NULL;
    others_note(&t->others, entry, now_us);
    if (!payer)
        return fail(-ENOMEM, "template: no memory");
    int rc = make_place(t, known, ret_displaced);
    if (rc < 0) {
        free(known ? NULL : payer);
        return rc;
    }
    if (!known) {
        level(t, entry);
        append_payer(t, payer);
    }
    *turn = (struct template_turn){.user = turn->user,
                                   .is_large = turn->is_large,
                                   .entry = entry,
                                   .key = XXH3_64bits_withSeed(source, len, seed),
                                   .since_us = now_us,
                                   .was_slow = now_us < entry->slow_until_us};
    *(payer->first ? &payer->last->next : &payer->first) = turn;
    payer->last = turn;
    payer->n++;
    t->n++;
    return 0;
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
    turn->since_us = now_us;
    turn->next = t->running;
    t->running = turn;
    turn->charged_us = turn->entry->last_us; // corrected at the end
    serve(t, turn->entry, turn->charged_us);
    return 0;
}

/* The payer's first chat that can be judged now; NULL: none. kept: is_last_kept(). *ret_before: the
 * chat before it. */
static const struct template_turn *find_ready(struct template_turns *t, const struct payer *payer,
                                              bool kept, int64_t now_us,
                                              struct template_turn **ret_before)
{
    const bool waits_if_slow = kept && others_are_there(&t->others, payer->first->entry, now_us);
    const struct template_turn *failing = NULL; // the others of its template wait, too
    *ret_before = NULL;
    for (struct template_turn *turn = payer->first; turn; *ret_before = turn, turn = turn->next) {
        bool expired = now_us - turn->since_us > t->wait_us;
        if (!expired && waits_if_slow && is_slow(turn, now_us))
            continue;
        if (failing && failing->key == turn->key)
            continue;
        const struct failing *f = find_failing(t, turn->key);
        if (!f || !f->runs)
            return turn;
        failing = turn;
    }
    return NULL;
}

int template_turns_next(struct template_turns *t, int64_t now_us, struct template_turn **ret)
{
    struct payer **best = NULL;
    struct template_turn *before, *best_before = NULL;
    const bool kept = is_last_kept(t, now_us);
    *ret = NULL;
    for (struct payer **at = &t->payers; *at; at = &(*at)->next) {
        bool later = best && (*at)->first->entry->served_us >= (*best)->first->entry->served_us;
        if (later || !find_ready(t, *at, kept, now_us, &before))
            continue;
        best = at;
        best_before = before;
    }
    if (!best)
        return 0;
    *ret = take_from(t, best, best_before);
    return judge(t, *ret, find_failing(t, (*ret)->key), now_us);
}

struct template_turn *template_turns_leave(struct template_turns *t, const void *user)
{
    for (struct payer **at = &t->payers; *at; at = &(*at)->next) {
        struct template_turn *before = NULL, *turn = (*at)->first;
        for (; turn && turn->user != user; turn = turn->next)
            before = turn;
        if (turn)
            return take_out(t, at, before);
    }
    return NULL;
}

struct template_turn *template_turns_drop(struct template_turns *t)
{
    return t->payers ? take_from(t, &t->payers, NULL) : NULL;
}
