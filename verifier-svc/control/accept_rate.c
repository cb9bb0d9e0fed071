/* accept_rate.c - fading counts by depth and by prediction. */
#include "verifier-svc/control/accept_rate.h"

#define START 0.7       // rate before anything was tried
#define FADE 0.99f      // of the counts, per token tried
#define PRIOR_TRIED 2.0 // weight of the prior, in tokens

static const double bin_from[ACCEPT_RATE_PREDICTIONS] = {0, .2, .4, .6, .8, .95};
static const double bin_mean[ACCEPT_RATE_PREDICTIONS] = {.1, .3, .5, .7, .88, .97};

static unsigned depth_class(uint32_t depth)
{
    return depth < 3 ? depth : depth < 6 ? 3 : depth < 10 ? 4 : 5;
}

static unsigned bin_of(double predicted)
{
    unsigned i = ACCEPT_RATE_PREDICTIONS - 1;
    while (i && predicted < bin_from[i])
        i--;
    return i;
}

/* (accepted + 2 prior) / (tried + 2) */
static double rate_of(const struct accept_rate_counts *c, double prior)
{
    return (c->accepted + PRIOR_TRIED * prior) / (c->tried + PRIOR_TRIED);
}

double accept_rate_at(const struct accept_rate *a, uint32_t depth)
{
    double rate = START;
    for (unsigned i = 0; i <= depth_class(depth); i++)
        rate = rate_of(&a->all[i], rate);
    return rate;
}

double accept_rate_predicted(const struct accept_rate *a, uint32_t depth, double predicted)
{
    if (predicted >= 1)
        return rate_of(&a->silent[depth_class(depth)], accept_rate_at(a, depth));
    return rate_of(&a->predicted[bin_of(predicted)], bin_mean[bin_of(predicted)]);
}

double accept_rate_alone(const struct draft *d, uint32_t i)
{
    double above = d->parents[i] < 0 ? 1 : d->survival[d->parents[i]];
    return above > 0 ? d->survival[i] / above : 0;
}

static void count(struct accept_rate_counts *c, bool accepted)
{
    c->tried = c->tried * FADE + 1;
    c->accepted = c->accepted * FADE + (accepted ? 1 : 0);
}

void accept_rate_seen(struct accept_rate *a, uint32_t depth, double predicted, bool accepted)
{
    bool is_silent = predicted >= 1;
    count(is_silent ? &a->silent[depth_class(depth)] : &a->predicted[bin_of(predicted)], accepted);
    count(&a->all[depth_class(depth)], accepted);
}
