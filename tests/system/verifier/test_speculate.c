/* test_speculate.c - settings of speculation change while a verifier serves: other proposers, no
 * proposers, off and on, by SetSpeculation and by SIGHUP. The answers have the bits of a verifier
 * without proposers, and no request fails. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "base/clock.h"
#include "lib/oracles/figures.h"
#include "lib/clients/generate.h"
#include "lib/clients/proposers.h"
#include "lib/rigs/services.h"

#define TRIES 100

#define TARGET SOURCE_DIR "/models/tales-11m-q8_0.gguf"
#define N_VOCAB 4096
#define MANY 8
#define N_TOKENS (LIB_SANITIZED ? 24 : 96)
#define WITHIN_US 60000000
#define ALLOWED "unix:/tmp/tandem-test-*/*.sock,unix:/nowhere/at.all,h:1,xyz://no[such:scheme"

typedef Tandem__V1__SetSpeculationRequest set_request;
typedef Tandem__V1__SpeculationState speculation_state;

static struct answer *want; // (MANY) without proposers

/* ---- requests ---- */

static void start_request(struct rpc_client *c, unsigned i, struct generation *g, struct answer *a)
{
    static const char *const prompts[] = {"The cat sat on the mat. The cat sat on the mat. The cat",
                                          "Max is a dog. Max is a big dog. Max is"};
    Tandem__V1__GenerateRequest req = TANDEM__V1__GENERATE_REQUEST__INIT;
    Tandem__V1__Sampling s = TANDEM__V1__SAMPLING__INIT;
    s.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    s.temperature = i / 2 % 2 ? 0.7f : 0;
    s.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    s.seed = i;
    req.sampling = &s;
    req.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    req.text = rpc_text(prompts[i % ARRAY_LEN(prompts)]);
    req.add_bos = req.ignore_eos = req.logprobs = true;
    req.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    req.max_tokens = N_TOKENS;
    generation_start(g, c, &req, a);
}

struct asked {
    struct generation g[MANY];
    struct answer *answers;
};

static void ask(struct asked *a, struct rpc_client *c)
{
    a->answers = calloc(MANY, sizeof(*a->answers));
    for (unsigned i = 0; i < MANY; i++)
        start_request(c, i, &a->g[i], &a->answers[i]);
}

/* Ends the requests and compares their answers. Returns the number of verified draft tokens. */
static unsigned must_answer(struct asked *a)
{
    unsigned drafted = 0;
    for (unsigned i = 0; i < MANY; i++) {
        generation_end(&a->g[i]);
        const struct answer *got = &a->answers[i], *w = &want[i];
        if (a->g[i].status.code != RPC_OK)
            fail_msg("request %u: %s", i, a->g[i].status.text);
        assert_int_equal(got->n, N_TOKENS);
        assert_memory_equal(got->ids, w->ids, N_TOKENS * sizeof(*got->ids));
        assert_memory_equal(got->logprobs, w->logprobs, N_TOKENS * sizeof(*got->logprobs));
        drafted += got->drafted;
    }
    free(a->answers);
    return drafted;
}

static unsigned ask_all(struct rpc_client *c)
{
    struct asked a;
    ask(&a, c);
    return must_answer(&a);
}

/* ---- SetSpeculation ---- */

static struct rpc_status try_set(struct rpc_client *c, const set_request *req,
                                 speculation_state **ret)
{
    return rpc_unary(c, "/tandem.v1.Verifier/SetSpeculation", NULL, &req->base,
                     &tandem__v1__speculation_state__descriptor, (ProtobufCMessage **)ret);
}

static speculation_state *must_set(struct rpc_client *c, const set_request *req)
{
    speculation_state *s;
    struct rpc_status st = try_set(c, req, &s);
    if (st.code != RPC_OK)
        fail_msg("%s", st.text);
    return s;
}

static void set_speculation(struct rpc_client *c, const set_request *req)
{
    tandem__v1__speculation_state__free_unpacked(must_set(c, req), NULL);
}

static speculation_state *state_of(struct rpc_client *c)
{
    set_request req = TANDEM__V1__SET_SPECULATION_REQUEST__INIT;
    return must_set(c, &req);
}

