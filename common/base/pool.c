/* pool.c - a pool of threads. Jobs and barriers are counters; threads wait for one to change. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/cores.h"
#include "base/err.h"
#include "base/thread.h"
#include "base/pool.h"

/* Longer than the gaps between the steps of a forward pass, far shorter than a thread's wake-up. */
#define SPIN_NS 20000
#define MAX_CPUS 8192

/* A word to wait on. A waiter increments `parked` before the kernel compares the word. A waker
 * changes the word before it reads `parked`. So no wake-up is lost and none is superfluous. */
struct gate {
    _Alignas(64) atomic_uint word;
    atomic_uint parked;
};

struct pool {
    struct gate start, done, barrier; // numbers of the last job started, job done, barrier passed
    _Alignas(64) atomic_uint working; // threads that have not finished the job
    _Alignas(64) atomic_uint arrived; // threads at the barrier
    _Alignas(64) unsigned n_threads, n_started;
    bool spin; // false if there are more threads than cores
    bool pinned;
    bool stop;
    void (*fn)(void *arg, unsigned i, unsigned n);
    void *arg;
    struct worker {
        struct pool *pool;
        pthread_t thread;
        unsigned i, cpu;
    } workers[POOL_MAX_THREADS]; // [0] is the caller's
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static bool spin_until_not(struct gate *g, unsigned old)
{
    int64_t until = 0;
    for (unsigned i = 0;; i++) {
        if (atomic_load_explicit(&g->word, memory_order_acquire) != old)
            return true;
        pause_cpu();
        if (i % 64)
            continue;
        int64_t now = now_ns();
        if (!until)
            until = now + SPIN_NS;
        else if (now > until)
            return false;
    }
}

/* Returns once the word differs from `old`. */
static void gate_wait(struct gate *g, unsigned old, bool spin)
{
    if (spin && spin_until_not(g, old))
        return;
    atomic_fetch_add(&g->parked, 1);
    while (atomic_load(&g->word) == old)
        syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&g->parked, 1);
}

static void gate_open(struct gate *g, unsigned word)
{
    atomic_store(&g->word, word);
    if (atomic_load(&g->parked))
        syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, POOL_MAX_THREADS, NULL, NULL, 0);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    for (unsigned job = 1;; job++) {
        gate_wait(&p->start, job - 1, p->spin);
        if (p->stop)
            return NULL;
        p->fn(p->arg, w->i, p->n_threads);
        if (atomic_fetch_sub(&p->working, 1) == 1)
            gate_open(&p->done, job);
    }
}

struct cpus {
    union {
        cpu_set_t set;
        char bytes[MAX_CPUS / 8]; // cpu_set_t has 1024 bits only
    };
};

static void pin_to(pthread_t thread, unsigned cpu)
{
    struct cpus one = {0};
    CPU_SET_S(cpu, sizeof(one), &one.set);
    pthread_setaffinity_np(thread, sizeof(one), &one.set);
}

/* Moves the caller away from the core of a worker. The worker is bound to it, so both would compete
 * for that core as long as the system leaves the caller there. Restores the affinity afterwards. */
static void leave_workers_core(const struct pool *p)
{
    struct cpus allowed;
    int cpu = sched_getcpu();
    unsigned i = 1;
    while (i < p->n_threads && (int)p->workers[i].cpu != cpu)
        i++;
    if (i == p->n_threads ||
        pthread_getaffinity_np(pthread_self(), sizeof(allowed), &allowed.set) != 0)
        return;
    pin_to(pthread_self(), p->workers[0].cpu);
    pthread_setaffinity_np(pthread_self(), sizeof(allowed), &allowed.set);
}

void pool_run(struct pool *p, void (*fn)(void *arg, unsigned i, unsigned n), void *arg)
{
    if (p->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    if (p->pinned)
        leave_workers_core(p);
    unsigned job = atomic_load_explicit(&p->start.word, memory_order_relaxed) + 1;
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->working, p->n_threads - 1, memory_order_relaxed);
    gate_open(&p->start, job);
    fn(arg, 0, p->n_threads);
    gate_wait(&p->done, job - 1, p->spin);
}

void pool_barrier(struct pool *p)
{
    unsigned now = atomic_load(&p->barrier.word);
    if (atomic_fetch_add(&p->arrived, 1) + 1 < p->n_threads) {
        gate_wait(&p->barrier, now, p->spin);
        return;
    }
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    gate_open(&p->barrier, now + 1);
}

int pool_thread(void *(*fn)(void *), void *arg, pthread_t *ret)
{
    return thread_start(fn, arg, POOL_STACK, ret);
}

static int start_workers(struct pool *p, const struct cores *cores, bool pin)
{
    p->spin = p->n_threads <= cores->n;
    p->pinned = pin && p->spin;
    p->workers[0].cpu = cores->cpu[0];
    for (unsigned i = 1; i < p->n_threads; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .i = i, .cpu = p->spin ? cores->cpu[i] : 0};
        int r = pool_thread(worker_main, w, &w->thread);
        if (r < 0)
            return fail(r, "pool: cannot start thread %u of %u", i, p->n_threads);
        p->n_started = i;
        if (p->pinned)
            pin_to(w->thread, w->cpu);
    }
    return 0;
}

int pool_new(unsigned n_threads, bool pin, struct pool **ret)
{
    if (n_threads > POOL_MAX_THREADS)
        return fail(-EINVAL, "pool: %u threads are more than %u", n_threads, POOL_MAX_THREADS);
    AUTO(pool_free) struct pool *p = aligned_alloc(64, sizeof(*p));
    if (!p)
        return fail(-ENOMEM, "pool: no memory");
    memset(p, 0, sizeof(*p));
    struct cores cores;
    cores_find("", &cores);
    p->n_threads = n_threads ? n_threads : cores.usable;
    int r = start_workers(p, &cores, pin);
    if (r < 0)
        return r;
    *ret = TAKE(p);
    return 0;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    p->stop = true;
    gate_open(&p->start, atomic_load(&p->start.word) + 1);
    for (unsigned i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    free(p);
}

unsigned pool_threads(const struct pool *p)
{
    return p->n_threads;
}
