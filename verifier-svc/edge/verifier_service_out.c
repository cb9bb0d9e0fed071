/* verifier_service_out.c - the sender thread: packs and sends the events of the engine. */
#include <errno.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/svc.h"
#include "verifier-svc/edge/verifier_service_impl.h"

#define SLOW_CHECK_US 1000000 // how often paused answers are checked

typedef Tandem__V1__GenerateEvent generate_event;
typedef Tandem__V1__VerifyReply verify_reply;

/* ---- slow clients ---- */

/* Pauses the request's sequences while more than VERIFIER_SERVICE_UNREAD_MAX bytes are unread. */
static void send_bounded(struct verifier_service *s, struct request *r, const ProtobufCMessage *msg)
{
    uint32_t n_drains = atomic_load(&r->n_drains);
    ssize_t unread = rpc_call_send(r->call, rpc_pack(msg));
    if (unread <= (ssize_t)VERIFIER_SERVICE_UNREAD_MAX || atomic_load(&r->paused))
        return;
    atomic_store(&r->paused, true);
    if (atomic_load(&r->n_drains) != n_drains) { // the client has read meanwhile
        atomic_store(&r->paused, false);
        engine_wake(s->engine); // the engine may have seen the pause
        return;
    }
    log_debug("answer paused id=%s unread=%zd", r->id, unread);
    if (!r->slow_since_us) {
        r->next_slow = s->slow;
        s->slow = r;
        request_hold(r);
    }
    r->slow_since_us = clock_us();
}

/* Aborts the answers that were not read for reader_timeout. */
static void check_slow(struct verifier_service *s)
{
    int64_t now_us = clock_us();
    for (struct request **at = &s->slow; *at;) {
        struct request *r = *at;
        bool over = atomic_load(&r->paused) && !r->answered &&
                    now_us - r->slow_since_us >= (int64_t)(s->options->reader_timeout_s * 1e6);
        if (over) {
            char text[96];
            snprintf(text, sizeof(text), "more than %u KiB of the answer were not read for %g s",
                     VERIFIER_SERVICE_UNREAD_MAX >> 10, s->options->reader_timeout_s);
            rpc_call_abort(r->call, RPC_RESOURCE_EXHAUSTED, text);
            atomic_store(&r->cancelled, true);
            engine_wake(s->engine);
        }
        if (over || r->answered || !atomic_load(&r->paused)) {
            *at = r->next_slow;
            r->slow_since_us = 0;
            request_drop(r);
        } else {
            at = &r->next_slow;
        }
    }
}

/* ---- messages ---- */

static void fill_tops(struct verifier_service *s, const struct request *r,
                      const struct dist_top *from, size_t at, Tandem__V1__Token *to)
{
    const struct tok *tok = engine_loaded_model(s->engine)->tok;
    to->n_top = r->n_top;
    to->top = &s->top_list[at];
    for (uint32_t i = 0; i < r->n_top; i++) {
        Tandem__V1__TopLogprob *top = s->top_list[at + i] = &s->tops[at + i];
        struct span text = tok_bytes(tok, from[i].token, true);
        tandem__v1__top_logprob__init(top);
        top->token = from[i].token;
        top->logprob = from[i].logprob;
        top->text = rpc_data(text.data, text.len);
    }
}

static const Tandem__V1__TokenOrigin origins[] = {
    [ACCEPT_TARGET] = TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_TARGET,
    [ACCEPT_ACCEPTED] = TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_ACCEPTED,
    [ACCEPT_CORRECTION] = TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_CORRECTION,
    [ACCEPT_BONUS] = TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_BONUS,
};

static void fill_run(struct verifier_service *s, const struct event *ev,
                     const struct event_batch *b, Tandem__V1__TokenRun *run)
{
    tandem__v1__token_run__init(run);
    run->round = ev->round;
    run->drafted = ev->n_draft;
    run->proposer = rpc_text(ev->proposer);
    run->n_tokens = ev->n_tokens;
    run->tokens = s->token_list;
    for (uint32_t i = 0; i < ev->n_tokens; i++) {
        const struct event_token *from = &b->tokens[ev->first + i];
        Tandem__V1__Token *to = s->token_list[i] = &s->tokens[i];
        tandem__v1__token__init(to);
        to->id = from->id;
        to->text = rpc_data(b->text.data + from->text_at, from->text_len);
        to->origin = origins[from->origin];
        if (!ev->req->logprobs)
            continue;
        struct span own = tok_bytes(engine_loaded_model(s->engine)->tok, from->id, true);
        to->logprob = from->logprob;
        to->held = from->n_held;
        to->bytes = rpc_data(own.data, own.len);
        fill_tops(s, ev->req, &b->tops[(size_t)(ev->first + i) * DIST_MAX_TOP],
                  (size_t)i * DIST_MAX_TOP, to);
    }
}

