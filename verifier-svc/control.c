/* control.c - fixed k. */
#include "verifier-svc/control.h"

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void control_init(struct control *c, const struct control_options *options)
{
    *c = (struct control){.options = *options, .acceptance_ema = 0.7};
}

uint32_t control_k(const struct control *c, uint32_t n_running, uint32_t n_max, uint32_t n_left)
{
    uint32_t off_from = c->options.disable_batch_size;
    if ((off_from && n_running >= off_from) || n_left < 2)
        return 0;
    return min_u32(min_u32(c->options.k, n_max), n_left - 1);
}

void control_seen(struct control *c, uint32_t n_drafted, uint32_t n_accepted)
{
    if (n_drafted)
        c->acceptance_ema += 0.1 * ((double)n_accepted / n_drafted - c->acceptance_ema);
}
