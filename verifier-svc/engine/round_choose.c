/* round_choose.c - after the pass: chooses the tokens of all sequences.
 *
 * With a large vocabulary this takes as long as a part of the pass. So the threads that ran the
 * pass share the sequences. */
#include "verifier-svc/engine/decide.h"
#include "verifier-svc/engine/round_impl.h"

/* With fewer logits one thread chooses alone: an estimate. 32,768 logits at temperature 1 take
 * 120 us (bench_dist, Xeon with AMX, 2026-11-29). A greedy token without penalties, bias and mask
 * takes a seventeenth of that. */
#define SHARED_LOGITS (1u << 15)
#define GREEDY_PARTS 16

bool round_has_logits(const struct engine *e, const struct seq *s)
{
    return e->loaded->run.plan.rows[s->last_row].wants_logits;
}

/* Takes one sequence after the other. */
static void choose(void *arg, unsigned i, unsigned n)
{
    struct engine *e = arg;
    const struct runner *run = &e->loaded->run;
    (void)n;
    kernel_thread_init();
    for (uint32_t at;
         i < run->n_dists && (at = atomic_fetch_add(&e->next_choosing, 1)) < e->n_pass;)
        if (round_has_logits(e, e->pass[at]))
            decide_tokens(run->forward, run->dists[i], e->pass[at]);
}

/* Logits that are read for a sequence, by their time. */
static uint64_t logits_of(const struct seq *s, uint64_t n_vocab)
{
    const struct dist_params *p = &s->req->params;
    const bool is_greedy = !(p->temperature > 0) && !p->n_bias && !dist_penalises(p) &&
                           !constraint_mask(s->constraint);
    return (1 + seq_n_draft(s)) * (is_greedy ? n_vocab / GREEDY_PARTS : n_vocab);
}

static bool pays_to_share(const struct engine *e)
{
    uint64_t n_logits = 0;
    for (uint32_t p = 0; p < e->n_pass; p++)
        if (round_has_logits(e, e->pass[p]))
            n_logits += logits_of(e->pass[p], e->loaded->run.opt.n_vocab);
    return e->n_pass > 1 && n_logits >= SHARED_LOGITS;
}

void round_choose(struct engine *e)
{
    atomic_store(&e->next_choosing, 0);
    if (pays_to_share(e))
        pool_run(e->loaded->run.pool, choose, e);
    else
        choose(e, 0, 1);
}
