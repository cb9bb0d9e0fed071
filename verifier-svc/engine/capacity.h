/* capacity.h - seats and KV blocks: what a request needs, what is free, and who gives up its part.
 *
 * A seat is one of max_sequences, or of the states of recurrent layers if these are fewer. If seats
 * or blocks lack, the flow with the most shares them. It keeps at least as much as the other flow
 * gets. Its newest running sequences return to the queue and continue later with the same bits.
 *
 * Threads: the engine's. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct seq;

struct capacity {
    int64_t seats, blocks;
};

/* What waiting sequence s needs to start. */
struct capacity capacity_needed(const struct engine *e, const struct seq *s);
/* What a choice needs that waits for the prompt of the first one. */
struct capacity capacity_of_branch(void);
void capacity_subtract(struct capacity *from, const struct capacity *r);
/* Free seats, and free blocks minus those that running sequences need for their next rows; below
 * zero if these are not all there. */
struct capacity capacity_free(const struct engine *e);
bool capacity_fits(const struct capacity *needed, const struct capacity *available);

/* The flows with the most seats and with the most blocks. */
struct capacity_largest {
    uint32_t flow_by_seats, flow_by_blocks;
    struct capacity by_seats, by_blocks; // what these flows have
};

struct capacity_largest capacity_largest(const struct engine *e);
/* Frees what s lacks at the cost of the largest flow: by seats if seats lack, else by blocks.
 * False, and nothing has changed: that flow would keep less than the flow of s has then. */
bool capacity_take(struct engine *e, const struct capacity_largest *largest, const struct seq *s);
/* s fits, and `head`, the first of the queue, does not: whether s may start before it. It may if,
 * of what head lacks, the flow of s then has no more than that of head. */
bool capacity_may_pass(const struct engine *e, const struct seq *s, const struct seq *head);

/* The sequence that loses its KV blocks so that running sequence s can take some, after the round's
 * rows were granted. It is an idle one, else the newest of the flow that holds the most blocks,
 * which may be s itself. A sequence held for its draft is not idle. */
struct seq *capacity_victim(const struct engine *e, struct seq *s);
