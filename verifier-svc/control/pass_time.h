/* pass_time.h - estimator: how long a forward pass takes, t(M, context).
 *
 *     t = S (w(M) + a R + b C)
 * M: rows; w: a table with straight lines between its points. A pass reads the weights once.
 * R: positions of KV that are read: once per sequence, for all its rows. a: time of each.
 * C: positions attended to, summed over all rows. b: time of each.
 * S: `scale`, times `drafted_scale` for a pass with drafts. Such a pass follows a wait: its threads
 *    have parked, and other programs have used its caches.
 * The table, a and b are measured at start-up (engine/calibrate.c). Each pass then updates all of
 * them. docs/controller.md, "Pass time", has the formulas of the update.
 *
 * Threads: the engine's; plain data. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define PASS_TIME_POINTS 24
#define PASS_TIME_TIMED 19 // the first points, up to 64 rows, which calibrate() measures

/* What the time of a pass depends on. */
struct pass_time_work {
    bool drafted;    // it verifies drafts
    uint32_t rows;   // M, at least 1
    double kv_read;  // R: sum of the contexts of its sequences
    double attended; // C: sum of the contexts of its rows
};

/* Adds rows of one sequence with this context. */
static inline void pass_time_add(struct pass_time_work *p, uint32_t rows, uint32_t context)
{
    p->rows += rows;
    p->kv_read += context;
    p->attended += (double)rows * context;
}

struct pass_time {
    double w_us[PASS_TIME_POINTS];   // w(pass_time_rows_at(i)), rising
    double read_us, attend_us;       // a, b
    double scale, drafted_scale;     // S
    double n_seen[PASS_TIME_POINTS]; // passes that have updated a point; fades
    double n_all;                    // passes
    bool last_drafted;               // the last pass had drafts
};

/* Rows of point i of the table; 0 after the last point. */
uint32_t pass_time_rows_at(unsigned i);

struct pass_time_measured {
    /* A pass of pass_time_rows_at(i) rows without context; 0: not measured. us[0] is required. A
     * size that is slower than a larger one was delayed, and counts as the larger one. */
    double us[PASS_TIME_POINTS];
    /* Passes of 1 and of `rows` rows of one sequence after `context` positions. Both times 0: not
     * measured; a context then costs next to nothing until passes show more. */
    uint32_t context, rows;
    double long_one_us, long_rows_us;
};
void pass_time_init(struct pass_time *t, const struct pass_time_measured *m);

/* t; 0: nothing was measured. */
double pass_time_us(const struct pass_time *t, const struct pass_time_work *p);

/* Updates the model by a round that took us without its wait for drafts. */
void pass_time_seen(struct pass_time *t, const struct pass_time_work *p, double us);
