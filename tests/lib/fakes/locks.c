/* locks.c - which locks a thread holds, in programs linked with the --wrap options of locks
 * (tests/CMakeLists.txt). A thread that releases a lock which it does not hold ends the program.
 * glibc ignores that mistake. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define HELD_MAX 64 // locks of one thread

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __real_pthread_rwlock_rdlock(pthread_rwlock_t *l);
int __real_pthread_rwlock_wrlock(pthread_rwlock_t *l);
int __real_pthread_rwlock_unlock(pthread_rwlock_t *l);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *l);

static _Thread_local const void *held[HELD_MAX];
static _Thread_local unsigned n_held;

static void stop_if(int wrong, const char *why)
{
    if (!wrong)
        return;
    fprintf(stderr, "locks: %s\n", why);
    abort();
}

/* Returns r, the result of the locking. */
static int take(const void *lock, int r)
{
    stop_if(r != 0, "a lock cannot be taken");
    stop_if(n_held == HELD_MAX, "a thread holds too many locks");
    held[n_held++] = lock;
    return r;
}

static void release(const void *lock)
{
    unsigned i = n_held;
    while (i && held[i - 1] != lock)
        i--;
    stop_if(!i, "a thread releases a lock that it does not hold");
    held[i - 1] = held[--n_held];
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
    return take(m, __real_pthread_mutex_lock(m));
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
    release(m);
    return __real_pthread_mutex_unlock(m);
}

int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *l)
{
    return take(l, __real_pthread_rwlock_rdlock(l));
}

int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *l)
{
    return take(l, __real_pthread_rwlock_wrlock(l));
}

int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *l)
{
    release(l);
    return __real_pthread_rwlock_unlock(l);
}
