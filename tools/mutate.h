/* mutate.h - included in front of every file that ./tandem mutate builds: the process ends when a
 * thread unlocks a mutex that it does not hold. ThreadSanitizer reports the same in ./tandem test,
 * but a second build of each fault would take too long. */
#pragma once
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static inline int mutate_unlock(pthread_mutex_t *mu)
{
    if (mu->__data.__owner != gettid()) // glibc keeps it for every kind of mutex
        abort();
    return pthread_mutex_unlock(mu);
}
#define pthread_mutex_unlock(mu) mutate_unlock(mu)
