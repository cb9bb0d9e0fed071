/* handshake_pace.c - for each address, the time of its next handshake. */
#include "gateway/http/handshake_pace.h"

#define SECOND_US 1000000

int64_t handshake_pace(struct handshake_pace *p, const struct address *a, unsigned per_s,
                       int64_t now_us)
{
    struct address site = address_site(a);
    int64_t *next_us = &p->next_us[address_hash(&site, p->secret) % HANDSHAKE_PACE_ENTRIES];
    int64_t interval_us = SECOND_US / per_s;
    int64_t earliest_us = now_us - SECOND_US + interval_us; // a second's handshakes together
    int64_t at_us = *next_us > earliest_us ? *next_us : earliest_us;
    *next_us = at_us + interval_us;
    return at_us > now_us ? at_us : now_us;
}