/* The prompt's text is sent once, with the first choice. */
static void fill_started(struct verifier_service *s, const struct event *ev,
                         Tandem__V1__Started *to)
{
    const struct request *r = ev->req;
    tandem__v1__started__init(to);
    to->prompt_tokens = r->n_prompt;
    to->cached_tokens = ev->n_cached;
    to->seed = r->seed;
    to->max_tokens = r->max_tokens;
    to->model = rpc_text(engine_loaded_model(s->engine)->name);
    if (ev->choice == 0 && !r->continued)
        to->prompt_text = rpc_data(r->prompt_text, r->prompt_text_len);
}

/* A Finished message with all that it points to. */
struct finished {
    Tandem__V1__Finished msg;
    Tandem__V1__SpeculationUsage usage;
    Tandem__V1__Timings timings;
    uint32_t accepted_histogram[DRAFT_MAX_NODES + 1];
};

static void fill_accepted_histogram(const struct request_usage *u, struct finished *to)
{
    memcpy(to->accepted_histogram, u->accepted_histogram, sizeof(to->accepted_histogram));
    to->usage.kept_steps = to->accepted_histogram;
    to->usage.n_kept_steps = DRAFT_MAX_NODES + 1;
    while (to->usage.n_kept_steps && !to->accepted_histogram[to->usage.n_kept_steps - 1])
        to->usage.n_kept_steps--;
}

static void fill_timings(const struct request_usage *u, struct finished *to)
{
    tandem__v1__timings__init(&to->timings);
    to->timings.queue_us = (uint64_t)u->queue_us;
    to->timings.prompt_us = (uint64_t)u->prompt_us;
    to->timings.decode_us = (uint64_t)u->decode_us;
    to->msg.timings = &to->timings;
}

static void fill_finished(const struct event *ev, const struct event_batch *b, struct finished *f)
{
    const struct request_usage *u = &ev->usage;
    Tandem__V1__Finished *to = &f->msg;
    Tandem__V1__SpeculationUsage *usage = &f->usage;
    tandem__v1__finished__init(to);
    tandem__v1__speculation_usage__init(usage);
    fill_accepted_histogram(u, f);
    fill_timings(u, f);
    usage->k = u->k;
    to->reason = ev->end == SEQ_STOP ? TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP
                                     : TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    to->completion_tokens = u->n_generated;
    to->text = rpc_data(b->text.data + ev->text_at, ev->text_len);
    if (ev->stop != DETOK_NONE)
        to->stop = rpc_data(ev->req->stops[ev->stop].data, ev->req->stops[ev->stop].len);
    to->speculation = usage;
    usage->rounds = u->n_rounds;
    usage->rounds_drafted = u->n_drafted_rounds;
    usage->drafted = u->n_drafted;
    usage->accepted = u->n_accepted;
    usage->bonus = u->n_bonus;
    usage->rule = rpc_text(accept_rules[ev->req->rule].name);
    usage->proposer = rpc_text(u->proposer);
}

static void send_generate(struct verifier_service *s, const struct event *ev,
                          const struct event_batch *b)
{
    generate_event msg;
    Tandem__V1__Started started;
    Tandem__V1__TokenRun run;
    struct finished finished;
    tandem__v1__generate_event__init(&msg);
    msg.choice = ev->choice;
    if (ev->started) {
        fill_started(s, ev, &started);
        msg.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_STARTED;
        msg.started = &started;
        send_bounded(s, ev->req, &msg.base);
    }
    if (ev->n_tokens) {
        fill_run(s, ev, b, &run);
        msg.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_RUN;
        msg.run = &run;
        send_bounded(s, ev->req, &msg.base);
    }
    if (ev->end != SEQ_CONTINUES) {
        fill_finished(ev, b, &finished);
        msg.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED;
        msg.finished = &finished.msg;
        send_bounded(s, ev->req, &msg.base);
    }
}

