/* fake_verifier.c - a gRPC server that acts as a verifier. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/fakes/fake_verifier.h"
#include "lib/lib.h"
#include "rpc/rpc.h"
#include "tandem/v1/stats.pb-c.h"

struct fake_verifier {
    struct rpc_server *server;
    atomic_uint n_running, n_cancelled, n_queries;
    pthread_mutex_t mu; // for the fields below
    Tandem__V1__ModelInfo__State state;
    float progress;
    uint32_t protocol;
    bool continues;
    uint64_t turn_ms;
    enum rpc_code get_model; // status of GetModel
    const char *template, *name, *fingerprint, *holder;
    ProtobufCBinaryData spelled[4]; // by the letter
    Tandem__V1__GenerateRequest *last;
};

/* A running Generate call. */
struct script {
    struct fake_verifier *f;
    unsigned n_tokens, at, every_ms;
    bool flood;
    ProtobufCBinaryData spelled;
    size_t spelled_at;
};

/* ---- events ---- */

static void send_started(struct rpc_call *c, ProtobufCBinaryData echo)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__Started s = TANDEM__V1__STARTED__INIT;
    s.prompt_tokens = 7;
    s.cached_tokens = 3;
    s.seed = 11;
    s.prompt_text = echo;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_STARTED;
    e.started = &s;
    rpc_call_send(c, rpc_pack(&e.base));
}

static ssize_t send_tokens(struct rpc_call *c, const ProtobufCBinaryData *texts, unsigned n,
                           unsigned choice)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__TokenRun run = TANDEM__V1__TOKEN_RUN__INIT;
    Tandem__V1__TopLogprob top = TANDEM__V1__TOP_LOGPROB__INIT, *tops[] = {&top};
    Tandem__V1__Token *tokens = calloc(n + 1, sizeof(*tokens)), **v = calloc(n + 1, sizeof(*v));
    top.logprob = -0.25f;
    top.text = rpc_text("\xE2\x82");
    for (unsigned i = 0; i < n; i++) {
        tandem__v1__token__init(&tokens[i]);
        tokens[i].text = tokens[i].bytes = texts[i];
        tokens[i].id = i;
        tokens[i].origin = i + 1 < n ? TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_ACCEPTED
                                     : TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_BONUS;
        tokens[i].logprob = -0.5f;
        tokens[i].n_top = 1;
        tokens[i].top = tops;
        v[i] = &tokens[i];
    }
    run.n_tokens = n;
    run.tokens = v;
    run.round = 1;
    run.drafted = n;
    run.proposer = rpc_text("fake");
    e.choice = choice;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_RUN;
    e.run = &run;
    ssize_t left = rpc_call_send(c, rpc_pack(&e.base));
    free(v);
    free(tokens);
    return left;
}

static void send_finished(struct rpc_call *c, unsigned n, const char *held)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__Finished f = TANDEM__V1__FINISHED__INIT;
    Tandem__V1__SpeculationUsage u = TANDEM__V1__SPECULATION_USAGE__INIT;
    f.reason = TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    f.completion_tokens = n;
    f.text = rpc_text(held);
    u.rounds = 4;
    u.rounds_drafted = 2;
    u.drafted = 8;
    u.accepted = 6;
    u.bonus = 1;
    u.rule = rpc_text("own-draw");
    u.proposer = rpc_text("ngram");
    f.speculation = &u;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED;
    e.finished = &f;
    rpc_call_send(c, rpc_pack(&e.base));
    rpc_call_finish(c, RPC_OK, NULL);
}

static void send_words(struct rpc_call *c, unsigned n, bool one_message)
{
    char(*words)[16] = calloc(n + 1, sizeof(*words));
    ProtobufCBinaryData *texts = calloc(n + 1, sizeof(*texts));
    for (unsigned i = 0; i < n; i++) {
        snprintf(words[i], sizeof(words[i]), "w%u ", i);
        texts[i] = rpc_text(words[i]);
        if (!one_message)
            send_tokens(c, &texts[i], 1, 0);
    }
    if (one_message)
        send_tokens(c, texts, n, 0);
    free(texts);
    free(words);
}

