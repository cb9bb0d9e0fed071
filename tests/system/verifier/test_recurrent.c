/* test_recurrent.c - a model with recurrent layers in a verifier: answers have the same bits with
 * drafts, in company, after preemption, and from a snapshot. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "lib/clients/generate.h"
#include "lib/clients/topic.h"
#include "lib/lib.h"
#include "lib/models/tiny.h"
#include "lib/oracles/figures.h"
#include "lib/rigs/folder.h"
#include "lib/rigs/services.h"
#include "kv/kv_bytes.h"

#define N_PROMPT 200
#define N_TOGETHER 12

static char folder[FOLDER_PATH];
static struct service proposer, verifier, plain; // plain: without drafts and cache
static struct rpc_client *client, *plain_client;

static void write_model(const char *path)
{
    const struct tiny t = {.arch = "qwen35moe", .seed = 31, .n_layers = 4, .rope_dim = 16};
    size_t len;
    AUTO(mem_free) void *file = tiny_write(&t, &len);
    FILE *to = fopen(path, "wbe");
    assert_non_null(to);
    assert_int_equal(fwrite(file, 1, len, to), len);
    assert_int_equal(fclose(to), 0);
}

static int start(void **state)
{
    (void)state;
    char model[FOLDER_PATH + 16];
    folder_make(folder);
    snprintf(model, sizeof(model), "%s/tiny.gguf", folder);
    write_model(model);
    service_start(&proposer, "proposer-svc", (const char *[]){"--proposer", "ngram", NULL});
    service_start(&verifier, "verifier-svc",
                  (const char *[]){"--model", model, "--proposers", proposer.target, "--kv-mib",
                                   "1", "--max-sequences", "10", NULL});
    service_start(&plain, "verifier-svc",
                  (const char *[]){"--model", model, "--no-prefix-cache", NULL});
    assert_int_equal(rpc_client_new(verifier.target, NULL, &client), 0);
    assert_int_equal(rpc_client_new(plain.target, NULL, &plain_client), 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(client);
    rpc_client_free(plain_client);
    service_stop(&verifier);
    service_stop(&plain);
    service_stop(&proposer);
    folder_remove(folder);
    return 0;
}

static void ask_for(struct topic *w, unsigned topic, uint32_t n_prompt, uint32_t n_answer)
{
    topic_init(w, topic, n_prompt);
    for (uint32_t i = 0; i < n_prompt; i++)
        w->tokens[i] = 3 + (w->tokens[i] + topic) % (TINY_VOCAB - 3);
    w->msg.max_tokens = n_answer;
}

static struct answer *answers_new(unsigned n)
{
    struct answer *a = calloc(n, sizeof(*a));
    assert_non_null(a);
    return a;
}

/* Of the first choice; of the others only their tokens. */
static void same_choices(const struct answer *a, const struct answer *b, unsigned n)
{
    topic_same(a, b);
    assert_memory_equal(a->hashes, b->hashes, n * sizeof(a->hashes[0]));
}

/* Choices share the prompt's rows and a copy of its state. */
static void choices_have_the_same_answers(void **state)
{
    (void)state;
    struct topic w;
    AUTO(mem_free) struct answer *a = answers_new(1), *alone = answers_new(1);
    const double before = metric_of(client, "tandem_num_preemptions_total");
    for (unsigned i = 0; i < 4; i++) {
        ask_for(&w, 300 + i, 1 + 40 * i, 60);
        w.msg.n = 4;
        memset(a, 0, sizeof(*a));
        memset(alone, 0, sizeof(*alone));
        generation_run(client, &w.msg, a);
        generation_run(plain_client, &w.msg, alone);
        same_choices(a, alone, 4);
        w.msg.n = 1;
        memset(alone, 0, sizeof(*alone));
        generation_run(plain_client, &w.msg, alone);
        topic_same(a, alone);
    }
    assert_true(metric_of(client, "tandem_num_preemptions_total") == before);
}

/* The pool holds fewer positions than these requests need together. */
static void company_and_preemption_change_nothing(void **state)
{
    (void)state;
    AUTO(mem_free) struct answer *a = answers_new(N_TOGETHER), *alone = answers_new(1);
    static struct topic w[N_TOGETHER];
    struct generation g[N_TOGETHER];
    const double before = metric_of(client, "tandem_num_preemptions_total");
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        ask_for(&w[i], i, 100 + 10 * i, 300);
        w[i].msg.n = i % 3 == 0 ? 3 : 1;
        generation_start(&g[i], client, &w[i].msg, &a[i]);
    }
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
    }
    assert_true(metric_of(client, "tandem_num_preemptions_total") > before);
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        memset(alone, 0, sizeof(*alone));
        generation_run(plain_client, &w[i].msg, alone);
        same_choices(&a[i], alone, i % 3 == 0 ? 3 : 1);
    }
}

/* A greedy answer of this model repeats itself, so the n-gram proposer is often right. */
static void drafts_change_nothing(void **state)
{
    (void)state;
    struct topic w;
    AUTO(mem_free) struct answer *a = answers_new(1), *alone = answers_new(1);
    unsigned n_accepted = 0;
    for (unsigned topic = 100; topic < 110; topic++) {
        ask_for(&w, topic, 30, 300);
        w.sampling.temperature = 0;
        memset(a, 0, sizeof(*a));
        memset(alone, 0, sizeof(*alone));
        generation_run(client, &w.msg, a);
        generation_run(plain_client, &w.msg, alone);
        topic_same(a, alone);
        n_accepted += a->accepted;
        assert_true(a->runs.most_drafted <= KV_MAX_CHAIN);
    }
    assert_true(n_accepted > 0);
}

/* Snapshots are taken at the last block of a prompt, not at others of a short one. */
static void a_prompt_begins_at_a_snapshot(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_prompt, cached;
    } cases[] = {{N_PROMPT, 0},
                 {N_PROMPT, 192},
                 {N_PROMPT + 20, 192},
                 {N_PROMPT + 20, 208},
                 {N_PROMPT, 192},
                 {190, 0},
                 {40, 0},
                 {40, 0}};
    struct topic w;
    AUTO(mem_free) struct answer *a = answers_new(1), *alone = answers_new(1);
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        ask_for(&w, 200, cases[i].n_prompt, 40);
        memset(a, 0, sizeof(*a));
        memset(alone, 0, sizeof(*alone));
        generation_run(client, &w.msg, a);
        generation_run(plain_client, &w.msg, alone);
        assert_int_equal(a->cached_tokens, cases[i].cached);
        topic_same(a, alone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_begins_at_a_snapshot),
        cmocka_unit_test(drafts_change_nothing),
        cmocka_unit_test(choices_have_the_same_answers),
        cmocka_unit_test(company_and_preemption_change_nothing),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
