/* verifier_service_speculation.c - SetSpeculation: changes the settings of a running service. */
#include <errno.h>
#include "base/err.h"
#include "base/log.h"
#include "verifier-svc/edge/verifier_service_impl.h"

#define BATCH_MAX 4096 // as the option disable_batch_size

typedef Tandem__V1__SetSpeculationRequest set_request;

static int read_targets(const Tandem__V1__ProposerTargets *from, struct speculation *to)
{
    int err = 0;
    for (size_t i = 0; i < from->n_targets && !err; i++)
        err = speculation_add_target(to, (const char *)from->targets[i].data, from->targets[i].len);
    return err;
}

static int read_proposer(const set_request *req, struct speculation *to)
{
    if (req->proposer.len &&
        !speculation_is_name((const char *)req->proposer.data, req->proposer.len))
        return fail(-EINVAL,
                    "proposer must be a name of at most %d letters, digits, '-', '_' or '.'",
                    DRAFTS_NAME_MAX - 1);
    if (req->proposer.len)
        memcpy(to->proposer, req->proposer.data, req->proposer.len);
    return 0;
}

static int read_numbers(const set_request *req, struct speculation *to)
{
    if (req->has_k_case && req->k > CONTROL_K_MAX)
        return fail(-EINVAL, "k is %u, at most %d is allowed", req->k, CONTROL_K_MAX);
    if (req->has_disable_batch_size_case &&
        (req->disable_batch_size < -1 || req->disable_batch_size > BATCH_MAX))
        return fail(-EINVAL, "disable_batch_size must be from -1 to %d, not %d", BATCH_MAX,
                    req->disable_batch_size);
    to->k = req->k;
    to->disable_batch_size = req->disable_batch_size;
    return 0;
}

static int read_change(const set_request *req, struct speculation_change *ret)
{
    *ret = (struct speculation_change){.to.on = req->on};
    ret->has = (req->has_on_case ? SPECULATION_ON : 0) |
               (req->proposers ? SPECULATION_TARGETS : 0) |
               (req->has_proposer_case ? SPECULATION_PROPOSER : 0) |
               (req->policy.len ? SPECULATION_POLICY : 0) | (req->has_k_case ? SPECULATION_K : 0) |
               (req->has_disable_batch_size_case ? SPECULATION_BATCH : 0);
    int err = read_numbers(req, &ret->to);
    if (!err)
        err = read_proposer(req, &ret->to);
    if (!err && req->policy.len)
        err = speculation_set_policy(&ret->to, (const char *)req->policy.data, req->policy.len);
    if (!err && req->proposers)
        err = read_targets(req->proposers, &ret->to);
    return err;
}

/* A reply with all that it points to. */
struct state {
    Tandem__V1__SpeculationState msg;
    Tandem__V1__ProposerState proposers[DRAFT_MAX_PROPOSERS];
    Tandem__V1__ProposerState *list[DRAFT_MAX_PROPOSERS];
    struct drafts_stats stats[DRAFT_MAX_PROPOSERS];
};

static void fill_state(struct drafts *d, const struct speculation *s, struct state *ret)
{
    Tandem__V1__SpeculationState *to = &ret->msg;
    struct control_options control = speculation_control(s);
    tandem__v1__speculation_state__init(to);
    to->on = s->on;
    to->proposer = rpc_text(s->proposer);
    to->policy = rpc_text(speculation_policy(s));
    to->k = control.k;
    to->disable_batch_size = control.disable_batch_size;
    to->proposers = ret->list;
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
        struct drafts_stats *from = &ret->stats[to->n_proposers];
        Tandem__V1__ProposerState *p = &ret->proposers[to->n_proposers];
        if (!drafts_stats(d, i, from))
            continue;
        tandem__v1__proposer_state__init(p);
        p->name = rpc_text(from->name);
        p->target = rpc_text(from->target);
        p->connected = from->connected;
        p->benched = from->benched;
        ret->list[to->n_proposers++] = p;
    }
}

static void run_set(struct verifier_service *s, const struct job *j)
{
    struct speculation_change change;
    struct speculation now;
    struct state state;
    int err = read_change((const set_request *)j->msg, &change);
    if (!err)
        err = engine_speculate(s->engine, &change, &now);
    if (err < 0) {
        log_info("speculation not changed code=%s: %s", rpc_code_name(rpc_code_of(err)),
                 fail_text());
        rpc_call_fail(j->call, err);
        return;
    }
    fill_state(engine_drafts(s->engine), &now, &state);
    rpc_call_reply(j->call, &state.msg.base);
}

static void set_start(struct rpc_call *call, struct rpc_msg *in)
{
    verifier_service_start_job(call, in, &tandem__v1__set_speculation_request__descriptor, run_set);
}

static void set_cancelled(struct rpc_call *call)
{
    verifier_service_drop_job(rpc_call_service(call), call);
}

const struct rpc_method verifier_service_set_speculation = {.path = "/" VERIFIER_SERVICE_NAME
                                                                    "/SetSpeculation",
                                                            .roles = RPC_ROLE_OPERATOR,
                                                            .on_start = set_start,
                                                            .on_cancel = set_cancelled};
