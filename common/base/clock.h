/* clock.h - the only source of time. Decisions take the time as an argument; loops read it here.
 *
 * Threads: any. */
#pragma once
#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* Microseconds of CLOCK_MONOTONIC. Clocks of different machines are never compared. */
int64_t clock_us(void);
/* The same time in the form that pthread_cond_clockwait() and similar functions take. */
struct timespec clock_at(int64_t us);
/* pthread_cond_init() of a condition whose pthread_cond_timedwait() takes clock_at(). */
void clock_cond_init(pthread_cond_t *c);
/* Seconds since 1970, for readers of logs and for OpenAI's field `created`. */
int64_t clock_unix_s(void);
/* Microseconds since 1970, for what is compared with times of earlier runs. May step. */
int64_t clock_unix_us(void);
