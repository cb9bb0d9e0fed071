/* engine_impl.h - the engine's own state, shared by engine.c (requests in and out), admit.c (who
 * begins), round.c (what happens in a round) and those that they call. Not for other files. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "base/err.h"
#include "base/queue.h"
#include "verifier-svc/control/control.h"
#include "verifier-svc/engine/engine.h"
#include "verifier-svc/engine/seq_list.h"
#include "verifier-svc/engine/sched.h"
#include "verifier-svc/engine/kv_tier.h"

/* What comes in. Allocated by who sends, freed by the engine. */
enum inbox_kind { INBOX_REQUEST, INBOX_DRAFT, INBOX_VERIFY, INBOX_PROPOSER, INBOX_FETCHED };

struct inbox_item {
    enum inbox_kind kind;
    struct request *req; // REQUEST, VERIFY: with a hold
    uint64_t seq;        // DRAFT
    uint32_t base_len, n;
    int proposer;    // DRAFT, PROPOSER
    uint32_t rtt_us; // DRAFT
    uint32_t unread; // DRAFT: as in struct draft_answer
    bool ahead;      // likewise
    uint32_t tokens[ACCEPT_MAX];
    int32_t parents[ACCEPT_MAX];
    float survival[ACCEPT_MAX];
    struct accept_q *q;          // DRAFT: as in struct draft_answer; who takes it leaves NULL
    struct kv_disk_fetch *fetch; // FETCHED
    struct stats_drafts counts;  // PROPOSER: another one has this place from now on
};

struct engine {
    const struct verifier_options *options;
    struct stats *stats;
    pthread_t thread;
    struct queue *inbox;
    struct events *events;
    atomic_int state;
    _Atomic float progress;
    atomic_bool stop;
    atomic_uint n_queued;   // requests not admitted yet
    atomic_uint n_requests; // accepted and not ended
    pthread_mutex_t kv_mu;
    struct engine_kv_view kv_view;
    char error[FAIL_TEXT_MAX];
    _Atomic(struct loaded_model *) ready; // published when loading is done
    _Atomic(struct drafts *) proposers;
    pthread_mutex_t changing_mu;    // one change of speculation at a time; proposers may take long
    pthread_mutex_t speculation_mu; // for what follows, to copy it
    struct speculation speculation; // as asked for
    bool speculation_changed;       // since the engine thread took it

    /* The engine thread's own. */
    struct loaded_model *served;
    struct drafts *drafts;            // NULL until the model is loaded
    struct kv_tier *tier;             // NULL: none
    struct kv_disk_counts disk_shown; // in the metrics by now
    bool speculates;
    char proposer[DRAFTS_NAME_MAX]; // asked where a request names none; "": any
    struct sched sched;
    struct control control;
    struct seq_list running; // RUNNING and BRANCH
    struct seq_list waiting; // WAITING
    uint32_t n_started;      // sequences that were admitted and have not ended
    uint32_t max_started; // Verify streams and paused answers give up their seats, not their place
    uint64_t next_id, next_order;
    int64_t show_us;          // when to say next how far loading is
    uint32_t prompt_rows;     // of the last pass
    uint64_t n_evicted;       // blocks, as far as they are counted
    int64_t decode_us;        // of the last pass without prompts
    bool ask_again;           // a draft ahead came late and is of no use
    uint32_t n_reckoned;      // sequences whose delay the wait for drafts was reckoned to outweigh
    int64_t restore_until_us; // blocks that are read for whoever could begin are late then
    int64_t held_us;          // since when the coming pass is held back for drafts; 0: it is not

    /* Room for a round. */
    struct sched_wait *waits;      // (waiting.max)
    struct sched_grant *shares;    // (max_sequences)
    struct seq **pass;             // (max_sequences) the sequences of the pass
    struct forward_row *rows;      // (max_batch_rows)
    const struct kv_seq **kv_seqs; // (max_sequences) for checking
    uint32_t n_rows, n_pass;
    struct drafts_wish *wishes; // (max_sequences)
    struct seq **wishing;       // (max_sequences) whose they are
    struct control_item *items; // (max_sequences)
    struct seq **item_seqs;     // (max_sequences) whose they are
};

/* ---- engine.c ---- */

/* Ends all of a request with an error; its sequences leave the lists. */
void engine_fail_request(struct engine *e, struct request *r, int error, const char *text);
/* The generation is complete: fills the event's end. */
void engine_end_seq(struct engine *e, struct seq *s, enum seq_end end, struct event *ev);
/* Gives its KV blocks back and puts it into the queue, at its old place; choices that have not
 * branched off it yet leave with it. */
void engine_preempt(struct engine *e, struct seq *s);

/* All that has come; waits for the first as queue_pop() does. */
void engine_take_inbox(struct engine *e, int64_t wait_us);

/* ---- admit.c ---- */

/* Admits whoever can be; idle sequences give way to those who wait. */
void admit_waiting(struct engine *e);

/* ---- load.c ---- */

void engine_view_update(struct engine *e);

/* ---- round.c ---- */

/* True if any running sequence has rows to run now. */
bool round_has_work(const struct engine *e);
/* Sequences whose drafts are late go on without. Returns when the next one will be late; INT64_MAX:
 * none is waited for. */
int64_t round_release(struct engine *e, int64_t now_us);
/* Until when to wait for drafts before the next round; 0: not at all. Where nobody reckons if that
 * pays for all (goodput does), only while all who would run wait for a draft of their own. */
int64_t round_wait_until_us(const struct engine *e);
/* Whose blocks are taken for s, with the round's shares planned: an idle sequence's, else the
 * youngest's, which may be s itself. One that is held for its draft is not idle. */
struct seq *round_victim(const struct engine *e, struct seq *s);
/* Plan, run, accept, tell, ask. */
void round_run(struct engine *e);
/* Asks proposers for drafts of sequences that may have one and have none. */
void round_ask(struct engine *e);
/* A proposer's draft has come. */
void round_take_draft(struct engine *e, struct inbox_item *item);

/* ---- decide.c ---- */

/* One step of a sequence whose last committed token is row `last_row` of the pass: commits tokens
 * by the request's rule. What came of it goes into ev, the last event of b. */
enum seq_end decide(struct engine *e, struct seq *s, uint32_t last_row, struct event_batch *b,
                    struct event *ev, struct accept_result *ret);
/* How the sequence's drafts are to be drawn. */
enum draft_q_mode decide_q_mode(const struct seq *s);
