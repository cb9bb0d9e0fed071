/* bad_keys.c - wrong API keys: pauses for the addresses that send them. */
#include "gateway/keys/bad_keys.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/rng.h"

#define SETS 128 // of addresses with equal hashes
#define WAYS 8   // addresses of a set
#define SECOND_US INT64_C(1000000)

struct entry {
    struct address site; // see address_site()
    unsigned n;          // wrong keys, without those of a pause; 0: the entry is free
    int64_t last_us;     // time of the last wrong key
    int64_t paused_us;   // end of the pause
};

struct bad_keys {
    pthread_mutex_t mu; // guards the fields below
    uint64_t seed;      // of the hash, so that clients cannot choose their set
    struct entry sets[SETS][WAYS];
    struct bad_keys_report report;
    int64_t reported_us; // time of the last report; 0: none
};

int bad_keys_new(struct bad_keys **ret)
{
    struct bad_keys *b = calloc(1, sizeof(*b));
    if (!b)
        return fail(-ENOMEM, "no memory for addresses with wrong API keys");
    pthread_mutex_init(&b->mu, NULL);
    b->seed = rng_secret();
    *ret = b;
    return 0;
}

void bad_keys_free(struct bad_keys *b)
{
    if (!b)
        return;
    pthread_mutex_destroy(&b->mu);
    free(b);
}

/* With the lock. The entry of this address, or the free or oldest one of its set, emptied. */
static struct entry *entry_of(struct bad_keys *b, const struct address *site, int64_t now_us)
{
    struct entry *set = b->sets[XXH3_64bits_withSeed(site->ip, sizeof(site->ip), b->seed) % SETS];
    struct entry *oldest = set;
    for (unsigned i = 0; i < WAYS; i++) {
        struct entry *e = &set[i];
        if (e->n && now_us - e->last_us > BAD_KEYS_FORGET_S * SECOND_US)
            *e = (struct entry){0};
        if (e->n && address_equal(&e->site, site))
            return e;
        if (!e->n || (oldest->n && e->last_us < oldest->last_us))
            oldest = e;
    }
    *oldest = (struct entry){.site = *site};
    return oldest;
}

static int64_t pause_of(unsigned n)
{
    unsigned doubled = n - BAD_KEYS_FREE < 6 ? n - BAD_KEYS_FREE : 6;
    unsigned s = 1u << doubled;
    return (s < BAD_KEYS_MAX_PAUSE_S ? s : BAD_KEYS_MAX_PAUSE_S) * SECOND_US;
}

unsigned bad_keys_note(struct bad_keys *b, const struct address *client, int64_t now_us)
{
    struct address site = address_site(client);
    pthread_mutex_lock(&b->mu);
    struct entry *e = entry_of(b, &site, now_us);
    int64_t left_us = e->paused_us - now_us;
    e->last_us = now_us;
    if (left_us <= 0 && ++e->n >= BAD_KEYS_FREE)
        e->paused_us = now_us + pause_of(e->n);
    b->report.n++;
    b->report.n_paused += left_us > 0;
    address_text(client, b->report.client);
    pthread_mutex_unlock(&b->mu);
    return left_us > 0 ? (unsigned)((left_us + SECOND_US - 1) / SECOND_US) : 0;
}

bool bad_keys_report(struct bad_keys *b, int64_t now_us, struct bad_keys_report *ret)
{
    pthread_mutex_lock(&b->mu);
    bool due = b->report.n &&
               (!b->reported_us || now_us - b->reported_us >= BAD_KEYS_REPORT_S * SECOND_US);
    if (due) {
        *ret = b->report;
        b->report = (struct bad_keys_report){0};
        b->reported_us = now_us;
    }
    pthread_mutex_unlock(&b->mu);
    return due;
}
