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
    uint64_t payer; // hash of the name
    int64_t slow_until_us;
    int64_t start_us; // of the next chat, in virtual time
    int64_t took_us;  // what its recent chats took at most; 0: it is new
    unsigned n;       // chats that wait or are rendered
};

struct template_turns {
    struct payer *payers; // with waiting chats, in the order of their turns
    unsigned n;           // chats that wait
    unsigned max, n_helpers;
    int64_t wait_us;
    uint64_t secret; // clients must not choose keys that collide
    struct failing failing[TEMPLATE_TURNS_FAILING];
    struct template_turns_entry entries[TEMPLATE_TURNS_ENTRIES];
    struct template_turn *running; // are rendered
    int64_t virtual_us;            // the virtual time
    int64_t last_us;               // the latest start of any entry
    unsigned n_active;             // entries with chats
    int64_t new_percent;           // of the expectation, what recent chats of new payers took
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
    t->new_percent = 100;
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
    return turn->was_slow || now_us < e->slow_until_us;
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

/* ---- virtual time ---- */

/* Measured on 2026-11-28 with templates of some models. Values cost most, because tojson() indents
 * each of them. Escapes in a text may be those of a call's arguments, which are parsed, too. */
#define COST_US 3000
#define COST_BYTE_NS 20
#define COST_ESCAPE_NS 500
#define COST_VALUE_NS 1000
#define COST_DEPTH_NS 100 // of each value, for each level
#define MARKS "\"[]{},"

/* text: at its first quote. Returns where it ends. */
static const char *skip_text(const char *text, int64_t *ns)
{
    const char *p = text + 1;
    while (*(p += strcspn(p, "\"\\")) == '\\' && p[1]) {
        *ns += COST_ESCAPE_NS;
        p += 2;
    }
    return *p ? p + 1 : p;
}

int64_t template_turns_cost_us(const char *vars)
{
    int64_t ns = 0, depth = 0;
    const char *p = vars;
    while (*(p += strcspn(p, MARKS))) {
        if (*p == '"') {
            p = skip_text(p, &ns);
            continue;
        }
        depth += *p == ',' ? 0 : *p == '[' || *p == '{' ? 1 : -1;
        ns += COST_VALUE_NS + depth * COST_DEPTH_NS;
        p++;
    }
    return COST_US + (ns + (p - vars) * COST_BYTE_NS) / 1000;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A payer that is not slow is not judged by what made it slow before. */
static int64_t expected_us(const struct template_turns *t, const struct template_turn *turn,
                           int64_t now_us)
{
    int64_t took_us = turn->entry->took_us;
    int64_t us = took_us ? larger(turn->cost_us, took_us) : turn->cost_us * t->new_percent / 100;
    return is_slow(turn, now_us) ? us : smaller(us, TEMPLATE_TURNS_SLOW_US);
}

/* The larger one, with less weight on the one before. */
static int64_t recent_most(int64_t before, int64_t last)
{
    return larger(last, before - before / 4);
}

/* One more chat of the payer waits. */
static void join(struct template_turns *t, struct template_turns_entry *e)
{
    t->n_active += !e->n++;
}

/* One chat less. Without any chat, the virtual time is the latest of all starts. */
static void part(struct template_turns *t, struct template_turns_entry *e)
{
    t->n_active -= !--e->n;
    if (!t->n_active)
        t->virtual_us = larger(t->virtual_us, t->last_us);
}

/* The payer starts to wait. */
static void level(const struct template_turns *t, struct template_turns_entry *e)
{
    e->start_us = larger(e->start_us, t->virtual_us);
    e->start_us = smaller(e->start_us, t->virtual_us + TEMPLATE_TURNS_DEBT_US);
}

/* The rendering begins. Its end is now or later in virtual time, even if it had to begin late. */
static void charge(const struct template_turns *t, struct template_turn *turn, int64_t now_us)
{
    turn->charged_us = expected_us(t, turn, now_us); // corrected at the end
    turn->entry->start_us = larger(turn->entry->start_us + turn->charged_us, t->virtual_us);
}

static void serve(struct template_turns *t, const struct template_turn *turn, int64_t took_us)
{
    struct template_turns_entry *e = turn->entry;
    int64_t percent = smaller(took_us, TEMPLATE_TURNS_SLOW_US) * 100 / turn->cost_us;
    if (!e->took_us)
        t->new_percent = larger(recent_most(t->new_percent, percent), 100);
    e->took_us = larger(recent_most(e->took_us, took_us), 1);
    e->start_us += took_us - turn->charged_us;
    t->last_us = larger(t->last_us, e->start_us);
    t->virtual_us +=
        smaller(took_us, larger(turn->charged_us, TEMPLATE_TURNS_SLOW_US)) / t->n_active;
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
    serve(t, turn, took_us);
    part(t, turn->entry);
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

/* The same, and the chat is not rendered. */
static struct template_turn *remove_chat(struct template_turns *t, struct payer **at,
                                         struct template_turn *before)
{
    struct template_turn *turn = take_out(t, at, before);
    part(t, turn->entry);
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
    return remove_chat(t, most, before);
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

/* What an idle payer left in the entry does not count for another one, unless it is slow. */
static struct template_turns_entry *take_entry(struct template_turns *t, uint64_t payer,
                                               int64_t now_us)
{
    struct template_turns_entry *e = &t->entries[payer % TEMPLATE_TURNS_ENTRIES];
    if (e->payer != payer && !e->n && now_us >= e->slow_until_us)
        *e = (struct template_turns_entry){.payer = payer};
    return e;
}

int template_turns_enter(struct template_turns *t, struct template_turn *turn, const char *name,
                         const void *source, size_t len, int64_t now_us,
                         struct template_turn **ret_displaced)
{
    struct payer *known = find_payer(t, name), *payer = known ? known : new_payer(name);
    uint64_t seed = XXH3_64bits_withSeed(name, strlen(name), t->secret);
    struct template_turns_entry *entry = take_entry(t, seed, now_us);
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
    join(t, entry);
    *turn = (struct template_turn){.user = turn->user,
                                   .entry = entry,
                                   .key = XXH3_64bits_withSeed(source, len, seed),
                                   .since_us = now_us,
                                   .cost_us = turn->cost_us,
                                   .was_slow = turn->cost_us > TEMPLATE_TURNS_SLOW_US ||
                                               now_us < entry->slow_until_us};
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
    charge(t, turn, now_us);
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
    int64_t best_us = INT64_MAX;
    const bool kept = is_last_kept(t, now_us);
    *ret = NULL;
    for (struct payer **at = &t->payers; *at; at = &(*at)->next) {
        const struct template_turn *turn = find_ready(t, *at, kept, now_us, &before);
        int64_t end_us = turn ? turn->entry->start_us + expected_us(t, turn, now_us) : INT64_MAX;
        if (end_us >= best_us)
            continue;
        best = at;
        best_before = before;
        best_us = end_us;
    }
    if (!best)
        return 0;
    *ret = take_out(t, best, best_before);
    int rc = judge(t, *ret, find_failing(t, (*ret)->key), now_us);
    if (rc < 0)
        part(t, (*ret)->entry);
    return rc;
}

struct template_turn *template_turns_leave(struct template_turns *t, const void *user)
{
    for (struct payer **at = &t->payers; *at; at = &(*at)->next) {
        struct template_turn *before = NULL, *turn = (*at)->first;
        for (; turn && turn->user != user; turn = turn->next)
            before = turn;
        if (turn)
            return remove_chat(t, at, before);
    }
    return NULL;
}

struct template_turn *template_turns_drop(struct template_turns *t)
{
    return t->payers ? remove_chat(t, &t->payers, NULL) : NULL;
}
