/* pass_time.c - a table of times and two slopes. */
#include <assert.h>
#include "verifier-svc/control/pass_time.h"

#define SCALE_WEIGHT 0.1   // of a new pass in the scale
#define POINT_WEIGHT 0.05  // in the points beside it
#define UNSEEN 0.01        // passes that a point weighs that none has shown
#define SEEN_FADE 0.99     // per pass, of how often a point was seen
#define CONTEXT_WEIGHT 0.2 // in what reading and seeing a position takes
#define SEE_SHARE 0.25     // of what reading a position takes, about, for a row that sees it
#define KIND_WEIGHT 0.5    // in the factor of drafted passes, where one kind follows the other
#define LEAST_READ 1e-6    // of a pass, to read a position: what costs nothing is never learnt
#define OUTLIER 2.0 // a pass that was interrupted counts as at most so much more than expected

#define EACH 10 // up to here each number of rows has a point

static const uint32_t points[PASS_TIME_POINTS] = {
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 17, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512};

uint32_t pass_time_rows_at(unsigned i)
{
    return i < PASS_TIME_POINTS ? points[i] : 0;
}

/* Where `rows`, at least 1, lies: behind point *ret_i, by this share of the way to the next. Beyond
 * the last point the share exceeds 1. */
static double place(uint32_t rows, unsigned *ret_i)
{
    assert(rows);
    unsigned i = (rows < EACH ? rows : EACH) - 1;
    while (i + 2 < PASS_TIME_POINTS && points[i + 1] <= rows)
        i++;
    *ret_i = i;
    return (double)(rows - points[i]) / (points[i + 1] - points[i]);
}

/* Of a table, by a line between its points. */
static double at(const double us[PASS_TIME_POINTS], uint32_t rows)
{
    unsigned i;
    double share = place(rows, &i);
    return us[i] + share * (us[i + 1] - us[i]);
}

static double max(double a, double b)
{
    return a > b ? a : b;
}

static double min(double a, double b)
{
    return a < b ? a : b;
}

/* A larger pass is never cheaper: points that say so are joined in their mean, each by the passes
 * that have shown it (isotonic regression: Ayer et al. 1955). */
static void keep_rising(struct pass_time *c)
{
    struct {
        double us, n;
        unsigned first;
    } v[PASS_TIME_POINTS + 1] = {0}, *top = v;
    for (unsigned i = 0; i < PASS_TIME_POINTS; i++) {
        double us = c->w_us[i], n = c->n_seen[i] + UNSEEN;
        unsigned first = i;
        for (; top > v && top[-1].us > us; top--) {
            us = (us * n + top[-1].us * top[-1].n) / (n + top[-1].n);
            n += top[-1].n;
            first = top[-1].first;
        }
        top->us = us;
        top->n = n;
        (top++)->first = first;
    }
    for (unsigned i = PASS_TIME_POINTS; i-- > 0;) {
        while (top[-1].first > i)
            top--;
        c->w_us[i] = top[-1].us;
    }
}

/* What point i was measured to take at most: a larger pass is never cheaper. */
static double at_most_us(const double us[PASS_TIME_POINTS], unsigned i)
{
    double best = us[i];
    for (unsigned k = i + 1; k < PASS_TIME_POINTS; k++)
        best = us[k] > 0 ? min(best, us[k]) : best;
    return best;
}

/* Points that were not measured lie on lines through those that were; behind the last, each row
 * costs what it did before it. */
static void fill(struct pass_time *c, const double us[PASS_TIME_POINTS])
{
    unsigned last = 0;
    double per_row = us[0]; // one point only: nothing is known to be shared
    for (unsigned i = 0; i < PASS_TIME_POINTS; i++) {
        if (us[i] <= 0)
            continue;
        c->w_us[i] = at_most_us(us, i);
        for (unsigned k = last + 1; k <= i; k++) {
            per_row = (c->w_us[i] - c->w_us[last]) / (points[i] - points[last]);
            c->w_us[k] = c->w_us[last] + per_row * (points[k] - points[last]);
        }
        last = i;
    }
    for (unsigned k = last + 1; k < PASS_TIME_POINTS; k++)
        c->w_us[k] = c->w_us[last] + per_row * (points[k] - points[last]);
}

