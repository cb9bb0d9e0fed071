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

struct rpc_rate_limit {
    unsigned per_s, burst;
};

/* Takes one of n equal shares of the limit. *due_us is 0 at first: when the last time was due at
 * this rate. False: it is too early, and does not count. */
bool rpc_rate_pass(int64_t *due_us, const struct rpc_rate_limit *limit, unsigned n, int64_t now_us);

struct rpc_rate { // zeroed at first, except for the first two
    struct rpc_rate_limit limit;
    uint64_t seed; // random: nobody else can tell which clients share a rate
    int64_t due_us[RPC_RATE_CLIENTS];
};

/* The place of a client in a table; client: as of rpc_peer_client(). */
unsigned rpc_rate_place(uint64_t seed, const uint8_t client[16]);
/* The client does it once, with one of n equal shares, as in rpc_rate_pass(). */
bool rpc_rate_take(struct rpc_rate *r, const uint8_t client[16], unsigned n, int64_t now_us);

#define RPC_RATE_PRESENT_US 1000000
#define RPC_RATE_COUNT_US 100000
/* Which clients were noted, by their places. */
struct rpc_rate_clients { // zeroed at first
    int64_t seen_us[RPC_RATE_CLIENTS];
    int64_t counted_us;
    unsigned n;
};

/* Notes the client. Returns how many were noted within RPC_RATE_PRESENT_US, at least 1. Counts
 * again every RPC_RATE_COUNT_US. */
unsigned rpc_rate_present(struct rpc_rate_clients *c, unsigned place, int64_t now_us);
