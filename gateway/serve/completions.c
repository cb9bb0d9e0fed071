/* completions.c - the steps of a request for tokens before its calls. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "gateway/http/answer.h"
#include "gateway/serve/completion.h"
#include "gateway/serve/rate_headers.h"
#include "gateway/openai/json_write.h"
#include "gateway/upstream/generate_wire.h"

/* ---- steps ---- */

/* Chooses the rules that split the answer's text, by the request's options and the template. */
static void make_rules(const struct completion *x, const struct openai_prompt *prompt,
                       struct output_parser_rules *ret)
{
    const ProtobufCBinaryData *source = &x->model->info->chat_template;
    *ret = (struct output_parser_rules){0};
    if (x->q.separate_reasoning && x->q.kind != OPENAI_COMPLETION)
        ret->thinking = output_parser_thinking_of((char *)source->data, source->len);
    if (x->q.tools)
        ret->format = strcmp(x->g->tool_format, "auto") != 0
                          ? tool_parser_format_named(x->g->tool_format)
                          : tool_parser_detect_format((char *)source->data, source->len);
    ret->is_harmony =
        x->q.kind != OPENAI_COMPLETION &&
        (ret->format == TOOLS_HARMONY || harmony_is_in((char *)source->data, source->len));
    output_parser_rules_prompt(ret, prompt->text, prompt->len);
}

static int init_reply(struct completion *x, const struct output_parser_rules *rules)
{
    const Tandem__V1__ModelInfo *info = x->model->info;
    const struct openai_request *q = &x->q;
    struct openai_reply_head head = {.kind = q->kind,
                                     .stream = q->stream,
                                     .logprobs = q->logprobs,
                                     .echo = q->echo,
                                     .include_usage = q->include_usage,
                                     .include_tokens = q->include_tokens,
                                     .has_prediction = q->prediction != NULL,
                                     .hides_reasoning = !q->include_reasoning,
                                     .one_call = !q->parallel_calls,
                                     .rules = *rules,
                                     .id_seed = (uint64_t)clock_us(),
                                     .id = http_id(x->http),
                                     .model = generate_wire_text(info->name),
                                     .fingerprint = generate_wire_text(info->fingerprint),
                                     .created = clock_unix_s(),
                                     .n = openai_request_choices(q),
                                     .n_each = openai_request_n(q)};
    head.tools = TAKE(x->q.tools);
    head.echoed = TAKE(x->q.echoed);
    return openai_reply_init(&x->reply, &head);
}

/* Makes the calls of all prompts. Takes the step's reference. */
static void send_all(struct completion *x)
{
    const struct openai_prompt *first = x->q.prompts;
    struct output_parser_rules rules;
    make_rules(x, first, &rules);
    int rc = init_reply(x, &rules);
    rc = rc < 0 ? rc : completion_prepare(x, &rules);
    bool prepared = rc == 0;
    rc = rc < 0 ? rc : completion_charge(x);
    if (rc < 0) {
        completion_fail(x, prepared ? answer_charge_status(rc) : 500, fail_text(), "");
        completion_unref(x);
        return;
    }
    openai_request_done(&x->q); // the calls have their own copies
    completion_send(x);
}

static void set_prompt(struct completion *x, const char *text, size_t len)
{
    int rc = http_charge(x->http, openai_request_bytes(&x->q) + len);
    if (rc == 0 && openai_request_rendered(&x->q, text, len) == 0) {
        send_all(x);
        return;
    }
    completion_fail(x, rc < 0 ? answer_charge_status(rc) : 500, fail_text(), "");
    completion_unref(x);
}

static int template_status(int err)
{
    switch (err) {
    case -EINVAL:
        return 400;
    case -EDQUOT:
    case -ETIMEDOUT:
        return 429;
    case -EBUSY:
    case -ECANCELED:
        return 503;
    default:
        return 500;
    }
}

static void fail_rendering(struct completion *x, int err, unsigned retry_s, const char *text,
                           size_t len)
{
    char why[FAIL_TEXT_MAX];
    snprintf(why, sizeof(why), err == -EINVAL ? "chat template: %.*s" : "%.*s", (int)len, text);
    if (err == -EBUSY)
        rate_headers_retry(x->http, retry_s);
    completion_fail(x, template_status(err), why, err == -EINVAL ? "messages" : "");
    completion_unref(x);
}

