/* upstream_impl.h - the state of the verifiers. Private to upstream.c and upstream_choose.c. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "gateway/upstream/upstream.h"

struct verifier {
    struct upstream *u;
    char *target;
    struct rpc_client *client;
    atomic_uint n_requests;

    enum upstream_state state; // this field and those below: with u's lock
    const struct upstream_model *model;
    char problem[FAIL_TEXT_MAX];
    bool other_model; // REFUSED for its fingerprint; else for its protocol version
    bool query_pending;
    int64_t query_at_us;
    int64_t answered_us; // time of its last answer to GetModel
};

struct waiter {
    struct waiter *next;
    int64_t until_us;
    const char *model; // owned by the caller
    void (*fn)(void *user);
    void *user;
};

struct upstream {
    unsigned n;
    struct verifier verifiers[UPSTREAM_MAX];
    struct unary_calls *calls;
    pthread_t watcher;
    bool started;       // the watcher
    pthread_mutex_t mu; // guards the fields below
    pthread_cond_t changed;
    bool stopping;
    struct affinity *affinity;
    struct waiter *waiters;
    unsigned n_waiters;
};

static inline unsigned verifier_index(const struct verifier *v)
{
    return (unsigned)(v - v->u->verifiers);
}

/* ---- upstream_choose.c; all with the lock ---- */

/* A ready verifier with v's model name and another fingerprint; NULL: none. v->model is set. */
const struct verifier *upstream_choose_conflict(const struct verifier *v);

/* The verifier for a request, see upstream_take(). NULL: no suitable one is ready. */
struct verifier *upstream_choose(struct upstream *u, const struct upstream_want *want);
/* Whether a request for `model` may wait. True: no verifier that serves `model` is ready, but one
 * that may serve it is loading or has not answered yet. */
bool upstream_choose_waits(struct upstream *u, const char *model);
/* Why upstream_choose() found none: -ENOENT, -EAGAIN or -EHOSTDOWN, each with a sentence. */
int upstream_choose_error(const struct upstream *u, const char *model);
