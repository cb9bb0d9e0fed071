/* others.h - whether a client was alone lately. A limit that shares something among clients does
 * not hold for an only one.
 *
 * The last two different clients are enough to know it. A client is the address of its entry in
 * some table.
 *
 * Threads: the caller has a lock. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define OTHERS_AWAY_US 60000000 // then a client is forgotten

struct others { // zeroed at first
    struct {
        const void *client;
        int64_t at_us;
    } last[2];
};

/* The client has sent something. */
void others_note(struct others *o, const void *client, int64_t now_us);
/* Whether another one has, less than OTHERS_AWAY_US ago. */
bool others_are_there(const struct others *o, const void *client, int64_t now_us);