static void set_renders(struct completion *x, bool renders)
{
    pthread_mutex_lock(&x->mu);
    x->renders = renders;
    pthread_mutex_unlock(&x->mu);
}

static void on_rendered(void *user, int err, unsigned retry_s, const char *text, size_t len)
{
    struct completion *x = user;
    set_renders(x, false);
    if (!completion_is_live(x))
        completion_unref(x);
    else if (err == 0)
        set_prompt(x, text, len);
    else
        fail_rendering(x, err, retry_s, text, len);
}

static bool is_closed(struct completion *x)
{
    pthread_mutex_lock(&x->mu);
    bool closed = x->closed;
    pthread_mutex_unlock(&x->mu);
    return closed;
}

/* A client may disconnect just before its chat waits. Then on_close() found nothing to cancel. */
static int begin_rendering(struct completion *x, const char *vars)
{
    const ProtobufCBinaryData *source = &x->model->info->chat_template;
    atomic_fetch_add(&x->n_refs, 1); // on_rendered() may drop the step's reference
    set_renders(x, true);
    int rc = template_render(x->g->template, http_payer(x->http), source->data, source->len, vars,
                             -1, on_rendered, x);
    if (rc < 0)
        set_renders(x, false);
    else if (is_closed(x))
        template_cancel(x->g->template, x);
    completion_unref(x);
    return rc;
}

/* Renders the chat with {"bos_token":...,"eos_token":..., and the variables of the request}. */
static void render_chat(struct completion *x)
{
    const Tandem__V1__ModelInfo *info = x->model->info;
    if (!info->chat_template.len) {
        completion_fail(x, 400, "the model has no chat template; use /v1/completions", "model");
        completion_unref(x);
        return;
    }
    AUTO(buf_done) struct buf vars = {0};
    buf_init(&vars, TEMPLATE_MAX_REQUEST);
    buf_puts(&vars, "{\"bos_token\":");
    json_write_text(&vars, info->bos_text.data, info->bos_text.len);
    buf_puts(&vars, ",\"eos_token\":");
    json_write_text(&vars, info->eos_text.data, info->eos_text.len);
    buf_puts(&vars, ",");
    buf_puts(&vars, x->q.template_vars + 1);
    free(TAKE(x->q.template_vars));
    int rc = buf_error(&vars);
    rc = rc < 0 ? rc
                : http_charge(x->http,
                              openai_request_bytes(&x->q) + vars.len + info->chat_template.len);
    rc = rc < 0 ? rc : begin_rendering(x, vars.data);
    if (rc < 0) {
        completion_fail(x, rc == -EPIPE ? 503 : answer_charge_status(rc), fail_text(), "");
        completion_unref(x);
    }
}

static void choose_verifier(struct completion *x);

static void set_loads(struct completion *x, bool loads)
{
    pthread_mutex_lock(&x->mu);
    x->loads = loads;
    pthread_mutex_unlock(&x->mu);
}

/* There is no verifier. fail_text() says why. */
static void fail_choice(struct completion *x, int err, int status)
{
    completion_fail(x, status, fail_text(), err == -ENOENT ? "model" : "");
    completion_unref(x);
}

/* The queue is full; fail_text() says it. The request keeps no memory until its answer is sent. */
static void refuse_later(struct completion *x, int64_t send_us)
{
    http_delay(x->http, send_us);
    completion_fail(x, 429, fail_text(), "");
    openai_request_done(&x->q);
    free(TAKE(x->prompt));
    http_charge(x->http, 0);
    completion_unref(x);
}

static void on_loaded(void *user, int err)
{
    struct completion *x = user;
    set_loads(x, false);
    x->waited = true;
    if (!completion_is_live(x))
        completion_unref(x);
    else if (err < 0)
        fail_choice(x, err, 503);
    else
        choose_verifier(x);
}

/* As begin_rendering(). */
static int begin_wait(struct completion *x)
{
    atomic_fetch_add(&x->n_refs, 1); // on_loaded() may drop the step's reference
    set_loads(x, true);
    int rc = upstream_wait(x->g->upstream, x->q.model, http_payer(x->http), x->g->load_wait_us,
                           on_loaded, x);
    if (rc < 0)
        set_loads(x, false);
    else if (is_closed(x))
        upstream_wait_end(x->g->upstream, x);
    completion_unref(x);
    return rc;
}

