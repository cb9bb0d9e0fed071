/* upstream_impl.h - the verifiers, as upstream.c and upstream_choose.c see them. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "gateway/upstream/upstream.h"

struct verifier {
    struct upstream *u;
    char *target;
    struct rpc_client *client;
    atomic_uint n_requests;

    enum upstream_state state; // with u's lock, like the rest
    const struct upstream_model *model;
    char problem[FAIL_TEXT_MAX];
    bool asking;
    int64_t ask_at_us;
};

struct waiter {
    struct waiter *next;
    int64_t until_us;
    const char *model; // the caller's
    void (*fn)(void *user);
    void *user;
};

struct upstream {
    unsigned n;
    struct verifier verifiers[UPSTREAM_MAX];
    struct unary_calls *calls;
    pthread_t watcher;
    bool started;       // the watcher
    pthread_mutex_t mu; // for what follows
    pthread_cond_t changed;
    bool stopping;
    struct affinity *affinity;
    struct waiter *waiters;
    unsigned n_waiters;
};

/* With the lock. Whether upstream_take() would say -EAGAIN. */
bool upstream_waits(struct upstream *u, const char *model);
