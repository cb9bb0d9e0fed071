/* engine_impl.h - the engine's state, and the functions that its files share. Not for other files.
 *
 *     engine.c        the API for other threads
 *     engine_inbox.c  what arrives: requests, drafts, proposers, blocks from disk
 *     engine_load.c   the engine thread before its first round
 *     engine_loop.c   the engine thread: ends, preemption, the loop
 *     engine_view.c   the KV view and the gauges, once per round
 *     admit.c         which waiting sequences start
 *     round*.c        one round (round_impl.h)
 *
 * Threads: the first part of struct engine is shared, as each field says. The other fields are the
 * engine thread's, and so are all functions here except those marked otherwise. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "base/err.h"
#include "base/queue.h"
#include "verifier-svc/control/control.h"
#include "verifier-svc/engine/engine.h"
#include "verifier-svc/engine/flows.h"
#include "verifier-svc/engine/kv_tier.h"
#include "verifier-svc/engine/sched.h"
#include "verifier-svc/engine/seq_list.h"

#define ENGINE_STOPPING "the server is stopping"
#define ENGINE_CROWDED                                                                             \
    "your answers had most places of this verifier, and a client with fewer needed one"

/* What other threads send to the engine thread. The sender allocates an item, the engine frees
 * it. */
enum inbox_kind {
    INBOX_REQUEST,  // a new request
    INBOX_DRAFT,    // an answer of a proposer
    INBOX_VERIFY,   // a client's draft
    INBOX_PROPOSER, // another proposer has a place
    INBOX_FETCHED   // KV blocks were read from disk
};

struct inbox_item {
    enum inbox_kind kind;
    struct request *req;         // REQUEST, VERIFY: with a hold
    uint32_t base_len;           // VERIFY: committed length that the draft continues
    struct draft *draft;         // VERIFY: the item's own until a sequence takes it
    struct draft_answer answer;  // DRAFT: its draft is the item's own until a sequence takes it
    int proposer;                // PROPOSER: the place
    struct stats_drafts counts;  // PROPOSER: the metrics of the new one
    struct kv_disk_fetch *fetch; // FETCHED
};

/* The sequences of a flow: started ones, and those of them that wait for a seat or their client. */
struct engine_flow_count {
    uint32_t started, idle;
};

struct engine {
    const struct verifier_options *options;
    struct stats *stats;
    pthread_t thread;
    struct queue *inbox;
    struct events *events;
    atomic_int state;       // enum engine_state
    _Atomic float progress; // of loading
    atomic_bool stop;
    struct flows *flows;     // requests that wait or have started
    atomic_uint n_requests;  // accepted and not ended
    _Atomic int64_t turn_us; // when the engine thread began its current turn; 0: it waits
    pthread_mutex_t kv_mu;   // for kv_view
    struct engine_kv_view kv_view;
    char error[FAIL_TEXT_MAX];            // why loading failed
    _Atomic(struct loaded_model *) ready; // set when loading is done
    _Atomic(struct drafts *) proposers;   // set when loading is done
    pthread_mutex_t changing_mu;    // one change of speculation at a time; new proposers take long
    pthread_mutex_t speculation_mu; // for the next two, held only to copy
    struct speculation speculation; // the newest settings
    bool speculation_changed;       // the engine thread has not applied them yet

    /* The engine thread's own. */
    struct loaded_model *loaded;
    struct drafts *drafts;            // NULL until the model is loaded
    struct kv_tier *tier;             // NULL: none
    struct kv_disk_counts disk_shown; // as the metrics have them
    bool speculates;                  // switched on, with at least one proposer
    char proposer[DRAFTS_NAME_MAX];   // default for requests that name none; "": any
    struct sched sched;
    struct control control;
    struct seq_list running; // RUNNING and BRANCH
    struct seq_list waiting; // WAITING
    uint32_t n_started;      // admitted and not ended; each started request has one or more
    uint32_t max_started; // Verify streams and paused answers give up their seats, but stay started
    uint64_t next_id, next_order;
    int64_t show_us;          // loading: when to report progress again
    uint32_t prompt_rows;     // rows of prompts in the last pass
    uint64_t n_evicted;       // blocks, as the metrics have them
    int64_t decode_us;        // duration of the last pass without prompts
    bool request_again;       // a draft ahead did not fit, so its sequence can request another
    uint32_t n_wait_counted;  // decoding sequences counted when the wait for drafts was approved
    int64_t restore_until_us; // when blocks being read from disk are late; INT64_MAX: none are read
    uint32_t replay_left;     // tokens of continued sequences that may be replayed in this turn
    bool replays;             // the next turn must replay more of them
    int64_t held_us;          // since when the coming pass waits for drafts; 0: it does not wait