/* Takes a verifier, or waits for one that is loading. */
static void choose_verifier(struct completion *x)
{
    const struct upstream_want want = {.model = x->q.model, .prompt = x->prompt};
    int64_t send_us;
    int rc = upstream_take(x->g->upstream, &want, &x->verifier, &x->model);
    if (rc == -EAGAIN && !x->waited && x->g->load_wait_us > 0) {
        rc = begin_wait(x);
        if (rc == 0)
            return;
    }
    if (rc < 0) {
        fail_choice(x, rc, rc == -ENOENT ? 404 : 503);
    } else if (full_queues_check(&x->g->full, http_payer(x->http), x->model->info->name, clock_us(),
                                 &send_us) < 0) {
        refuse_later(x, send_us);
    } else if (x->q.template_vars) {
        render_chat(x);
    } else {
        send_all(x);
    }
}

/* ---- begin and end ---- */

static struct completion *completion_new(struct completions *g, struct http_request *r,
                                         const struct access_log *log)
{
    struct completion *x = calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    x->g = g;
    x->http = http_ref(r);
    x->log = *log;
    atomic_init(&x->n_refs, 2); // of the connection and of the first step
    pthread_mutex_init(&x->mu, NULL);
    pthread_mutex_init(&x->answer_mu, NULL);
    pthread_mutex_lock(&g->mu);
    x->aborted = g->stopping;
    x->next = g->all;
    if (x->next)
        x->next->prev = x;
    g->all = x;
    pthread_mutex_unlock(&g->mu);
    return x;
}

/* The request takes the place of its body and of the body's tree. It counts at least as much as
 * its body. */
static int charge_request(struct completion *x, size_t len, struct openai_fault *fault)
{
    size_t n = openai_request_bytes(&x->q);
    int rc = http_charge(x->http, n > len ? n : len);
    if (rc < 0) {
        *fault = (struct openai_fault){.status = answer_charge_status(rc)};
        snprintf(fault->text, sizeof(fault->text), "%s", fail_text());
    }
    return rc;
}

static void refuse_request(struct http_request *r, const struct access_log *c,
                           const struct openai_fault *fault)
{
    answer_fault(r, fault);
    access_log_refused(c, r, fault);
}

/* The first step of a request, on an http thread or on the reader. */
static void read_body(struct completion *x)
{
    struct openai_fault fault;
    size_t len;
    const char *body = http_body(x->http, &len);
    const struct openai_memory memory = answer_memory(x->http);
    int rc = openai_request_parse(x->log.kind, body, len, &memory, &x->q, &fault);
    http_free_body(x->http);
    http_charge(x->http, 0); // the tree is freed
    rc = rc < 0 ? rc : charge_request(x, len, &fault);
    if (rc == 0) {
        struct auth_levels levels;
        rc = auth_bind(http_attached(x->http), &x->q, clock_unix_us(), &fault, &levels);
        rate_headers_add(x->http, &levels);
        if (rc == -EAGAIN)
            rate_headers_retry(x->http, levels.retry_s);
    }
    if (rc == 0)
        rc = auth_bind_flow(http_attached(x->http), http_payer(x->http), &x->q, &fault);
    if (rc < 0) {
        refuse_request(x->http, &x->log, &fault);
        completion_unref(x);
    } else if (completion_is_live(x)) {
        const char *vars = x->q.template_vars;
        x->prompt = vars ? completion_affinity(x, vars, strlen(vars))
                         : completion_prompt_affinity(x, x->q.prompts);
        choose_verifier(x);
    } else {
        completion_unref(x);
    }
}

static void read_large(void *user, bool stops)
{
    struct completion *x = user;
    (void)stops; // completions_abort() has ended all requests before
    if (completion_is_live(x))
        read_body(x);
    else
        completion_unref(x);
}

static void read_later(struct completion *x)
{
    int rc = reader_read(x->g->reader, &x->reading, http_payer(x->http), read_large, x);
    if (rc == 0)
        return;
    struct openai_fault fault = {.status = reader_status(rc)};
    snprintf(fault.text, sizeof(fault.text), "%s", fail_text());
    refuse_request(x->http, &x->log, &fault);
    completion_unref(x);
}

