/* handshake_pace.c - the times of handshakes and signatures. */
#include "gateway/http/handshake_pace.h"
#include "base/minmax.h"

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

static void begin_second(struct handshake_pace *p, uint32_t second)
{
    if (second == p->second)
        return;
    p->n_sites_last = second == p->second + 1 ? p->n_sites : 0;
    p->n = p->n_sites = 0;
    p->second = second;
}

bool handshake_pace_sign(struct handshake_pace *p, const struct address *a, unsigned n_threads,
                         unsigned cost, int64_t now_us)
{
    const uint32_t n_per_s = HANDSHAKE_PACE_SIGNS * n_threads / cost;
    const uint32_t most = HANDSHAKE_PACE_MOST * n_threads / cost;
    const uint32_t few = HANDSHAKE_PACE_FEW / cost;
    struct address site = address_site(a);
    uint64_t at = address_hash(&site, p->secret) % HANDSHAKE_PACE_ENTRIES;
    const uint32_t second = (uint32_t)(now_us / SECOND_US);
    begin_second(p, second);
    if (p->signs[at].second != second || !p->signs[at].n) {
        p->signs[at].second = second;
        p->signs[at].n = 0;
        p->n_sites++;
    }
    uint32_t n_sites = p->n_sites > p->n_sites_last ? p->n_sites : p->n_sites_last;
    uint32_t equal = n_per_s / n_sites;
    if (p->n >= most || (p->n >= n_per_s && p->signs[at].n >= max_u32(equal, few)))
        return false;
    p->signs[at].n++;
    p->n++;
    return true;
}
