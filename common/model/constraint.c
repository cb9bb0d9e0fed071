/* constraint.c - the calls of a constraint that may be absent, and the ban. */
#include <assert.h>
#include <stddef.h>
#include "model/constraint.h"

void constraint_advance(struct constraint *c, uint32_t token)
{
    if (c)
        c->advance(c, token);
}

void constraint_rewind(struct constraint *c, uint32_t n_tokens)
{
    if (c)
        c->rewind(c, n_tokens);
}

const uint64_t *constraint_mask(struct constraint *c)
{
    return c ? c->mask(c) : NULL;
}

/* ---- ban ---- */

static void ban_advance(struct constraint *c, uint32_t token)
{
    struct constraint_ban_state *s = (struct constraint_ban_state *)c;
    (void)token; // any token brings the end of the ban nearer
    s->n_context++;
}

static void ban_rewind(struct constraint *c, uint32_t n_tokens)
{
    struct constraint_ban_state *s = (struct constraint_ban_state *)c;
    assert(n_tokens <= s->n_context);
    s->n_context -= n_tokens;
}

static const uint64_t *ban_mask(struct constraint *c)
{
    const struct constraint_ban_state *s = (struct constraint_ban_state *)c;
    return s->n_context < s->until ? s->mask : NULL;
}

void constraint_ban_init(struct constraint_ban_state *s, const uint64_t *mask, uint32_t until,
                         uint32_t n_context)
{
    *s = (struct constraint_ban_state){{ban_advance, ban_rewind, ban_mask}, mask, n_context, until};
}