/* Up to three; NULL: none. */
static void set_proposers(struct rpc_client *c, const char *a, const char *b, const char *third)
{
    const char *all[] = {a, b, third};
    ProtobufCBinaryData texts[3];
    Tandem__V1__ProposerTargets targets = TANDEM__V1__PROPOSER_TARGETS__INIT;
    set_request req = TANDEM__V1__SET_SPECULATION_REQUEST__INIT;
    targets.targets = texts;
    for (unsigned i = 0; i < ARRAY_LEN(all) && all[i]; i++)
        texts[targets.n_targets++] = rpc_text(all[i]);
    req.proposers = &targets;
    set_speculation(c, &req);
}

/* Sends requests until drafts were verified and each of the first n proposers has sent some. On a
 * busy machine any draft may be late, and a proposer that was late three times in a row is excluded
 * for a while. */
static void must_draft(struct rpc_client *c, size_t n)
{
    uint64_t before[2] = {0}, drafted = 0;
    for (size_t p = 0; p < n; p++)
        before[p] = drafts_of(c, p);
    for (int i = 0; i < TRIES; i++) {
        bool all = true;
        drafted += ask_all(c);
        for (size_t p = 0; p < n; p++)
            all = all && drafts_of(c, p) > before[p];
        if (drafted && all)
            return;
    }
    fail_msg("%d times no draft came in time", TRIES);
}

static void set_on(struct rpc_client *c, bool on)
{
    set_request req = TANDEM__V1__SET_SPECULATION_REQUEST__INIT;
    req.has_on_case = TANDEM__V1__SET_SPECULATION_REQUEST__HAS_ON_ON;
    req.on = on;
    set_speculation(c, &req);
}

/* ---- services ---- */

struct world {
    struct service verifier, proposers[2];
    struct rpc_client *client;
};

static void start_verifier(struct world *w, const char *proposers, const char *conf)
{
    const char *args[] = {"--model",
                          TARGET,
                          "--threads",
                          "1",
                          "--no-pin",
                          "--proposer-targets-allowed=" ALLOWED,
                          proposers ? "--proposers"
                          : conf    ? "--config"
                                    : NULL,
                          proposers ? proposers : conf,
                          NULL};
    setenv("TANDEM_POLICY", conf ? "" : "fixed", 1);
    service_start(&w->verifier, "verifier-svc", args);
    assert_int_equal(rpc_client_new(w->verifier.admin, NULL, &w->client), 0);
}

static void start_proposers(struct world *w)
{
    *w = (struct world){0};
    for (unsigned i = 0; i < 2; i++)
        service_start(&w->proposers[i], "proposer-svc", NULL);
}

static void world_stop(struct world *w)
{
    rpc_client_free(w->client);
    service_stop(&w->verifier);
    for (unsigned i = 0; i < 2; i++)
        service_stop(&w->proposers[i]);
}

static int answer_without_proposers(void **state)
{
    (void)state;
    struct world w = {0};
    struct generation g[MANY];
    want = calloc(MANY, sizeof(*want));
    start_verifier(&w, NULL, NULL);
    for (unsigned i = 0; i < MANY; i++) {
        start_request(w.client, i, &g[i], &want[i]);
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
    }
    world_stop(&w);
    return 0;
}

static int forget_answers(void **state)
{
    (void)state;
    free(want);
    return 0;
}

static const char *named(const char *name, const struct service *s, char out[200])
{
    snprintf(out, 200, "%s=%s", name, s->target);
    return out;
}

/* ---- tests ---- */

static void two_proposers_of_one_name_share_requests_and_one_may_die(void **state)
{
    (void)state;
    struct world w;
    struct asked a;
    char both[400], texts[2][200];
    start_proposers(&w);
    snprintf(both, sizeof(both), "%s,%s", named("pool", &w.proposers[0], texts[0]),
             named("pool", &w.proposers[1], texts[1]));
    start_verifier(&w, both, NULL);
    wait_proposers(w.client);
    must_draft(w.client, 2);
    ask(&a, w.client);
    generation_wait_tokens(&a.g[0], N_TOKENS / 4);
    service_kill(&w.proposers[0]);
    must_answer(&a);
    must_draft(w.client, 0);
    world_stop(&w);
}

