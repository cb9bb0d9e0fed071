/* request_pace.c - the times of addresses, and the requests that wait. */
#include "gateway/http/request_pace.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "base/svc.h"
#include "base/thread.h"
#include "gateway/http/others.h"

#define PART 4 // an address gets 1 / PART of the threads' time
#define TICK_US 1000
#define REQUEST_US 50   // of a thread, for a request without a body
#define BYTES_PER_US 16 // of a body, for the worst JSON
#define MOST_US 600     // charged before; larger bodies are read on other threads

struct entry_queue {
    struct request_pace_entry *first, *last;
};

struct request_pace_entry {
    int64_t next_us;                        // when the next request may begin
    struct request_pace_turn *first, *last; // that wait
    struct entry_queue *in;                 // NULL: none waits
    struct request_pace_entry *prev, *next; // in the queue
};

struct request_pace {
    void (*go)(struct request_pace_turn *t);
    unsigned n_threads;
    uint64_t secret; // clients must not choose addresses that meet in one entry
    struct metric *waited;
    pthread_t thread;
    bool runs; // the thread

    pthread_mutex_t mu; // guards the fields below
    pthread_cond_t changed;
    struct request_pace_entry entries[REQUEST_PACE_ENTRIES];
    struct entry_queue early; // their requests wait for the rate of the address
    struct entry_queue due;   // their requests wait for others; they take turns
    unsigned n_begun;         // requests that have begun and are not handled yet
    unsigned n_direct;        // requests that have begun without a wait since ...
    int64_t direct_us;        // ... this time
    struct others others;     // by entry
    bool ended;
};

/* ---- decisions; with the lock ---- */

static int64_t interval_us(const struct request_pace *p, int64_t work_us)
{
    return work_us * PART / p->n_threads;
}

/* Whether the rate of the address allows a request. */
static bool is_due(const struct request_pace *p, const struct request_pace_entry *e, int64_t now_us)
{
    return p->ended || e->next_us <= now_us || !others_are_there(&p->others, e, now_us);
}

static unsigned n_places(const struct request_pace *p)
{
    return p->n_threads * REQUEST_PACE_BEGUN;
}

static bool has_place(const struct request_pace *p)
{
    return p->ended || p->n_begun < n_places(p);
}

/* Whether a request begins without a wait; counts it. A thread of libmicrohttpd receives what all
 * its connections have sent, and a request that begins directly is handled meanwhile. So hundreds
 * could begin one after the other, never two together, and another one would wait for them. A
 * request that waited is handled only after the thread has received the others. */
static bool begins_directly(struct request_pace *p, const struct request_pace_entry *e,
                            int64_t now_us)
{
    if (e->first || !is_due(p, e, now_us))
        return false;
    if (p->ended || !others_are_there(&p->others, e, now_us))
        return true;
    if (now_us - p->direct_us >= TICK_US) {
        p->direct_us = now_us;
        p->n_direct = 0;
    }
    bool now = !p->due.first && has_place(p) && p->n_direct < n_places(p);
    p->n_direct += now;
    return now;
}

static void charge(struct request_pace *p, struct request_pace_turn *t, int64_t now_us)
{
    struct request_pace_entry *e = t->entry;
    int64_t earliest_us = now_us - interval_us(p, REQUEST_PACE_BURST_US);
    if (!others_are_there(&p->others, e, now_us)) {
        t->charged_us = 0;
        return;
    }
    e->next_us = e->next_us > earliest_us ? e->next_us : earliest_us;
    e->next_us += interval_us(p, t->charged_us);
}

/* ---- the requests that wait; with the lock ---- */

/* The entry becomes the last one of its queue. */
static void enqueue(struct request_pace *p, struct request_pace_entry *e, int64_t now_us)
{
    e->in = is_due(p, e, now_us) ? &p->due : &p->early;
    e->prev = e->in->last;
    e->next = NULL;
    *(e->prev ? &e->prev->next : &e->in->first) = e;
    e->in->last = e;
    pthread_cond_signal(&p->changed);
}

static void dequeue(struct request_pace_entry *e)
{
    *(e->prev ? &e->prev->next : &e->in->first) = e->next;
    *(e->next ? &e->next->prev : &e->in->last) = e->prev;
    e->in = NULL;
}

static void append(struct request_pace *p, struct request_pace_turn *t, int64_t now_us)
{
    struct request_pace_entry *e = t->entry;
    t->prev = e->last;
    t->next = NULL;
    *(t->prev ? &t->prev->next : &e->first) = t;
    e->last = t;
    t->waits = true;
    if (!e->in)
        enqueue(p, e, now_us);
}

static void take_out(struct request_pace_turn *t)
{
    struct request_pace_entry *e = t->entry;
    *(t->prev ? &t->prev->next : &e->first) = t->next;
    *(t->next ? &t->next->prev : &e->last) = t->prev;
    t->waits = false;
    if (!e->first)
        dequeue(e);
}