static void send_next_word(struct rpc_call *c)
{
    struct script *p = rpc_call_user(c);
    char word[16];
    ProtobufCBinaryData text = rpc_text(word);
    snprintf(word, sizeof(word), "w%u ", p->at++);
    text.len = strlen(word);
    send_tokens(c, &text, 1, 0);
    if (p->at == p->n_tokens)
        send_finished(c, p->at, "");
    else
        rpc_call_after(c, p->every_ms, send_next_word);
}

static void send_next_piece(struct rpc_call *c)
{
    struct script *p = rpc_call_user(c);
    size_t left = p->spelled.len - p->spelled_at;
    ProtobufCBinaryData piece = {left < p->n_tokens ? left : p->n_tokens,
                                 p->spelled.data + p->spelled_at};
    p->spelled_at = (p->spelled_at + piece.len) % p->spelled.len;
    send_tokens(c, &piece, 1, 0);
    rpc_call_after(c, p->every_ms, send_next_piece);
}

static void send_flood(struct rpc_call *c)
{
    static char big[1000];
    struct script *p = rpc_call_user(c);
    ProtobufCBinaryData text = {sizeof(big), (uint8_t *)big};
    memset(big, 'x', sizeof(big));
    while (p->at < p->n_tokens) {
        ssize_t queued = send_tokens(c, &text, 1, 0);
        p->at++;
        if (queued < 0 || queued > 32768)
            return; // generate_drain() continues
    }
    p->flood = false;
    send_finished(c, p->at, "");
}

static void generate_drain(struct rpc_call *c)
{
    struct script *p = rpc_call_user(c);
    if (p && p->flood)
        send_flood(c);
}

static void send_bytes(struct rpc_call *c)
{
    /* The euro sign in two tokens; its text comes with the second. */
    const ProtobufCBinaryData text[] = {{0, NULL}, rpc_text("\xE2\x82\xAC"), rpc_text("\xFF")};
    send_tokens(c, text, 3, 0);
    send_finished(c, 3, "");
}

static void send_held(struct rpc_call *c)
{
    const ProtobufCBinaryData text = rpc_text("kept");
    send_tokens(c, &text, 1, 0);
    send_finished(c, 1, " back");
}

/* An event of a kind that this protocol does not have. */
static void send_newer(struct rpc_call *c)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    rpc_call_send(c, rpc_pack(&e.base));
}

static void kill_self(struct rpc_call *c)
{
    (void)c;
    raise(SIGKILL);
}

/* Loses an answer of two tokens, then ends n_refused continuations with `code`. */
static void send_lost(struct rpc_call *c, const char *const texts[2], bool continues,
                      enum rpc_code code, unsigned n_refused)
{
    const ProtobufCBinaryData text = rpc_text(texts[continues]);
    static atomic_uint n_asked;
    if (continues && atomic_fetch_add(&n_asked, 1) < n_refused) {
        rpc_call_finish(c, code, "as you asked");
        return;
    }
    if (!continues)
        atomic_store(&n_asked, 0);
    send_started(c, (ProtobufCBinaryData){0, NULL});
    send_tokens(c, &text, 1, 0);
    if (continues)
        send_finished(c, 2, "");
    else
        rpc_call_finish(c, RPC_UNAVAILABLE, "as you asked");
}

static void run_script(struct rpc_call *c, struct script *p, const char *what, bool continues,
                       ProtobufCBinaryData echo)
{
    char word[16] = "", letter = 'a';
    unsigned n = 0, ms = 0;
    sscanf(what, "%15s %u %u %c", word, &n, &ms, &letter);
    *p = (struct script){.f = p->f, .n_tokens = n, .every_ms = ms};
    if (strcmp(word, "silent") == 0)
        return;
    if (strcmp(word, "status") == 0) {
        rpc_call_finish(c, (enum rpc_code)n, "as you asked");
        return;
    }
    if (strcmp(word, "lose") == 0 || strcmp(word, "call") == 0) {
        static const char *const words[2] = {"w0 ", "w1 "},
                                 *const call[2] = {"<tool_call>{\"name\": \"lo",
                                                   "ok\", \"arguments\": {}}</tool_call>"};
        send_lost(c, *word == 'l' ? words : call, continues, (enum rpc_code)n, ms);
        return;
    }
    send_started(c, echo);
    if (strcmp(word, "pace") == 0) {
        send_next_word(c);
    } else if (strcmp(word, "spell") == 0) {
        p->spelled = p->f->spelled[letter - 'a'];
        send_next_piece(c);
    } else if (strcmp(word, "flood") == 0) {
        p->flood = true;
        send_flood(c);
    } else if (strcmp(word, "bytes") == 0) {
        send_bytes(c);
    } else if (strcmp(word, "held") == 0) {
        send_held(c);
    } else if (strcmp(word, "garbage") == 0) {
        rpc_call_send(c, rpc_msg_of("\xFF\xFF\xFF", 3));
    } else if (strcmp(word, "choice") == 0) {
        const ProtobufCBinaryData text = rpc_text("x");
        send_tokens(c, &text, 1, 5);
    } else if (strcmp(word, "stall") != 0) {
        if (strcmp(word, "newer") == 0)
            send_newer(c);
        send_words(c, n, strcmp(word, "run") == 0);
        if (strcmp(word, "die") == 0)
            rpc_call_after(c, 20, kill_self);
        else if (strcmp(word, "short") == 0)
            rpc_call_finish(c, RPC_OK, NULL);
        else
            send_finished(c, n, "");
    }
}

