/* rpc_places.c - a count, and lists from the oldest call that gives way to the newest. */
#include "rpc/rpc_places.h"

bool rpc_places_take(struct rpc_places *ps, struct rpc_place *p, unsigned n_max)
{
    if (ps->n >= n_max)
        return false;
    ps->n++;
    p->in = ps;
    return true;
}

static void join(struct rpc_place *p, struct rpc_line *line, size_t bytes)
{
    rpc_places_keep(p);
    p->line = line;
    p->bytes = bytes;
    p->older = line->newest;
    p->newer = NULL;
    *(p->older ? &p->older->newer : &line->oldest) = p;
    line->newest = p;
    p->in->unread_bytes += bytes;
}

void rpc_places_unasked(struct rpc_place *p)
{
    if (p->in)
        join(p, &p->in->unasked, 0);
}

void rpc_places_unread(struct rpc_place *p, size_t bytes)
{
    if (p->in && p->line != &p->in->unread)
        join(p, &p->in->unread, bytes);
}

void rpc_places_keep(struct rpc_place *p)
{
    struct rpc_line *line = p->line;
    if (!line)
        return;
    *(p->older ? &p->older->newer : &line->oldest) = p->newer;
    *(p->newer ? &p->newer->older : &line->newest) = p->older;
    p->in->unread_bytes -= p->bytes;
    p->line = NULL;
}

void rpc_places_leave(struct rpc_place *p)
{
    rpc_places_keep(p);
    if (p->in)
        p->in->n--;
    p->in = NULL;
}
