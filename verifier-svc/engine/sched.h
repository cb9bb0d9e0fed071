/* sched.h - which requests are admitted, and how many rows of a pass each gets. Decisions only.
 *
 * Admission is in the order of flows.h, which is that of arrival within a flow. If the head of the
 * queue does not fit, up to 8 smaller requests may pass it, for at most 2 s. Then all requests wait
 * for it. Each request has its own count, which continues while other requests are the head.
 *
 * In a pass each decoding sequence first gets its row, then drafts get theirs. Prompts get the
 * remaining time and rows (chunked prefill), so a long prompt never stops the others. Half of these
 * rows go to prompts in their order, the other half to all flows with prompts in equal parts. So
 * the prompts of one flow do not stop those of another. Nor do its drafts.
 *
 * If several flows decode, their rows take at most a quarter of max_pass_us, or twice the time of
 * one row of each flow. If the rows of all would take longer, each flow gets an equal part. Of a
 * flow, the sequences whose last row is longest ago get it. Flows that wait for drafts or run
 * prompts count as flows, too.
 *
 * Extra rows are those of prompts, and of drafts whose length a client has chosen. While several
 * flows share the passes and one decodes, extra rows take at most half of the time. After a pass
 * with extra rows come passes without them, until these have taken as long as the extra rows. Only
 * while all that decode wait for their drafts, prompts and such drafts get a few rows.
 *
 * A draft that a client wants verified is not cut for the passes without extra rows. Its sequence
 * misses them, and does not count as one that decodes.
 *
 * Threads: the engine's. Time is an argument. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define SCHED_MAX_PASSING 8
#define SCHED_MAX_PASSED_US 2000000
#define SCHED_ALONE_US 500000 // a pass without decoding sequences may take this long
#define SCHED_MIN_CHUNK 16    // rows of a prompt in a pass, even if there is no time
#define SCHED_PLAIN_PARTS 4   // rows that decode for several flows take one part of max_pass_us
#define SCHED_SIZES 16        // sizes of passes whose time is recorded: 1, 2-3, 4-7, ... rows

struct sched_limits {
    uint32_t max_rows;      // of a pass
    uint32_t max_logits;    // rows of a pass that want logits; at least one per sequence
    uint32_t prefill_chunk; // rows of one prompt in a pass
    int64_t max_pass_us;    // while anything decodes
};

struct sched {
    struct sched_limits limits;
    double row_us[SCHED_SIZES];   // time per row in recent passes of that size; 0: unknown
    double plain_us[SCHED_SIZES]; // the same without rows of prompts, whose tokens are not chosen
    bool is_plain;                // the pass that runs: one token is chosen after each row
    double owed_us;               // time of extra rows that passes without them have not taken yet
    bool has_extra;               // the pass that runs is shared and has extra rows
    uint32_t n_plain;             // its other rows
    uint64_t ran;                 // the last number given to a sequence that ran
    bool takes_turns;             // in the grant under way, some sequences of a flow get no row
};

void sched_init(struct sched *s, const struct sched_limits *limits);

/* How often a waiting request has been passed; starts zeroed. */
struct sched_passed {
    int64_t since_us; // when it was first the head without fitting; 0: never
    uint32_t n;       // requests that have passed it since then
};

/* The needs of a waiting request. */
struct sched_wait {
    struct sched_passed *passed; // its own
    uint32_t blocks;             // KV blocks
    uint32_t seats;              // sequences
    bool skip;                   // must not be admitted now, but keeps its place
};

#define SCHED_NONE UINT32_MAX
/* Index of the waiting request to admit now, or SCHED_NONE. They are sorted by turn. The caller
 * admits it and calls again. */
uint32_t sched_admit(const struct sched_wait *waiting, uint32_t n, uint32_t free_blocks,
                     uint32_t free_seats, int64_t now_us);

/* Rows that a running sequence wants and gets. Sorted by arrival. */
struct sched_grant {
    uint32_t todo;       // rows until its next token; 1: it decodes; 0: none this time
    uint32_t flow;       // a number of its flow
    uint32_t draft;      // draft rows wanted; only with todo 1
    bool own_draft;      // the client has chosen the draft's length: the draft's rows are extra
    bool whole_draft;    // the client has sent the draft, and wants as much as possible verified
    bool waits;          // it decodes, but waits some milliseconds for its draft; todo is 0
    uint32_t rows;       // granted of todo
    uint32_t draft_rows; // granted of draft
    uint64_t ran;        // rises with the time of its last rows; 0: none. Kept between grants
    uint32_t n_flow;     // only for sched.c: rows of its flow, at the flow's first sequence
};

/* The sequences of a pass. */
struct sched_load {
    uint32_t n;          // all
    uint32_t n_decoding; // that decode
    uint32_t n_prompts;  // that have prompts to run
    bool shared;         // they belong to several flows
};

/* The most draft rows in a pass. Drafts do not make a shared pass longer than prompts could. */
uint32_t sched_draft_rows(const struct sched *s, const struct sched_load *l);
/* Fills rows and draft_rows; returns their sum. shared: as above. */
uint32_t sched_grant_rows(struct sched *s, struct sched_grant *v, uint32_t n, bool shared);
/* Records that the pass of the last grant, of n_rows, took `us`. That includes choosing and
 * committing its tokens. */
void sched_pass_done(struct sched *s, uint32_t n_rows, int64_t us);
