/* hint.h - copies from what the request foretold of its answer (OpenAI's `prediction`).
 *
 * While the output is the hint, the hint goes on; where it has left the hint, the longest match of
 * its last tokens says where it came back. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "proposer-svc/props/prop.h"

#define HINT_TOKENS_MAX 16384 // of a longer one the rest is ignored

/* Of one sequence; all zero: no hint. */
struct hint {
    uint32_t *tokens; // (n)
    uint32_t n;
    uint32_t at;   // the hint's token that comes next, or where the output left it
    uint32_t seen; // tokens of the context that led there
    uint32_t run;  // tokens in a row that agreed
    bool lost;     // the output has left the hint
};

/* Only [0, keep) of the context stays. */
void hint_cut(struct hint *h, uint32_t keep);
/* Drafts what the hint goes on with. False: nothing. */
bool hint_draft(struct hint *h, const struct prop_context *c, uint32_t k, struct draft *to);
