/* upstream.c - the verifiers of this gateway: their reported models and states, and the requests
 * that wait for a model to load. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/svc.h"
#include "base/thread.h"
#include "gateway/upstream/upstream_impl.h"
#include "tandem/v1/protocol.pb-c.h"

#define QUERY_US 500000         // interval of GetModel for a verifier that is ready
#define QUERY_LOADING_US 100000 // ... that loads, or is down
#define QUERY_TIMEOUT_US 2000000
#define STOPPING "the server is shutting down"

struct snapshot {
    struct upstream_model model; // first
    atomic_uint n_refs;
    Tandem__V1__ModelInfo *info;
};

const char *upstream_state_name(enum upstream_state s)
{
    static const char *const names[] = {"starting", "down",     "loading",
                                        "ready",    "draining", "refused"};
    return names[s];
}

/* ---- snapshots ---- */

const struct upstream_model *upstream_model_ref(const struct upstream_model *m)
{
    atomic_fetch_add(&((struct snapshot *)(void *)m)->n_refs, 1);
    return m;
}

void upstream_model_unref(const struct upstream_model *m)
{
    struct snapshot *s = (struct snapshot *)(void *)m;
    if (!s || atomic_fetch_sub(&s->n_refs, 1) != 1)
        return;
    tandem__v1__model_info__free_unpacked(s->info, NULL);
    free(s);
}

/* Takes info. */
static const struct upstream_model *snapshot_new(Tandem__V1__ModelInfo *info)
{
    struct snapshot *s = calloc(1, sizeof(*s));
    if (!s) {
        tandem__v1__model_info__free_unpacked(info, NULL);
        return NULL;
    }
    s->info = info;
    s->model.info = info;
    atomic_init(&s->n_refs, 1);
    return &s->model;
}

/* ---- calls ---- */

void upstream_unary(struct verifier *v, const char *path, int64_t timeout_us,
                    const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply,
                    unary_calls_done *done, void *user)
{
    unary_calls_make(v->u->calls, v->client, path, timeout_us, request, reply, done, user);
}

struct rpc_client *upstream_client(struct verifier *v)
{
    return v->client;
}

/* ---- GetModel ---- */

static enum upstream_state state_of(const Tandem__V1__ModelInfo *info)
{
    switch (info->state) {
    case TANDEM__V1__MODEL_INFO__STATE__READY:
        return UPSTREAM_READY;
    case TANDEM__V1__MODEL_INFO__STATE__DRAINING:
        return UPSTREAM_DRAINING;
    default:
        return UPSTREAM_LOADING;
    }
}

#define QUOTED 128 // bytes of a quoted name or fingerprint

static const char *quote(ProtobufCBinaryData text, char out[QUOTED])
{
    return log_quote((const char *)text.data, text.len, out, QUOTED);
}

/* With the lock. */
static void set_state(struct verifier *v, enum upstream_state state)
{
    char name[QUOTED];
    if (state != v->state && state == UPSTREAM_READY)
        log_info("verifier ready target=%s model=%s", v->target, quote(v->model->info->name, name));
    else if (state != v->state && state == UPSTREAM_DOWN)
        log_warn("verifier down target=%s, answering 503 until it is back: %s", v->target,
                 v->problem);
    else if (state != v->state && state == UPSTREAM_REFUSED)
        log_error("verifier refused target=%s, sending it no requests: %s", v->target, v->problem);
    else if (state != v->state)
        log_info("verifier %s target=%s", upstream_state_name(state), v->target);
    v->state = state;
}

/* With the lock. Records why the verifier cannot be used. Its last known model stays. */
static void set_problem(struct verifier *v, enum rpc_code code, const char *text)
{
    snprintf(v->problem, sizeof(v->problem), "%s", text);
    v->other_model = false;
    set_state(v, code == RPC_FAILED_PRECONDITION ? UPSTREAM_REFUSED : UPSTREAM_DOWN);
}

