/* test_verifier_wire.c - each field of the verifier's messages, and the limits of its calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "file/checkpoint.h"
#include "lib/oracles/figures.h"
#include "lib/rigs/verifier_rig.h"
#include "text/tok.h"
#include "verifier-svc/control/control_state.h"

#define MAX_EVENTS 200
#define WITHIN_S 60
#define MAX_TEXT 8388608       // bytes of a text
#define MAX_DETOKENIZE 1048576 // ids

static bool is(ProtobufCBinaryData b, const char *text)
{
    return b.len == strlen(text) && memcmp(b.data, text, b.len) == 0;
}

/* ---- a call with one reply ---- */

static ProtobufCMessage *called_as(const char *path, const ProtobufCMessage *req,
                                   const ProtobufCMessageDescriptor *type, enum rpc_code code,
                                   const char *sentence)
{
    ProtobufCMessage *reply = NULL;
    struct rpc_status st = rpc_unary(client, path, NULL, req, type, &reply);
    if (st.code != code || !strstr(st.text, sentence))
        fail_msg("got %s: %s", rpc_code_name(st.code), st.text);
    return reply;
}

static Tandem__V1__TokenizeReply *tokenize(const char *text, size_t len, enum rpc_code code,
                                           const char *sentence)
{
    Tandem__V1__TokenizeRequest req = TANDEM__V1__TOKENIZE_REQUEST__INIT;
    req.text = (ProtobufCBinaryData){len, (uint8_t *)text};
    req.parse_special = true;
    return (Tandem__V1__TokenizeReply *)called_as("/tandem.v1.Verifier/Tokenize", &req.base,
                                                  &tandem__v1__tokenize_reply__descriptor, code,
                                                  sentence);
}

static Tandem__V1__DetokenizeReply *detokenize(const uint32_t *ids, size_t n, enum rpc_code code,
                                               const char *sentence)
{
    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.ids = (uint32_t *)ids;
    req.n_ids = n;
    req.render_special = true;
    return (Tandem__V1__DetokenizeReply *)called_as("/tandem.v1.Verifier/Detokenize", &req.base,
                                                    &tandem__v1__detokenize_reply__descriptor, code,
                                                    sentence);
}

static uint32_t token_of(const char *text)
{
    Tandem__V1__TokenizeReply *r = tokenize(text, strlen(text), RPC_OK, "");
    assert_int_equal(r->n_ids, 1);
    uint32_t id = r->ids[0];
    tandem__v1__tokenize_reply__free_unpacked(r, NULL);
    return id;
}

static void texts_have_their_limits(void **state)
{
    (void)state;
    AUTO(mem_free) char *text = malloc(MAX_TEXT + 1);
    memset(text, 'a', MAX_TEXT + 1);
    tokenize(text, MAX_TEXT + 1, RPC_INVALID_ARGUMENT,
             "the text has 8388609 bytes, at most 8388608 are allowed");
    for (size_t i = 0; i < MAX_TEXT; i += 4)
        memcpy(text + i, " the", 4);
    Tandem__V1__TokenizeReply *most = tokenize(text, MAX_TEXT, RPC_OK, "");
    assert_int_equal(most->n_ids, MAX_TEXT / 4);
    tandem__v1__tokenize_reply__free_unpacked(most, NULL);
    tandem__v1__tokenize_reply__free_unpacked(tokenize("", 0, RPC_OK, ""), NULL);

    uint32_t x = token_of("x"), special = token_of("<|assistant|>"); // 13 bytes
    AUTO(mem_free) uint32_t *ids = malloc((MAX_DETOKENIZE + 1) * sizeof(*ids));
    for (size_t i = 0; i <= MAX_DETOKENIZE; i++)
        ids[i] = x;
    detokenize(ids, MAX_DETOKENIZE + 1, RPC_INVALID_ARGUMENT,
               "1048577 ids, at most 1048576 are allowed");
    Tandem__V1__DetokenizeReply *r = detokenize(ids, MAX_DETOKENIZE, RPC_OK, "");
    assert_int_equal(r->text.len, MAX_DETOKENIZE);
    tandem__v1__detokenize_reply__free_unpacked(r, NULL);

    const size_t n = MAX_TEXT / 13, rest = MAX_TEXT % 13;
    for (size_t i = 0; i < n; i++)
        ids[i] = special;
    r = detokenize(ids, n + rest, RPC_OK, "");
    assert_int_equal(r->text.len, MAX_TEXT);
    tandem__v1__detokenize_reply__free_unpacked(r, NULL);
    detokenize(ids, n + rest + 1, RPC_INVALID_ARGUMENT,
               "the text would have 8388609 bytes, at most 8388608 are allowed");
    ids[0] = 4096;
    detokenize(ids, 1, RPC_INVALID_ARGUMENT, "");
}

