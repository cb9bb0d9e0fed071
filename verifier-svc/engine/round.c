/* round.c - one round: plan, run the pass, accept, request drafts. Also the functions that these
 * share. */
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/minmax.h"
#include "verifier-svc/engine/round_impl.h"

/* ---- shared by the steps ---- */

bool round_is_decoding(const struct seq *s)
{
    return s->state == SEQ_RUNNING && s->n - s->kv.len == 1;
}

uint32_t round_draft_allowed(const struct engine *e, const struct seq *s)
{
    uint32_t left = seq_left(s) - 1; // the round commits one token of the target's own
    uint32_t most = s->req->verify ? DRAFT_MAX_NODES : s->req->k_max;
    uint32_t fits = e->loaded->run.n_states ? KV_MAX_CHAIN : DRAFT_MAX_NODES;
    return min_u32(left, min_u32(most, fits));
}

uint32_t round_unread(const struct seq *s)
{
    return s->n - s->n_cached;
}

struct control_item round_item(struct seq *s, uint32_t n)
{
    return (struct control_item){.s = &s->control,
                                 .proposer = (unsigned)s->proposer,
                                 .context = s->n,
                                 .unread = round_unread(s),
                                 .left = seq_left(s),
                                 .max_nodes = n,
                                 .max_depth = seq_left(s) - 1,
                                 .draft = s->draft,
                                 .fixed = s->req->fixed};
}

bool round_is_shared(const struct engine *e)
{
    const struct seq *first = NULL;
    for (uint32_t i = 0; i < e->running.n; i++) {
        const struct seq *s = e->running.v[i];
        if (!seq_todo(s) && !seq_waits(s))
            continue;
        if (first && s->req->place.flow != first->req->place.flow)
            return true;
        first = s;
    }
    return false;
}

struct control_round round_without_drafts(const struct engine *e)
{
    struct control_round r = {.n_running = e->running.n};
    struct sched_load load = {.n = e->running.n, .shared = round_is_shared(e)};
    for (uint32_t i = 0; i < e->running.n; i++) {
        const struct seq *s = e->running.v[i];
        uint32_t todo = seq_todo(s);
        load.n_prompts += todo > 1;
        if (!todo || !round_is_decoding(s))
            continue;
        load.n_decoding++;
        r.n_fixed += s->req->fixed && s->req->k_max;
        pass_time_add(&r.pass, 1, s->n);
    }
    r.n_decoding = load.n_decoding;
    r.pass.rows += load.n_prompts ? e->prompt_rows : 0;
    r.draft_rows = sched_draft_rows(&e->sched, &load);
    return r;
}

bool round_has_work(const struct engine *e)
{
    for (uint32_t i = 0; i < e->running.n; i++) {
        if (seq_todo(e->running.v[i]))
            return true;
    }
    return false;
}

/* ---- the round ---- */

/* Ends the requests that failed in this round. */
static void end_failed(struct engine *e)
{
    for (uint32_t p = 0; p < e->running.n;) {
        struct request *r = e->running.v[p]->req;
        if (r->error) {
            engine_fail_request(e, r, r->error, r->error_text);
            p = 0; // the list has changed: start again
        } else {
            p++;
        }
    }
}

/* The pass as the controller's model of its time sees it. Rows of prompts are counted apart. */
static struct pass_time_work measure_pass(struct engine *e)
{
    struct pass_time_work pass = {0};
    e->prompt_rows = 0;
    for (uint32_t p = 0; p < e->n_pass; p++) {
        const struct seq *s = e->pass[p];
        uint32_t n_draft = s->kv.len > s->n ? seq_n_draft(s) : 0;
        pass_time_add(&pass, 1 + n_draft, s->n);
        pass.drafted |= n_draft > 0;
        e->prompt_rows += s->n_rows - 1;
    }
    return pass;
}

/* A sequence whose context its proposer is reading; NULL: there is none. */
static const struct seq *find_prefill(const struct engine *e)
{
    for (uint32_t i = 0; i < e->running.n; i++) {
        if (prefill_price_running(&e->running.v[i]->control.prefill))
            return e->running.v[i];
    }
    return NULL;
}

/* Reports that a round with this pass took us while the context of sequence *beside was read. */
static void report_pass(struct engine *e, const struct pass_time_work *pass, int64_t us,
                        const uint64_t *beside)
{
    struct seq *s = beside ? seq_list_find(&e->running, *beside) : NULL;
    if (e->prompt_rows || (beside && !s))
        return; // the time is due to prompts, or to a sequence that has ended
    control_passed(&e->control, pass, (double)us, s ? &s->control : NULL);
}

/* In debug builds: waiting sequences hold no blocks, and the KV pool is consistent. */
static void check_kv(struct engine *e)
{
#ifndef NDEBUG
    for (uint32_t i = 0; i < e->running.n; i++)
        e->kv_seqs[i] = &e->running.v[i]->kv;
    if (!kv_check(e->loaded->run.kv, e->kv_seqs, e->running.n)) {
        log_error("%s", fail_text());
        abort();
    }
#else
    (void)e;
#endif
}

void round_run(struct engine *e)
{
    if (!round_plan(e))
        return;
    round_ask_ahead(e);
    int64_t before_us = clock_us();
    forward_run(e->loaded->run.forward, &e->loaded->run.plan);
    int64_t now_us = clock_us();
    int64_t pass_us = now_us - before_us;
    struct pass_time_work pass = measure_pass(e);
    const struct seq *prefill = find_prefill(e);
    uint64_t prefill_id = prefill ? prefill->id : 0; // the sequence may end in this round
    const uint64_t *beside = prefill ? &prefill_id : NULL;
    e->decode_us = e->prompt_rows ? e->decode_us : pass_us;
    metrics_add(e->stats->rounds, 1);
    metrics_observe(e->stats->pass_s, (double)pass_us / 1e6);
    metrics_observe(e->stats->pass_rows, e->loaded->run.plan.n_rows);
    round_choose(e);
    round_accept(e, now_us);
    sched_pass_done(&e->sched, e->loaded->run.plan.n_rows, clock_us() - before_us);
    end_failed(e);
    check_kv(e);
    engine_take_inbox(e, 0); // a draft ahead may have arrived
    round_ask(e);
    events_send(e->events);
    report_pass(e, &pass, clock_us() - before_us, beside);
}
