/* constraint.h - which tokens may come next: a state that follows the tokens of one context.
 *
 * A constraint stands beside the token counts of the penalties (dist.h). Both follow committed
 * tokens and, temporarily, the tokens of a draft. advance() and rewind() move the state along the
 * context; mask() gives the tokens that may come after it, for dist_set(). No call allocates.
 *
 * An implementer puts a struct constraint first into its own struct and sets the three functions.
 *
 * Threads: one thread per constraint. */
#pragma once
#include <stdint.h>
#include "model/dist.h"

struct constraint {
    void (*advance)(struct constraint *c, uint32_t token);
    void (*rewind)(struct constraint *c, uint32_t n_tokens);
    const uint64_t *(*mask)(struct constraint *c);
};

/* The callers' side. c: NULL if every token may always come. */

/* The context grows by a token that the constraint allows. */
void constraint_advance(struct constraint *c, uint32_t token);
/* Removes the last n_tokens tokens, all of them added by constraint_advance(). */
void constraint_rewind(struct constraint *c, uint32_t n_tokens);
/* The mask of the next token (dist.h), or NULL: every token may come. Valid until the next call
 * with c. */
const uint64_t *constraint_mask(struct constraint *c);

/* ---- ban: the constraint of min_tokens ---- */

/* Tokens that cannot come before the context has `until` tokens. */
struct constraint_ban {
    const uint32_t *tokens; // (n)
    uint32_t n;
    uint32_t until;
};

struct constraint_ban_state {
    struct constraint constraint; // first
    const uint64_t *mask;
    uint32_t n_context, until;
};
/* Starts after a context of n_context tokens. mask: every token but the banned ones, as
 * dist_mask_ban() leaves it; it belongs to the caller and may serve several constraints. */
void constraint_ban_init(struct constraint_ban_state *s, const uint64_t *mask, uint32_t until,
                         uint32_t n_context);
