/* upstream.h - the verifiers of this gateway: their channels, states and models.
 *
 * One thread sends GetModel to every verifier: twice a second, more often while it loads, and
 * immediately after a failed call. The last answer is a reference-counted snapshot, so a request
 * uses the same template and names from beginning to end.
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
/* The text for clients. gRPC's own text names sockets and goes to the log only. */
#define UPSTREAM_UNREACHED "the verifier cannot be reached; it may be restarting"

struct upstream;
struct verifier;

/* Starts as UNKNOWN; then always the state of the last answer. RESOURCE_EXHAUSTED counts as an
 * answer and leaves the state as it is, unless it is UNKNOWN. */
enum upstream_state {
    UPSTREAM_UNKNOWN, // no answer and no error yet
    UPSTREAM_DOWN,    // GetModel failed, or the engine hangs, see UPSTREAM_TURN_STALLS
    UPSTREAM_LOADING,
    UPSTREAM_READY,
    UPSTREAM_DRAINING,
    UPSTREAM_REFUSED, // it speaks another protocol version, or see below
};

/* The verifiers of one model name must have one fingerprint, so that any of them gives the same
 * answer. A verifier that is READY owns its model name. It keeps the name for
 * UPSTREAM_OWNER_GRACE_US + stall_us + resume_us after its last answer as READY, so that running
 * answers find equal bits again. It gives the name up earlier if it becomes ready with another
 * model.
 *
 * A verifier that becomes ready with an owned name, but with another fingerprint, is REFUSED. It
 * becomes READY when the name has no such owner. */

/* The gateway notices a loss up to 2.5 s after the last answer: the interval and the timeout of
 * GetModel. The grace is twice that. */
#define UPSTREAM_OWNER_GRACE_US 5000000

/* The engine of a verifier hangs if a turn of it takes this many times stall_us. A turn has at most
 * one pass. A pass over prompts can take seconds with a large model. */
#define UPSTREAM_TURN_STALLS 4

struct upstream_patience {
    int64_t stall_us;  // silence of a verifier until its calls move
    int64_t resume_us; // how long a lost answer waits for a verifier; 0: answers are not continued
};

/* The answer of a verifier to GetModel. info is never NULL. */
struct upstream_model {
    const Tandem__V1__ModelInfo *info;
};
const struct upstream_model *upstream_model_ref(const struct upstream_model *m);
void upstream_model_unref(const struct upstream_model *m); // NULL is fine

/* targets: as gRPC writes them, "unix:/path", "dns:///host:port". -ENOMEM; -EINVAL; -EAGAIN: no
 * thread. */
int upstream_new(const char *const *targets, unsigned n, const struct upstream_patience *patience,
                 struct upstream **ret);
void upstream_free(struct upstream *u); // after all streaming calls have ended
DEFINE_AUTO(struct upstream, upstream_free)

/* Waits until GetModel to each verifier has ended once; at most until until_us. reached: it must
 * have been answered. One thread at a time. */
void upstream_meet(struct upstream *u, bool reached, int64_t until_us);

unsigned upstream_n(const struct upstream *u);
struct verifier *upstream_at(struct upstream *u, unsigned i);
const char *upstream_target(const struct verifier *v);
/* *ret_model: NULL, or with a reference; ret_problem: why it is down or refused, else "". */
enum upstream_state upstream_state(struct verifier *v, const struct upstream_model **ret_model,
                                   char ret_problem[FAIL_TEXT_MAX]);

/* What a request requires of a verifier. */
struct upstream_want {
    const char *model;                    // NULL, "" and "default": any
    const struct affinity_prompt *prompt; // its prefixes; NULL: not known
    const struct upstream_model *like;    // same name and fingerprint; NULL: any
    uint32_t except;                      // bit i: not upstream_at(u, i)
    bool continues;                       // it can continue an answer that another one has begun
};

/* Takes a verifier for a request. Candidates are ready and serve the requested model. With `like`,
 * a verifier that is refused only for its fingerprint is a candidate too. A candidate
 * with more requests than 2 x those of the least loaded candidate + 2 is ignored. Of the others,
 * chooses the one with the longest known prefix of the prompt; without a known prefix, the least
 * loaded one.
 *
 * The caller holds *ret until upstream_release() and owns a reference to *ret_model.
 * -ENOENT: no verifier serves the model.
 * -EAGAIN: a verifier that may serve the model is loading, has not answered yet or waits for the
 * model's name.
 * -EHOSTDOWN: the verifiers that serve the model cannot be reached, are draining or are refused.
 * Each with a sentence. */
int upstream_take(struct upstream *u, const struct upstream_want *want, struct verifier **ret,
                  const struct upstream_model **ret_model);
unsigned upstream_index(const struct verifier *v); // upstream_at(u, i) is v
void upstream_release(struct verifier *v);

#define UPSTREAM_WAITING_MAX 1024

/* fn(user, err) is called once. err 0: upstream_take() would no longer return -EAGAIN, or
 * timeout_us is over. -EHOSTDOWN, with a sentence: another request has taken its place, see
 * upstream_waiters.h. `model` must stay valid until then. fn may run on the thread of another
 * upstream_wait(). -ENOMEM; -EHOSTDOWN: too many requests wait, or upstream_stop(). */
int upstream_wait(struct upstream *u, const char *model, const char *payer, int64_t timeout_us,
                  void (*fn)(void *user, int err), void *user);
/* Calls fn(user, 0) now if it still waits. */
void upstream_wait_end(struct upstream *u, const void *user);

/* Runs the callbacks of all waiters soon and cancels unary calls. The owners of streaming calls
 * must end them. No more GetModel is sent. */
void upstream_stop(struct upstream *u);

/* A call failed with UNAVAILABLE: queries the verifier now, before other requests are sent to the
 * verifier. */
void upstream_suspect(struct verifier *v);

enum upstream_stay {
    UPSTREAM_STAYS,
    UPSTREAM_LEAVES, // it drains
    UPSTREAM_SILENT, // down, and has not answered GetModel for more than silent_us, or hangs
};
/* Whether running calls should stay at the verifier. */
enum upstream_stay upstream_stay(struct verifier *v, int64_t silent_us, int64_t now_us);

/* Makes a unary call to the verifier, see unary_calls_make(). upstream_stop() cancels it. */
void upstream_unary(struct verifier *v, const char *path, int64_t timeout_us,
                    const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply,
                    unary_calls_done *done, void *user);
/* For streaming calls. */
struct rpc_client *upstream_client(struct verifier *v);

/* "loading", "ready" ... */
const char *upstream_state_name(enum upstream_state s);
