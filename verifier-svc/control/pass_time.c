/* pass_time.c - a table of times, two slopes and two scales. */
#include <assert.h>
#include "verifier-svc/control/pass_time.h"

#define SCALE_WEIGHT 0.1   // of a pass in `scale`
#define POINT_WEIGHT 0.05  // of a pass in the two points beside it
#define UNSEEN_WEIGHT 0.01 // weight of a point without passes, in passes
#define SEEN_FADE 0.99     // of n_seen, per pass
#define CONTEXT_WEIGHT 0.2 // of a pass in a and b
#define ATTEND_RATIO 0.25  // rough ratio of b to a
#define KIND_WEIGHT 0.5    // of a change between passes with and without drafts, in drafted_scale
#define MIN_READ 1e-6      // first a, at least, of a pass of one row: a zero is never corrected
#define OUTLIER 2.0        // cap of an interrupted pass, relative to its expected time

static const uint32_t points[PASS_TIME_POINTS] = {
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 17, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512};

uint32_t pass_time_rows_at(unsigned i)
{
    return i < PASS_TIME_POINTS ? points[i] : 0;
}

/* Where `rows`, at least 1, lies in the table: after point *ret_i, at the returned part of the way
 * to the next point. After the last point the part exceeds 1, so the last line continues. */
static double find_place(uint32_t rows, unsigned *ret_i)
{
    assert(rows);
    unsigned i = 0;
    while (i + 2 < PASS_TIME_POINTS && points[i + 1] <= rows)
        i++;
    *ret_i = i;
    return (double)(rows - points[i]) / (points[i + 1] - points[i]);
}

/* w(rows) */
static double table_us(const double us[PASS_TIME_POINTS], uint32_t rows)
{
    unsigned i;
    double part = find_place(rows, &i);
    return us[i] + part * (us[i + 1] - us[i]);
}

static double max(double a, double b)
{
    return a > b ? a : b;
}

static double min(double a, double b)
{
    return a < b ? a : b;
}

/* A larger pass is never faster. Points that fall are replaced by their mean, weighted by the
 * passes that have updated each (isotonic regression: Ayer et al. 1955). */
static void keep_rising(struct pass_time *t)
{
    struct {
        double us, n;
        unsigned first;
    } v[PASS_TIME_POINTS + 1] = {0}, *top = v; // a stack of groups of points
    for (unsigned i = 0; i < PASS_TIME_POINTS; i++) {
        double us = t->w_us[i], n = t->n_seen[i] + UNSEEN_WEIGHT;
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
        t->w_us[i] = top[-1].us;
    }
}

/* The fastest of point i and all larger points: a larger pass is never faster. */
static double fastest_from(const double us[PASS_TIME_POINTS], unsigned i)
{
    double best = us[i];
    for (unsigned k = i + 1; k < PASS_TIME_POINTS; k++)
        best = us[k] > 0 ? min(best, us[k]) : best;
    return best;
}

/* Fills the table. Points that were not measured lie on lines between measured points. The last
 * line continues after the last measured point. */
static void fill_table(struct pass_time *t, const double us[PASS_TIME_POINTS])
{
    unsigned last = 0;
    double per_row = us[0]; // with only one point, rows are assumed to share nothing
    for (unsigned i = 0; i < PASS_TIME_POINTS; i++) {
        if (us[i] <= 0)
            continue;
        t->w_us[i] = fastest_from(us, i);
        for (unsigned k = last + 1; k <= i; k++) {
            per_row = (t->w_us[i] - t->w_us[last]) / (points[i] - points[last]);
            t->w_us[k] = t->w_us[last] + per_row * (points[k] - points[last]);
        }
        last = i;
    }
    for (unsigned k = last + 1; k < PASS_TIME_POINTS; k++)
        t->w_us[k] = t->w_us[last] + per_row * (points[k] - points[last]);
}

void pass_time_init(struct pass_time *t, const struct pass_time_measured *m)
{
    *t = (struct pass_time){.scale = 1, .drafted_scale = 1};
    fill_table(t, m->us);
    t->read_us = MIN_READ * t->w_us[0];
    if (m->rows < 2 || m->long_one_us <= 0)
        return;
    double one = (m->long_one_us - table_us(t->w_us, 1)) / m->context;        // a + b
    double all = (m->long_rows_us - table_us(t->w_us, m->rows)) / m->context; // a + rows b
    t->attend_us = max(0, (all - one) / (m->rows - 1));
    t->read_us = max(t->read_us, one - t->attend_us);
}

