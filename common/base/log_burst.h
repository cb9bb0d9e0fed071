/* log_burst.h - at most some lines in LOG_BURST_US about an event that may be frequent.
 *
 * A burst that is all zeros is ready for use.
 *
 * Threads: the caller locks. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define LOG_BURST_US 10000000

struct log_burst {
    int64_t from_us; // of the first event; 0: there was none
    uint64_t n;      // events since then
};

/* Counts an event. true: it may have a line, since fewer than max had one before. *ret_left_out had
 * none in the time before. now_us: as clock_us(). */
bool log_burst_take(struct log_burst *b, unsigned max, int64_t now_us, uint64_t *ret_left_out);
