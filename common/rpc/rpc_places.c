/* rpc_places.c - a count, and a list from the oldest unread answer to the newest. */
#include "rpc/rpc_places.h"

bool rpc_places_take(struct rpc_places *ps, struct rpc_place *p, unsigned n_max)
{
    if (ps->n >= n_max)
        return false;
    ps->n++;
    p->in = ps;
    return true;
}

void rpc_places_unread(struct rpc_place *p, size_t bytes)
{
    struct rpc_places *ps = p->in;
    if (!ps || p->unread)
        return;
    p->unread = true;
    p->bytes = bytes;
    p->older = ps->newest;
    p->newer = NULL;
    *(p->older ? &p->older->newer : &ps->oldest) = p;
    ps->newest = p;
    ps->unread_bytes += bytes;
}

void rpc_places_read(struct rpc_place *p)
{
    struct rpc_places *ps = p->in;
    if (!p->unread)
        return;
    *(p->older ? &p->older->newer : &ps->oldest) = p->newer;
    *(p->newer ? &p->newer->older : &ps->newest) = p->older;
    ps->unread_bytes -= p->bytes;
    p->unread = false;
}

void rpc_places_leave(struct rpc_place *p)
{
    rpc_places_read(p);
    if (p->in)
        p->in->n--;
    p->in = NULL;
}