static void proposers_are_replaced_under_traffic(void **state)
{
    (void)state;
    struct world w;
    struct asked a;
    char text[200];
    start_proposers(&w);
    start_verifier(&w, w.proposers[0].target, NULL);
    wait_proposers(w.client);
    ask(&a, w.client);
    generation_wait_tokens(&a.g[0], N_TOKENS / 4);
    set_proposers(w.client, named("new", &w.proposers[1], text), "unix:/nowhere/at.all", NULL);
    must_answer(&a);
    speculation_state *s = state_of(w.client);
    assert_int_equal(s->n_proposers, 2);
    for (size_t i = 0; i < 2; i++)
        assert_true(!s->proposers[i]->name.len || // its name is not known yet
                    memcmp(s->proposers[i]->name.data, "new", s->proposers[i]->name.len) == 0);
    tandem__v1__speculation_state__free_unpacked(s, NULL);
    service_stop(&w.proposers[0]); // it is no longer used
    uint64_t restarts = restarts_of(w.client, 0);
    set_proposers(w.client, text, NULL, NULL);
    assert_int_equal(restarts_of(w.client, 0), restarts); // it kept its stream
    wait_proposers(w.client);
    must_draft(w.client, 1);
    wait_metric(w.client, "tandem_spec_decode_num_drafts_total{proposer=\"new\"}", 1);
    world_stop(&w);
}

/* A request that asks for proposer `wish` must get its drafts from `wanted`. */
static void drafted_by(struct rpc_client *c, const char *wish, const char *wanted)
{
    Tandem__V1__GenerateRequest req = TANDEM__V1__GENERATE_REQUEST__INIT;
    Tandem__V1__Speculative speculative = TANDEM__V1__SPECULATIVE__INIT;
    struct answer *a = calloc(1, sizeof(*a));
    req.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    req.text = rpc_text("The cat sat on the mat. The cat sat on the mat. The cat");
    req.add_bos = req.ignore_eos = true;
    req.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    req.max_tokens = N_TOKENS;
    req.speculative = &speculative;
    speculative.proposer = rpc_text(wish);
    for (int i = 0; i < TRIES && !a->drafted; i++) {
        wait_proposers(c);
        generation_run(c, &req, a);
    }
    assert_string_equal(a->runs.proposer, wanted);
    free(a);
}

static void a_request_names_its_proposer_and_the_service_a_default(void **state)
{
    (void)state;
    struct world w;
    char both[400], texts[2][200];
    set_request req = TANDEM__V1__SET_SPECULATION_REQUEST__INIT;
    req.has_proposer_case = TANDEM__V1__SET_SPECULATION_REQUEST__HAS_PROPOSER_PROPOSER;
    start_proposers(&w);
    snprintf(both, sizeof(both), "%s,%s", named("one", &w.proposers[0], texts[0]),
             named("two", &w.proposers[1], texts[1]));
    start_verifier(&w, both, NULL);
    for (unsigned i = 0; i < 2; i++) {
        const char *chosen = i ? "two" : "one", *other = i ? "one" : "two";
        req.proposer = rpc_text(chosen);
        set_speculation(w.client, &req);
        for (unsigned again = 0; again < 4; again++) { // a random choice would give half of them
            drafted_by(w.client, "", chosen);
            drafted_by(w.client, other, other);
        }
    }
    world_stop(&w);
}

static void wait_up(struct rpc_client *c, const struct service *proposer, double up)
{
    char name[220];
    snprintf(name, sizeof(name), "tandem_proposer_up{target=\"%s\"}", proposer->target);
    for (int64_t until = clock_us() + WITHIN_US; metric_of(c, name) != up; nap())
        assert_true(clock_us() < until);
}

static void no_request_fails_over_any_number_of_replacements(void **state)
{
    (void)state;
    struct world w;
    struct asked a;
    start_proposers(&w);
    start_verifier(&w, w.proposers[0].target, NULL);
    ask(&a, w.client);
    for (unsigned i = 0; i < 40; i++)
        set_proposers(w.client, i % 3 ? w.proposers[i % 2].target : NULL,
                      i % 4 ? w.proposers[(i + 1) % 2].target : NULL, NULL);
    must_answer(&a);
    set_proposers(w.client, w.proposers[1].target, NULL, NULL);
    wait_proposers(w.client);
    must_draft(w.client, 1);
    wait_up(w.client, &w.proposers[0], 0);
    wait_up(w.client, &w.proposers[1], 1);
    world_stop(&w);
}

static void speculation_is_switched_off_and_on(void **state)
{
    (void)state;
    struct world w;
    start_proposers(&w);
    start_verifier(&w, w.proposers[0].target, NULL);
    wait_proposers(w.client);
    set_on(w.client, false);
    ask_all(w.client); // the first requests may have been planned before
    assert_int_equal(ask_all(w.client), 0);
    wait_proposers(w.client); // still connected
    set_on(w.client, true);
    must_draft(w.client, 1);
    world_stop(&w);
}