/* ---- GetModel ---- */

static void the_model_is_described(void **state)
{
    (void)state;
    Tandem__V1__GetModelRequest req = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    Tandem__V1__ModelInfo *m = (Tandem__V1__ModelInfo *)called_as(
        "/tandem.v1.Verifier/GetModel", &req.base, &tandem__v1__model_info__descriptor, RPC_OK, "");
    struct checkpoint *file;
    struct tok *tok;
    struct stat st;
    const uint32_t *eos;
    assert_int_equal(checkpoint_open(MODEL, &file), 0);
    assert_int_equal(tok_new(file, &tok), 0);
    assert_int_equal(stat(MODEL, &st), 0);
    struct span bos = tok_bytes(tok, tok_bos(tok), true), end = tok_bytes(tok, tok_eos(tok), true);
    assert_true(m->state == TANDEM__V1__MODEL_INFO__STATE__READY && m->progress == 1);
    assert_true(is(m->name, "tales-1m-q8_0") && is(m->architecture, "llama"));
    assert_true(m->n_vocab == 4096 && m->vocab_digest == tok_digest(tok));
    assert_true(m->context_length == 1024 && m->chat_template.len > 0);
    assert_true(m->bos_text.len == bos.len && memcmp(m->bos_text.data, bos.data, bos.len) == 0);
    assert_true(m->eos_text.len == end.len && memcmp(m->eos_text.data, end.data, end.len) == 0);
    assert_int_equal(m->add_bos, tok_add_bos(tok));
    assert_int_equal(m->n_eos_ids, tok_eos_ids(tok, &eos));
    assert_memory_equal(m->eos_ids, eos, m->n_eos_ids * sizeof(*eos));
    assert_true(is(m->kv_type, "int8") && is(m->float_gemm, "own") && is(m->weight_type, "Q8_0"));
    assert_true(m->kernel_tier.len > 0 && m->n_parameters > 900000);
    assert_int_equal(m->created, st.st_mtime);
    assert_true(m->n_proposers == 0 && m->version.len > 0 && m->fingerprint.len > 0);
    assert_true(m->protocol == 1 && m->continues);
    assert_true(m->n_kernel_walks > 0 && m->kernel_walks_timed);
    for (size_t i = 0; i < m->n_kernel_walks; i++) {
        const Tandem__V1__KernelWalk *walk = m->kernel_walks[i];
        assert_true(is(walk->type, "Q8_0") && walk->n_in > 0 && walk->n_out > 0);
        assert_in_range(walk->streams_one, 1, KERNEL_STREAMS);
        assert_in_range(walk->streams_more, 1, KERNEL_STREAMS);
    }
    tok_free(tok);
    checkpoint_close(file);
    tandem__v1__model_info__free_unpacked(m, NULL);
}

/* ---- Generate ---- */

/* All events of an answer, as they came. */
struct events {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    Tandem__V1__GenerateEvent *v[MAX_EVENTS];
    unsigned n;
    bool ended;
    struct rpc_status status;
};

static void keep_event(void *user, struct rpc_msg *msg)
{
    struct events *e = user;
    pthread_mutex_lock(&e->mu);
    if (e->n < MAX_EVENTS)
        e->v[e->n++] =
            (Tandem__V1__GenerateEvent *)rpc_unpack(&tandem__v1__generate_event__descriptor, msg);
    pthread_mutex_unlock(&e->mu);
}

static void keep_end(void *user, const struct rpc_status *status)
{
    struct events *e = user;
    pthread_mutex_lock(&e->mu);
    e->ended = true;
    e->status = *status;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mu);
}

