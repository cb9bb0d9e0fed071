/* address_counts.h - how many connections each client address holds.
 *
 * Threads: the caller has a lock. */
#pragma once
#include <stdint.h>
#include "gateway/http/address.h"

#define ADDRESS_COUNTS_SLOTS 4096 // of the hash table

struct address_count {
    struct address site;
    unsigned n;          // regular connections
    unsigned n_reserved; // connections of the reserve
    unsigned n_refs;
    int64_t displace_us; // from when on it may displace a connection beside the common rate
    struct address_count *next;
};

struct address_counts { // zeroed at first; empty again after the last drop
    struct address_count *slots[ADDRESS_COUNTS_SLOTS];
    unsigned n;      // of them in all slots
    uint64_t secret; // random: clients must not choose addresses that meet in one slot
};

/* The count of the address' site, with one more reference. NULL: no memory. */
struct address_count *address_counts_take(struct address_counts *t, const struct address *a);
void address_counts_drop(struct address_counts *t, struct address_count *c); // c may be NULL
