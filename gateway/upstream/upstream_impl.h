/* upstream_impl.h - the state of the verifiers. Private to upstream.c and upstream_choose.c. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "gateway/upstream/upstream.h"
#include "gateway/upstream/upstream_waiters.h"

struct verifier {
    struct upstream *u;
    char *target;
    struct rpc_client *client;
    atomic_uint n_requests;

    enum upstream_state state; // this field and those below: with u's lock
    const struct upstream_model *model;
    char problem[FAIL_TEXT_MAX];
    bool other_model; // REFUSED for its fingerprint; else for its protocol version
    const struct upstream_model *owned; // when it was last READY; NULL: never, or given up
    int64_t owned_us;                   // time of that answer
    bool query_pending;
    int64_t query_at_us;
    int64_t answered_us; // time of its last answer to GetModel
    bool hangs;          // as it said then: a turn of its engine takes longer than turn_us
};

struct upstream {
    unsigned n;
    struct verifier verifiers[UPSTREAM_MAX];
    struct unary_calls *calls;
    pthread_t watcher;
    bool started;               // the watcher
    int64_t turn_us;            // how long a turn of a verifier's engine may take
    int64_t keep_us;            // how long a verifier keeps its model name after its last READY
    pthread_mutex_t mu;         // guards the fields below
    pthread_cond_t changed;     // for the watcher
    pthread_cond_t query_ended; // for upstream_meet()
    bool stopping;
    struct affinity *affinity;
    struct upstream_waiters waiters;
};

static inline unsigned verifier_index(const struct verifier *v)
{
    return (unsigned)(v - v->u->verifiers);
}

/* ---- upstream_choose.c; all with the lock ---- */

/* Another verifier that owns v's model name with another fingerprint; NULL: none. v->model is
 * set. */
const struct verifier *upstream_choose_owner(const struct verifier *v, int64_t now_us);
/* Whether v owns its name with v->model, or did before. v->model is set. */
bool upstream_choose_owned(const struct verifier *v);

/* The verifier for a request, see upstream_take(). NULL: no suitable one is ready. */
struct verifier *upstream_choose(struct upstream *u, const struct upstream_want *want);
/* Whether a request for `model` may wait. True: no verifier that serves `model` is ready. One
 * that may serve it is loading, has not answered yet or waits for the model's name. */
bool upstream_choose_waits(struct upstream *u, const char *model);
/* Why upstream_choose() found none: -ENOENT, -EAGAIN or -EHOSTDOWN, each with a sentence. */
int upstream_choose_error(const struct upstream *u, const char *model);
