/* upstream_call.h - one Generate call, at the verifier that suits it, and at another one with the same bits
 * where that is gone or full before it has begun.
 *
 * Threads: upstream_call_begin() and the callbacks one at a time, upstream_call_cancel() and what follows it any. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include "gateway/upstream/upstream.h"
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"

struct upstream_call;

struct upstream_call_events {
    /* false: it must not be; the call ends. */
    bool (*on_event)(struct upstream_call *a, const Tandem__V1__GenerateEvent *e);
    void (*on_retry)(struct upstream_call *a, const char *from,
                     const char *to);         // and why: status.text
    void (*on_done)(struct upstream_call *a); // last; may come before upstream_call_begin() returns
};

struct upstream_call {
    const struct upstream_call_events *events;
    void *user;
    unsigned index; // the owner's, like the next two
    struct upstream *upstream;
    const struct upstream_model *model;
    struct verifier *verifier;      // NULL: to be chosen
    struct rpc_msg *request;        // until the verifier has begun with it
    struct affinity_prompt *prompt; // how it begins, until then; NULL: not known
    const char *target;             // that was asked last; NULL: none
    uint32_t tried;                 // upstream_index()s, a bit each
    struct rpc_status status;       // once call_ended, like the next two
    bool malformed;                 // the verifier said what it must not
    bool overdue;                   // it had not begun in time

    pthread_mutex_t mu; // for what follows, malformed and overdue
    bool cancelled;
    bool sending, call_ended; // the call
    int64_t waiting_since_us; // since when it is to begin; 0: it has, or was not asked
    struct rpc_stream *call;
};

/* What is the owner's stays as it is set. */
void upstream_call_init(struct upstream_call *a);
void upstream_call_done(struct upstream_call *a);
/* verifier, request and prompt are taken call_ended. */
void upstream_call_begin(struct upstream_call *a);

void upstream_call_cancel(
    struct upstream_call *a); // ends it soon, if it has not ended or not begun
void upstream_call_expire(struct upstream_call *a,
                          int64_t late_us); // overdue if it was asked before and has not begun
void upstream_call_pause(struct upstream_call *a);
void upstream_call_resume(struct upstream_call *a);
