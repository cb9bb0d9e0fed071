/* handshake_pace.h - when the TLS handshake of a new connection may begin, and which handshakes get
 * a signature.
 *
 * A handshake costs the server a signature, and a client that does not finish it next to nothing.
 * So each address begins at most a number of them per second, and as many together after a second
 * without any. Further ones wait in the order of their arrival.
 *
 * Several addresses together, or a client that connects long before it sends its ClientHello, could
 * still keep the HTTP threads busy. So each second has a number of signatures. When they are used
 * up, an address gets one only while it has had less than its equal share of them, or very few. The
 * sum has a limit, too. The first rule is the generic cell rate algorithm (ITU-T I.371).
 *
 * The table has a fixed size. Addresses that meet in one entry share its rates.
 *
 * Threads: the caller has a lock. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "gateway/http/address.h"

#define HANDSHAKE_PACE_ENTRIES 8192
/* Per second, for each HTTP thread: a fifth of its time with RSA of 2,048 bits, at 2 ms each. */
#define HANDSHAKE_PACE_SIGNS 100
#define HANDSHAKE_PACE_MOST 250 // of many addresses: half of its time
/* Of an address, in any case: a browser opens six connections. Of costly ones fewer, so that 64
 * addresses cannot keep two threads busy. */
#define HANDSHAKE_PACE_FEW 8

struct handshake_pace { // zeroed at first, except for the secret
    int64_t next_us[HANDSHAKE_PACE_ENTRIES];
    struct {
        uint32_t second; // the last one with a signature
        uint32_t n;      // in it
    } signs[HANDSHAKE_PACE_ENTRIES];
    uint32_t second, n;             // this second, and the signatures in it
    uint32_t n_sites, n_sites_last; // addresses with signatures in it, and in the last one
    uint64_t secret; // random: clients must not choose addresses that meet in one entry
};

/* A new connection of this address, which may begin per_s handshakes per second, 1 to 1000000.
 * Returns when it may begin, in us: now_us, or later. */
int64_t handshake_pace(struct handshake_pace *p, const struct address *a, unsigned per_s,
                       int64_t now_us);
/* A ClientHello of this address has arrived. Whether its handshake gets one of this second's
 * signatures. n_threads: HTTP threads. cost: the time of a signature, in those of RSA with 2,048
 * bits; 1 .. HANDSHAKE_PACE_FEW. */
bool handshake_pace_sign(struct handshake_pace *p, const struct address *a, unsigned n_threads,
                         unsigned cost, int64_t now_us);
