/* clock.h - the one source of time. Decisions take the time as an argument; loops ask here. */
#pragma once
#include <stdint.h>
#include <time.h>

/* Microseconds of CLOCK_MONOTONIC. No two machines' clocks are ever compared. */
int64_t clock_us(void);
/* The same time as pthread_cond_clockwait() and its like take it. */
struct timespec clock_at(int64_t us);
/* Seconds since 1970, for people and for OpenAI's `created`. */
int64_t clock_unix_s(void);
