/* upstream_waiters.h - the requests that wait for a model to load, and which one gives way.
 *
 * There are UPSTREAM_WAITING_MAX places. When all are taken, a newcomer displaces the newest
 * request of the payer with most. Its own payer must have fewer, the newcomer included.
 *
 * Private to upstream.c. Threads: one at a time. */
#pragma once
#include <stdint.h>

struct upstream_waiters_payer;

struct upstream_waiter {
    struct upstream_waiter *next; // the next older one
    struct upstream_waiters_payer *payer;
    int64_t until_us;
    const char *model; // owned by the caller
    void (*fn)(void *user, int err);
    void *user;
};

struct upstream_waiters {
    struct upstream_waiter *first; // the newest
    struct upstream_waiters_payer *payers;
    unsigned n;
};

/* payer: its name, which is copied. *ret_displaced: the waiter that has lost its place; NULL: none.
 * -EHOSTDOWN, with a sentence: no place is free, and no payer has more; -ENOMEM. */
int upstream_waiters_add(struct upstream_waiters *s, struct upstream_waiter *w, const char *payer,
                         struct upstream_waiter **ret_displaced);
/* at: where the list points to the waiter. The waiter is the caller's then. */
struct upstream_waiter *upstream_waiters_remove(struct upstream_waiters *s,
                                                struct upstream_waiter **at);
/* The sentence for one that has lost its place, or gets none. */
int upstream_waiters_full(void);