static void begin(struct request_pace *p, struct request_pace_turn *t, int64_t now_us)
{
    charge(p, t, now_us);
    t->begun = true;
    p->n_begun++;
}

/* Ends the wait of the first request, if the rate still allows it. The next one waits until the
 * other addresses have had their turns. */
static void take_turn(struct request_pace *p, struct request_pace_entry *e, int64_t now_us)
{
    struct request_pace_turn *t = e->first;
    if (is_due(p, e, now_us)) {
        take_out(t);
        begin(p, t, now_us);
        p->go(t);
    }
    if (e->in) {
        dequeue(e);
        enqueue(p, e, now_us);
    }
}

/* Afterwards no request is due, or there is no place. */
static void fill_places(struct request_pace *p, int64_t now_us)
{
    while (p->due.first && has_place(p))
        take_turn(p, p->due.first, now_us);
}

static void end_begun(struct request_pace *p, struct request_pace_turn *t, int64_t now_us)
{
    if (!t->begun)
        return;
    t->begun = false;
    p->n_begun--;
    fill_places(p, now_us);
}

/* ---- calls ---- */

bool request_pace_ask(struct request_pace *p, struct request_pace_turn *t, const struct address *a,
                      size_t bytes, int64_t now_us)
{
    struct address site = address_site(a);
    int64_t by_size_us = REQUEST_US + (int64_t)(bytes / BYTES_PER_US);
    pthread_mutex_lock(&p->mu);
    t->entry = &p->entries[address_hash(&site, p->secret) % REQUEST_PACE_ENTRIES];
    t->charged_us = by_size_us < MOST_US ? by_size_us : MOST_US;
    others_note(&p->others, t->entry, now_us);
    bool now = begins_directly(p, t->entry, now_us);
    if (now)
        begin(p, t, now_us);
    else
        append(p, t, now_us);
    pthread_mutex_unlock(&p->mu);
    if (!now)
        metrics_add(p->waited, 1);
    return now;
}

void request_pace_done(struct request_pace *p, struct request_pace_turn *t, int64_t took_us,
                       int64_t now_us)
{
    pthread_mutex_lock(&p->mu);
    if (t->charged_us)
        t->entry->next_us += interval_us(p, took_us - t->charged_us);
    t->charged_us = 0;
    end_begun(p, t, now_us);
    pthread_mutex_unlock(&p->mu);
}

void request_pace_leave(struct request_pace *p, struct request_pace_turn *t, int64_t now_us)
{
    pthread_mutex_lock(&p->mu);
    if (t->waits) {
        take_out(t);
        t->charged_us = 0; // nothing was charged
    }
    end_begun(p, t, now_us);
    pthread_mutex_unlock(&p->mu);
}

void request_pace_end(struct request_pace *p)
{
    pthread_mutex_lock(&p->mu);
    p->ended = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->mu);
}

void request_pace_tick(struct request_pace *p, int64_t now_us)
{
    pthread_mutex_lock(&p->mu);
    for (struct request_pace_entry *e = p->early.first, *next; e; e = next) {
        next = e->next;
        if (is_due(p, e, now_us)) {
            dequeue(e);
            enqueue(p, e, now_us);
        }
    }
    fill_places(p, now_us);
    pthread_mutex_unlock(&p->mu);
}

/* ---- the thread ---- */

/* false: nobody waits, and the pace has ended. */
static bool await_waits(struct request_pace *p)
{
    pthread_mutex_lock(&p->mu);
    while (!p->early.first && !p->due.first && !p->ended)
        pthread_cond_wait(&p->changed, &p->mu);
    bool waits = p->early.first || p->due.first;
    pthread_mutex_unlock(&p->mu);
    return waits;
}

static void *pace_main(void *arg)
{
    struct request_pace *p = arg;
    while (await_waits(p)) {
        svc_awake();
        nanosleep(&(struct timespec){.tv_nsec = TICK_US * 1000}, NULL);
        request_pace_tick(p, clock_us());
        svc_asleep();
    }
    return NULL;
}

int request_pace_new(unsigned n_threads, void (*go)(struct request_pace_turn *t),
                     struct request_pace **ret)
{
    AUTO(request_pace_free) struct request_pace *p = calloc(1, sizeof(*p));
    if (!p)
        return fail(-ENOMEM, "http: no memory");
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->go = go;
    p->n_threads = n_threads;
    p->secret = rng_secret();
    p->waited = metrics_counter("tandem_gateway_requests_paced_total",
                                "Requests that waited because their address had used its part of "
                                "the time of the HTTP threads, or for requests of others.",
                                NULL);
    int rc = thread_start(pace_main, p, 0, &p->thread);
    if (rc < 0)
        return rc;
    p->runs = true;
    *ret = TAKE(p);
    return 0;
}

void request_pace_free(struct request_pace *p)
{
    if (!p)
        return;
    request_pace_end(p);
    if (p->runs)
        pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mu);
    free(p);
}