static void set_policy(struct rpc_client *c, const char *policy, uint32_t k, int32_t batch_size)
{
    set_request req = TANDEM__V1__SET_SPECULATION_REQUEST__INIT;
    req.policy = rpc_text(policy);
    req.has_k_case = TANDEM__V1__SET_SPECULATION_REQUEST__HAS_K_K;
    req.k = k;
    req.has_disable_batch_size_case =
        TANDEM__V1__SET_SPECULATION_REQUEST__HAS_DISABLE_BATCH_SIZE_DISABLE_BATCH_SIZE;
    req.disable_batch_size = batch_size;
    set_speculation(c, &req);
}

/* The largest number of draft tokens in a round of a greedy request. */
static unsigned most_drafted(struct rpc_client *c)
{
    struct generation g;
    AUTO(mem_free) struct answer *a = calloc(1, sizeof(*a));
    wait_proposers(c);
    start_request(c, 0, &g, a);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_OK);
    return a->runs.most_drafted;
}

/* Retries, because on a busy machine all drafts of a request may be late. */
static void must_draft_up_to(struct rpc_client *c, unsigned n)
{
    most_drafted(c); // it may have been planned before
    unsigned most = most_drafted(c);
    for (int i = 0; i < TRIES && most < n; i++)
        most = most_drafted(c);
    assert_int_equal(most, n);
}

/* This proposer returns as many tokens as requested, and almost all are wrong: ema reduces 3 to
 * 1. */
