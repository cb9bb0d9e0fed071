/* rpc_rate.h - how often each client may do something.
 *
 * The generic cell rate algorithm (ITU-T I.371): per_s times per second in the long run, and
 * `burst` times together after a pause. The table has a fixed size: clients with the same hash
 * share a rate.
 *
 * Private to common/rpc. Threads: the caller has a lock. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define RPC_RATE_CLIENTS 4096

struct rpc_rate { // zeroed at first, except for the first three
    unsigned per_s, burst;
    uint64_t seed; // random: nobody else can tell which clients share a rate
    /* Of each client: when its last time was due at per_s. */
    int64_t due_us[RPC_RATE_CLIENTS];
};

/* client: as of rpc_peer_client(). False: it is too early, and does not count. */
bool rpc_rate_take(struct rpc_rate *r, const uint8_t client[16], int64_t now_us);
