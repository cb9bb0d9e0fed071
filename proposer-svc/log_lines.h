/* log_lines.h - how many lines verifiers may cause in the log.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>

enum log_lines {
    LOG_LINES_SEQUENCES, // 2,000 in LOG_BURST_US (log_burst.h)
    LOG_LINES_STREAMS,   // 200
};

/* Whether the next line of this kind may be written. Logs how many were left out before. */
bool log_lines_take(enum log_lines kind);
