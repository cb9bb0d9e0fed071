/* draft_model_feed.c - contexts that are mostly unknown are read between Rounds, in short pieces. */
#include "base/clock.h"
#include "proposer-svc/draftmodel/draft_model_impl.h"

#define FEED_US 3000 // a chunk of context takes so long: what a Round may have to wait
#define FEED_ROWS_MIN 16

void draft_model_feed_later(struct draft_model *d, struct draft_model_seq *s)
{
    struct draft_model_seq **at = &d->first_fed;
    if (s->is_fed)
        return;
    while (*at)
        at = &(*at)->next_fed;
    *at = s;
    s->next_fed = NULL;
    s->is_fed = true;
}

void draft_model_feed_stop(struct draft_model *d, struct draft_model_seq *s)
{
    struct draft_model_seq **at = &d->first_fed;
    if (!s->is_fed)
        return;
    while (*at != s)
        at = &(*at)->next_fed;
    *at = s->next_fed;
    s->is_fed = false;
}

int64_t draft_model_feed_us(const struct draft_model *d, const struct draft_model_seq *s)
{
    uint64_t rows = 0;
    for (const struct draft_model_seq *f = d->first_fed; f; f = f == s ? NULL : f->next_fed)
        rows += f->context.n - f->kv.len;
    return (int64_t)((float)rows * d->feed_row_us);
}

static uint32_t chunk_rows(const struct draft_model *d)
{
    float rows = d->feed_row_us > 0 ? FEED_US / d->feed_row_us : FEED_ROWS_MIN;
    return rows < FEED_ROWS_MIN ? FEED_ROWS_MIN : rows > ROWS_MAX ? ROWS_MAX : (uint32_t)rows;
}

bool draft_model_feed_work(void *shared)
{
    struct draft_model *d = shared;
    struct draft_model_seq *s = d->first_fed;
    bool is_ahead = d->is_ahead;
    d->is_ahead = false; // until draft() says it again
    if (!s)
        return is_ahead;
    uint32_t from = s->kv.len, left = s->context.n - 1 - from, n = chunk_rows(d);
    if (from + CATCH_UP >= s->context.n || s->is_foreign) {
        draft_model_feed_stop(d, s);
        return true;
    }
    n = n < left ? n : left;
    if (!draft_model_rows_grow(d, s, n)) {
        s->starved = true;
        draft_model_feed_stop(d, s);
        return true;
    }
    int64_t start_us = clock_us();
    pass_plan_clear(&d->run.plan);
    draft_model_rows_add(d, s, from);
    forward_run(d->run.forward, &d->run.plan);
    float row_us = (float)(clock_us() - start_us) / (float)n;
    d->feed_row_us = d->feed_row_us > 0 ? 0.75f * d->feed_row_us + 0.25f * row_us : row_us;
    return true;
}
