/* service.c - calls that bring requests: Generate and Verify. */
#include <errno.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/log.h"
#include "verifier-svc/service_impl.h"

int service_not_ready(struct service *s)
{
    float progress;
    switch (engine_state(s->engine, &progress)) {
    case ENGINE_READY:
        return 0;
    case ENGINE_LOADING:
        return fail(-EPIPE, "the model is being loaded (%d %%)", (int)(progress * 100));
    case ENGINE_FAILED:
        return fail(-EPIPE, "the model could not be loaded: %s", engine_error(s->engine));
    default:
        return fail(-EPIPE, "the server is stopping");
    }
}

/* Ends a call with this thread's last sentence. */
static void refuse(struct service *s, struct rpc_call *call, int err)
{
    metrics_add(s->stats->refused, 1);
    log_info("request refused code=%s: %s", rpc_code_name(rpc_code_of(err)), fail_text());
    rpc_call_fail(call, err);
}

static void set_user(struct service *s, struct rpc_call *call, struct request *r)
{
    pthread_mutex_lock(&s->mu);
    rpc_call_set_user(call, r);
    pthread_mutex_unlock(&s->mu);
}

static void cancel(struct service *s, struct request *r)
{
    atomic_store(&r->cancelled, true);
    engine_wake(s->engine);
}

/* Checks and hands it to the engine. The call keeps one hold on the request, the engine another. */
static int submit(struct service *s, struct rpc_call *call, const Tandem__V1__GenerateRequest *msg,
                  bool verify)
{
    const struct served *m = engine_served(s->engine);
    struct request_limits limits = {m->tok, m->name, m->context,
                                    (uint32_t)s->options->max_sequences};
    AUTO(request_drop) struct request *r = NULL;
    int err = request_read(msg, &limits, &r);
    if (!err && verify && r->n > 1)
        err = fail(-EINVAL, "n is %u, a Verify stream has one choice", r->n);
    if (!err)
        err = request_open(r, m->tok);
    if (err < 0)
        return err;
    r->verify = verify;
    r->call = call;
    rpc_call_ref(call);
    set_user(s, call, r);
    err = engine_submit(s->engine, r);
    if (err < 0) {
        set_user(s, call, NULL);
        rpc_call_unref(call);
        return err;
    }
    struct request *held = TAKE(r);
    if (rpc_call_cancelled(call)) // perhaps before it had its user
        cancel(s, held);
    return 0;
}

/* ---- calls that wait for the model ---- */

static void parked_free(struct parked *p)
{
    tandem__v1__generate_request__free_unpacked(p->msg, NULL);
    rpc_call_unref(p->call);
    free(p);
}

/* Takes a call out of the list; NULL if it is not there. */
static struct parked *take_parked(struct service *s, struct rpc_call *call)
{
    pthread_mutex_lock(&s->mu);
    struct parked **at = &s->parked, *p = NULL;
    while (*at && (*at)->call != call)
        at = &(*at)->next;
    if (*at) {
        p = *at;
        *at = p->next;
        s->n_parked--;
        s->parked_bytes -= p->bytes;
    }
    pthread_mutex_unlock(&s->mu);
    return p;
}

static void parked_due(struct rpc_call *call)
{
    struct service *s = rpc_call_service(call);
    struct parked *p = take_parked(s, call);
    if (!p)
        return;
    refuse(s, call, service_not_ready(s));
    parked_free(p);
}

/* With the lock. -ENOENT: it need not wait, or cannot; -EAGAIN: too much waits already. */
static int add_parked(struct service *s, struct parked *p)
{
    if (engine_state(s->engine, NULL) != ENGINE_LOADING || s->options->load_wait_s == 0 ||
        s->n_parked >= (uint32_t)s->options->queue_length)
        return -ENOENT;
    if (p->bytes > SERVICE_PARKED_MAX - s->parked_bytes)
        return fail(-EAGAIN, "the model is being loaded, and %u MiB of requests wait for it",
                    SERVICE_PARKED_MAX >> 20);
    struct parked **at = &s->parked;
    while (*at)
        at = &(*at)->next;
    *at = p;
    s->n_parked++;
    s->parked_bytes += p->bytes;
    rpc_call_ref(p->call);
    return 0;
}

/* Takes the message and is 0 if the call waits now; else see add_parked(). */
static int park(struct service *s, struct rpc_call *call, Tandem__V1__GenerateRequest *msg,
                size_t bytes)
{
    struct parked *p = malloc(sizeof(*p));
    if (!p)
        return -ENOENT;
    *p = (struct parked){.call = call, .msg = msg, .bytes = bytes};
    pthread_mutex_lock(&s->mu);
    int err = add_parked(s, p);
    pthread_mutex_unlock(&s->mu);
    if (err)
        free(p);
    else
        rpc_call_after(call, (unsigned)s->options->load_wait_s * 1000, parked_due);
    return err;
}

static void start_generate(struct service *s, struct rpc_call *call,
                           const Tandem__V1__GenerateRequest *msg)
{
    int err = service_not_ready(s);
    if (!err)
        err = submit(s, call, msg, false);
    if (err < 0)
        refuse(s, call, err);
}

void service_unpark(struct service *s)
{
    pthread_mutex_lock(&s->mu);
    struct parked *p = s->parked;
    s->parked = NULL;
    s->n_parked = 0;
    s->parked_bytes = 0;
    pthread_mutex_unlock(&s->mu);
    while (p) {
        struct parked *next = p->next;
        start_generate(s, p->call, p->msg);
        parked_free(p);
        p = next;
    }
}

/* ---- Generate ---- */