#define MODEL_TEXT_MAX 512 // bytes of a text that the list of models repeats

/* A verifier without the protocol's version is older than this field and speaks this version. */
static int check_info(const Tandem__V1__ModelInfo *info)
{
    size_t longest = info->name.len;
    longest = info->architecture.len > longest ? info->architecture.len : longest;
    longest = info->weight_type.len > longest ? info->weight_type.len : longest;
    if (longest > MODEL_TEXT_MAX)
        return fail(-EPROTO,
                    "the name, architecture or weight type of its model has %zu bytes, at most %d "
                    "are allowed",
                    longest, MODEL_TEXT_MAX);
    if (info->protocol == TANDEM__V1__PROTOCOL__PROTOCOL_UNKNOWN ||
        info->protocol == TANDEM__V1__PROTOCOL__PROTOCOL_VERSION)
        return 0;
    return fail(-EPROTO, "the verifier speaks protocol version %u, this gateway version %d",
                info->protocol, TANDEM__V1__PROTOCOL__PROTOCOL_VERSION);
}

/* With the lock. The other verifier owns the model name of this one. */
static void refuse(struct verifier *v, const struct verifier *owner)
{
    char name[QUOTED], mine[QUOTED], theirs[QUOTED];
    snprintf(v->problem, sizeof(v->problem),
             "its model %s has the fingerprint %s, but %s %s that name with %s",
             quote(v->model->info->name, name), quote(v->model->info->fingerprint, mine),
             owner->target, owner->state == UPSTREAM_READY ? "serves" : "still keeps",
             quote(owner->owned->info->fingerprint, theirs));
    v->other_model = true;
    set_state(v, UPSTREAM_REFUSED);
}

/* With the lock. The verifier has reported READY. */
static void become_ready(struct verifier *v)
{
    int64_t now_us = clock_us();
    const struct verifier *owner = upstream_choose_owner(v, now_us);
    if (owner || !upstream_choose_owned(v)) {
        upstream_model_unref(v->owned);
        v->owned = NULL;
    }
    if (owner) {
        refuse(v, owner);
        return;
    }
    v->owned = v->owned ? v->owned : upstream_model_ref(v->model);
    v->owned_us = now_us;
    v->other_model = false;
    v->problem[0] = 0;
    set_state(v, UPSTREAM_READY);
}

/* With the lock. Verifiers that waited for a model name may own it now. */
static void admit_others(struct upstream *u)
{
    for (unsigned i = 0; i < u->n; i++) {
        struct verifier *v = &u->verifiers[i];
        if (v->state == UPSTREAM_REFUSED && v->other_model && !upstream_choose_owner(v, clock_us()))
            become_ready(v);
    }
}

/* With the lock. */
static void set_reported(struct verifier *v, enum upstream_state state)
{
    v->problem[0] = 0;
    if (state == UPSTREAM_READY)
        become_ready(v);
    else
        set_state(v, state);
}

/* With the lock. Takes the answer as the verifier's model, which is v->model then. */
static void take_model(struct verifier *v)
{
    uint64_t turn_ms = v->model->info->turn_ms;
    int64_t turn_us = 1000 * (int64_t)(turn_ms < INT32_MAX ? turn_ms : INT32_MAX);
    char text[96];
    v->answered_us = clock_us();
    v->hangs = turn_us > v->u->turn_us;
    if (!v->hangs) {
        set_reported(v, state_of(v->model->info));
        return;
    }
    snprintf(text, sizeof(text), "its engine has not finished a pass for %.1f s",
             (double)turn_us / 1e6);
    set_problem(v, RPC_UNAVAILABLE, text);
}

