/* log_pace.c - at most one line per minute about an event that may be frequent. */
#include "base/log_pace.h"

#define PERIOD_US 60000000

unsigned log_pace_due(struct log_pace *p, int64_t now_us)
{
    int64_t next_us = atomic_load(&p->next_us);
    atomic_fetch_add(&p->n, 1);
    if ((next_us && now_us < next_us) ||
        !atomic_compare_exchange_strong(&p->next_us, &next_us, now_us + PERIOD_US))
        return 0;
    return atomic_exchange(&p->n, 0);
}