static void send_verify(struct verifier_service *s, const struct event *ev,
                        const struct event_batch *b)
{
    verify_reply msg;
    Tandem__V1__Started started;
    Tandem__V1__VerifyCommit commit;
    Tandem__V1__TokenRun run;
    struct finished finished;
    tandem__v1__verify_reply__init(&msg);
    if (ev->started) {
        fill_started(s, ev, &started);
        msg.message_case = TANDEM__V1__VERIFY_REPLY__MESSAGE_STARTED;
        msg.started = &started;
        send_bounded(s, ev->req, &msg.base);
    }
    if (!ev->n_tokens)
        return;
    tandem__v1__verify_commit__init(&commit);
    fill_run(s, ev, b, &run);
    commit.base_len = ev->base_len;
    commit.accepted = ev->n_accepted;
    commit.run = &run;
    if (ev->end != SEQ_CONTINUES) {
        fill_finished(ev, b, &finished);
        commit.finished = &finished.msg;
    }
    msg.message_case = TANDEM__V1__VERIFY_REPLY__MESSAGE_COMMIT;
    msg.commit = &commit;
    send_bounded(s, ev->req, &msg.base);
}

/* ---- the end of a request ---- */

static void add_usage(struct request_usage *sum, const struct request_usage *u)
{
    sum->n_generated += u->n_generated;
    sum->n_rounds += u->n_rounds;
    sum->n_drafted += u->n_drafted;
    sum->n_accepted += u->n_accepted;
}

static void log_end(const struct event *ev)
{
    const struct request *r = ev->req;
    double ms = (double)(clock_us() - r->arrived_us) / 1e3;
    const char *word = *r->trace ? " trace=" : "";
    if (ev->error == -ECANCELED)
        log_info("request cancelled id=%s%s%s prompt=%u ms=%.1f", r->id, word, r->trace,
                 r->n_prompt, ms);
    else if (ev->error == -EAGAIN)
        log_info("request refused id=%s%s%s prompt=%u ms=%.1f: %s", r->id, word, r->trace,
                 r->n_prompt, ms, ev->error_text);
    else if (ev->error)
        log_warn("request failed id=%s%s%s prompt=%u ms=%.1f: %s", r->id, word, r->trace,
                 r->n_prompt, ms, ev->error_text);
    else
        log_info("request done id=%s%s%s prompt=%u out=%u choices=%u rounds=%u drafted=%u "
                 "accepted=%u end=%s ms=%.1f",
                 r->id, word, r->trace, r->n_prompt, r->total.n_generated, r->n, r->total.n_rounds,
                 r->total.n_drafted, r->total.n_accepted, seq_end_name(ev->end), ms);
}

static void send_event(struct verifier_service *s, const struct event *ev,
                       const struct event_batch *b)
{
    struct request *r = ev->req;
    if (r->verify)
        send_verify(s, ev, b);
    else
        send_generate(s, ev, b);
    if (ev->end != SEQ_CONTINUES)
        add_usage(&r->total, &ev->usage);
    if (!ev->last)
        return;
    log_end(ev);
    if (ev->error)
        rpc_call_finish(r->call, rpc_code_of(ev->error), ev->error_text);
    else
        rpc_call_finish(r->call, RPC_OK, NULL);
    r->answered = true;
    rpc_call_unref(r->call);
    request_drop(r);
}

void *verifier_service_out_main(void *service)
{
    struct verifier_service *s = service;
    struct events *events = engine_events(s->engine);
    bool woken = false; // the jobs that wait for the model
    for (;;) {
        struct event_batch *b = events_next(events, s->slow ? SLOW_CHECK_US : -1);
        svc_awake();
        if (!woken && engine_state(s->engine, NULL) != ENGINE_LOADING) {
            verifier_service_wake_jobs(s, false);
            woken = true;
        }
        for (uint32_t i = 0; b && i < b->n; i++)
            send_event(s, &b->v[i], b);
        if (b)
            events_return(events, b);
        else if (events_closed(events))
            break;
        check_slow(s);
        svc_asleep();
    }
    svc_asleep();
    return NULL; // s->slow is empty: check_slow() has seen the end of each request
}