/* RESOURCE_EXHAUSTED: too many calls run there. A first answer may also be too large for gRPC. */
static void on_model(void *user, const struct rpc_status *status, ProtobufCMessage *reply)
{
    struct verifier *v = user;
    const struct upstream_model *old = NULL,
                                *fresh =
                                    reply ? snapshot_new((Tandem__V1__ModelInfo *)reply) : NULL;
    pthread_mutex_lock(&v->u->mu);
    if (fresh && check_info(fresh->info) < 0) {
        old = fresh;
        set_problem(v, RPC_FAILED_PRECONDITION, fail_text());
    } else if (fresh) {
        old = v->model;
        v->model = fresh;
        take_model(v);
    } else if (reply || (status->code == RPC_RESOURCE_EXHAUSTED && v->state != UPSTREAM_UNKNOWN)) {
        v->answered_us = clock_us(); // no memory, or too many calls run: its state stays
    } else {
        set_problem(v, status->code, status->text);
    }
    admit_others(v->u);
    v->query_pending = false;
    v->query_at_us = clock_us() + (v->state == UPSTREAM_READY ? QUERY_US : QUERY_LOADING_US);
    pthread_cond_signal(&v->u->changed);
    pthread_cond_signal(&v->u->query_ended);
    pthread_mutex_unlock(&v->u->mu);
    upstream_model_unref(old);
}

static void query_model(struct verifier *v)
{
    Tandem__V1__GetModelRequest request = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    request.protocol = TANDEM__V1__PROTOCOL__PROTOCOL_VERSION;
    upstream_unary(v, "/tandem.v1.Verifier/GetModel", QUERY_TIMEOUT_US, &request.base,
                   &tandem__v1__model_info__descriptor, on_model, v);
}

void upstream_suspect(struct verifier *v)
{
    pthread_mutex_lock(&v->u->mu);
    v->query_at_us = 0;
    pthread_cond_signal(&v->u->changed);
    pthread_mutex_unlock(&v->u->mu);
}

enum upstream_stay upstream_stay(struct verifier *v, int64_t silent_us, int64_t now_us)
{
    pthread_mutex_lock(&v->u->mu);
    bool leaves = v->state == UPSTREAM_DRAINING,
         silent = v->state == UPSTREAM_DOWN && (v->hangs || now_us - v->answered_us > silent_us);
    pthread_mutex_unlock(&v->u->mu);
    return leaves ? UPSTREAM_LEAVES : silent ? UPSTREAM_SILENT : UPSTREAM_STAYS;
}

/* ---- verifiers for requests ---- */

int upstream_take(struct upstream *u, const struct upstream_want *want, struct verifier **ret,
                  const struct upstream_model **ret_model)
{
    int rc = 0;
    pthread_mutex_lock(&u->mu);
    struct verifier *v = upstream_choose(u, want);
    if (v) {
        atomic_fetch_add(&v->n_requests, 1);
        if (want->prompt)
            affinity_note(u->affinity, want->prompt, verifier_index(v));
        *ret_model = upstream_model_ref(v->model);
        *ret = v;
    } else {
        rc = upstream_choose_error(u, want->model);
    }
    pthread_mutex_unlock(&u->mu);
    return rc;
}

void upstream_release(struct verifier *v)
{
    if (v)
        atomic_fetch_sub(&v->n_requests, 1);
}

/* ---- waiting ---- */

/* With the lock. */
static int add_waiter(struct upstream *u, struct upstream_waiter *w, const char *payer,
                      struct upstream_waiter **ret_displaced)
{
    *ret_displaced = NULL;
    return u->stopping ? fail(-EHOSTDOWN, STOPPING)
                       : upstream_waiters_add(&u->waiters, w, payer, ret_displaced);
}

static void end_wait(struct upstream_waiter *w, int err)
{
    w->fn(w->user, err);
    free(w);
}