static void a_running_verifier_follows_each_change_of_its_policy(void **state)
{
    (void)state;
    struct world w = {0};
    char path[PROPOSER_PATH_MAX], target[PROPOSER_PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s/wrong.sock", service_dir());
    snprintf(target, sizeof(target), "unix:%s", path);
    AUTO(liar_stop) struct liar *liar = liar_start(path, LIE_NOTHING, N_VOCAB);
    start_verifier(&w, target, NULL);
    set_policy(w.client, "fixed", 3, 0);
    must_draft_up_to(w.client, 3);
    set_policy(w.client, "ema", 3, 0);
    must_draft_up_to(w.client, 1);
    set_policy(w.client, "fixed", 2, 1);
    must_draft_up_to(w.client, 0);
    set_policy(w.client, "fixed", 2, 2);
    must_draft_up_to(w.client, 2);
    world_stop(&w);
}

static void proposers_are_added_to_a_verifier_without_any(void **state)
{
    (void)state;
    struct world w;
    start_proposers(&w);
    start_verifier(&w, NULL, NULL);
    assert_int_equal(ask_all(w.client), 0);
    assert_true(service_said(&w.verifier, "passes timed")); // timing delays all requests
    set_request req = TANDEM__V1__SET_SPECULATION_REQUEST__INIT;
    req.policy = rpc_text("goodput");
    set_speculation(w.client, &req);
    set_proposers(w.client, w.proposers[0].target, NULL, NULL);
    wait_proposers(w.client);
    ask_all(w.client);
    req.policy = rpc_text("fixed"); // goodput may decide that drafts do not pay
    set_speculation(w.client, &req);
    must_draft(w.client, 1);
    world_stop(&w);
}

static void must_refuse(struct rpc_client *c, const set_request *req, const char *sentence)
{
    speculation_state *s;
    struct rpc_status st = try_set(c, req, &s);
    assert_int_equal(st.code, RPC_INVALID_ARGUMENT);
    assert_non_null(strstr(st.text, sentence));
}

/* The settings are those of bad_changes_are_refused_and_change_nothing() at its start. */
static void must_be_unchanged(struct rpc_client *c)
{
    speculation_state *s = state_of(c);
    assert_true(s->on);
    assert_int_equal(s->k, 5);
    assert_memory_equal(s->policy.data, "fixed", 5);
    assert_int_equal(s->n_proposers, 1);
    assert_memory_equal(s->proposers[0]->name.data, "one", 3);
    tandem__v1__speculation_state__free_unpacked(s, NULL);
}

static void bad_changes_are_refused_and_change_nothing(void **state)
{
    (void)state;
    struct world w;
    ProtobufCBinaryData texts[17];
    char text[200];
    Tandem__V1__ProposerTargets targets = TANDEM__V1__PROPOSER_TARGETS__INIT;
    start_proposers(&w);
    start_verifier(&w, named("one", &w.proposers[0], text), NULL);
    set_request ok = TANDEM__V1__SET_SPECULATION_REQUEST__INIT, req = ok;
    req.has_on_case = TANDEM__V1__SET_SPECULATION_REQUEST__HAS_ON_ON; // off, but k is wrong
    req.has_k_case = TANDEM__V1__SET_SPECULATION_REQUEST__HAS_K_K;
    req.k = 21;
    must_refuse(w.client, &req, "k is 21, at most 20 is allowed");
    req.k = 0;
    req.policy = rpc_text("best");
    must_refuse(w.client, &req, "policy must be goodput, fixed or ema, not \"best\"");
    req.policy = rpc_text("ema");
    req.has_disable_batch_size_case =
        TANDEM__V1__SET_SPECULATION_REQUEST__HAS_DISABLE_BATCH_SIZE_DISABLE_BATCH_SIZE;
    req.disable_batch_size = -2;
    must_refuse(w.client, &req, "disable_batch_size must be from -1 to 4096, not -2");
    req.disable_batch_size = -1;
    req.has_proposer_case = TANDEM__V1__SET_SPECULATION_REQUEST__HAS_PROPOSER_PROPOSER;
    req.proposer = rpc_text("two");
    must_refuse(w.client, &req, "the default proposer is two, but no proposer has this name");
    req.proposer = rpc_text("a name that is far longer than names are");
    must_refuse(w.client, &req, "proposer must be a name of at most 31 letters");
    req.proposer = rpc_text("forged\nline");
    must_refuse(w.client, &req, "proposer must be a name of at most 31 letters");
    req.proposer = rpc_text("one");
    req.proposers = &targets;
    targets.targets = texts;
    for (unsigned i = 0; i < ARRAY_LEN(texts); i++)
        texts[i] = rpc_text("h:1");
    targets.n_targets = ARRAY_LEN(texts);
    must_refuse(w.client, &req, "proposers: more than 16 targets");
    targets.n_targets = 1;
    texts[0] = rpc_text("two=h:1\nforged line");
    must_refuse(w.client, &req, "a target is 1 to 255 bytes without control characters");
    texts[0] = rpc_text("two=h:1");
    must_refuse(w.client, &req, "the default proposer is one, but no proposer has this name");
    must_be_unchanged(w.client);
    wait_proposers(w.client);

    texts[0] = rpc_text("one=xyz://no[such:scheme"); // a valid address, but nothing listens there
    speculation_state *s = must_set(w.client, &req);
    assert_false(s->on);
    assert_int_equal(s->disable_batch_size, 8);
    assert_memory_equal(s->policy.data, "ema", 3);
    assert_false(s->proposers[0]->connected);
    tandem__v1__speculation_state__free_unpacked(s, NULL);
    ask_all(w.client);
    world_stop(&w);
}

static void write_conf(const char *path, const char *proposers, const char *rest)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "proposers = %s\n%s", proposers, rest);
    fclose(f);
}

static void wait_said(const struct service *s, const char *text)
{
    for (int64_t until = clock_us() + WITHIN_US; !service_said(s, text); nap())
        assert_true(clock_us() < until);
}

static void sighup_rereads_the_configuration(void **state)
{
    (void)state;
    struct world w;
    struct asked a;
    char conf[200];
    snprintf(conf, sizeof(conf), "%s/verifier.conf", service_dir());
    start_proposers(&w);
    write_conf(conf, w.proposers[0].target, "policy = fixed\n");
    start_verifier(&w, NULL, conf);
    wait_proposers(w.client);
    ask(&a, w.client);
    generation_wait_tokens(&a.g[0], N_TOKENS / 4);
    write_conf(conf, w.proposers[1].target,
               "policy = fixed\nk = 3\nmax_sequences = 9\nthreads = 7\n");
    service_signal(&w.verifier, SIGHUP);
    wait_said(&w.verifier, "restart to apply changes of: max_sequences");
    assert_false(service_said(&w.verifier, "changes of: max_sequences, threads")); // set by a flag
    must_answer(&a);
    wait_proposers(w.client);
    must_draft(w.client, 1);
    speculation_state *s = state_of(w.client);
    assert_int_equal(s->k, 3);
    assert_int_equal(s->n_proposers, 1);
    assert_memory_equal(s->proposers[0]->target.data, w.proposers[1].target,
                        s->proposers[0]->target.len);
    tandem__v1__speculation_state__free_unpacked(s, NULL);

    write_conf(conf, w.proposers[0].target, "k = 99\n");
    service_signal(&w.verifier, SIGHUP);
    wait_said(&w.verifier, "reload failed, settings unchanged: ");
    s = state_of(w.client);
    assert_int_equal(s->k, 3);
    tandem__v1__speculation_state__free_unpacked(s, NULL);
    remove(conf);
    world_stop(&w);
}

