/* pass_time.h - how long a pass takes: t(M, context), measured at the start and kept fresh.
 *
 * A pass reads the weights once for all rows, a sequence's KV once for all rows of that sequence,
 * and then works on every row and on every position that a row sees:
 *     t = scale * (w(rows) + read_us * reads + see_us * sees)
 * w is a table over the number of rows with straight lines between its points. What passes take
 * afterwards moves the scale, as the machine's other work slows all, and slowly the points beside
 * them. Noise makes passes slower, never faster: a pass that is faster than its point says shows
 * that the point was wrong, the more so the fewer passes have shown it. One that was waited for is
 * slower than one that follows another at once, by a factor of its own; it shows where passes of
 * both kinds follow each other, as the machine's other work is the same then. Where the context is
 * much of a pass, what it took beyond the expected is the context's.
 *
 * Threads: the engine's; plain data. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define PASS_TIME_POINTS 24
#define PASS_TIME_TIMED 19 // the first of them, up to 64 rows, which calibrate() times

/* What decides the time of a pass. */
struct pass_time_work {
    bool drafted;  // it follows a wait for drafts: its threads had parked, its caches are others'
    uint32_t rows; // at least 1
    double reads;  // positions of KV: the sum of the contexts of its sequences
    double sees;   // the sum over its rows of the context of each
};

/* Adds rows of a sequence with so many positions of context. */
static inline void pass_time_add(struct pass_time_work *p, uint32_t rows, uint32_t context)
{
    p->rows += rows;
    p->reads += context;
    p->sees += (double)rows * context;
}

struct pass_time {
    double w_us[PASS_TIME_POINTS]; // rising; of pass_time_rows_at(i) rows
    double read_us, see_us;
    double scale, drafted_scale;     // of passes with drafts: both
    double n_seen[PASS_TIME_POINTS]; // passes that have shown a point; fades
    double n_all;
    bool last_drafted;
};

/* The numbers of rows that are measured; 0 behind the last. */
uint32_t pass_time_rows_at(unsigned i);

/* us[i]: a pass of pass_time_rows_at(i) rows without context; 0: not measured (us[0] must be). One that
 * is slower than a larger pass was held up, and counts as that one. long_us: passes of 1 and of
 * `rows` rows of one sequence behind `context` positions; both 0: not measured, a context is taken
 * to cost next to nothing until passes show what it does. */
struct pass_time_measured {
    double us[PASS_TIME_POINTS];
    uint32_t context, rows;
    double long_one_us, long_rows_us;
};
void pass_time_init(struct pass_time *c, const struct pass_time_measured *m);

double pass_time_us(const struct pass_time *c, const struct pass_time_work *p);
/* A pass, with all that a round does beside waiting for drafts, has taken us. */
void pass_time_seen(struct pass_time *c, const struct pass_time_work *p, double us);
