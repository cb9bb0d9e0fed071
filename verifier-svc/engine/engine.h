/* engine.h - the thread that owns model, KV, scheduler and sequences, and its API for other
 * threads.
 *
 * Requests, drafts and Verify messages enter through a bounded queue. Committed tokens leave in
 * batches of events (events.h), one per round. To cancel or pause a request, set its flags. The
 * engine never calls gRPC and never waits for a client. It waits for a proposer for a bounded time
 * only. An idle engine sleeps.
 *
 * Threads: engine_new(), _start(), _stop(), _free() by main; all else by any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "verifier-svc/drafts/drafts.h"
#include "verifier-svc/engine/events.h"
#include "verifier-svc/engine/loaded_model.h"
#include "verifier-svc/engine/request.h"
#include "verifier-svc/engine/stats.h"
#include "verifier-svc/settings/verifier_options.h"

/* Why a waiting request gives way to one of another flow (flows.h). */
#define ENGINE_DISPLACED "the queue is full, and your key has the largest part of it"

struct engine;

enum engine_state { ENGINE_LOADING, ENGINE_READY, ENGINE_DRAINING, ENGINE_FAILED, ENGINE_ENDED };

/* Options and stats outlive the engine. -ENOMEM. */
int engine_new(const struct verifier_options *o, struct stats *stats, struct engine **ret);
/* Starts the thread, which loads the model first. */
int engine_start(struct engine *e);
/* Ends the remaining requests with UNAVAILABLE and waits for the thread. */
void engine_stop(struct engine *e);
void engine_free(struct engine *e);
DEFINE_AUTO(struct engine, engine_free)

/* progress of loading, 0 .. 1; may be NULL. */
enum engine_state engine_state(struct engine *e, float *ret_progress);
/* The reason why loading failed. */
const char *engine_error(struct engine *e);
/* NULL until the model is ready. */
const struct loaded_model *engine_loaded_model(struct engine *e);
/* Proposers; NULL until the model is ready. */
struct drafts *engine_drafts(struct engine *e);
/* The current settings of speculation. */
void engine_speculation(struct engine *e, struct speculation *ret);
/* Takes effect in the next round; *ret receives the resulting settings. May wait as drafts_set()
 * does. -EACCES: see speculation_check_allowed(). -EINVAL, -ENOMEM. An error changes nothing. */
int engine_speculate(struct engine *e, const struct speculation_change *c, struct speculation *ret);
struct events *engine_events(struct engine *e);
/* The contents of the KV pool after the last round; zeros until the model is ready. */
#define ENGINE_KV_HOLDERS 8
struct engine_kv_view {
    uint32_t n_blocks;
    uint32_t n_used;      // blocks that running sequences hold
    uint32_t n_shared;    // of these, blocks that several sequences hold
    uint32_t n_evictable; // unreferenced blocks of cached prefixes; may be evicted
    uint64_t bytes;       // of all blocks
    uint32_t n_holders;   // the sequences with the most blocks, the largest first
    struct engine_kv_holder {
        char id[REQUEST_MAX_ID + 1];
        uint32_t choice, n_tokens, n_blocks;
    } holders[ENGINE_KV_HOLDERS];
};
void engine_kv(struct engine *e, struct engine_kv_view *ret);

/* Resumed answers that may wait beside the queue. */
uint32_t engine_max_resumed(const struct verifier_options *o);
/* Submits an opened request; place.resumed of flows.h is set. 0: the engine holds it until its last
 * event. -EAGAIN: the queue is full (with a sentence); -EPIPE: the engine has ended. */
int engine_submit(struct engine *e, struct request *r);
/* A client's draft for a Verify request, which continues base_len committed tokens. Takes the
 * draft, also on failure. -EINVAL: a token outside the vocabulary, or a parent after its child;
 * -ESTALE: the last draft is still being verified. */
int engine_verify(struct engine *e, struct request *r, uint32_t base_len, struct draft *draft);
/* Call it after a change of a request's flags. */
void engine_wake(struct engine *e);

/* Sets the state to ENGINE_DRAINING, so that no more requests are accepted; the others continue. */
void engine_drain(struct engine *e);
/* Requests that were accepted and have not ended. */
uint32_t engine_n_requests(struct engine *e);
/* How long the engine thread has been busy with its current turn, which has at most one pass; 0: it
 * waits. In microseconds. */
int64_t engine_turn_us(struct engine *e);
