/* log_burst.c - counts events of a time. */
#include "base/log_burst.h"

bool log_burst_take(struct log_burst *b, unsigned max, int64_t now_us, uint64_t *ret_left_out)
{
    *ret_left_out = 0;
    if (!b->from_us || now_us - b->from_us >= LOG_BURST_US) {
        *ret_left_out = b->n > max ? b->n - max : 0;
        *b = (struct log_burst){.from_us = now_us};
    }
    return b->n++ < max;
}