int upstream_wait(struct upstream *u, const char *model, const char *payer, int64_t timeout_us,
                  void (*fn)(void *user, int err), void *user)
{
    struct upstream_waiter *displaced, *w = calloc(1, sizeof(*w));
    if (!w)
        return fail(-ENOMEM, "no memory");
    w->until_us = clock_us() + timeout_us;
    w->model = model;
    w->fn = fn;
    w->user = user;
    pthread_mutex_lock(&u->mu);
    int err = add_waiter(u, w, payer, &displaced);
    if (!err)
        pthread_cond_signal(&u->changed);
    pthread_mutex_unlock(&u->mu);
    if (err)
        free(w);
    if (displaced)
        end_wait(displaced, upstream_waiters_full());
    return err;
}

void upstream_wait_end(struct upstream *u, const void *user)
{
    pthread_mutex_lock(&u->mu);
    struct upstream_waiter **at = &u->waiters.first;
    while (*at && (*at)->user != user)
        at = &(*at)->next;
    struct upstream_waiter *w = *at ? upstream_waiters_remove(&u->waiters, at) : NULL;
    pthread_mutex_unlock(&u->mu);
    if (w)
        end_wait(w, 0);
}

/* With the lock. Removes and returns the waiters that no longer need to wait. */
static struct upstream_waiter *due_waiters(struct upstream *u, int64_t now_us)
{
    struct upstream_waiter *due = NULL;
    for (struct upstream_waiter **at = &u->waiters.first; *at;) {
        struct upstream_waiter *w = *at;
        if (!u->stopping && w->until_us > now_us && upstream_choose_waits(u, w->model)) {
            at = &w->next;
            continue;
        }
        upstream_waiters_remove(&u->waiters, at);
        w->next = due;
        due = w;
    }
    return due;
}

static void run_waiters(struct upstream_waiter *due)
{
    while (due) {
        struct upstream_waiter *w = due;
        due = w->next;
        end_wait(w, 0);
    }
}

/* With the lock. A verifier whose query is due; NULL: none, *next_us is lowered to the next
 * time. */
static struct verifier *due_verifier(struct upstream *u, int64_t now_us, int64_t *next_us)
{
    for (unsigned i = 0; i < u->n; i++) {
        struct verifier *v = &u->verifiers[i];
        if (v->query_pending)
            continue;
        if (v->query_at_us <= now_us)
            return v;
        if (v->query_at_us < *next_us)
            *next_us = v->query_at_us;
    }
    return NULL;
}

/* With the lock. Sleeps until something changes, until at_us or until a waiter's deadline. */
static void sleep_until(struct upstream *u, int64_t at_us)
{
    for (struct upstream_waiter *w = u->waiters.first; w; w = w->next)
        at_us = w->until_us < at_us ? w->until_us : at_us;
    struct timespec at = clock_at(at_us);
    pthread_cond_timedwait(&u->changed, &u->mu, &at);
}

static void *watcher_main(void *arg)
{
    struct upstream *u = arg;
    pthread_mutex_lock(&u->mu);
    while (!u->stopping) {
        svc_awake();
        int64_t now_us = clock_us(), next_us = now_us + QUERY_US;
        struct upstream_waiter *due = due_waiters(u, now_us);
        struct verifier *v = due ? NULL : due_verifier(u, now_us, &next_us);
        if (!due && !v) {
            sleep_until(u, next_us);
            continue;
        }
        if (v)
            v->query_pending = true;
        pthread_mutex_unlock(&u->mu);
        run_waiters(due);
        if (v)
            query_model(v);
        pthread_mutex_lock(&u->mu);
    }
    struct upstream_waiter *rest = due_waiters(u, 0);
    pthread_mutex_unlock(&u->mu);
    run_waiters(rest);
    svc_asleep();
    return NULL;
}

/* ---- start, end, access ---- */

/* With the lock. */
static bool has_met(const struct verifier *v, bool reached)
{
    return v->state != UPSTREAM_UNKNOWN && !(reached && v->state == UPSTREAM_DOWN);
}