static struct events *events_of(const request *msg)
{
    static const struct rpc_events callbacks = {.on_message = keep_event, .on_end = keep_end};
    struct events *e = calloc(1, sizeof(*e));
    assert_non_null(e);
    pthread_mutex_init(&e->mu, NULL);
    pthread_cond_init(&e->changed, NULL);
    struct rpc_stream *stream =
        rpc_stream_new(client, "/tandem.v1.Verifier/Generate", NULL, &callbacks, e);
    rpc_stream_send(stream, rpc_pack(&msg->base));
    rpc_stream_close(stream);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WITHIN_S;
    int r = 0;
    pthread_mutex_lock(&e->mu);
    while (!e->ended && r == 0)
        r = pthread_cond_timedwait(&e->changed, &e->mu, &until);
    pthread_mutex_unlock(&e->mu);
    assert_int_equal(r, 0);
    rpc_stream_free(stream);
    if (e->status.code != RPC_OK)
        fail_msg("%s", e->status.text);
    return e;
}

static void events_free(struct events *e)
{
    for (unsigned i = 0; i < e->n; i++)
        tandem__v1__generate_event__free_unpacked(e->v[i], NULL);
    free(e);
}

static const Tandem__V1__Started *started_of(const struct events *e, unsigned i)
{
    assert_int_equal(e->v[i]->event_case, TANDEM__V1__GENERATE_EVENT__EVENT_STARTED);
    return e->v[i]->started;
}

static const Tandem__V1__Finished *finished_of(const struct events *e)
{
    const Tandem__V1__GenerateEvent *last = e->v[e->n - 1];
    assert_int_equal(last->event_case, TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED);
    return last->finished;
}

