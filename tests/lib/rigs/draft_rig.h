/* draft_rig.h - the proposer with a draft model (prop_draft_model), for its tests. Ends the test on
 * errors.
 *
 * Threads: the test's only. */
#pragma once
#include "lib/oracles/prop_contract.h"
#include "proposer-svc/draftmodel/prop_draft_model.h"

#define DRAFT_RIG_MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf" // that of prop_defaults()
#define DRAFT_RIG_VOCAB 4096

extern void *draft_rig_shared; // of the open proposer

/* Opens the proposer with prop_draft_model_settings. */
void draft_rig_open(void);
void draft_rig_close(void);

/* A sequence of n tokens that the model can continue: its own output, with random tokens in
 * between. */
struct prop_seq draft_rig_story(uint32_t n);
struct prop_seq draft_rig_story_of(const char *tenant, uint32_t n);
/* A greedy ask for a draft of k tokens, without a time limit. */
struct prop_ask draft_rig_ask(const struct prop_seq *s, uint32_t k, struct draft *to);
/* The last n tokens of the context are being verified, so the draft may have branches. */
void draft_rig_verify_last(struct prop_ask *ask, uint32_t n);
/* Asserts that the next draft equals that of a new sequence with the same context. */
void draft_rig_same_as_fresh(const struct prop_seq *s, uint32_t k);
