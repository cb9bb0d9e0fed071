/* upstream.h - the verifiers this gateway forwards to: channels, their state, their models.
 *
 * One thread asks every verifier for its model again and again (twice a second, more often while it
 * loads, at once when a call has failed). What it said last is a snapshot with counted holders, so
 * a request keeps the template and the names it began with.
 *
 * Threads: any. Callbacks run on rpc threads or the watching thread and must not block. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "gateway/upstream/affinity.h"
#include "gateway/upstream/unary_calls.h"
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"

#define UPSTREAM_MAX 32 // verifiers
/* For clients; how gRPC says it, sockets' names included, is for the log. */
#define UPSTREAM_UNREACHED "the verifier cannot be reached; it may be starting again"

struct upstream;
struct verifier;

/* UNKNOWN -> any of the others -> ... , always what the last answer said. */
enum upstream_state {
    UPSTREAM_UNKNOWN, // not asked yet
    UPSTREAM_DOWN,    // no answer
    UPSTREAM_LOADING,
    UPSTREAM_READY,
    UPSTREAM_DRAINING,
    UPSTREAM_REFUSED, // it speaks another protocol version
};

/* What a verifier said of itself. info is never NULL. */
struct upstream_model {
    const Tandem__V1__ModelInfo *info;
};
const struct upstream_model *upstream_model_ref(const struct upstream_model *m);
void upstream_model_unref(const struct upstream_model *m); // NULL is fine

/* Targets as gRPC has them: "unix:/path", "dns:///host:port". -ENOMEM, -EINVAL. */
int upstream_new(const char *const *targets, unsigned n, struct upstream **ret);
void upstream_free(struct upstream *u); // calls that stream have ended
DEFINE_AUTO(struct upstream, upstream_free)

unsigned upstream_n(const struct upstream *u);
struct verifier *upstream_at(struct upstream *u, unsigned i);
const char *upstream_target(const struct verifier *v);
/* *ret_model: NULL or with a reference; *ret_problem: why it is down or refused, else "". */
enum upstream_state upstream_state(struct verifier *v, const struct upstream_model **ret_model,
                                   char ret_problem[FAIL_TEXT_MAX]);

/* What a request needs of a verifier. */
struct upstream_want {
    const char *model;                    // NULL, "" and "default": any
    const struct affinity_prompt *prompt; // NULL: not known
    const struct upstream_model *like;    // NULL, or only those with the same bits
    uint32_t except;                      // bit i: not upstream_at(u, i)
};

/* The verifier for a request: ready, serving its model; of those the one that has seen most of how
 * its prompt begins, unless that one has more than twice the requests of the idlest, and two; else
 * the idlest. The caller holds it until upstream_release() and owns a reference to its model.
 * -ENOENT: no such model is served; -EAGAIN: one that may serve it is loading or not yet asked;
 * -EHOSTDOWN: those that serve it cannot be reached, drain or are refused. Each with a sentence. */
int upstream_take(struct upstream *u, const struct upstream_want *want, struct verifier **ret,
                  const struct upstream_model **ret_model);
unsigned upstream_index(const struct verifier *v); // upstream_at(u, i) is v
void upstream_release(struct verifier *v);

/* fn(user) is called once: when upstream_take() would no longer say -EAGAIN, or after timeout_us.
 * Until then `model` stays where it is. */
int upstream_wait(struct upstream *u, const char *model, int64_t timeout_us, void (*fn)(void *user),
                  void *user);

/* Calls back everybody who waits, now, and ends upstream_unary()s; calls that stream are their
 * owners'. Nothing is asked any more. */
void upstream_stop(struct upstream *u);

/* A call failed with UNAVAILABLE: ask again now, before anybody else runs into it. */
void upstream_suspect(struct verifier *v);

/* unary_calls_make() to it, until upstream_stop(). */
void upstream_unary(struct verifier *v, const char *path, int64_t timeout_us,
                    const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply,
                    unary_calls_done *done, void *user);
/* For calls that stream. */
struct rpc_client *upstream_client(struct verifier *v);

/* "loading", "ready" ... for people. */
const char *upstream_state_name(enum upstream_state s);