void pass_time_init(struct pass_time *c, const struct pass_time_measured *m)
{
    *c = (struct pass_time){.scale = 1, .drafted_scale = 1};
    fill(c, m->us);
    c->read_us = LEAST_READ * c->w_us[0];
    if (m->rows < 2 || m->long_one_us <= 0)
        return;
    double one = (m->long_one_us - at(c->w_us, 1)) / m->context;        // read + see
    double all = (m->long_rows_us - at(c->w_us, m->rows)) / m->context; // read + rows * see
    c->see_us = max(0, (all - one) / (m->rows - 1));
    c->read_us = max(c->read_us, one - c->see_us);
}

static double scale_of(const struct pass_time *c, const struct pass_time_work *p)
{
    return p->drafted ? c->scale * c->drafted_scale : c->scale;
}

static double context_us(const struct pass_time *c, const struct pass_time_work *p)
{
    return c->read_us * p->reads + c->see_us * p->sees;
}

double pass_time_us(const struct pass_time *c, const struct pass_time_work *p)
{
    return scale_of(c, p) * (at(c->w_us, p->rows) + context_us(c, p));
}

/* Of the n-th pass lately; the first ones count for more if they are faster. */
static double weight(double least, double n, double ratio)
{
    return ratio < 1 ? max(least, 1 / max(n, 1)) : least;
}

static double ratio_of(const struct pass_time *c, const struct pass_time_work *p, double us)
{
    return min(us / pass_time_us(c, p), OUTLIER);
}

/* What holds for the points that are seen is taken to hold for the others: the more of the passes
 * this point has, the more of its change is the scale's. */
static void move_point(struct pass_time *c, unsigned i, double share, double ratio)
{
    double all = 0;
    c->n_seen[i] += share;
    for (unsigned k = 0; k < PASS_TIME_POINTS; k++)
        all += c->n_seen[k];
    double part = c->n_seen[i] / max(all, 1);
    double change = share * weight(POINT_WEIGHT, c->n_seen[i], ratio) * (ratio - 1);
    c->w_us[i] *= 1 + (1 - part) * change;
    c->scale *= 1 + part * change;
}

/* One kind of pass has followed the other, on the same machine. */
static void compare_kinds(struct pass_time *c, bool drafted, double ratio)
{
    double factor = 1 + KIND_WEIGHT * (ratio - 1);
    c->drafted_scale = max(1, drafted ? c->drafted_scale * factor : c->drafted_scale / factor);
}

/* At the start nothing had been written to the KV that was read, and few passes were timed: what a
 * pass shows of its context counts as far as that is most of it. The error goes to both times, each
 * by how often it was in the pass (Widrow and Hoff 1960, normalised). Returns the part of the pass
 * that does not depend on the context. */
static double learn_context(struct pass_time *c, const struct pass_time_work *p, double ratio)
{
    double context = context_us(c, p), all = context + at(c->w_us, p->rows);
    double part = context / all;
    if (p->reads > 0) {
        double error_us = CONTEXT_WEIGHT * part * (ratio - 1) * all;
        double sees = SEE_SHARE * p->sees, size = p->reads * p->reads + sees * sees;
        c->read_us = max(0, c->read_us + error_us * p->reads / size);
        c->see_us = max(0, c->see_us + error_us * sees * SEE_SHARE / size);
    }
    return 1 - part;
}

void pass_time_seen(struct pass_time *c, const struct pass_time_work *p, double us)
{
    if (pass_time_us(c, p) <= 0)
        return; // nothing was measured
    double rest = learn_context(c, p, ratio_of(c, p, us));
    double ratio = 1 + rest * rest * (ratio_of(c, p, us) - 1);
    if (c->n_all > 0 && p->drafted != c->last_drafted)
        compare_kinds(c, p->drafted, ratio);
    c->last_drafted = p->drafted;
    c->scale *= 1 + weight(SCALE_WEIGHT, ++c->n_all, ratio) * (ratio - 1);
    for (unsigned k = 0; k < PASS_TIME_POINTS; k++)
        c->n_seen[k] *= SEEN_FADE;
    unsigned i;
    double share = min(place(p->rows, &i), 1);
    ratio = 1 + rest * rest * (ratio_of(c, p, us) - 1); // what the scale has left of it
    move_point(c, i, 1 - share, ratio);
    move_point(c, i + 1, share, ratio);
    keep_rising(c);
}