/* A started event, 8 runs of one token each, and the end. */
static void an_answer_has_these_events(void **state)
{
    (void)state;
    struct wish w;
    wish_init(&w, STORY, 8);
    w.msg.echo = w.msg.logprobs = true;
    w.msg.top_logprobs = 2;
    w.sampling.seed = -77;
    struct events *e = events_of(&w.msg);
    assert_int_equal(e->n, 1 + 8 + 1);
    const Tandem__V1__Started *s = started_of(e, 0);
    assert_true(s->prompt_tokens == story()->prompt_tokens && s->seed == -77);
    assert_true(is(s->model, "tales-1m-q8_0") && is(s->prompt_text, STORY));
    for (unsigned i = 1; i <= 8; i++) {
        assert_int_equal(e->v[i]->event_case, TANDEM__V1__GENERATE_EVENT__EVENT_RUN);
        const Tandem__V1__TokenRun *run = e->v[i]->run;
        assert_true(e->v[i]->choice == 0 && run->round == i && run->drafted == 0);
        assert_true(run->n_tokens == 1 && run->proposer.len == 0);
        const Tandem__V1__Token *t = run->tokens[0];
        assert_int_equal(t->id, story()->ids[i - 1]);
        assert_int_equal(t->origin, TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_TARGET);
        assert_true(t->n_top == 2 && t->top[0]->token == t->id && t->logprob <= 0);
        assert_true(t->top[0]->logprob == t->logprob && t->top[1]->logprob <= t->logprob);
        assert_true(t->bytes.len > 0 && t->top[0]->text.len == t->bytes.len && t->held == 0);
        assert_memory_equal(t->bytes.data, t->top[0]->text.data, t->bytes.len);
        assert_memory_equal(t->text.data, t->bytes.data, t->text.len);
        assert_true(t->top[1]->token != t->id && t->top[1]->text.len > 0);
    }
    const Tandem__V1__Finished *f = finished_of(e);
    assert_int_equal(f->reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    assert_true(f->completion_tokens == 8 && f->stop.len == 0);
    const Tandem__V1__SpeculationUsage *u = f->speculation;
    assert_true(u->rounds == 8 && !u->rounds_drafted && !u->drafted && !u->accepted && !u->bonus);
    assert_true(is(u->rule, "own-draw") && !u->proposer.len && !u->n_kept_steps && !u->k);
    assert_true(f->timings->prompt_us > 0 && f->timings->decode_us > 0);
    events_free(e);
}

/* Without logprobs and echo these fields are empty. */
static void what_was_not_requested_is_not_sent(void **state)
{
    (void)state;
    struct wish w;
    wish_init(&w, STORY, 3);
    struct events *e = events_of(&w.msg);
    assert_int_equal(started_of(e, 0)->prompt_text.len, 0);
    for (unsigned i = 1; i <= 3; i++) {
        const Tandem__V1__Token *t = e->v[i]->run->tokens[0];
        assert_true(t->logprob == 0 && t->n_top == 0 && t->bytes.len == 0);
    }
    events_free(e);
}

/* Its bytes are reported, although it adds no text. */
static void a_special_token_has_bytes_and_no_text(void **state)
{
    (void)state;
    struct wish w;
    Tandem__V1__LogitBias bias = TANDEM__V1__LOGIT_BIAS__INIT, *list = &bias;
    wish_init(&w, STORY, 1);
    bias.token = token_of("<|user|>");
    bias.bias = 100;
    w.sampling.logit_bias = &list;
    w.sampling.n_logit_bias = 1;
    w.msg.logprobs = true;
    struct events *e = events_of(&w.msg);
    const Tandem__V1__Token *token = e->v[1]->run->tokens[0];
    assert_true(token->id == bias.token && token->text.len == 0);
    assert_true(is(token->bytes, "<|user|>"));
    events_free(e);
}

static void the_prompt_is_echoed_with_the_first_choice(void **state)
{
    (void)state;
    struct wish w;
    unsigned n_started[3] = {0}, n_finished[3] = {0}, n_tokens[3] = {0};
    wish_init(&w, STORY, 4);
    w.msg.echo = true;
    w.msg.n = 3;
    struct events *e = events_of(&w.msg);
    for (unsigned i = 0; i < e->n; i++) {
        const Tandem__V1__GenerateEvent *ev = e->v[i];
        assert_true(ev->choice < 3);
        if (ev->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_STARTED) {
            n_started[ev->choice]++;
            assert_int_equal(ev->started->prompt_text.len, ev->choice ? 0 : strlen(STORY));
        }
        if (ev->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_RUN)
            n_tokens[ev->choice] += ev->run->n_tokens;
        n_finished[ev->choice] += ev->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED;
    }
    for (unsigned i = 0; i < 3; i++)
        assert_true(n_started[i] == 1 && n_finished[i] == 1 && n_tokens[i] == 4);
    events_free(e);
}

static void the_stop_string_that_ended_an_answer_is_named(void **state)
{
    (void)state;
    struct wish w;
    char word[6] = {0};
    memcpy(word, story()->text + 20, 5);
    ProtobufCBinaryData stops[] = {text_of("never in an answer"), text_of(word)};
    wish_init(&w, STORY, 60);
    w.msg.stop = stops;
    w.msg.n_stop = 2;
    w.msg.speculative = &(Tandem__V1__Speculative)TANDEM__V1__SPECULATIVE__INIT;
    w.msg.speculative->rule = text_of("block");
    struct events *e = events_of(&w.msg);
    const Tandem__V1__Finished *f = finished_of(e);
    assert_int_equal(f->reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
    assert_true(is(f->stop, word) && is(f->speculation->rule, "block"));
    events_free(e);
}

/* ---- Verify ---- */

/* Sends both without a pause: the second message waits until the stream is open. */
static void verify_refuses(const request *open, const Tandem__V1__VerifyRequest *second,
                           enum rpc_code code, const char *sentence)
{
    struct verify v;
    double refused = metric_of(client, "tandem_request_refused_total");
    verify_open_at(client, &v, NULL);
    if (open)
        verify_send(&v, open, NULL);
    if (second)
        rpc_stream_send(v.stream, rpc_pack(&second->base));
    verify_must_end(&v, code, sentence);
    assert_true(metric_of(client, "tandem_request_refused_total") == refused + 1);
}

static void verify_streams_have_one_request(void **state)
{
    (void)state;
    struct wish w;
    Tandem__V1__VerifyRequest second = TANDEM__V1__VERIFY_REQUEST__INIT;
    wish_init(&w, STORY, 40);
    verify_refuses(&w.msg, &second, RPC_INVALID_ARGUMENT,
                   "the message is neither `open` nor `draft`");
    second.message_case = TANDEM__V1__VERIFY_REQUEST__MESSAGE_OPEN;
    second.open = &w.msg;
    verify_refuses(&w.msg, &second, RPC_FAILED_PRECONDITION, "this stream is already open");
    w.msg.n = 2;
    verify_refuses(&w.msg, NULL, RPC_INVALID_ARGUMENT, "n is 2, a Verify stream has one choice");
    w.msg.n = 1;
    Tandem__V1__ChoiceSoFar choice = TANDEM__V1__CHOICE_SO_FAR__INIT;
    Tandem__V1__ChoiceSoFar *choices[] = {&choice};
    Tandem__V1__Continuation c = TANDEM__V1__CONTINUATION__INIT;
    Tandem__V1__GetModelRequest req = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    Tandem__V1__ModelInfo *m = (Tandem__V1__ModelInfo *)called_as(
        "/tandem.v1.Verifier/GetModel", &req.base, &tandem__v1__model_info__descriptor, RPC_OK, "");
    c.fingerprint = m->fingerprint;
    c.choices = choices;
    c.n_choices = 1;
    w.msg.continuation = &c;
    verify_refuses(&w.msg, NULL, RPC_INVALID_ARGUMENT,
                   "a Verify stream cannot continue another verifier's answer");
    tandem__v1__model_info__free_unpacked(m, NULL);
    wait_requests(client, 0, 0);
}

/* A stream may end before `open`. */
static void an_empty_verify_stream_is_a_success(void **state)
{
    (void)state;
    struct verify v;
    double refused = metric_of(client, "tandem_request_refused_total");
    verify_open_at(client, &v, NULL);
    assert_int_equal(verify_close(&v).code, RPC_OK);
    assert_true(metric_of(client, "tandem_request_refused_total") == refused);
}

static void an_unknown_proposer_is_refused_unless_drafts_are_off(void **state)
{
    (void)state;
    struct wish w;
    Tandem__V1__Speculative spec = TANDEM__V1__SPECULATIVE__INIT;
    double refused = metric_of(client, "tandem_request_refused_total");
    wish_init(&w, STORY, 2);
    w.msg.speculative = &spec;
    spec.proposer = text_of("nobody");
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT,
                "names none of this server's proposers: it has none");
    assert_true(metric_of(client, "tandem_request_refused_total") == refused + 1);
    spec.has_n_max_case = TANDEM__V1__SPECULATIVE__HAS_N_MAX_N_MAX; // 0: no drafts
    events_free(events_of(&w.msg));
}

/* ---- GetStats ---- */

static void figures_are_those_of_the_requests(void **state)
{
    (void)state;
    struct wish w;
    Tandem__V1__StatsReply *before = stats_of(client);
    wish_init(&w, STORY, 30);
    w.msg.n = 2;
    struct events *e = events_of(&w.msg);
    uint32_t n_prompt = started_of(e, 0)->prompt_tokens;
    events_free(e);
    wait_requests(client, 0, 0);
    Tandem__V1__StatsReply *s = stats_of(client);
    assert_true(is(s->service, "verifier") && s->running == 0 && s->waiting == 0);
    assert_int_equal(s->requests - before->requests, 2);
    assert_int_equal(s->prompt_tokens - before->prompt_tokens, n_prompt);
    assert_int_equal(s->generated_tokens - before->generated_tokens, 60);
    assert_true(s->n_proposers == 0 && s->n_proposer_series == 0);
    const Tandem__V1__SpeculationStats *sp = s->speculation, *old = before->speculation;
    assert_true(!sp->enabled && is(sp->mode, "none") && sp->current_k == 0);
    assert_int_equal(sp->total_steps - old->total_steps, 60);
    assert_true(sp->total_proposed == 0 && sp->acceptance_rate_overall == 0);
    assert_true(sp->acceptance_rate_ema == 0.7 && sp->adaptive_k_current == 0);
    double tau = (double)s->generated_tokens / (double)sp->total_steps;
    assert_true(sp->avg_tokens_per_step == tau);
    const Tandem__V1__CacheStats *c = s->cache;
    assert_int_equal(c->prompt_tokens - before->cache->prompt_tokens, n_prompt);
    assert_true(c->blocks_total > 0 && c->bytes > 0 && c->n_holders == 0 && !c->disk);
    assert_true(c->blocks_used == 0 && c->blocks_shared == 0 && c->blocks_evictable > 0);
    assert_true((double)c->blocks_total == metric_of(client, "tandem_kv_cache_blocks"));
    assert_true((double)c->bytes == metric_of(client, "tandem_kv_cache_bytes"));
    assert_true(c->hit_tokens >= before->cache->hit_tokens && c->disk_hit_tokens == 0);
    tandem__v1__stats_reply__free_unpacked(s, NULL);
    tandem__v1__stats_reply__free_unpacked(before, NULL);
}

/* A failed request counts, too; a refused one does not. */
static void failed_requests_are_figures_too(void **state)
{
    (void)state;
    struct wish w;
    struct verify v;
    Tandem__V1__StatsReply *before = stats_of(client);
    wish_init(&w, STORY, 30);
    verify_open(&v, &w.msg);
    Tandem__V1__VerifyDraft d = TANDEM__V1__VERIFY_DRAFT__INIT;
    d.base_len = v.base_len + 1;
    verify_send(&v, NULL, &d);
    verify_must_end(&v, RPC_FAILED_PRECONDITION, "tokens are committed");
    wish_init(&w, "", 30);
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "the prompt is empty");
    wait_requests(client, 0, 0);
    Tandem__V1__StatsReply *s = stats_of(client);
    assert_int_equal(s->requests - before->requests, 1);
    tandem__v1__stats_reply__free_unpacked(s, NULL);
    tandem__v1__stats_reply__free_unpacked(before, NULL);
}

