/* hint.h - drafts from the answer that the request predicts (OpenAI's `prediction`).
 *
 * While the output equals the hint, the rest of the hint is the draft. After a difference, the
 * longest match of the output's last tokens gives the new position in the hint.
 *
 * Threads: plain data; the caller's. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "proposer-svc/props/prop.h"

#define HINT_TOKENS_MAX 16384 // tokens after these are ignored

/* The hint of one sequence. All zero: no hint. */
struct hint {
    uint32_t *tokens; // (n)
    uint32_t n;
    uint32_t at; // index in `tokens` of the next token; if lost: where the output left the hint
    uint32_t n_compared; // tokens of the context that were compared
    uint32_t n_agreed;   // consecutive tokens that agreed, up to now
    bool is_lost;        // the output differs from the hint, and no new position is known
};

/* Only positions [0, keep) of the context stay valid. */
void hint_cut(struct hint *h, uint32_t keep);
/* Drafts the next tokens of the hint, k at most. False: there is no draft; *to is unchanged. */
bool hint_draft(struct hint *h, const struct prop_context *c, uint32_t k, struct draft *to);
