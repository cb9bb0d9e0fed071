/* reader.c - a thread, and the turns of payers at it. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/rng.h"
#include "base/svc.h"
#include "base/thread.h"
#include "gateway/serve/reader.h"

struct reader {
    pthread_t thread;
    bool runs;       // the thread; main thread
    uint64_t secret; // clients must not choose payers that collide

    pthread_mutex_t mu; // guards the fields below
    pthread_cond_t changed;
    struct reader_job *first; // of the payer whose turn is next; NULL: none
    bool busy;                // a job runs
    uint64_t payer;           // of the job that runs ...
    struct reader_job *rest;  // ... its first waiting job
    unsigned n;               // bodies that wait
    bool stopped;
};

/* ---- turns, with the lock ---- */

/* The first waiting job of the payer. NULL: none. */
static struct reader_job *find_first(struct reader *r, uint64_t payer)
{
    if (r->busy && r->payer == payer)
        return r->rest;
    struct reader_job *job = r->first;
    while (job && job->payer != payer)
        job = job->later;
    return job;
}

/* The payer's next turn comes after those of all others. */
static void append_payer(struct reader *r, struct reader_job *first)
{
    struct reader_job **at = &r->first;
    while (*at)
        at = &(*at)->later;
    *at = first;
}

static void append_job(struct reader *r, struct reader_job *job)
{
    struct reader_job *first = find_first(r, job->payer);
    r->n += job->n_places;
    if (first) {
        first->last->next = job;
        first->last = job;
        first->n_of_payer += job->n_places;
    } else if (r->busy && r->payer == job->payer) {
        r->rest = job;
    } else {
        append_payer(r, job);
    }
}

/* Waits for a job and removes it. NULL: the reader has stopped, and no job waits. */
static struct reader_job *take_job(struct reader *r)
{
    while (!r->first && !r->stopped)
        pthread_cond_wait(&r->changed, &r->mu);
    struct reader_job *job = r->first;
    if (!job)
        return NULL;
    r->first = job->later;
    r->rest = job->next;
    if (r->rest) {
        r->rest->last = job->last;
        r->rest->n_of_payer = job->n_of_payer - job->n_places;
    }
    r->payer = job->payer;
    r->busy = true;
    r->n -= job->n_places;
    return job;
}

/* Payers that came during the job have their turns before its payer. */
static void end_turn(struct reader *r)
{
    if (r->rest)
        append_payer(r, r->rest);
    r->rest = NULL;
    r->busy = false;
}

/* ---- thread ---- */

static void *reader_main(void *user)
{
    struct reader *r = user;
    pthread_mutex_lock(&r->mu);
    for (struct reader_job *job; (job = take_job(r)); end_turn(r)) {
        bool stops = r->stopped;
        pthread_mutex_unlock(&r->mu);
        svc_awake();
        job->fn(job->user, stops);
        svc_asleep();
        pthread_mutex_lock(&r->mu);
    }
    pthread_mutex_unlock(&r->mu);
    return NULL;
}

int reader_new(struct reader **ret)
{
    AUTO(reader_free) struct reader *r = calloc(1, sizeof(*r));
    if (!r)
        return fail(-ENOMEM, "reader: no memory");
    pthread_mutex_init(&r->mu, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->secret = rng_secret();
    int err = thread_start(reader_main, r, 0, &r->thread);
    if (err < 0)
        return err;
    r->runs = true;
    *ret = TAKE(r);
    return 0;
}

static int check_places(struct reader *r, const struct reader_job *job)
{
    const struct reader_job *first = find_first(r, job->payer);
    if (r->n >= READER_MAX_WAITING)
        return fail(-EAGAIN, "too many large requests wait to be read; try again");
    if (first && first->n_of_payer && first->n_of_payer + 1 > READER_MAX_WAITING - r->n - 1)
        return fail(-EDQUOT, "%u of your large requests already wait to be read; try again",
                    first->n_of_payer);
    return 0;
}

/* n_places: that the job takes. */
static int add(struct reader *r, struct reader_job *job, const char *payer, reader_fn *fn,
               void *user, unsigned n_places)
{
    *job = (struct reader_job){.fn = fn,
                               .user = user,
                               .payer = XXH3_64bits_withSeed(payer, strlen(payer), r->secret),
                               .n_places = n_places,
                               .last = job,
                               .n_of_payer = n_places};
    pthread_mutex_lock(&r->mu);
    int rc = r->stopped ? fail(-EPIPE, READER_STOPPING) : n_places ? check_places(r, job) : 0;
    if (rc == 0) {
        append_job(r, job);
        pthread_cond_signal(&r->changed);
    }
    pthread_mutex_unlock(&r->mu);
    return rc;
}

int reader_read(struct reader *r, struct reader_job *job, const char *payer, reader_fn *fn,
                void *user)
{
    return add(r, job, payer, fn, user, 1);
}

int reader_write(struct reader *r, struct reader_job *job, const char *payer, reader_fn *fn,
                 void *user)
{
    return add(r, job, payer, fn, user, 0);
}

int reader_status(int error)
{
    return error == -EDQUOT ? 429 : 503;
}

void reader_stop(struct reader *r)
{
    if (!r || !r->runs)
        return;
    pthread_mutex_lock(&r->mu);
    r->stopped = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->mu);
    pthread_join(r->thread, NULL);
    r->runs = false;
}

void reader_free(struct reader *r)
{
    if (!r)
        return;
    reader_stop(r);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mu);
    free(r);
}