/* ---- SetSpeculation ---- */

static void numbers_of_speculation_have_their_ends(void **state)
{
    (void)state;
    struct rpc_client *admin;
    assert_int_equal(rpc_client_new(verifier.admin, NULL, &admin), 0);
    static const struct {
        uint32_t k;
        int32_t batch;
        bool fits;
    } cases[] = {{0, -1, true},    {CONTROL_K_MAX, 4096, true},
                 {1, 0, true},     {CONTROL_K_MAX + 1, 0, false},
                 {0, 4097, false}, {0, -2, false}};
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        Tandem__V1__SetSpeculationRequest req = TANDEM__V1__SET_SPECULATION_REQUEST__INIT;
        ProtobufCMessage *reply = NULL;
        req.has_k_case = TANDEM__V1__SET_SPECULATION_REQUEST__HAS_K_K;
        req.k = cases[i].k;
        req.has_disable_batch_size_case =
            TANDEM__V1__SET_SPECULATION_REQUEST__HAS_DISABLE_BATCH_SIZE_DISABLE_BATCH_SIZE;
        req.disable_batch_size = cases[i].batch;
        struct rpc_status st =
            rpc_unary(admin, "/tandem.v1.Verifier/SetSpeculation", NULL, &req.base,
                      &tandem__v1__speculation_state__descriptor, &reply);
        assert_int_equal(st.code, cases[i].fits ? RPC_OK : RPC_INVALID_ARGUMENT);
        if (!cases[i].fits)
            continue;
        Tandem__V1__SpeculationState *s = (Tandem__V1__SpeculationState *)reply;
        assert_true(s->on && is(s->policy, "goodput") && s->n_proposers == 0);
        assert_int_equal(s->k, cases[i].k ? cases[i].k : 16);
        assert_int_equal(s->disable_batch_size, cases[i].batch > 0 ? cases[i].batch : 0);
        assert_int_equal(s->proposer.len, 0);
        tandem__v1__speculation_state__free_unpacked(s, NULL);
    }
    rpc_client_free(admin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_have_their_limits),
        cmocka_unit_test(the_model_is_described),
        cmocka_unit_test(an_answer_has_these_events),
        cmocka_unit_test(what_was_not_requested_is_not_sent),
        cmocka_unit_test(a_special_token_has_bytes_and_no_text),
        cmocka_unit_test(the_prompt_is_echoed_with_the_first_choice),
        cmocka_unit_test(the_stop_string_that_ended_an_answer_is_named),
        cmocka_unit_test(verify_streams_have_one_request),
        cmocka_unit_test(an_empty_verify_stream_is_a_success),
        cmocka_unit_test(an_unknown_proposer_is_refused_unless_drafts_are_off),
        cmocka_unit_test(figures_are_those_of_the_requests),
        cmocka_unit_test(failed_requests_are_figures_too),
        cmocka_unit_test(numbers_of_speculation_have_their_ends),
    };
    return cmocka_run_group_tests(tests, start_verifier, stop_verifier);
}
