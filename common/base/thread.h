/* thread.h - starts threads. Threads: any. */
#pragma once
#include <pthread.h>

/* Starts fn(arg). Only a success changes *ret: glibc's pthread_create() sets its variable before it
 * fails. stack: bytes; 0: the default. -EAGAIN: the system or the service manager allows no more
 * threads; -EINVAL: `stack` is too small; with a sentence. */
int thread_start(void *(*fn)(void *), void *arg, size_t stack, pthread_t *ret);
