/* upstream_call.h - one Generate call, from one verifier to the next if need be.
 *
 * The call moves to another verifier with the same model and fingerprint:
 *
 *     not begun   its verifier is lost, full, drains or is silent
 *     begun       its verifier is lost, drains or is silent; the other verifier gets the committed
 *                 tokens and continues the answer with the same bits
 *
 * A verifier is lost if it ends the call with UNAVAILABLE or sends an event that is not valid. The
 * same holds if it has begun and ends the call before the answer is complete. This call then asks
 * it only if no other one can be asked. A call that has not begun and ends with another error goes
 * to another verifier, too, unless the error is the request's. It does not wait for one, unless all
 * queues are full and on_full() says so. More tokens than the request permits are not valid, nor is
 * a prompt longer than the request. Its user would have to pay for them.
 *
 * A verifier that drains or is silent keeps the call until the other one has begun, so nothing is
 * lost if none can take it. A lost call waits for a verifier for patience->resume_us, also if it
 * has not begun. Until then, an error of a verifier that was asked to continue is no reason to end.
 * After INVALID_ARGUMENT or OUT_OF_RANGE this verifier is not asked again: it has other limits than
 * the first one. These codes end a call that has not begun, unless its own verifier drains.
 *
 * Threads: upstream_call_begin() and the callbacks one at a time; upstream_call_cancel() and the
 * functions after it any. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "gateway/upstream/committed.h"
#include "gateway/upstream/upstream.h"
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"

struct upstream_call;

struct upstream_call_events {
    /* Each event of the answer once, whatever verifiers send it. */
    void (*on_event)(struct upstream_call *a, const Tandem__V1__GenerateEvent *e);
    /* The call has not begun and is sent to another verifier, or to the same after a restart; why:
     * the end of the last try. */
    void (*on_retry)(struct upstream_call *a, const char *from, const char *to, const char *why);
    /* Another verifier, or the same after a restart, continues the answer. */
    void (*on_resume)(struct upstream_call *a, const char *from, const char *to, const char *why);
    /* Whether the call may keep this many more bytes. Called while on_event() is not running. */
    bool (*on_hold)(struct upstream_call *a, size_t bytes);
    /* No memory is left for the ids of the answer: it runs on and can no longer be continued. */
    void (*on_lost_ids)(struct upstream_call *a);
    /* The queues of all verifiers are full for this call, which has not begun; a->status says it.
     * false: it ends. true: it waits until may_retry() lets it ask again. */
    bool (*on_full)(struct upstream_call *a);
    bool (*may_retry)(struct upstream_call *a); // asked several times per second
    /* The last callback; may come before upstream_call_begin() returns. */
    void (*on_done)(struct upstream_call *a);
};

/* A stream to one verifier. */
struct upstream_leg {
    struct upstream_call *a;
    struct verifier *verifier; // NULL: the leg is free
    struct rpc_stream *call;   // with the call's mu
    bool begun;
    unsigned n_started; // events; at most one for each choice
};

/* The current one, the next one, and one that was left and has not ended yet. */
#define UPSTREAM_CALL_LEGS 3
/* Limits of an event, apart from the first one, which may have the text of the prompt. The memory
 * that an event's answer takes is charged only afterwards. A verifier sends the tokens of one
 * round, at most 21, each with at most 20 alternatives. */
#define UPSTREAM_CALL_EVENT_MAX (1u << 20) // bytes
#define UPSTREAM_CALL_RUN_MAX 4096         // tokens
/* A prompt has at most one token for each byte of its request, and a few that the model adds. */
#define UPSTREAM_CALL_ADDED_MAX 64

struct upstream_call {
    const struct upstream_call_events *events;
    void *user;
    unsigned index; // for the owner
    struct upstream *upstream;
    const struct upstream_model *model;
    const struct upstream_patience *patience;
    bool exact;                // the answer has the same bits wherever it is continued
    uint32_t max_tokens;       // of a choice, by the request; UINT32_MAX: no limit
    struct verifier *verifier; // for the first try; NULL: to be chosen
    struct rpc_msg *request;
    struct affinity_prompt *prompt; // until a verifier has begun the request; NULL: not known
    struct committed committed;

    pthread_mutex_t step_mu; // one event, end or tick at a time; guards the fields below
    const char *target;      // of the last try; NULL: none
    const char *lost_target; // of the last verifier that was lost
    const char *why;         // why the call leaves its verifier, or has lost it
    uint32_t tried;          // verifiers asked that have not begun; a bit per upstream_index()
    uint32_t unable;         // verifiers that cannot continue the answer; the same bits
    uint32_t lost;           // verifiers that the call has lost; the same bits
    int64_t lost_at_us[UPSTREAM_MAX]; // when it lost them
    struct rpc_status status;         // valid when the call has ended
    bool begun;                       // a verifier has begun the request
    struct upstream_leg legs[UPSTREAM_CALL_LEGS];
    struct upstream_leg *current; // its events are the answer; NULL: the verifier is lost
    struct upstream_leg *next;    // asked to take over; NULL: none. If not begun: only with current
    int64_t lost_us;              // when the last verifier was lost; 0: none was
    int64_t heard_us;             // last event of the current leg
    int64_t try_us, pause_us;     // when another verifier may be asked; the pause before that
    unsigned n_lost;              // verifiers lost by this call
    uint64_t n_tokens;            // from the current leg
    bool full;                    // it waits because all queues are full
    bool waited;                  // it has done so
    bool over, done;              // no more tries; the owner knows it

    pthread_mutex_t mu; // guards the fields below
    bool malformed;     // the last verifier sent an event that is not valid
    bool overdue;       // no verifier began the request in time
    bool cancelled;
    int64_t waiting_since_us; // start of the wait for a verifier to begin; 0: no wait
};

/* Initialises the private fields; the owner has set those up to prompt. n: choices. -ENOMEM. */
int upstream_call_init(struct upstream_call *a, unsigned n);
void upstream_call_done(struct upstream_call *a);
/* Sends the request. The call owns verifier, request and prompt. */
void upstream_call_begin(struct upstream_call *a);

/* Ends the call soon, also if it has not begun. No effect on a call that has ended. */
void upstream_call_cancel(struct upstream_call *a);
/* Cancels the call as overdue if it was sent before late_us and the verifier has not begun it. */
void upstream_call_expire(struct upstream_call *a, int64_t late_us);
/* Several times per second: moves the call if its verifier leaves, and ends one that found no
 * verifier in time. Callbacks may run, so the caller holds no lock. */
void upstream_call_tick(struct upstream_call *a, int64_t now_us);
void upstream_call_pause(struct upstream_call *a);
void upstream_call_unpause(struct upstream_call *a);
