/* control_world.c - rounds, drafts and answers for a controller under test. */
#include "lib/oracles/control_world.h"
#include <string.h>
#include "lib/lib.h"
#include "base/rng.h"

struct control_world *world_of(enum control_policy policy, uint32_t k, uint32_t off_from,
                               double first_us, double row_us)
{
    static struct control_world w;
    struct pass_time_measured m = {.us = {first_us, first_us + row_us}};
    struct pass_time pass_time;
    pass_time_init(&pass_time, &m);
    w = (struct control_world){0};
    control_init(&w.c, &(struct control_options){policy, k, off_from}, &pass_time);
    for (unsigned i = 0; i < WORLD_SEQS; i++)
        control_seq_init(&w.seqs[i]);
    for (unsigned p = 0; p < DRAFT_MAX_PROPOSERS; p++)
        w.c.proposers[p].n_tries = 1000; // so no try is due because the proposer is new
    return &w;
}

static const struct control_item guard = {
    .context = 7, .nodes = 7, .best_nodes = 7, .no_row = true};

void world_guard(struct control_world *w, uint32_t n)
{
    w->items[n] = guard;
}

void world_unguard(const struct control_world *w, uint32_t n)
{
    assert_memory_equal(&w->items[n], &guard, sizeof(guard));
}

uint32_t world_asked_with(struct control_world *w, uint32_t n, uint32_t allowed, uint32_t left)
{
    struct control_round r = {.n_decoding = n, .draft_rows = 1000, .n_running = n};
    for (uint32_t i = 0; i < n; i++) {
        pass_time_add(&r.pass, 1, 100);
        w->items[i] = (struct control_item){.s = &w->seqs[i],
                                            .context = 100,
                                            .unread = 100,
                                            .left = left,
                                            .max_nodes = allowed,
                                            .max_depth = allowed};
    }
    world_guard(w, n);
    control_ask(&w->c, &r, w->items, n);
    world_unguard(w, n);
    return w->items[0].nodes;
}

uint32_t world_asked(struct control_world *w, uint32_t n, uint32_t allowed)
{
    return world_asked_with(w, n, allowed, 1000);
}

uint32_t world_cut(struct control_world *w, const float *predicted, uint32_t n)
{
    struct control_round r = {
        .n_decoding = 1, .draft_rows = 1000, .n_running = 1, .pass = {.rows = 1}};
    struct draft draft = world_draft(n, NULL, predicted);
    w->items[0] =
        (struct control_item){.s = &w->seqs[0], .max_nodes = n, .max_depth = n, .draft = &draft};
    world_guard(w, 1);
    control_cut(&w->c, &r, w->items, 1);
    world_unguard(w, 1);
    return w->items[0].nodes;
}

struct draft world_draft(uint32_t n, const uint32_t *tokens, const float *predicted)
{
    struct draft d = {.n = n};
    for (uint32_t i = 0; i < n; i++) {
        d.tokens[i] = tokens ? tokens[i] : 0;
        d.parents[i] = (int32_t)i - 1;
        d.survival[i] = predicted ? predicted[i] : 1;
    }
    return d;
}

void world_ask(struct control_seq *s, uint32_t n)
{
    control_asked(s, 0, s->prefill.done ? 0 : 100, n);
}

void world_answer(struct control_world *w, unsigned seq, uint32_t k, double us)
{
    world_ask(&w->seqs[seq], 1);
    control_answered(&w->c, &w->seqs[seq], 0, k, us, true);
    control_ask(&w->c, &(struct control_round){.n_decoding = 1}, w->items, 0);
}

void world_see(struct control_world *w, struct control_seq *s, uint32_t k, uint32_t n)
{
    uint32_t draft[WORLD_CHAIN], committed[WORLD_CHAIN + 1];
    for (uint32_t i = 0; i < k; i++)
        draft[i] = 7;
    for (uint32_t i = 0; i <= n; i++)
        committed[i] = i < n ? 7 : 8;
    struct draft shown = world_draft(k, draft, NULL);
    control_seen(&w->c, s, 0, &shown, k, committed, n + 1);
}

uint32_t world_right_tokens(struct control_world *w, double alpha, uint32_t k)
{
    uint32_t n = 0;
    while (n < k && rng_uniform(rng_splitmix64(++w->n_drawn)) < alpha)
        n++;
    return n;
}

void world_feed(struct control_world *w, unsigned seq, double alpha, uint32_t k, unsigned n_drafts)
{
    for (unsigned d = 0; d < n_drafts; d++)
        world_see(w, &w->seqs[seq], k, world_right_tokens(w, alpha, k));
}
