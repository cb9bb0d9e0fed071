/* seq_list.h - a bounded list of sequences in order of arrival.
 *
 * Threads: the engine's. */
#pragma once
#include <stdint.h>
#include "verifier-svc/engine/seq.h"

struct seq_list {
    struct seq **v; // (max), the first n in use
    uint32_t n, max;
};

int seq_list_init(struct seq_list *l, uint32_t max); // -ENOMEM
void seq_list_done(struct seq_list *l);
/* The list must have space: admit.c counts. */
void seq_list_add(struct seq_list *l, struct seq *s);
/* Does nothing if the sequence is not in the list. */
void seq_list_remove(struct seq_list *l, const struct seq *s);
struct seq *seq_list_find(const struct seq_list *l, uint64_t id); // NULL: none
