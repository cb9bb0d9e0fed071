/* log_pace.h - at most one line per minute about an event that may be frequent.
 *
 * A pace that is all zeros is ready for use.
 *
 * Threads: any. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>

struct log_pace {
    _Atomic int64_t next_us; // no line before; 0: none was due yet
    atomic_uint n;           // events since the last line
};

/* Counts an event. Returns the events since the last line if the caller shall write a line now,
 * else 0. now_us: as clock_us(). */
unsigned log_pace_due(struct log_pace *p, int64_t now_us);
