/* pool.h - a pool of pinned threads that do one thing together.
 *
 * The caller is thread 0. Waiting spins a few microseconds, then parks on a futex, so an idle pool
 * costs nothing and a machine with fewer cores than threads still makes progress. Work is split by
 * output, never by sum: results must not depend on the number of threads.
 *
 * Threads: pool_run() by one thread at a time, any thread. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "base/mem.h"

struct pool;

#define POOL_MAX_THREADS 256
#define POOL_STACK (8 << 20) // bytes; kernels take up to 1.3 MiB

/* n_threads 0: the usable cores (cores.h). pin: bind threads 1, 2, ... to the allowed cores behind
 * the first; the caller, whose affinity its later threads would inherit, only moves to the first if
 * it is on the core of another when a job begins; harmless when refused. -ENOMEM, -EINVAL (too
 * many), -EAGAIN (the system gives no more threads). */
int pool_new(unsigned n_threads, bool pin, struct pool **ret);
void pool_free(struct pool *p);
DEFINE_AUTO(struct pool, pool_free)

unsigned pool_threads(const struct pool *p);

/* Starts a thread that calls pool_run(): it has POOL_STACK as those of the pool, whatever the limit
 * of the process. Negative errno, without a text. */
int pool_thread(void *(*fn)(void *), void *arg, pthread_t *ret);

/* fn(arg, i, n) on each of the n threads, i = 0 on the caller; returns when all are done. */
void pool_run(struct pool *p, void (*fn)(void *arg, unsigned i, unsigned n), void *arg);
/* From inside fn: returns when every thread of the pool has called it. */
void pool_barrier(struct pool *p);

/* Thread i's share [*ret_from, *ret_to) of n items in steps of `step`. */
static inline void pool_slice(unsigned i, unsigned n_threads, unsigned n, unsigned step,
                              unsigned *ret_from, unsigned *ret_to)
{
    unsigned n_steps = (n + step - 1) / step;
    unsigned long from = (unsigned long)n_steps * i / n_threads * step;
    unsigned long to = (unsigned long)n_steps * (i + 1) / n_threads * step;
    *ret_from = (unsigned)(from < n ? from : n);
    *ret_to = (unsigned)(to < n ? to : n);
}
