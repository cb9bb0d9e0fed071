/* seq_list.h - a bounded list of sequences in order of arrival.
 *
 * Threads: the engine's. */
#pragma once
#include <stdint.h>
#include "verifier-svc/engine/seq.h"

struct roster {
    struct seq **v; // (max), the first n in use
    uint32_t n, max;
};

int roster_init(struct roster *l, uint32_t max); // -ENOMEM
void roster_done(struct roster *l);
/* There is room: whoever admits counts. */
void roster_add(struct roster *l, struct seq *s);
/* Nothing if it is not in the list. */
void roster_remove(struct roster *l, const struct seq *s);
struct seq *roster_find(const struct roster *l, uint64_t id); // NULL: none
