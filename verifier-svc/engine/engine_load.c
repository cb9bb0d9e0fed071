/* engine_load.c - the engine thread before its first round: loads the model, opens the KV tier and
 * the proposers, and times passes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/svc.h"
#include "verifier-svc/engine/calibrate.h"
#include "verifier-svc/engine/engine_impl.h"

#define LOADING_SHOW_US 1000000
#define LOADING_EXTEND_US 30000000 // a start-up that shows progress may take this much longer

static bool show_progress(void *arg, float done)
{
    struct engine *e = arg;
    int64_t now_us = clock_us();
    atomic_store(&e->progress, done);
    if (now_us >= e->show_us) {
        svc_extend(LOADING_EXTEND_US);
        svc_status("loading the model: %d %%", (int)(done * 100));
        log_info("loading the model percent=%d", (int)(done * 100));
        e->show_us = now_us + LOADING_SHOW_US;
    }
    return !atomic_load(&e->stop);
}

static int open_drafts(struct engine *e)
{
    const struct loaded_model *m = e->loaded;
    const struct speculation *s = &e->speculation; // the caller holds changing_mu
    struct drafts_config c = {.n_targets = s->n_targets,
                              .model = m->name,
                              .fingerprint = m->fingerprint,
                              .n_vocab = tok_n_vocab(m->tok),
                              .vocab_digest = tok_digest(m->tok),
                              .max_sequences = (uint32_t)e->options->max_sequences,
                              .arrived = engine_draft_arrived,
                              .named = engine_proposer_named,
                              .user = e};
    memcpy(c.targets, s->targets, sizeof(c.targets));
    int err = drafts_new(&c, &e->drafts);
    atomic_store(&e->proposers, e->drafts);
    return err;
}

/* Times passes for the policy goodput. A client may select it at any time, and timing passes then
 * would delay the running requests. */
static void time_passes(struct engine *e, struct pass_time *ret)
{
    static const char text[] =
        "The old lighthouse stood at the end of the pier. Every evening its keeper climbed the "
        "stairs, cleaned the lens and lit the lamp, so that the boats found their way past the "
        "rocks. In winter the waves reached the windows. Then he wrote letters to his sister, who "
        "ran a small bakery in the town and never had time to answer them before spring.";
    uint32_t *ids = NULL;
    size_t n = 0;
    *ret = (struct pass_time){0};
    int err = tok_encode(e->loaded->tok, text, sizeof(text) - 1, false, true, &ids, &n);
    if (err == 0)
        err = n ? calibrate(&e->loaded->run, ids, n, ret) : fail(-EINVAL, "the text has no token");
    free(ids);
    if (err < 0) {
        log_warn("pass calibration failed, goodput policy disabled: %s", fail_text());
        return;
    }
    log_info("passes timed rows=1 ms=%.2f rows=8 ms=%.2f",
             pass_time_us(ret, &(struct pass_time_work){.rows = 1}) / 1e3,
             pass_time_us(ret, &(struct pass_time_work){.rows = 8}) / 1e3);
}

static int open_speculation(struct engine *e)
{
    struct pass_time pass_time;
    time_passes(e, &pass_time);
    control_init(&e->control, &(struct control_options){0}, &pass_time);
    pthread_mutex_lock(&e->changing_mu);
    int err = open_drafts(e);
    pthread_mutex_unlock(&e->changing_mu);
    return err;
}

int engine_load(struct engine *e)
{
    int64_t start_us = clock_us();
    e->show_us = start_us + LOADING_SHOW_US;
    svc_extend(LOADING_EXTEND_US);
    svc_status("loading the model");
    int err = loaded_model_open(e->options, &e->loaded);
    if (!err)
        err = loaded_model_load(e->loaded, e->options, show_progress, e);
    if (!err)
        err = events_fit(e->events, e->loaded->tok);
    if (!err)
        err = kv_tier_new(e->options, e->loaded, engine_blocks_arrived, e, &e->tier);
    if (!err)
        err = open_speculation(e);
    if (err < 0)
        return err;
    const struct loaded_model *m = e->loaded;
    struct sched_limits limits = {(uint32_t)e->options->max_batch_rows, m->run.max_logits,
                                  (uint32_t)e->options->prefill_chunk,
                                  e->options->max_pass_ms * 1000};
    sched_init(&e->sched, &limits);
    log_info("model ready name=%s arch=%s type=%s weights_mib=%zu kv_positions=%u context=%u "
             "kernel=%s threads=%u s=%.1f",
             m->name, m->run.model->params.architecture, m->weight_type, m->run.model->bytes >> 20,
             kv_n_blocks(m->run.kv) * KV_BLOCK, m->run.context, m->run.kernel->name,
             pool_threads(m->run.pool), (double)(clock_us() - start_us) / 1e6);
    return 0;
}
