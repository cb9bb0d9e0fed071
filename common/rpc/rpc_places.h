/* rpc_places.h - the places that calls take, and the calls that give way.
 *
 * A client that starts calls and reads no answer would hold their places, and the memory of the
 * answers, as long as it likes. So unread answers give way, the oldest first: to a new call that
 * finds no place, and to each other above a number of bytes. A call whose first message has not
 * arrived gives way to a new call, too. Calls of services do not give way.
 *
 * Private to common/rpc. Threads: any, with the server's lock. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct rpc_places;

/* Part of a call; zeroed at first. */
struct rpc_place {
    struct rpc_places *in; // NULL: the call has no place
    struct rpc_line *line; // NULL: the call does not give way
    size_t bytes;          // unread
    struct rpc_place *older, *newer;
};

/* Calls that give way, from the oldest to the newest. */
struct rpc_line {
    struct rpc_place *oldest, *newest;
};

struct rpc_places { // zeroed, except for max
    unsigned max, n;
    size_t unread_bytes;
    struct rpc_line unread;  // finished answers
    struct rpc_line unasked; // calls without a message
};

/* False: n_max places are taken. n_max: at most max. */
bool rpc_places_take(struct rpc_places *ps, struct rpc_place *p, unsigned n_max);
/* No message of the call has arrived yet. */
void rpc_places_unasked(struct rpc_place *p);
/* The answer of this call is finished, and its client has so many bytes still to read. */
void rpc_places_unread(struct rpc_place *p, size_t bytes);
/* The call no longer gives way: its message has arrived, its answer is read, or it ends. It keeps
 * its place. */
void rpc_places_keep(struct rpc_place *p);
/* Gives the place back. Nothing happens if the call has none. */
void rpc_places_leave(struct rpc_place *p);