void completions_begin(struct completions *g, struct http_request *r, enum openai_kind kind)
{
    size_t len;
    struct access_log log = {0};
    access_log_begin(&log, r, kind);
    if (atomic_load(&g->draining)) {
        refuse_request(r, &log, &(struct openai_fault){.status = 503, .text = COMPLETION_STOPPING});
        return;
    }
    struct completion *x = completion_new(g, r, &log);
    if (!x) {
        refuse_request(r, &log,
                       &(struct openai_fault){.status = 500, .text = "no memory for this request"});
        return;
    }
    completion_watch(x);
    http_body(r, &len);
    if (len > READER_BYTES)
        read_later(x);
    else
        read_body(x);
}

int completions_new(struct upstream *u, struct template *t, struct reader *reader,
                    int64_t load_wait_us, int64_t queue_wait_us,
                    const struct upstream_patience *patience, const char *tool_format,
                    struct completions **ret)
{
    struct completions *g = calloc(1, sizeof(*g));
    if (!g)
        return fail(-ENOMEM, "completions: no memory");
    pthread_mutex_init(&g->mu, NULL);
    pthread_mutex_init(&g->places.mu, NULL);
    full_queues_init(&g->full);
    g->upstream = u;
    g->template = t;
    g->reader = reader;
    g->tool_format = tool_format;
    g->load_wait_us = load_wait_us;
    g->queue_wait_us = queue_wait_us;
    g->patience = *patience;
    access_log_init();
    *ret = g;
    return 0;
}

/* With g's lock. The first request from x on that still exists, with a reference; NULL: none. */
static struct completion *hold_live(struct completion *x)
{
    for (; x; x = x->next) {
        unsigned n = atomic_load(&x->n_refs);
        while (n && !atomic_compare_exchange_weak(&x->n_refs, &n, n + 1))
            ;
        if (n)
            return x;
    }
    return NULL;
}

static void tick_calls(struct completion *x, int64_t now_us)
{
    pthread_mutex_lock(&x->mu);
    unsigned n = x->n_calls; // they exist as long as x
    for (unsigned i = 0; i < n; i++)
        upstream_call_expire(&x->calls[i], now_us - x->g->queue_wait_us);
    pthread_mutex_unlock(&x->mu);
    for (unsigned i = 0; i < n; i++)
        upstream_call_tick(&x->calls[i], now_us);
}

void completions_tick(struct completions *g)
{
    int64_t now_us = clock_us();
    pthread_mutex_lock(&g->mu);
    struct completion *x = hold_live(g->all);
    pthread_mutex_unlock(&g->mu);
    while (x) {
        tick_calls(x, now_us);
        pthread_mutex_lock(&g->mu);
        struct completion *next = hold_live(x->next);
        pthread_mutex_unlock(&g->mu);
        completion_unref(x);
        x = next;
    }
}

void completions_ids(struct completions *g, const char *key, struct buf *to)
{
    pthread_mutex_lock(&g->mu);
    for (struct completion *x = g->all; x; x = x->next)
        if (strcmp(x->log.key, key) == 0)
            buf_add(to, http_id(x->http), strlen(http_id(x->http)) + 1);
    pthread_mutex_unlock(&g->mu);
}

void completions_drain(struct completions *g)
{
    atomic_store(&g->draining, true);
}

void completions_abort(struct completions *g)
{
    pthread_mutex_lock(&g->mu);
    g->stopping = true;
    for (struct completion *x = g->all; x; x = x->next) {
        pthread_mutex_lock(&x->mu);
        x->aborted = true;
        completion_cancel(x);
        pthread_mutex_unlock(&x->mu);
    }
    pthread_mutex_unlock(&g->mu);
    reader_stop(g->reader); // quick: the waiting requests have been aborted
    template_stop(g->template);
    upstream_stop(g->upstream);
    completions_tick(g); // ends calls that have no verifier now; nothing else would
}

void completions_free(struct completions *g)
{
    if (!g)
        return;
    full_queues_done(&g->full);
    pthread_mutex_destroy(&g->places.mu);
    pthread_mutex_destroy(&g->mu);
    free(g);
}
