/* draft_rig.c - the proposer with a draft model, and a text for it. */
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/rigs/draft_rig.h"

void *draft_rig_shared;

void draft_rig_open(void)
{
    if (prop_draft_model.open(&draft_rig_shared) < 0)
        fail_msg("%s", fail_text());
}

void draft_rig_close(void)
{
    prop_draft_model.close(draft_rig_shared);
}

struct prop_seq draft_rig_story_of(const char *tenant, uint32_t n)
{
    static uint32_t tokens[1024];
    static uint32_t n_tokens;
    struct prop_seq s = prop_seq_new(&prop_draft_model, draft_rig_shared);
    if (!n_tokens) {
        uint32_t begin[4] = {4080, 300, 400, 500};
        prop_seq_update(&s, 0, begin, 4);
        while (s.n < 200) {
            struct draft d = prop_seq_draft(&s, 8);
            assert_true(d.n > 0);
            prop_seq_update(&s, s.n, d.tokens, d.n);
            prop_seq_update(&s, s.n, &(uint32_t){(uint32_t)(rng_splitmix64(s.n) % 4000)}, 1);
        }
        n_tokens = s.n;
        memcpy(tokens, s.tokens, n_tokens * sizeof(tokens[0]));
        prop_seq_done(&s);
        s = prop_seq_new(&prop_draft_model, draft_rig_shared);
    }
    s.tenant = tenant;
    for (uint32_t at = 0; at < n; at += n_tokens)
        prop_seq_update(&s, at, tokens, n - at < n_tokens ? n - at : n_tokens);
    return s;
}

struct prop_seq draft_rig_story(uint32_t n)
{
    return draft_rig_story_of(NULL, n);
}

struct prop_ask draft_rig_ask(const struct prop_seq *s, uint32_t k, struct draft *to)
{
    return (struct prop_ask){.seq = s->state,
                             .context = {.tokens = s->tokens, .n = s->n, .n_prompt = s->n_prompt},
                             .max_depth = k,
                             .max_nodes = k,
                             .sampling.params = {.top_p = 1, .repetition = 1},
                             .until_us = INT64_MAX,
                             .to = to};
}

void draft_rig_verify_last(struct prop_ask *ask, uint32_t n)
{
    ask->context.n_verifying = n;
    if (n)
        ask->max_nodes = DRAFT_MAX_NODES - n;
}

void draft_rig_same_as_fresh(const struct prop_seq *s, uint32_t k)
{
    struct prop_seq fresh = prop_seq_new(&prop_draft_model, draft_rig_shared);
    prop_seq_update(&fresh, 0, s->tokens, s->n);
    struct draft a = prop_seq_draft(s, k), b = prop_seq_draft(&fresh, k);
    prop_same_draft(&a, &b);
    assert_memory_equal(a.survival, b.survival, a.n * sizeof(a.survival[0]));
    prop_seq_done(&fresh);
}
