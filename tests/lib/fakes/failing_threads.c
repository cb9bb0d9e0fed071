/* failing_threads.c - makes pthread_create() fail. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include "lib/fakes/failing_threads.h"

static atomic_bool fails;

int __real_pthread_create(pthread_t *ret, const pthread_attr_t *a, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *a, void *(*fn)(void *), void *arg);

int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
    return atomic_load(&fails) ? EAGAIN : __real_pthread_create(ret, a, fn, arg);
}

void failing_threads(bool fail)
{
    atomic_store(&fails, fail);
}
