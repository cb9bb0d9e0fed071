/* upstream_choose.c - chooses the verifier for a request. */
#include <errno.h>
#include <string.h>
#include "base/err.h"
#include "gateway/upstream/upstream_impl.h"

static bool serves_model(const struct verifier *v, const char *model)
{
    const ProtobufCBinaryData *name = &v->model->info->name;
    return !model || !*model || strcmp(model, "default") == 0 ||
           (strlen(model) == name->len && memcmp(model, name->data, name->len) == 0);
}

static bool same_bytes(ProtobufCBinaryData a, ProtobufCBinaryData b)
{
    return a.len == b.len && (!a.len || memcmp(a.data, b.data, a.len) == 0);
}

static bool same_name(const struct upstream_model *a, const struct upstream_model *b)
{
    return same_bytes(a->info->name, b->info->name);
}

static bool same_bits(const struct upstream_model *a, const struct upstream_model *b)
{
    return same_bytes(a->info->fingerprint, b->info->fingerprint);
}

bool upstream_choose_owned(const struct verifier *v)
{
    return v->owned && same_name(v->owned, v->model) && same_bits(v->owned, v->model);
}

/* Whether the verifier owns the name of v->owned. */
static bool is_owner(const struct verifier *v, int64_t now_us)
{
    return v->owned && (v->state == UPSTREAM_READY || now_us - v->owned_us < v->u->keep_us);
}

const struct verifier *upstream_choose_owner(const struct verifier *v, int64_t now_us)
{
    for (unsigned i = 0; i < v->u->n; i++) {
        const struct verifier *other = &v->u->verifiers[i];
        if (other != v && is_owner(other, now_us) && same_name(v->model, other->owned) &&
            !same_bits(v->model, other->owned))
            return other;
    }
    return NULL;
}

/* Whether the verifier may get the request, whatever its state is. */
static bool is_suitable(const struct verifier *v, const struct upstream_want *w)
{
    const struct upstream_model *like = w->like;
    if (w->except >> verifier_index(v) & 1 || !serves_model(v, w->model) ||
        (w->continues && !v->model->info->continues))
        return false;
    return !like || (same_name(like, v->model) && same_bits(like, v->model));
}

static bool is_candidate(const struct verifier *v, const struct upstream_want *w)
{
    bool serves =
        v->state == UPSTREAM_READY || (w->like && v->state == UPSTREAM_REFUSED && v->other_model);
    return serves && is_suitable(v, w);
}

/* With the lock. */
static struct verifier *least_loaded(struct upstream *u, const struct upstream_want *w)
{
    struct verifier *found = NULL;
    for (unsigned i = 0; i < u->n; i++) {
        struct verifier *v = &u->verifiers[i];
        if (is_candidate(v, w) &&
            (!found || atomic_load(&v->n_requests) < atomic_load(&found->n_requests)))
            found = v;
    }
    return found;
}

/* The limit keeps a prefix that all prompts share from sending all requests to one verifier. */
struct verifier *upstream_choose(struct upstream *u, const struct upstream_want *w)
{
    struct verifier *found = least_loaded(u, w);
    unsigned pieces[UPSTREAM_MAX], most = 0;
    if (!found || !w->prompt)
        return found;
    unsigned limit = 2 * atomic_load(&found->n_requests) + 2;
    affinity_find(u->affinity, w->prompt, u->n, pieces);
    most = pieces[verifier_index(found)];
    for (unsigned i = 0; i < u->n; i++) {
        struct verifier *v = &u->verifiers[i];
        if (pieces[i] > most && is_candidate(v, w) && atomic_load(&v->n_requests) <= limit) {
            found = v;
            most = pieces[i];
        }
    }
    return found;
}

/* With the lock. The first verifier in this state that serves `model`, or whose model is
 * unknown. */
static const struct verifier *first_in_state(const struct upstream *u, enum upstream_state state,
                                             const char *model)
{
    for (unsigned i = 0; i < u->n; i++) {
        const struct verifier *v = &u->verifiers[i];
        bool known = v->model && v->model->info->name.len;
        if (v->state == state && (!known || serves_model(v, model)))
            return v;
    }
    return NULL;
}

/* With the lock. Whether a verifier is ready and none is known to serve `model`. */
static bool is_served_nowhere(const struct upstream *u, const char *model)
{
    bool ready = false;
    for (unsigned i = 0; i < u->n; i++) {
        const struct verifier *v = &u->verifiers[i];
        if (v->model && serves_model(v, model))
            return false;
        ready |= v->state == UPSTREAM_READY;
    }
    return ready;
}

/* With the lock. Whether a verifier of `model` gets requests when the name's owner gives it up. */
static bool waits_for_name(const struct upstream *u, const char *model)
{
    for (unsigned i = 0; i < u->n; i++) {
        const struct verifier *v = &u->verifiers[i];
        if (v->state == UPSTREAM_REFUSED && v->other_model && serves_model(v, model))
            return true;
    }
    return false;
}

int upstream_choose_error(const struct upstream *u, const char *model)
{
    const struct verifier *v = first_in_state(u, UPSTREAM_LOADING, model);
    if (v)
        return fail(-EAGAIN, "the model is still loading (%.0f %%)",
                    (double)v->model->info->progress * 100);
    if (first_in_state(u, UPSTREAM_UNKNOWN, model))
        return fail(-EAGAIN, "the verifier has not answered yet");
    if (waits_for_name(u, model))
        return fail(-EAGAIN, UPSTREAM_UNREACHED);
    if (is_served_nowhere(u, model))
        return fail(-ENOENT, "the model '%.200s' is not served here", model);
    if (first_in_state(u, UPSTREAM_DRAINING, model))
        return fail(-EHOSTDOWN, "the verifier is shutting down");
    v = first_in_state(u, UPSTREAM_REFUSED, model);
    if (v)
        return fail(-EHOSTDOWN, "%s", v->problem);
    return fail(-EHOSTDOWN, UPSTREAM_UNREACHED);
}

bool upstream_choose_waits(struct upstream *u, const char *model)
{
    return !least_loaded(u, &(struct upstream_want){.model = model}) &&
           (first_in_state(u, UPSTREAM_LOADING, model) ||
            first_in_state(u, UPSTREAM_UNKNOWN, model) || waits_for_name(u, model));
}