static void generate_start(struct rpc_call *call, struct rpc_msg *in)
{
    struct service *s = rpc_call_service(call);
    Tandem__V1__GenerateRequest *msg = (Tandem__V1__GenerateRequest *)rpc_call_unpack(
        call, &tandem__v1__generate_request__descriptor, in);
    if (!msg)
        return;
    int err = park(s, call, msg, tandem__v1__generate_request__get_packed_size(msg));
    if (!err)
        return;
    if (err == -EAGAIN)
        refuse(s, call, err);
    else
        start_generate(s, call, msg);
    tandem__v1__generate_request__free_unpacked(msg, NULL);
}

static void call_cancelled(struct rpc_call *call)
{
    struct service *s = rpc_call_service(call);
    struct parked *p = take_parked(s, call);
    if (p)
        parked_free(p);
    pthread_mutex_lock(&s->mu);
    struct request *r = rpc_call_user(call);
    if (r)
        cancel(s, r);
    pthread_mutex_unlock(&s->mu);
}

static void call_drained(struct rpc_call *call)
{
    struct service *s = rpc_call_service(call);
    pthread_mutex_lock(&s->mu);
    struct request *r = rpc_call_user(call);
    if (r) {
        atomic_fetch_add(&r->n_drains, 1);
        atomic_store(&r->paused, false);
        engine_wake(s->engine);
    }
    pthread_mutex_unlock(&s->mu);
}

static void call_ended(struct rpc_call *call)
{
    request_drop(rpc_call_user(call));
}

/* ---- Verify ---- */

static int take_draft(struct service *s, struct request *r, const Tandem__V1__VerifyDraft *d)
{
    int32_t parents[ACCEPT_MAX];
    if (d->n_tokens > ACCEPT_MAX)
        return fail(-EINVAL, "the draft has %zu tokens, at most %d are allowed", d->n_tokens,
                    ACCEPT_MAX);
    if (d->n_parents && d->n_parents != d->n_tokens)
        return fail(-EINVAL, "the draft has %zu tokens and %zu parents", d->n_tokens, d->n_parents);
    for (size_t i = 0; i < d->n_tokens; i++)
        parents[i] = d->n_parents ? d->parents[i] : (int32_t)i - 1;
    struct accept_tree tree = {(uint32_t)d->n_tokens, d->tokens, parents};
    return engine_verify(s->engine, r, d->base_len, &tree);
}

static int take_verify(struct service *s, struct rpc_call *call,
                       const Tandem__V1__VerifyRequest *msg)
{
    struct request *r = rpc_call_user(call);
    switch (msg->message_case) {
    case TANDEM__V1__VERIFY_REQUEST__MESSAGE_OPEN: {
        if (r)
            return fail(-ESTALE, "this stream is open already");
        int err = service_not_ready(s);
        return err ? err : submit(s, call, msg->open, true);
    }
    case TANDEM__V1__VERIFY_REQUEST__MESSAGE_DRAFT:
        if (!r)
            return fail(-ESTALE, "a draft came before `open`: this stream has no sequence yet");
        return take_draft(s, r, msg->draft);
    default:
        return fail(-EINVAL, "the message is neither `open` nor `draft`");
    }
}

/* The engine ends it, after the commit for a draft that is on its way. */
static void close_verify(struct service *s, struct request *r)
{
    atomic_store(&r->closing, true);
    engine_wake(s->engine);
}

static void verify_message(struct rpc_call *call, struct rpc_msg *in)
{
    struct service *s = rpc_call_service(call);
    struct request *r = rpc_call_user(call);
    if (!in) { // the client has no more drafts
        if (r)
            close_verify(s, r);
        else
            rpc_call_finish(call, RPC_OK, NULL);
        return;
    }
    Tandem__V1__VerifyRequest *msg = (Tandem__V1__VerifyRequest *)rpc_call_unpack(
        call, &tandem__v1__verify_request__descriptor, in);
    int err = msg ? take_verify(s, call, msg) : 0;
    if (err < 0)
        refuse(s, call, err);
    if ((!msg || err < 0) && r)
        cancel(s, r);
    if (msg)
        tandem__v1__verify_request__free_unpacked(msg, NULL);
}

/* ---- the service ---- */

static const struct rpc_method generate = {
    .path = "/" SERVICE_NAME "/Generate",
    .drain_mark = SERVICE_UNREAD_MAX,
    .on_start = generate_start,
    .on_drain = call_drained,
    .on_cancel = call_cancelled,
    .on_end = call_ended,
};

static const struct rpc_method verify = {
    .path = "/" SERVICE_NAME "/Verify",
    .reads_stream = true,
    .drain_mark = SERVICE_UNREAD_MAX,
    .on_message = verify_message,
    .on_drain = call_drained,
    .on_cancel = call_cancelled,
    .on_end = call_ended,
};

int service_new(const struct options *o, struct engine *e, struct stats *stats,
                struct service **ret)
{
    struct service *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "no memory for the service");
    s->options = o;
    s->engine = e;
    s->stats = stats;
    pthread_mutex_init(&s->mu, NULL);
    *ret = s;
    return 0;
}

void service_add(struct service *s, struct rpc_server *server)
{
    const struct rpc_method *methods[] = {&generate, &verify, &service_get_model, &service_tokenize,
                                          &service_detokenize};
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        rpc_server_add(server, methods[i], s);
}

int service_start(struct service *s)
{
    int err = pthread_create(&s->thread, NULL, service_out_main, s);
    s->started = !err;
    return err ? fail(-err, "cannot start the sending thread") : 0;
}

void service_stop(struct service *s)
{
    if (s->started)
        pthread_join(s->thread, NULL);
    s->started = false;
}

void service_free(struct service *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->mu);
    free(s);
}
