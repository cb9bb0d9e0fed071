/* upstream_call.h - one Generate call. If its verifier is unreachable or full before the request
 * has begun, the call is retried at another verifier with the same model and fingerprint.
 *
 * Threads: upstream_call_begin() and the callbacks one at a time; upstream_call_cancel() and the
 * functions after it any. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "gateway/upstream/upstream.h"
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"

struct upstream_call;

struct upstream_call_events {
    /* false: the event is not valid; the call ends as malformed. */
    bool (*on_event)(struct upstream_call *a, const Tandem__V1__GenerateEvent *e);
    /* The call is retried at another verifier; the reason is status.text. */
    void (*on_retry)(struct upstream_call *a, const char *from, const char *to);
    /* The last callback; may come before upstream_call_begin() returns. */
    void (*on_done)(struct upstream_call *a);
};

struct upstream_call {
    const struct upstream_call_events *events;
    void *user;
    unsigned index; // for the owner
    struct upstream *upstream;
    const struct upstream_model *model;
    struct verifier *verifier;      // NULL: to be chosen
    struct rpc_msg *request;        // until the verifier has begun the request
    struct affinity_prompt *prompt; // as long as `request`; NULL: not known
    const char *target;             // of the last try; NULL: none
    uint32_t tried;                 // a bit per upstream_index()
    struct rpc_status status;       // valid when the call has ended
    bool malformed;                 // the verifier sent an event that is not valid
    bool overdue;                   // the verifier did not begin the request in time

    pthread_mutex_t mu; // guards the fields below, malformed and overdue
    bool cancelled;
    bool sending, call_ended; // of the current try
    int64_t waiting_since_us; // start of the wait for the verifier to begin; 0: no wait
    struct rpc_stream *call;
};

/* Initialises the private fields; the owner has set events, user, index, upstream and model. */
void upstream_call_init(struct upstream_call *a);
void upstream_call_done(struct upstream_call *a);
/* Sends the request. The call owns verifier, request and prompt. */
void upstream_call_begin(struct upstream_call *a);

/* Ends the call soon, also if it has not begun. No effect on a call that has ended. */
void upstream_call_cancel(struct upstream_call *a);
/* Cancels the call as overdue if it was sent before late_us and the verifier has not begun it. */
void upstream_call_expire(struct upstream_call *a, int64_t late_us);
void upstream_call_pause(struct upstream_call *a);
void upstream_call_resume(struct upstream_call *a);
