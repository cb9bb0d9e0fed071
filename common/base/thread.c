/* thread.c - starts threads. */
#include "base/thread.h"
#include <string.h>
#include "base/err.h"

int thread_start(void *(*fn)(void *), void *arg, size_t stack, pthread_t *ret)
{
    pthread_t t;
    pthread_attr_t attr;
    int r = pthread_attr_init(&attr);
    if (!r) {
        r = stack ? pthread_attr_setstacksize(&attr, stack) : 0;
        r = r ? r : pthread_create(&t, &attr, fn, arg);
        pthread_attr_destroy(&attr);
    }
    if (r)
        return fail(-r, "cannot start a thread: %s", strerror(r));
    *ret = t;
    return 0;
}