/* S */
static double scale_of(const struct pass_time *t, const struct pass_time_work *p)
{
    return p->drafted ? t->scale * t->drafted_scale : t->scale;
}

/* a R + b C */
static double context_us(const struct pass_time *t, const struct pass_time_work *p)
{
    return t->read_us * p->kv_read + t->attend_us * p->attended;
}

double pass_time_us(const struct pass_time *t, const struct pass_time_work *p)
{
    return scale_of(t, p) * (table_us(t->w_us, p->rows) + context_us(t, p));
}

/* W(least, n, r): weight of the n-th recent pass, which took r times the expected time. Noise makes
 * passes slower, never faster. So a faster pass counts as 1/n, and a slower one as `least`. */
static double weight(double least, double n, double ratio)
{
    return ratio < 1 ? max(least, 1 / max(n, 1)) : least;
}

/* r: time relative to the expected time, with a cap for an interrupted pass. */
static double ratio_of(const struct pass_time *t, const struct pass_time_work *p, double us)
{
    return min(us / pass_time_us(t, p), OUTLIER);
}

/* Moves point i by `share` of the weight of a pass. A change at the points in use is assumed to
 * hold for the other points too. So a point with a larger part of all passes moves a larger part of
 * its change to the scale. */
static void move_point(struct pass_time *t, unsigned i, double share, double ratio)
{
    double all = 0;
    t->n_seen[i] += share;
    for (unsigned k = 0; k < PASS_TIME_POINTS; k++)
        all += t->n_seen[k];
    double part = t->n_seen[i] / max(all, 1);
    double change = share * weight(POINT_WEIGHT, t->n_seen[i], ratio) * (ratio - 1);
    t->w_us[i] *= 1 + (1 - part) * change;
    t->scale *= 1 + part * change;
}

/* A pass with drafts followed one without, or the reverse. The machine's other work was the same
 * for both, so the ratio is due to the kind. */
static void update_drafted_scale(struct pass_time *t, bool drafted, double ratio)
{
    double factor = 1 + KIND_WEIGHT * (ratio - 1);
    t->drafted_scale = max(1, drafted ? t->drafted_scale * factor : t->drafted_scale / factor);
}

/* Updates a and b by normalised least mean squares (Widrow and Hoff 1960). Start-up measures few
 * passes, over KV that was never written, so both values need correction. A pass counts by the
 * share of its time that is due to the context. Returns the other share. */
static double update_context(struct pass_time *t, const struct pass_time_work *p, double ratio)
{
    double context = context_us(t, p), all = context + table_us(t->w_us, p->rows);
    double share = context / all;
    if (p->kv_read > 0) {
        double error_us = CONTEXT_WEIGHT * share * (ratio - 1) * all;
        double attended = ATTEND_RATIO * p->attended;
        double norm = p->kv_read * p->kv_read + attended * attended;
        t->read_us = max(0, t->read_us + error_us * p->kv_read / norm);
        t->attend_us = max(0, t->attend_us + error_us * attended * ATTEND_RATIO / norm);
    }
    return 1 - share;
}

void pass_time_seen(struct pass_time *t, const struct pass_time_work *p, double us)
{
    if (pass_time_us(t, p) <= 0)
        return; // nothing was measured at start-up
    double rest = update_context(t, p, ratio_of(t, p, us));
    double ratio = 1 + rest * rest * (ratio_of(t, p, us) - 1); // r'
    if (t->n_all > 0 && p->drafted != t->last_drafted)
        update_drafted_scale(t, p->drafted, ratio);
    t->last_drafted = p->drafted;
    t->scale *= 1 + weight(SCALE_WEIGHT, ++t->n_all, ratio) * (ratio - 1);
    for (unsigned k = 0; k < PASS_TIME_POINTS; k++)
        t->n_seen[k] *= SEEN_FADE;
    unsigned i;
    double part = min(find_place(p->rows, &i), 1);
    ratio = 1 + rest * rest * (ratio_of(t, p, us) - 1); // r'': with the new scale
    move_point(t, i, 1 - part, ratio);
    move_point(t, i + 1, part, ratio);
    keep_rising(t);
}
