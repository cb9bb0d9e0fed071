/* sched.h - who is admitted, and how the rows of a pass are shared out. Decisions only.
 *
 * Order is arrival. A head of the queue that does not fit may be passed by up to 8 smaller requests
 * for at most 2 s; then everybody waits for it. The count is its own: it goes on while others are
 * the head for a time. In a pass every decoding sequence has its row
 * first, then drafts, then prompts get what time and rows are left (chunked prefill), so that a
 * long prompt never stops the others from speaking.
 *
 * Threads: the engine's. Time is an argument. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define SCHED_MAX_PASSING 8
#define SCHED_MAX_PASSED_US 2000000
#define SCHED_ALONE_US 500000 // a pass of prompts only may take this long
#define SCHED_MIN_CHUNK 16    // rows a prompt gets in a pass whatever the time
#define SCHED_SIZES 16        // sizes of passes whose time is kept: 1, 2-3, 4-7, ... rows

struct sched_limits {
    uint32_t max_rows;      // of a pass
    uint32_t max_logits;    // rows of a pass that want logits; at least one per sequence
    uint32_t prefill_chunk; // rows of one prompt in a pass
    int64_t max_pass_us;    // while anything decodes
};

struct sched {
    struct sched_limits limits;
    double row_us[SCHED_SIZES]; // a row's time in recent passes of that size; 0: there was none
};

void sched_init(struct sched *s, const struct sched_limits *limits);

/* How often a request has been passed, for as long as it waits; begins zeroed. */
struct sched_passed {
    int64_t since_us; // the head since then, without fitting; 0: it never was
    uint32_t n;       // by so many since then
};

/* What a waiting request needs at once. */
struct sched_wait {
    struct sched_passed *passed; // its own
    uint32_t blocks;             // of KV
    uint32_t seats;              // sequences
    bool away;                   // wants nothing now, but keeps its place
};

#define SCHED_NONE UINT32_MAX
/* Index of the waiting request to admit now, or SCHED_NONE; they are sorted by arrival. The caller
 * admits it and asks again. */
uint32_t sched_admit(const struct sched_wait *waiting, uint32_t n, uint32_t free_blocks,
                     uint32_t free_seats, int64_t now_us);

/* A running sequence's wish, and what it gets. Sorted by arrival. */
struct sched_grant {
    uint32_t todo;       // rows until its next token; 1: it decodes; 0: nothing this time
    uint32_t draft;      // draft rows wanted; only with todo 1
    uint32_t rows;       // granted of todo
    uint32_t draft_rows; // granted of draft
};

/* Rows of drafts in a pass with n sequences, of which so many decode and so many have prompts to
 * run: at most. */
uint32_t sched_draft_rows(const struct sched *s, uint32_t n, uint32_t n_decoding,
                          uint32_t n_prompts);
/* Fills rows and draft_rows; returns their sum. */
uint32_t sched_grant_rows(const struct sched *s, struct sched_grant *v, uint32_t n);
/* A pass of n_rows took us. */
void sched_pass_done(struct sched *s, uint32_t n_rows, int64_t us);