/* ---- the service ---- */

static void generate_start(struct rpc_call *c, struct rpc_msg *msg)
{
    struct fake_verifier *f = rpc_call_service(c);
    Tandem__V1__GenerateRequest *q = (Tandem__V1__GenerateRequest *)rpc_call_unpack(
        c, &tandem__v1__generate_request__descriptor, msg);
    struct script *p = calloc(1, sizeof(*p));
    char what[64] = "say 3"; // for prompts given as tokens
    p->f = f;
    rpc_call_set_user(c, p);
    atomic_fetch_add(&f->n_running, 1);
    if (!q)
        return;
    bool text = q->prompt_case == TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    if (text)
        snprintf(what, sizeof(what), "%.*s", (int)(q->text.len < 60 ? q->text.len : 60),
                 (char *)q->text.data);
    pthread_mutex_lock(&f->mu);
    if (f->last)
        tandem__v1__generate_request__free_unpacked(f->last, NULL);
    f->last = q;
    run_script(c, p, what, q->continuation != NULL,
               text && q->echo ? q->text : (ProtobufCBinaryData){0, NULL});
    pthread_mutex_unlock(&f->mu);
}

static void generate_cancel(struct rpc_call *c)
{
    struct fake_verifier *f = rpc_call_service(c);
    atomic_fetch_add(&f->n_cancelled, 1);
}

static void generate_end(struct rpc_call *c)
{
    struct fake_verifier *f = rpc_call_service(c);
    free(rpc_call_user(c));
    atomic_fetch_sub(&f->n_running, 1);
}

static void model_start(struct rpc_call *c, struct rpc_msg *msg)
{
    struct fake_verifier *f = rpc_call_service(c);
    Tandem__V1__ModelInfo m = TANDEM__V1__MODEL_INFO__INIT;
    (void)msg;
    atomic_fetch_add(&f->n_queries, 1);
    pthread_mutex_lock(&f->mu);
    m.state = f->state;
    m.progress = f->progress;
    m.chat_template = rpc_text(f->template);
    m.protocol = f->protocol;
    m.continues = f->continues;
    m.turn_ms = f->turn_ms;
    m.name = rpc_text(f->name);
    m.fingerprint = rpc_text(f->fingerprint);
    enum rpc_code code = f->get_model;
    pthread_mutex_unlock(&f->mu);
    if (code != RPC_OK) {
        rpc_call_finish(c, code, "as you asked");
        return;
    }
    m.architecture = rpc_text("llama");
    m.weight_type = rpc_text("q8_0");
    m.bos_text = rpc_text("<s>");
    m.context_length = 1024;
    m.created = 1700000000;
    rpc_call_reply(c, &m.base);
}

