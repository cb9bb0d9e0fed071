/* pool.h - a pool of pinned threads that run one function together.
 *
 * The caller is thread 0. A waiting thread spins for some microseconds, then sleeps on a futex. So
 * an idle pool takes no CPU time, and a machine with fewer cores than threads still makes progress.
 * Callers split their work by outputs, never by the terms of a sum: results must not depend on the
 * number of threads.
 *
 * Threads: any, but only one at a time may be in pool_run(). */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "base/mem.h"

struct pool;

#define POOL_MAX_THREADS 256
#define POOL_STACK (8 << 20) // bytes; kernels use up to 1.3 MiB

/* n_threads 0: the number of usable cores (cores.h).
 *
 * pin: bind threads 1, 2, ... to the second, third, ... allowed core. The caller is not bound,
 * since threads that it creates later would inherit its affinity. When a job starts while the
 * caller runs on the core of another thread, the caller moves to the first core. A failed bind has
 * no effect.
 *
 * -ENOMEM; -EINVAL: too many threads; -EAGAIN: the system starts no more threads. */
int pool_new(unsigned n_threads, bool pin, struct pool **ret);
void pool_free(struct pool *p);
DEFINE_AUTO(struct pool, pool_free)

unsigned pool_threads(const struct pool *p);

/* Starts a thread that will call pool_run(). Like the pool's threads it has a stack of POOL_STACK
 * bytes, whatever the limit of the process. Errors and *ret: see thread_start(). */
int pool_thread(void *(*fn)(void *), void *arg, pthread_t *ret);

/* fn(arg, i, n) on each of the n threads, i = 0 on the caller; returns when all are done. */
void pool_run(struct pool *p, void (*fn)(void *arg, unsigned i, unsigned n), void *arg);
/* From inside fn: returns when every thread of the pool has called it. */
void pool_barrier(struct pool *p);

/* Thread i's range [*ret_from, *ret_to) of n items. Ranges begin at multiples of `step`. */
static inline void pool_slice(unsigned i, unsigned n_threads, unsigned n, unsigned step,
                              unsigned *ret_from, unsigned *ret_to)
{
    unsigned n_steps = (n + step - 1) / step;
    unsigned long from = (unsigned long)n_steps * i / n_threads * step;
    unsigned long to = (unsigned long)n_steps * (i + 1) / n_threads * step;
    *ret_from = (unsigned)(from < n ? from : n);
    *ret_to = (unsigned)(to < n ? to : n);
}
