/* control.h - how many draft tokens a sequence verifies in a round.
 *
 * One policy here: a fixed k, none from `disable_batch_size` running sequences on, and never more
 * than the request and its limits allow. The moving averages are for people; no decision reads
 * them.
 *
 * Threads: the engine's; plain data. */
#pragma once
#include <stdint.h>

struct control_options {
    uint32_t k;                  // draft tokens per round
    uint32_t disable_batch_size; // running sequences from which on nothing is drafted; 0: never
};

struct control {
    struct control_options options;
    double acceptance_ema; // of drafted rounds; weight 0.1, starts at 0.7
};

void control_init(struct control *c, const struct control_options *options);
/* Draft tokens for a sequence: n_running sequences share the round, the request allows n_max, and
 * n_left more tokens may be committed (the target's own token is always one of them). */
uint32_t control_k(const struct control *c, uint32_t n_running, uint32_t n_max, uint32_t n_left);
/* A round with a draft has ended. */
void control_seen(struct control *c, uint32_t n_drafted, uint32_t n_accepted);