static void must_be_denied(struct rpc_client *c, const char *target, const char *sentence)
{
    ProtobufCBinaryData text = rpc_text(target);
    Tandem__V1__ProposerTargets targets = TANDEM__V1__PROPOSER_TARGETS__INIT;
    set_request req = TANDEM__V1__SET_SPECULATION_REQUEST__INIT;
    speculation_state *s;
    targets.targets = &text;
    targets.n_targets = 1;
    req.proposers = &targets;
    struct rpc_status st = try_set(c, &req, &s);
    assert_int_equal(st.code, RPC_PERMISSION_DENIED);
    if (!strstr(st.text, sentence))
        fail_msg("%s", st.text);
}

/* The attack: a local client has the contexts of all requests sent to its own proposer. */
static void only_an_operator_redirects_contexts_and_only_to_permitted_targets(void **state)
{
    (void)state;
    struct world w;
    char theirs[PROPOSER_PATH_MAX + 8];
    start_proposers(&w);
    snprintf(theirs, sizeof(theirs), "unix:%s/theirs.sock", service_dir());
    AUTO(liar_stop) struct liar *liar = liar_start(theirs + 5, LIE_NOTHING, N_VOCAB);
    service_start(&w.verifier, "verifier-svc",
                  (const char *[]){"--model", TARGET, "--threads", "1", "--no-pin", "--listen",
                                   "127.0.0.1:0", "--proposers", w.proposers[0].target, NULL});
    AUTO(rpc_client_free) struct rpc_client *local = NULL, *tcp = NULL;
    assert_int_equal(rpc_client_new(w.verifier.target, NULL, &local), 0);
    assert_int_equal(rpc_client_new(w.verifier.admin, NULL, &w.client), 0);
    service_client_on_tcp(&w.verifier, &tcp);
    must_be_denied(local, theirs,
                   "the role of this client is gateway; /tandem.v1.Verifier/SetSpeculation is for "
                   "the role operator");
    must_be_denied(tcp, theirs,
                   "the role of this client is client; /tandem.v1.Verifier/SetSpeculation is for "
                   "the role operator");
    must_be_denied(w.client, theirs, "is not in proposer_targets_allowed");
    ask_all(tcp); // but it is served
    speculation_state *s = state_of(w.client);
    assert_int_equal(s->n_proposers, 1);
    assert_memory_equal(s->proposers[0]->target.data, w.proposers[0].target,
                        s->proposers[0]->target.len);
    tandem__v1__speculation_state__free_unpacked(s, NULL);
    assert_true(service_said(&w.verifier, "call refused method=/tandem.v1.Verifier/SetSpeculation "
                                          "role=client from=ipv4:127.0.0.1:"));
    set_proposers(w.client, w.proposers[0].target, NULL, NULL);
    assert_true(service_said(&w.verifier, w.proposers[0].target)); // the log names the targets
    world_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_proposers_of_one_name_share_requests_and_one_may_die),
        cmocka_unit_test(a_request_names_its_proposer_and_the_service_a_default),
        cmocka_unit_test(proposers_are_replaced_under_traffic),
        cmocka_unit_test(no_request_fails_over_any_number_of_replacements),
        cmocka_unit_test(speculation_is_switched_off_and_on),
        cmocka_unit_test(a_running_verifier_follows_each_change_of_its_policy),
        cmocka_unit_test(proposers_are_added_to_a_verifier_without_any),
        cmocka_unit_test(bad_changes_are_refused_and_change_nothing),
        cmocka_unit_test(only_an_operator_redirects_contexts_and_only_to_permitted_targets),
        cmocka_unit_test(sighup_rereads_the_configuration),
    };
    return cmocka_run_group_tests(tests, answer_without_proposers, forget_answers);
}
