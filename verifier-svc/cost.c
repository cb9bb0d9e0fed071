/* cost.c - a table of times and two slopes. */
#include "verifier-svc/cost.h"

#define SCALE_WEIGHT 0.05 // of a new pass in the scale, and in the points beside it
#define POINT_WEIGHT 0.1
#define OUTLIER 2.0 // a pass that was interrupted counts as at most so much more than expected

static const uint32_t points[COST_POINTS] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  12,  14,
                                             16, 17, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512};

uint32_t cost_rows_at(unsigned i)
{
    return i < COST_POINTS ? points[i] : 0;
}

/* Where `rows` lies: behind point *ret_i, by this share of the way to the next. Beyond the last
 * point the share exceeds 1. */
static double place(uint32_t rows, unsigned *ret_i)
{
    unsigned i = 0;
    while (i + 2 < COST_POINTS && points[i + 1] <= rows)
        i++;
    *ret_i = i;
    return (double)(rows - points[i]) / (points[i + 1] - points[i]);
}

static double w_us(const struct cost *c, uint32_t rows)
{
    unsigned i;
    double share = place(rows, &i);
    return c->w_us[i] + share * (c->w_us[i + 1] - c->w_us[i]);
}

static double max(double a, double b)
{
    return a > b ? a : b;
}

/* Points that were not measured lie on lines through those that were; behind the last, each row
 * costs what it did before it. A larger pass is never cheaper. */
static void fill(struct cost *c, const double us[COST_POINTS])
{
    unsigned last = 0;
    double per_row = us[0]; // one point only: nothing is known to be shared
    for (unsigned i = 0; i < COST_POINTS; i++) {
        if (us[i] <= 0)
            continue;
        c->w_us[i] = i ? max(us[i], c->w_us[last]) : us[0];
        for (unsigned k = last + 1; k <= i; k++) {
            per_row = (c->w_us[i] - c->w_us[last]) / (points[i] - points[last]);
            c->w_us[k] = c->w_us[last] + per_row * (points[k] - points[last]);
        }
        last = i;
    }
    for (unsigned k = last + 1; k < COST_POINTS; k++)
        c->w_us[k] = c->w_us[last] + per_row * (points[k] - points[last]);
}

void cost_init(struct cost *c, const struct cost_measured *m)
{
    *c = (struct cost){.scale = 1, .drafted_scale = 1};
    fill(c, m->us);
    if (m->rows < 2 || m->long_one_us <= 0)
        return;
    double one = (m->long_one_us - w_us(c, 1)) / m->context;        // read + see
    double all = (m->long_rows_us - w_us(c, m->rows)) / m->context; // read + rows * see
    c->see_us = max(0, (all - one) / (m->rows - 1));
    c->read_us = max(0, one - c->see_us);
}

double cost_us(const struct cost *c, const struct cost_pass *p)
{
    double scale = p->drafted ? c->scale * c->drafted_scale : c->scale;
    return scale * (w_us(c, p->rows) + c->read_us * p->reads + c->see_us * p->sees);
}

/* Keeps larger passes from being cheaper than smaller ones. */
static void keep_rising(struct cost *c, unsigned at)
{
    for (unsigned k = at; k-- > 0 && c->w_us[k] > c->w_us[k + 1];)
        c->w_us[k] = c->w_us[k + 1];
    for (unsigned k = at + 1; k < COST_POINTS && c->w_us[k] < c->w_us[k - 1]; k++)
        c->w_us[k] = c->w_us[k - 1];
}

void cost_seen(struct cost *c, const struct cost_pass *p, double us)
{
    double expected_us = cost_us(c, p);
    if (expected_us <= 0)
        return; // nothing was measured
    double ratio = us / expected_us;
    ratio = ratio > OUTLIER ? OUTLIER : max(ratio, 1 / OUTLIER);
    *(p->drafted ? &c->drafted_scale : &c->scale) *= 1 + SCALE_WEIGHT * (ratio - 1);
    c->drafted_scale = max(c->drafted_scale, 1);
    unsigned i;
    double share = place(p->rows, &i);
    share = share > 1 ? 1 : share;
    c->w_us[i] *= 1 + POINT_WEIGHT * (1 - share) * (ratio - 1);
    c->w_us[i + 1] *= 1 + POINT_WEIGHT * share * (ratio - 1);
    keep_rising(c, i);
    keep_rising(c, i + 1);
}
