/* calibrate.c - times passes of a dummy sequence. */
#include <errno.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "file/result_file.h"
#include "verifier-svc/engine/calibrate.h"

#define TIME_US 1500000 // no new size is timed after it
#define LONG_TIME_US 500000
#define ROUNDS 3 // the fastest counts
#define LONG_CONTEXT 2048
#define LONG_ROWS 8
#define MAX_ROWS 512

struct trial {
    struct runner *r;
    const uint32_t *tokens; // (2 * MAX_ROWS)
    uint32_t at; // where the next pass begins, below MAX_ROWS: in another part of the text
    struct kv_seq seq;
    int64_t until_us;
};

/* Duration of a pass of n rows after `context` positions; 0: it does not fit. */
static double pass_us(struct trial *t, uint32_t n, uint32_t context)
{
    struct kv *kv = t->r->kv;
    if (n > t->r->max_logits || context + n > t->r->context)
        return 0;
    kv_release(kv, &t->seq);
    if (kv_grow(kv, &t->seq, context + n) < 0)
        return 0;
    t->seq.state_len = context; // the state, like K and V, is that of any text
    struct pass_plan *plan = &t->r->plan;
    pass_plan_clear(plan);
    pass_plan_add_chain(plan, pass_plan_add_seq(plan, &t->seq, 0), t->tokens + t->at, context, n,
                        n);
    t->at = (t->at + n) % MAX_ROWS;
    int64_t from_us = clock_us();
    forward_run(t->r->forward, plan);
    return (double)(clock_us() - from_us);
}

static void keep_fastest(double *best, double us)
{
    *best = *best > 0 && *best < us ? *best : us;
}

/* Times the sizes in order of importance, each once per turn. So a short disturbance by other
 * processes does not affect all measurements of one size. Sizes without a time are interpolated. */
static void measure_sizes(struct trial *t, struct pass_time_measured *m)
{
    static const uint8_t order[] = {0,  7, 3, 12, 1,  5,  9,  16, 2, 4,
                                    13, 6, 8, 10, 11, 14, 15, 17, 18};
    pass_us(t, 1, 0); // warms up
    for (unsigned i = 0; i < ROUNDS * sizeof(order); i++) {
        if (i && clock_us() >= t->until_us)
            return;
        unsigned at = order[i % sizeof(order)];
        double us = pass_us(t, min_u32(pass_time_rows_at(at), MAX_ROWS), 0);
        if (us > 0)
            keep_fastest(&m->us[at], us);
    }
}

static void measure_context(struct trial *t, struct pass_time_measured *m)
{
    m->context = min_u32(LONG_CONTEXT, t->r->context > LONG_ROWS ? t->r->context - LONG_ROWS : 0);
    m->rows = LONG_ROWS;
    if (m->context < KV_BLOCK)
        return;
    t->until_us = clock_us() + LONG_TIME_US;
    for (unsigned turn = 0; turn < ROUNDS && (!turn || clock_us() < t->until_us); turn++) {
        keep_fastest(&m->long_one_us, pass_us(t, 1, m->context));
        keep_fastest(&m->long_rows_us, pass_us(t, m->rows, m->context));
    }
    if (m->long_rows_us <= 0)
        m->long_one_us = 0;
}

static int measure(struct runner *r, const uint32_t *ids, size_t n, struct pass_time_measured *m)
{
    uint32_t tokens[2 * MAX_ROWS];
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++)
        tokens[i] = ids[i % n];
    struct trial t = {.r = r, .tokens = tokens, .until_us = clock_us() + TIME_US};
    int err = kv_seq_init(&t.seq, r->context);
    if (err < 0)
        return err;
    measure_sizes(&t, m);
    measure_context(&t, m);
    kv_seq_done(r->kv, &t.seq);
    return m->us[0] > 0 ? 0 : fail(-ENOSPC, "no KV block was free to time a pass with");
}

/* ---- times in a folder ---- */

/* Of all that decides the times. */
static uint64_t saved_key(const struct runner *r)
{
    uint64_t key = tune_machine(r->kernel, r->pool);
    const uint64_t more[] = {r->model->digest, r->opt.kv_type, r->opt.blas, r->max_logits,
                             r->context};
    for (size_t i = 0; i < ARRAY_LEN(more); i++)
        key = rng_splitmix64(key ^ more[i]);
    return key;
}

static bool is_time(double us)
{
    return us >= 0 && us < 1e9;
}

static bool are_times(const struct pass_time_measured *m)
{
    bool good = m->us[0] > 0 && is_time(m->long_one_us) && is_time(m->long_rows_us);
    for (unsigned i = 0; i < PASS_TIME_POINTS; i++)
        good = good && is_time(m->us[i]);
    return good && m->rows <= LONG_ROWS && m->context <= LONG_CONTEXT &&
           (m->context || m->long_one_us <= 0);
}

int calibrate(struct runner *r, const uint32_t *ids, size_t n, struct pass_time *ret)
{
    const char *folder = r->opt.weights_cache;
    const bool has_folder = folder && *folder;
    struct pass_time_measured m;
    memset(&m, 0, sizeof(m)); // the padding, too
    if (!has_folder || result_file_read(folder, "times", saved_key(r), &m, sizeof(m)) < 0 ||
        !are_times(&m)) {
        memset(&m, 0, sizeof(m));
        int err = measure(r, ids, n, &m);
        if (err < 0)
            return err;
        if (has_folder && result_file_write(folder, "times", saved_key(r), &m, sizeof(m)) < 0)
            log_warn("the times of passes are not kept: %s", fail_text());
    }
    pass_time_init(ret, &m);
    return 0;
}
