/* failing_thread.c - makes the n-th pthread_create() fail. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include "lib/fakes/failing_thread.h"

static atomic_int n_left; // calls until the one that fails, itself included

int __real_pthread_create(pthread_t *ret, const pthread_attr_t *a, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *a, void *(*fn)(void *), void *arg);

int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
    if (atomic_load(&n_left) > 0 && atomic_fetch_sub(&n_left, 1) == 1)
        return EAGAIN;
    return __real_pthread_create(ret, a, fn, arg);
}

void failing_thread_at(unsigned n)
{
    atomic_store(&n_left, (int)n);
}
