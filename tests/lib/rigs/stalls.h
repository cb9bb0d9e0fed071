/* stalls.h - how long the machine keeps threads from running, for tests of deadlines.
 *
 * On each core a thread sleeps again and again, and measures how late it wakes. A thread of a
 * service that waits for a deadline wakes as late.
 *
 * Threads: the test's only. One measurement at a time. */
#pragma once
#include <stdint.h>

/* Starts the measurement. Ends the test on errors. */
void stalls_begin(void);
/* Ends it. Returns the longest time for which a thread did not run: in one piece, or the sum within
 * a tenth of a second. */
int64_t stalls_end_us(void);