void upstream_meet(struct upstream *u, bool reached, int64_t until_us)
{
    struct timespec until = clock_at(until_us);
    int rc = 0;
    pthread_mutex_lock(&u->mu);
    for (unsigned i = 0; i < u->n; i++)
        while (!has_met(&u->verifiers[i], reached) && rc != ETIMEDOUT)
            rc = pthread_cond_timedwait(&u->query_ended, &u->mu, &until);
    pthread_mutex_unlock(&u->mu);
}

unsigned upstream_n(const struct upstream *u)
{
    return u->n;
}

struct verifier *upstream_at(struct upstream *u, unsigned i)
{
    return &u->verifiers[i];
}

unsigned upstream_index(const struct verifier *v)
{
    return verifier_index(v);
}

const char *upstream_target(const struct verifier *v)
{
    return v->target;
}

enum upstream_state upstream_state(struct verifier *v, const struct upstream_model **ret_model,
                                   char ret_problem[FAIL_TEXT_MAX])
{
    pthread_mutex_lock(&v->u->mu);
    enum upstream_state state = v->state;
    *ret_model = v->model ? upstream_model_ref(v->model) : NULL;
    snprintf(ret_problem, FAIL_TEXT_MAX, "%s", v->problem);
    pthread_mutex_unlock(&v->u->mu);
    return state;
}

int upstream_new(const char *const *targets, unsigned n, const struct upstream_patience *patience,
                 struct upstream **ret)
{
    static const struct rpc_client_options verifiers = {.server_role = RPC_ROLE_VERIFIER};
    AUTO(upstream_free) struct upstream *u = calloc(1, sizeof(*u));
    if (!u)
        return fail(-ENOMEM, "upstream: no memory");
    clock_cond_init(&u->changed);
    clock_cond_init(&u->query_ended);
    pthread_mutex_init(&u->mu, NULL);
    if (!n || n > UPSTREAM_MAX)
        return fail(-EINVAL, "there must be 1 to %d verifiers, not %u", UPSTREAM_MAX, n);
    u->turn_us = UPSTREAM_TURN_STALLS * patience->stall_us;
    u->keep_us = UPSTREAM_OWNER_GRACE_US + patience->stall_us + patience->resume_us;
    int rc = affinity_new(&u->affinity);
    rc = rc < 0 ? rc : unary_calls_new(&u->calls);
    if (rc < 0)
        return rc;
    for (; u->n < n; u->n++) {
        struct verifier *v = &u->verifiers[u->n];
        v->u = u;
        v->target = strdup(targets[u->n]);
        rc = v->target ? rpc_client_new(v->target, &verifiers, &v->client) : -ENOMEM;
        if (rc < 0) {
            free(v->target);
            return fail(rc, "cannot create a channel to the verifier %s", targets[u->n]);
        }
    }
    rc = thread_start(watcher_main, u, 0, &u->watcher);
    if (rc < 0)
        return rc;
    u->started = true;
    *ret = TAKE(u);
    return 0;
}

void upstream_stop(struct upstream *u)
{
    pthread_mutex_lock(&u->mu);
    u->stopping = true;
    pthread_cond_signal(&u->changed);
    pthread_mutex_unlock(&u->mu);
    if (u->calls)
        unary_calls_stop(u->calls, STOPPING);
}

void upstream_free(struct upstream *u)
{
    if (!u)
        return;
    upstream_stop(u);
    if (u->started)
        pthread_join(u->watcher, NULL);
    for (unsigned i = 0; i < u->n; i++) {
        rpc_client_free(u->verifiers[i].client); // waits for its calls
        upstream_model_unref(u->verifiers[i].model);
        upstream_model_unref(u->verifiers[i].owned);
        free(u->verifiers[i].target);
    }
    affinity_free(u->affinity);
    unary_calls_free(u->calls);
    pthread_cond_destroy(&u->changed);
    pthread_cond_destroy(&u->query_ended);
    pthread_mutex_destroy(&u->mu);
    free(u);
}
