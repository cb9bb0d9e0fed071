/* handshake_turns.c - fair queueing of handshakes by address. */
#include "gateway/http/handshake_turns.h"
#include <stddef.h>

void handshake_turns_enter(struct handshake_turns *t, struct handshake_turn *turn,
                           const struct address *a)
{
    struct address site = address_site(a);
    struct handshake_turn **at = &t->first;
    *turn = (struct handshake_turn){
        .since_us = t->virtual_us,
        .entry = (uint32_t)(address_hash(&site, t->secret) % HANDSHAKE_TURNS_ENTRIES),
        .waits = true};
    while (*at)
        at = &(*at)->next;
    *at = turn;
}

static int64_t start_of(const struct handshake_turns *t, const struct handshake_turn *turn)
{
    int64_t end_us = t->end_us[turn->entry];
    return turn->since_us > end_us ? turn->since_us : end_us;
}

struct handshake_turn *handshake_turns_next(struct handshake_turns *t)
{
    struct handshake_turn **best = &t->first, *turn;
    for (struct handshake_turn **at = best; *at; at = &(*at)->next)
        if (start_of(t, *at) < start_of(t, *best))
            best = at;
    turn = *best;
    if (!turn)
        return NULL;
    *best = turn->next;
    turn->waits = false;
    t->virtual_us = start_of(t, turn);
    return turn;
}

void handshake_turns_leave(struct handshake_turns *t, struct handshake_turn *turn)
{
    struct handshake_turn **at = &t->first;
    if (!turn->waits)
        return;
    while (*at != turn)
        at = &(*at)->next;
    *at = turn->next;
    turn->waits = false;
}

void handshake_turns_end(struct handshake_turns *t, const struct handshake_turn *turn,
                         int64_t took_us)
{
    t->end_us[turn->entry] = start_of(t, turn) + took_us + HANDSHAKE_TURNS_LEAST_US;
}
