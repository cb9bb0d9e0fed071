/* accept_rate.c - fading counts by place and by word. */
#include "verifier-svc/control/accept_rate.h"

#define START 0.7       // before anything was tried
#define FADE 0.99f      // per token tried
#define PRIOR_TRIED 2.0 // tokens that a rate weighs before any was tried

static const double said_above[ACCEPT_RATE_WORDS] = {0, .2, .4, .6, .8, .95};
static const double said_means[ACCEPT_RATE_WORDS] = {.1, .3, .5, .7, .88, .97};

static unsigned place_of(uint32_t depth)
{
    return depth < 3 ? depth : depth < 6 ? 3 : depth < 10 ? 4 : 5;
}

static unsigned word_of(double said)
{
    unsigned i = ACCEPT_RATE_WORDS - 1;
    while (i && said < said_above[i])
        i--;
    return i;
}

static double rate_of(const struct accept_rate_estimate *r, double prior)
{
    return (r->kept + PRIOR_TRIED * prior) / (r->tried + PRIOR_TRIED);
}

double accept_rate_at(const struct accept_rate *c, uint32_t depth)
{
    double rate = START;
    for (unsigned i = 0; i <= place_of(depth); i++)
        rate = rate_of(&c->all[i], rate);
    return rate;
}

double accept_rate_predicted(const struct accept_rate *c, uint32_t depth, double said)
{
    if (said >= 1)
        return rate_of(&c->silent[place_of(depth)], accept_rate_at(c, depth));
    return rate_of(&c->said[word_of(said)], said_means[word_of(said)]);
}

double accept_rate_alone(const int32_t *parents, const float *said, uint32_t i)
{
    double above = parents[i] < 0 ? 1 : said[parents[i]];
    return above > 0 ? said[i] / above : 0;
}

static void note(struct accept_rate_estimate *r, bool kept)
{
    r->tried = r->tried * FADE + 1;
    r->kept = r->kept * FADE + (kept ? 1 : 0);
}

void accept_rate_seen(struct accept_rate *c, uint32_t depth, double said, bool kept)
{
    note(said >= 1 ? &c->silent[place_of(depth)] : &c->said[word_of(said)], kept);
    note(&c->all[place_of(depth)], kept);
}
