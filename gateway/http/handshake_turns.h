/* handshake_turns.h - which new connection's TLS handshake continues next. Decisions only.
 *
 * A handshake costs the server a signature, and a client that does not finish it next to nothing.
 * So addresses share the time of handshakes by start-time fair queueing (Goyal, Vin and Cheng,
 * SIGCOMM 1996). In virtual time, a handshake starts when it began to wait. If the last one of its
 * address ends later, it starts then. The one with the least start is next; of equal ones the one
 * that has waited longest. So an address with a few handshakes waits for about one of each
 * other address, however many these have.
 *
 * The table has a fixed size. Addresses that meet in one entry share its time.
 *
 * Threads: one. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "gateway/http/address.h"

#define HANDSHAKE_TURNS_ENTRIES 8192
#define HANDSHAKE_TURNS_LEAST_US 20 // what a turn costs at least: it is found and begun

/* A handshake's place; part of the caller's record, which must stay where it is while it waits. */
struct handshake_turn {
    struct handshake_turn *next;
    int64_t since_us; // in virtual time
    uint32_t entry;   // of its address
    bool waits;
};

struct handshake_turns {          // zeroed at first, except for the secret
    struct handshake_turn *first; // those that wait, in the order of their arrival
    int64_t virtual_us;           // the start of the last turn
    int64_t end_us[HANDSHAKE_TURNS_ENTRIES];
    uint64_t secret; // random: clients must not choose addresses that meet in one entry
};

/* The handshake of this address waits. */
void handshake_turns_enter(struct handshake_turns *t, struct handshake_turn *turn,
                           const struct address *a);
/* Removes the one whose turn it is. NULL: none waits. */
struct handshake_turn *handshake_turns_next(struct handshake_turns *t);
/* Removes this one, if it waits. */
void handshake_turns_leave(struct handshake_turns *t, struct handshake_turn *turn);
/* The turn took this CPU time. */
void handshake_turns_end(struct handshake_turns *t, const struct handshake_turn *turn,
                         int64_t took_us);
