/* rpc_rate.c - the times of clients. */
#include <xxhash.h>
#include "rpc/rpc_rate.h"

bool rpc_rate_pass(int64_t *due_us, const struct rpc_rate_limit *limit, unsigned n, int64_t now_us)
{
    const int64_t interval_us = 1000000 / limit->per_s;
    int64_t next_us = (*due_us > now_us ? *due_us : now_us) + n * interval_us;
    if (next_us - now_us > limit->burst * interval_us)
        return false;
    *due_us = next_us;
    return true;
}

unsigned rpc_rate_place(uint64_t seed, const uint8_t client[16])
{
    return XXH3_64bits_withSeed(client, 16, seed) % RPC_RATE_CLIENTS;
}

bool rpc_rate_take(struct rpc_rate *r, const uint8_t client[16], unsigned n, int64_t now_us)
{
    return rpc_rate_pass(&r->due_us[rpc_rate_place(r->seed, client)], &r->limit, n, now_us);
}

static bool is_present(const struct rpc_rate_clients *c, unsigned place, int64_t now_us)
{
    return c->seen_us[place] && now_us - c->seen_us[place] <= RPC_RATE_PRESENT_US;
}

unsigned rpc_rate_present(struct rpc_rate_clients *c, unsigned place, int64_t now_us)
{
    c->n += !is_present(c, place, now_us);
    c->seen_us[place] = now_us;
    if (now_us - c->counted_us < RPC_RATE_COUNT_US)
        return c->n;
    c->counted_us = now_us;
    c->n = 0;
    for (unsigned i = 0; i < RPC_RATE_CLIENTS; i++)
        c->n += is_present(c, i, now_us);
    return c->n;
}