static void stats_start(struct rpc_call *c, struct rpc_msg *msg)
{
    Tandem__V1__StatsReply s = TANDEM__V1__STATS_REPLY__INIT;
    Tandem__V1__SpeculationStats p = TANDEM__V1__SPECULATION_STATS__INIT;
    Tandem__V1__CacheStats cache = TANDEM__V1__CACHE_STATS__INIT;
    Tandem__V1__CacheHolder most = TANDEM__V1__CACHE_HOLDER__INIT, *holders[] = {&most, &most};
    (void)msg;
    s.service = rpc_text("verifier");
    s.instance = rpc_text("fake-0");
    s.prometheus = rpc_text("# HELP tandem_generation_tokens_total Tokens.\n"
                            "# TYPE tandem_generation_tokens_total counter\n"
                            "tandem_generation_tokens_total 42\nnot a sample at all\n");
    p.enabled = true;
    p.mode = rpc_text("ngram");
    p.total_steps = 10;
    p.total_proposed = 20;
    p.total_accepted = 15;
    p.avg_tokens_per_step = 2.5;
    p.current_k = 5;
    s.speculation = &p;
    cache.blocks_total = 64;
    cache.blocks_used = 5;
    cache.blocks_evictable = 7;
    cache.hit_tokens = 32;
    cache.n_holders = 2;
    cache.holders = holders;
    cache.bytes = 1 << 20;
    struct fake_verifier *f = rpc_call_service(c);
    pthread_mutex_lock(&f->mu);
    most.id = rpc_text(f->holder ? f->holder : "r\"1");
    pthread_mutex_unlock(&f->mu);
    most.blocks = 3;
    s.cache = &cache;
    rpc_call_reply(c, &s.base);
}

static void tokenize_start(struct rpc_call *c, struct rpc_msg *msg)
{
    Tandem__V1__TokenizeRequest *q = (Tandem__V1__TokenizeRequest *)rpc_call_unpack(
        c, &tandem__v1__tokenize_request__descriptor, msg);
    Tandem__V1__TokenizeReply r = TANDEM__V1__TOKENIZE_REPLY__INIT;
    if (!q)
        return;
    if (q->text.len == 5 && memcmp(q->text.data, "stall", 5) == 0) {
        struct fake_verifier *f = rpc_call_service(c);
        rpc_call_set_user(c, f);
        atomic_fetch_add(&f->n_running, 1);
        tandem__v1__tokenize_request__free_unpacked(q, NULL);
        return;
    }
    if (q->text.len == 4 && memcmp(q->text.data, "lost", 4) == 0) {
        rpc_call_finish(c, RPC_UNAVAILABLE, "as you asked");
        tandem__v1__tokenize_request__free_unpacked(q, NULL);
        return;
    }
    r.n_ids = q->text.len;
    r.ids = calloc(r.n_ids + 1, sizeof(*r.ids));
    for (size_t i = 0; i < r.n_ids; i++)
        r.ids[i] = q->text.data[i];
    rpc_call_reply(c, &r.base);
    free(r.ids);
    tandem__v1__tokenize_request__free_unpacked(q, NULL);
}

static void tokenize_end(struct rpc_call *c)
{
    struct fake_verifier *stalled = rpc_call_user(c);
    if (stalled)
        atomic_fetch_sub(&stalled->n_running, 1);
}

static void detokenize_start(struct rpc_call *c, struct rpc_msg *msg)
{
    Tandem__V1__DetokenizeRequest *q = (Tandem__V1__DetokenizeRequest *)rpc_call_unpack(
        c, &tandem__v1__detokenize_request__descriptor, msg);
    Tandem__V1__DetokenizeReply r = TANDEM__V1__DETOKENIZE_REPLY__INIT;
    if (!q)
        return;
    char *text = calloc(q->n_ids + 1, 1);
    for (size_t i = 0; i < q->n_ids; i++)
        text[i] = (char)q->ids[i];
    r.text = (ProtobufCBinaryData){q->n_ids, (uint8_t *)text};
    rpc_call_reply(c, &r.base);
    free(text);
    tandem__v1__detokenize_request__free_unpacked(q, NULL);
}

static const struct rpc_method methods[] = {
    {.path = "/tandem.v1.Verifier/Generate",
     .roles = RPC_ROLE_ANY,
     .drain_mark = 32768,
     .on_start = generate_start,
     .on_drain = generate_drain,
     .on_cancel = generate_cancel,
     .on_end = generate_end},
    {.path = "/tandem.v1.Verifier/GetModel", .roles = RPC_ROLE_ANY, .on_start = model_start},
    {.path = "/tandem.v1.Verifier/Tokenize",
     .roles = RPC_ROLE_ANY,
     .on_start = tokenize_start,
     .on_end = tokenize_end},
    {.path = "/tandem.v1.Verifier/Detokenize", .roles = RPC_ROLE_ANY, .on_start = detokenize_start},
    {.path = "/tandem.v1.Stats/GetStats", .roles = RPC_ROLE_ANY, .on_start = stats_start},
};

