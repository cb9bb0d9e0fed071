/* handshake_pace.h - when the TLS handshake of a new connection may begin.
 *
 * A handshake costs the server a signature, and a client that does not finish it next to nothing.
 * So each address begins at most a number of them per second, and as many together after a second
 * without any. Further ones wait in the order of their arrival. This is the generic cell rate
 * algorithm (ITU-T I.371).
 *
 * The table has a fixed size. Addresses that meet in one entry share its rate.
 *
 * Threads: the caller has a lock. */
#pragma once
#include <stdint.h>
#include "gateway/http/address.h"

#define HANDSHAKE_PACE_ENTRIES 8192

struct handshake_pace { // zeroed at first, except for the secret
    int64_t next_us[HANDSHAKE_PACE_ENTRIES];
    uint64_t secret; // random: clients must not choose addresses that meet in one entry
};

/* A new connection of this address, which may begin per_s handshakes per second, 1 to 1000000.
 * Returns when it may begin, in us: now_us, or later. */
int64_t handshake_pace(struct handshake_pace *p, const struct address *a, unsigned per_s,
                       int64_t now_us);