    /* Memory of a round. */
    struct flows_turn *turns;         // (waiting.max) of `waiting`, by turn
    struct sched_wait *waits;         // (waiting.max) as `turns`
    struct engine_flow_count *counts; // (flows_max) by flow
    struct sched_grant *grants;       // (max_sequences), as `running`
    struct seq **pass;                // (max_sequences) the sequences of the pass
    const struct kv_seq **kv_seqs;    // (max_sequences) for checks
    uint32_t n_pass;
    atomic_uint next_choosing;  // of `pass`: no thread has chosen its tokens, nor of those after it
    struct drafts_wish *wishes; // (max_sequences)
    struct seq **wish_seqs;     // (max_sequences) the sequence of each wish
    struct control_item *items; // (max_sequences)
    struct seq **item_seqs;     // (max_sequences) the sequence of each item
};

/* ---- engine_inbox.c ---- */

/* Any thread: copies the item into the inbox. -ENOMEM; -EAGAIN: the inbox is full; -EPIPE: the
 * engine has ended. */
int engine_push(struct engine *e, const struct inbox_item *item);
/* On the rpc thread of a proposer: `arrived` of struct drafts_config. */
void engine_draft_arrived(void *user, struct draft_answer *a);
/* On the disk's thread: `fetched` of kv_tier_new(). */
void engine_blocks_arrived(void *owner, struct kv_disk_fetch *f);
/* On a proposer's thread: `named` of struct drafts_config. Registering metrics allocates, which a
 * round must not do, so the item brings them. */
int engine_proposer_named(void *user, unsigned i, const char *name);
/* Handles all items of the inbox; waits for the first one as queue_pop() does. */
void engine_take_inbox(struct engine *e, int64_t wait_us);
/* Frees the inbox with its items. Other threads have stopped pushing before it. */
void engine_free_inbox(struct engine *e);

/* ---- engine_load.c ---- */

/* Loads the model and opens all that needs it. */
int engine_load(struct engine *e);

/* ---- engine_loop.c ---- */

/* The thread's function; arg is the engine. */
void *engine_loop_main(void *arg);
/* Counts the started choices of a request after a change of them. */
void engine_count_started(struct engine *e, struct request *r);
/* Ends a request that was displaced from the full queue. */
void engine_fail_displaced(struct engine *e, struct request *r);
/* Ends all of a request with an error; its sequences leave the lists. */
void engine_fail_request(struct engine *e, struct request *r, int error, const char *text);
/* The generation is complete: fills the event's end. */
void engine_end_seq(struct engine *e, struct seq *s, enum seq_end end, struct event *ev);
/* Frees the sequence's KV blocks and puts it back into the queue, at its old place. Choices that
 * have not branched off it yet leave the running list with it. */
void engine_preempt(struct engine *e, struct seq *s);

/* ---- engine_view.c ---- */

/* Updates the KV view and the gauges. */
void engine_view_update(struct engine *e);

/* ---- admit.c ---- */

/* Admits waiting sequences while there is capacity (capacity.h). Dormant sequences are preempted
 * for them, and so are sequences of a flow that has more than that of a waiting request. */
void admit_waiting(struct engine *e);

/* ---- round.c ---- */

/* True if any running sequence has rows to run now. */
bool round_has_work(const struct engine *e);
/* Plans and runs a pass, accepts, sends events, requests drafts. */
void round_run(struct engine *e);

/* ---- round_ask.c ---- */

/* Requests drafts for the sequences that may have one and have none. */
void round_ask(struct engine *e);
/* Releases the sequences whose held drafts are late. Returns when the next one is late; INT64_MAX:
 * no sequence is held. */
int64_t round_release(struct engine *e, int64_t now_us);
/* Until when to wait for drafts before the next round; 0: not at all. The policy goodput approves a
 * wait for all sequences. Without its approval (other policies), a round waits only while every
 * sequence with work waits for its own draft. */
int64_t round_wait_until_us(const struct engine *e);
/* A proposer has answered. The draft stays the caller's unless a sequence takes it; then the
 * answer's pointer is NULL. */
void round_take_draft(struct engine *e, struct draft_answer *answer);