struct fake_verifier *fake_verifier_start(const char *address)
{
    struct rpc_server_options opt = {.n_threads = 1};
    struct fake_verifier *f = calloc(1, sizeof(*f));
    pthread_mutex_init(&f->mu, NULL);
    f->state = TANDEM__V1__MODEL_INFO__STATE__READY;
    f->template = FAKE_TEMPLATE;
    f->name = "fake/model";
    f->fingerprint = "fp_fake";
    f->protocol = 1;
    assert_int_equal(rpc_server_new(&opt, &f->server), 0);
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        rpc_server_add(f->server, &methods[i], f);
    if (rpc_server_listen(f->server, address) < 0)
        fail_msg("%s", fail_text());
    assert_int_equal(rpc_server_start(f->server), 0);
    return f;
}

void fake_verifier_stop(struct fake_verifier *f)
{
    rpc_server_stop(f->server, 0);
    if (f->last)
        tandem__v1__generate_request__free_unpacked(f->last, NULL);
    pthread_mutex_destroy(&f->mu);
    free(f);
}

void fake_verifier_play(const char *address)
{
    fake_verifier_start(address);
    fprintf(stderr, "playing the verifier\n");
    for (;;)
        pause();
}

void fake_verifier_state(struct fake_verifier *f, Tandem__V1__ModelInfo__State state,
                         float progress)
{
    pthread_mutex_lock(&f->mu);
    f->state = state;
    f->progress = progress;
    pthread_mutex_unlock(&f->mu);
}

void fake_verifier_protocol(struct fake_verifier *f, uint32_t version)
{
    pthread_mutex_lock(&f->mu);
    f->protocol = version;
    pthread_mutex_unlock(&f->mu);
}

void fake_verifier_continues(struct fake_verifier *f, bool yes)
{
    pthread_mutex_lock(&f->mu);
    f->continues = yes;
    pthread_mutex_unlock(&f->mu);
}

void fake_verifier_turn(struct fake_verifier *f, uint64_t ms)
{
    pthread_mutex_lock(&f->mu);
    f->turn_ms = ms;
    pthread_mutex_unlock(&f->mu);
}

void fake_verifier_get_model(struct fake_verifier *f, enum rpc_code code)
{
    pthread_mutex_lock(&f->mu);
    f->get_model = code;
    pthread_mutex_unlock(&f->mu);
}

void fake_verifier_template(struct fake_verifier *f, const char *source)
{
    pthread_mutex_lock(&f->mu);
    f->template = source;
    pthread_mutex_unlock(&f->mu);
}

void fake_verifier_text(struct fake_verifier *f, char which, const char *text)
{
    assert_true(which >= 'a' && (size_t)(which - 'a') < ARRAY_LEN(f->spelled));
    pthread_mutex_lock(&f->mu);
    f->spelled[which - 'a'] = rpc_text(text);
    pthread_mutex_unlock(&f->mu);
}

void fake_verifier_holder(struct fake_verifier *f, const char *id)
{
    pthread_mutex_lock(&f->mu);
    f->holder = id;
    pthread_mutex_unlock(&f->mu);
}

void fake_verifier_model(struct fake_verifier *f, const char *name, const char *fingerprint)
{
    pthread_mutex_lock(&f->mu);
    f->name = name;
    f->fingerprint = fingerprint;
    pthread_mutex_unlock(&f->mu);
}

unsigned fake_verifier_running(struct fake_verifier *f)
{
    return atomic_load(&f->n_running);
}

unsigned fake_verifier_queries(struct fake_verifier *f)
{
    return atomic_load(&f->n_queries);
}

unsigned fake_verifier_cancelled(struct fake_verifier *f)
{
    return atomic_load(&f->n_cancelled);
}

Tandem__V1__GenerateRequest *fake_verifier_request(struct fake_verifier *f)
{
    pthread_mutex_lock(&f->mu);
    Tandem__V1__GenerateRequest *q = f->last;
    f->last = NULL;
    pthread_mutex_unlock(&f->mu);
    return q;
}
