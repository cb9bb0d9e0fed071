/* log_lines.c - how many lines verifiers may cause in the log. */
#include <pthread.h>
#include <stdint.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/log_burst.h"
#include "proposer-svc/log_lines.h"

static struct {
    const char *name;
    unsigned max;
    pthread_mutex_t mu; // of the burst
    struct log_burst burst;
} lines[] = {
    [LOG_LINES_SEQUENCES] = {.name = "sequence", .max = 2000, .mu = PTHREAD_MUTEX_INITIALIZER},
    [LOG_LINES_STREAMS] = {.name = "stream", .max = 200, .mu = PTHREAD_MUTEX_INITIALIZER},
};

bool log_lines_take(enum log_lines kind)
{
    uint64_t left_out;
    pthread_mutex_lock(&lines[kind].mu);
    bool has = log_burst_take(&lines[kind].burst, lines[kind].max, clock_us(), &left_out);
    pthread_mutex_unlock(&lines[kind].mu);
    if (left_out)
        log_info("lines not logged kind=%s n=%llu", lines[kind].name, (unsigned long long)left_out);
    return has;
}
