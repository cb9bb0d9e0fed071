/* draft_thread.c - a queue, and the loop that empties it. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <tandem/v1/proposer.pb-c.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "base/queue.h"
#include "kernel/kernel.h"
#include "proposer-svc/draft_thread.h"
#include "rpc/rpc.h"

enum job_kind { JOB_ROUND, JOB_END_STREAM };

struct draft_job {
    enum job_kind kind;
    struct batch_origin from;
    Tandem__V1__Round *round;
    size_t bytes;
    int64_t arrived_us;
};

struct draft_thread {
    struct draft_thread_config c;
    struct batch *batch;
    struct queue *queue; // has one entry reserved for the end of each open stream
    atomic_uint n_streams, n_rounds;
    atomic_size_t n_bytes;
    atomic_bool expire, stop;
    pthread_t thread;
    bool has_thread;
};

/* ---- the thread ---- */

static void process_job(struct draft_thread *d, struct draft_job *job)
{
    if (job->kind == JOB_END_STREAM) {
        batch_end_stream(d->batch, job->from.stream);
        sessions_end_stream(d->c.batch.sessions, job->from.stream);
        atomic_fetch_sub(&d->n_streams, 1);
    } else {
        atomic_fetch_sub(&d->n_rounds, 1);
        atomic_fetch_sub(&d->n_bytes, job->bytes);
        int err = batch_take(d->batch, &job->from, job->round, job->round, job->arrived_us);
        if (err < 0)
            d->c.failed(&job->from, err);
        rpc_call_unref(job->from.call);
    }
    free(job);
}

static void send_answers(struct draft_thread *d)
{
    struct batch_origin to;
    for (struct rpc_msg *msg; (msg = batch_answer(d->batch, &to));)
        d->c.send(&to, msg);
}

/* How long to wait for the queue: 0 while there is work, else until the first open ask is out of
 * time. -1: until a job arrives. */
static int64_t wait_us(const struct draft_thread *d, bool has_work)
{
    if (has_work)
        return 0;
    if (!batch_n_open(d->batch))
        return -1;
    int64_t left_us = batch_until_us(d->batch) - clock_us();
    return left_us > 0 ? left_us : 0;
}

static void *draft_thread_main(void *arg)
{
    struct draft_thread *d = arg;
    const struct prop_ops *ops = d->c.batch.ops;
    bool has_work = false;
    kernel_thread_init();
    while (!atomic_load(&d->stop)) {
        struct draft_job *job = queue_pop(d->queue, wait_us(d, has_work));
        for (; job;
             job = batch_n_open(d->batch) < BATCH_SEQUENCES_MAX ? queue_pop(d->queue, 0) : NULL)
            process_job(d, job);
        if (atomic_exchange(&d->expire, false))
            sessions_expire(d->c.batch.sessions, clock_us());
        batch_draft(d->batch);
        send_answers(d);
        has_work = ops->work && (queue_len(d->queue) || ops->work(d->c.batch.shared));
    }
    return NULL;
}

/* ---- thread-safe API ---- */

int draft_thread_new(const struct draft_thread_config *c, struct draft_thread **ret)
{
    AUTO(draft_thread_free) struct draft_thread *d = calloc(1, sizeof(*d));
    if (!d)
        return fail(-ENOMEM, "draft thread: no memory");
    d->c = *c;
    int r = batch_new(&c->batch, &d->batch);
    if (r == 0)
        r = queue_new(DRAFT_THREAD_ROUNDS_MAX + DRAFT_THREAD_STREAMS_MAX, &d->queue);
    if (r < 0)
        return r;
    r = pool_thread(draft_thread_main, d, &d->thread);
    if (r < 0)
        return fail(r, "cannot start the draft thread");
    d->has_thread = true;
    *ret = TAKE(d);
    return 0;
}

static void job_free(struct draft_job *job)
{
    if (job->round) {
        rpc_call_unref(job->from.call);
        tandem__v1__round__free_unpacked(job->round, NULL);
    }
    free(job);
}

void draft_thread_free(struct draft_thread *d)
{
    if (!d)
        return;
    if (d->has_thread) {
        atomic_store(&d->stop, true);
        queue_wake(d->queue);
        pthread_join(d->thread, NULL);
    }
    for (struct draft_job *job; d->queue && (job = queue_pop(d->queue, 0));)
        job_free(job);
    queue_free(d->queue);
    batch_free(d->batch);
    free(d);
}

static int new_job(const struct draft_job *from, struct draft_job **ret)
{
    struct draft_job *job = malloc(sizeof(*job));
    if (!job)
        return fail(-ENOMEM, "draft thread: no memory");
    *job = *from;
    *ret = job;
    return 0;
}

int draft_thread_begin_stream(struct draft_thread *d, uint64_t stream, struct draft_job **ret_end)
{
    int r = 0;
    if (atomic_fetch_add(&d->n_streams, 1) >= DRAFT_THREAD_STREAMS_MAX)
        r = fail(-ENOSPC, "more than %d verifiers are connected", DRAFT_THREAD_STREAMS_MAX);
    struct draft_job end = {.kind = JOB_END_STREAM, .from.stream = stream};
    r = r ? r : new_job(&end, ret_end);
    if (r < 0)
        atomic_fetch_sub(&d->n_streams, 1);
    return r;
}

static int push_job(struct draft_thread *d, struct draft_job *job)
{
    int r = queue_push(d->queue, job);
    if (r < 0)
        free(job);
    return r;
}

void draft_thread_end_stream(struct draft_thread *d, struct draft_job *end)
{
    push_job(d, end);
}

int draft_thread_round(struct draft_thread *d, const struct batch_origin *from,
                       struct Tandem__V1__Round *round, size_t bytes)
{
    struct draft_job *job = NULL;
    struct draft_job about = {
        .kind = JOB_ROUND, .from = *from, .round = round, .bytes = bytes, .arrived_us = clock_us()};
    bool fits = atomic_fetch_add(&d->n_rounds, 1) < DRAFT_THREAD_ROUNDS_MAX;
    fits = atomic_fetch_add(&d->n_bytes, bytes) + bytes <= DRAFT_THREAD_BYTES_MAX && fits;
    rpc_call_ref(from->call);
    int r = fits ? new_job(&about, &job) : fail(-ENOSPC, "too many rounds wait for a draft");
    r = r < 0 ? r : push_job(d, job);
    if (r < 0) {
        atomic_fetch_sub(&d->n_rounds, 1);
        atomic_fetch_sub(&d->n_bytes, bytes);
        rpc_call_unref(from->call);
        tandem__v1__round__free_unpacked(round, NULL);
    }
    return r;
}

void draft_thread_expire(struct draft_thread *d)
{
    atomic_store(&d->expire, true);
    queue_wake(d->queue);
}
