/* rpc_rate.c - the times of clients. */
#include <xxhash.h>
#include "rpc/rpc_rate.h"

bool rpc_rate_take(struct rpc_rate *r, const uint8_t client[16], int64_t now_us)
{
    const int64_t interval_us = 1000000 / r->per_s;
    int64_t *due = &r->due_us[XXH3_64bits_withSeed(client, 16, r->seed) % RPC_RATE_CLIENTS];
    int64_t next = (*due > now_us ? *due : now_us) + interval_us;
    if (next - now_us > r->burst * interval_us)
        return false;
    *due = next;
    return true;
}
