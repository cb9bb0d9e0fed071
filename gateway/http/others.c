/* others.c - the last two different clients. */
#include "gateway/http/others.h"

void others_note(struct others *o, const void *client, int64_t now_us)
{
    if (o->last[0].client != client)
        o->last[1] = o->last[0];
    o->last[0].client = client;
    o->last[0].at_us = now_us;
}

bool others_are_there(const struct others *o, const void *client, int64_t now_us)
{
    bool there = false;
    for (int i = 0; i < 2; i++)
        there |= o->last[i].client && o->last[i].client != client &&
                 now_us - o->last[i].at_us < OTHERS_AWAY_US;
    return there;
}
