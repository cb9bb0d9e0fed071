/* key_budget.h - what one API key has used of its limits per minute and per day.
 *
 * A limit per minute is a bucket: it is full after a minute without use, and each request or token
 * takes its part. The state of a bucket is the time at which it will be full again. Two processes
 * that serve the same key add up their parts by adding times.
 *
 * A limit per day counts from midnight to midnight, UTC.
 *
 * Before a request is sent, it reserves the tokens that it may use. What running requests have
 * reserved and not used counts as used, so they cannot all use the same tokens. If a request uses
 * more than it reserved, the difference is a debt, which later requests wait for.
 *
 * Pure: times are arguments, in microseconds since 1970, so that counts survive a restart.
 *
 * Threads: one at a time per budget. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "gateway/keys/key_file.h"

/* The part that is kept over restarts. */
struct key_budget_counts {
    int64_t requests_full_us, tokens_full_us; // when the buckets are full
    int64_t day;                              // since 1970
    int64_t day_tokens;                       // used on that day
};

/* What was added to the counts; after something was given back, it may be negative. */
struct key_budget_change {
    int64_t requests_us, tokens_us, day_tokens;
};

struct key_budget {
    struct key_budget_counts counts;
    struct key_budget_change unsaved; // part of the counts, since key_budget_take_unsaved()
    int64_t reserved;                 // tokens that running requests may still use
};

/* The tokens of one running request. */
struct key_budget_hold {
    uint64_t reserved, used;    // tokens
    int64_t charged_us;         // taken from the bucket of tokens
    uint32_t tokens_per_minute; // at that time; 0: no such limit
};

/* A limit as it stands now. */
struct key_budget_level {
    uint64_t limit, left; // limit 0: there is none
    int64_t reset_us;     // until everything is left again, if nothing is used
    bool per_day;
};
struct key_budget_level key_budget_requests(const struct key_budget *b,
                                            const struct key_file_limits *l, int64_t now_us);
/* Of the limits per minute and per day the one with fewer tokens left. */
struct key_budget_level key_budget_tokens(const struct key_budget *b,
                                          const struct key_file_limits *l, int64_t now_us);

/* Takes one request from the bucket. -EAGAIN: there is none; *ret_wait_us: until there is one. */
int key_budget_begin(struct key_budget *b, const struct key_file_limits *l, int64_t now_us,
                     int64_t *ret_wait_us);

/* Reserves n tokens for a request; *ret_hold is empty before.
 * -EMSGSIZE: a limit is smaller than n.
 * -EAGAIN: fewer than n are left. *ret_wait_us: until n are left; 1 s if only the end of other
 * requests can give tokens back.
 * Then *ret_level is the limit. */
int key_budget_reserve(struct key_budget *b, const struct key_file_limits *l, int64_t now_us,
                       uint64_t n, struct key_budget_hold *ret_hold,
                       struct key_budget_level *ret_level, int64_t *ret_wait_us);
/* The request has used this many tokens until now. */
void key_budget_use(struct key_budget *b, struct key_budget_hold *h, uint64_t n, int64_t now_us);
/* The request has ended: gives back what it reserved and did not use. */
void key_budget_end(struct key_budget *b, struct key_budget_hold *h);

/* The changes since the last call, to be saved. */
struct key_budget_change key_budget_take_unsaved(struct key_budget *b, int64_t now_us);
/* The changes could not be saved, and wait for the next call. day: counts.day when they were
 * taken. */
void key_budget_return_unsaved(struct key_budget *b, const struct key_budget_change *change,
                               int64_t day);
/* saved: the counts in the file, which other processes change, too. Returns `own`, joined with
 * them. change: the part of `own` that is not in the file yet. now_us: when it was taken. */
struct key_budget_counts key_budget_join(const struct key_budget_counts *own,
                                         const struct key_budget_change *change,
                                         const struct key_budget_counts *saved, int64_t now_us);
/* The counts were `before` and are now `after`, because other processes have changed them. Keeps
 * the counts that were added here meanwhile. */
void key_budget_adopt(struct key_budget *b, const struct key_budget_counts *before,
                      const struct key_budget_counts *after);
