/* capacity.c - seats and KV blocks of requests and flows. */
#include "base/minmax.h"
#include "verifier-svc/engine/capacity.h"
#include "verifier-svc/engine/engine_impl.h"

/* Blocks that a running sequence will take for its prompt and its next rows. */
static uint32_t owed(const struct seq *s)
{
    uint32_t needs = s->state == SEQ_BRANCH ? 1 : seq_blocks(s);
    return 1 + (needs > s->kv.n_blocks ? needs - s->kv.n_blocks : 0);
}

static void add(struct capacity *to, const struct capacity *r)
{
    to->seats += r->seats;
    to->blocks += r->blocks;
}

void capacity_subtract(struct capacity *from, const struct capacity *r)
{
    from->seats -= r->seats;
    from->blocks -= r->blocks;
}

struct capacity capacity_needed(const struct engine *e, const struct seq *s)
{
    return (struct capacity){1, min_u32(seq_blocks(s), kv_n_blocks(e->loaded->run.kv))};
}

/* A copy of the prompt's last block, and one for the next rows. */
struct capacity capacity_of_branch(void)
{
    return (struct capacity){1, 2};
}

struct capacity capacity_free(const struct engine *e)
{
    const uint32_t n_states = e->loaded->run.n_states;
    struct capacity r = {e->options->max_sequences, kv_n_free(e->loaded->run.kv)};
    if (n_states && n_states < r.seats)
        r.seats = n_states;
    for (uint32_t i = 0; i < e->running.n; i++)
        capacity_subtract(&r, &(struct capacity){1, owed(e->running.v[i])});
    return r;
}

bool capacity_fits(const struct capacity *needed, const struct capacity *available)
{
    return needed->seats <= available->seats && needed->blocks <= available->blocks;
}

/* ---- flows that have the most ---- */

static struct capacity part_of(const struct seq *s)
{
    return (struct capacity){1, (int64_t)s->kv.n_blocks + owed(s)};
}

static struct capacity part_of_flow(const struct engine *e, uint32_t flow)
{
    struct capacity sum = {0};
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct capacity part = part_of(e->running.v[i]);
        if (e->running.v[i]->req->place.flow == flow)
            add(&sum, &part);
    }
    return sum;
}

struct capacity_largest capacity_largest(const struct engine *e)
{
    struct capacity_largest l = {0};
    for (uint32_t i = e->running.n; i-- > 0;) {
        uint32_t flow = e->running.v[i]->req->place.flow;
        if (l.by_seats.seats && (flow == l.flow_by_seats || flow == l.flow_by_blocks))
            continue; // counted already
        struct capacity part = part_of_flow(e, flow);
        if (part.seats > l.by_seats.seats) {
            l.flow_by_seats = flow;
            l.by_seats = part;
        }
        if (part.blocks > l.by_blocks.blocks) {
            l.flow_by_blocks = flow;
            l.by_blocks = part;
        }
    }
    return l;
}

/* Whether the flow, which has `part`, keeps `least` of what lacks. */
static bool can_give(const struct engine *e, uint32_t flow, struct capacity part,
                     const struct capacity *needed, const struct capacity *least)
{
    struct capacity available = capacity_free(e);
    bool lacks_seats = needed->seats > available.seats;
    bool lacks_blocks = needed->blocks > available.blocks;
    for (uint32_t i = e->running.n; i-- > 0 && !capacity_fits(needed, &available);) {
        const struct seq *s = e->running.v[i];
        if (s->req->place.flow != flow)
            continue;
        struct capacity given = part_of(s);
        capacity_subtract(&part, &given);
        given.blocks -= s->kv.n_blocks - kv_n_own(e->loaded->run.kv, &s->kv); // still held
        add(&available, &given);
    }
    return capacity_fits(needed, &available) && (!lacks_seats || part.seats >= least->seats) &&
           (!lacks_blocks || part.blocks >= least->blocks);
}

/* The newest running sequence of the flow. There is one. */
static struct seq *newest_of(const struct engine *e, uint32_t flow)
{
    uint32_t i = e->running.n - 1;
    while (e->running.v[i]->req->place.flow != flow)
        i--;
    return e->running.v[i];
}

/* What the flow of s has once s runs. */
static struct capacity part_with(const struct engine *e, const struct seq *s)
{
    struct capacity part = part_of_flow(e, s->req->place.flow), needed = capacity_needed(e, s);
    add(&part, &needed);
    return part;
}

bool capacity_may_pass(const struct engine *e, const struct seq *s, const struct seq *head)
{
    struct capacity available = capacity_free(e), needed = capacity_needed(e, head),
                    with = part_with(e, s);
    struct capacity part = part_of_flow(e, head->req->place.flow);
    return (needed.seats <= available.seats || with.seats <= part.seats) &&
           (needed.blocks <= available.blocks || with.blocks <= part.blocks);
}

bool capacity_take(struct engine *e, const struct capacity_largest *largest, const struct seq *s)
{
    struct capacity needed = capacity_needed(e, s), available = capacity_free(e),
                    least = part_with(e, s);
    bool by_seats = needed.seats > available.seats;
    uint32_t flow = by_seats ? largest->flow_by_seats : largest->flow_by_blocks;
    struct capacity part = by_seats ? largest->by_seats : largest->by_blocks;
    if (!can_give(e, flow, part, &needed, &least))
        return false;
    for (; !capacity_fits(&needed, &available); available = capacity_free(e))
        engine_preempt(e, newest_of(e, flow));
    return true;
}

/* ---- a lack of blocks in a round ---- */

static uint32_t held_by_flow(const struct engine *e, uint32_t flow)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->running.n; i++)
        n += e->running.v[i]->req->place.flow == flow ? e->running.v[i]->kv.n_blocks : 0;
    return n;
}

struct seq *capacity_victim(const struct engine *e, struct seq *s)
{
    struct seq *newest = s;
    uint32_t most = held_by_flow(e, s->req->place.flow);
    for (uint32_t i = 0; i < e->running.n; i++) {
        struct seq *v = e->running.v[i];
        if (!v->kv.n_blocks)
            continue;
        if (!e->grants[i].todo && !v->held_until_us)
            return v;
        uint32_t flow = v->req->place.flow;
        uint32_t held = flow == newest->req->place.flow ? most : held_by_flow(e, flow);
        if (held > most || (held == most && v->order > newest->order))
            newest = v;
        most = max_u32(held, most);
    }
    return newest;
}
