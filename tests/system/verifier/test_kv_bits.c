/* test_kv_bits.c - the source of K and V changes no bit: computed, found in memory, read from disk,
 * or evicted and restored. With and without drafts, for each type, for several batch sizes.
 *
 * The expected answers come from a verifier without cache and drafts that runs one request at a
 * time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "lib/oracles/figures.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/clients/topic.h"
#include "kv/kv.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define N_PROMPT 200
#define N_SMALL 2416 // positions of int8 in a pool of 1 MiB
#define N_MORE 120   // beyond a quarter of the pool: four requests do not fit, even out of step
#define N_CACHED ((N_PROMPT - 1) / KV_BLOCK * KV_BLOCK)
#define MAX_BATCH 16
#define TRIES 100
#define TOPIC(n, i) (100 * (n) + (i)) // batches share no prompt

static const unsigned batches[] = {1, 4, 16};
static const char *const types[] = {"int8", "f16"};
static struct service proposer;

static int start(void **state)
{
    (void)state;
    service_start(&proposer, "proposer-svc",
                  (const char *[]){"--proposer", "draft", "--draft-model", MODEL,
                                   "--draft-quantize", "q4_0", NULL}); // most drafts are accepted
    return 0;
}

static int stop(void **state)
{
    (void)state;
    service_stop(&proposer);
    return 0;
}

struct world {
    const char *type;
    bool drafts;
    char folder[256];
    struct service cold, warm; // without any cache; with all caches
    struct rpc_client *cold_client, *client;
    unsigned n_drafted, n_accepted;
};

static void warm_start(struct world *w, const char *kv_mib)
{
    w->warm = (struct service){0};
    service_start(&w->warm, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--kv-type", w->type, "--kv-disk", w->folder,
                                   "--kv-mib", kv_mib, "--policy", "fixed", "--k", "4",
                                   w->drafts ? "--proposers" : NULL, proposer.target, NULL});
    assert_int_equal(rpc_client_new(w->warm.target, NULL, &w->client), 0);
    if (w->drafts)
        wait_proposers(w->client);
}

static void warm_stop(struct world *w)
{
    rpc_client_free(w->client);
    service_stop(&w->warm);
}

static void world_start(struct world *w, const char *type, bool drafts)
{
    static unsigned n;
    *w = (struct world){.type = type, .drafts = drafts};
    snprintf(w->folder, sizeof(w->folder), "%s/kv-%u", service_dir(), n++);
    service_start(&w->cold, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--kv-type", type, "--no-prefix-cache", NULL});
    assert_int_equal(rpc_client_new(w->cold.target, NULL, &w->cold_client), 0);
}

static void world_stop(struct world *w)
{
    static const char *const tails[] = {"", "-wal", "-journal"};
    char name[300];
    if (!w->drafts)
        assert_int_equal(w->n_drafted, 0);
    rpc_client_free(w->cold_client);
    service_stop(&w->cold);
    for (unsigned i = 0; i < ARRAY_LEN(tails); i++) {
        snprintf(name, sizeof(name), "%s/tandem-kv.sqlite%s", w->folder, tails[i]);
        unlink(name);
    }
    assert_int_equal(rmdir(w->folder), 0);
}

/* ---- requests ---- */

/* The expected answers to n prompts, for the current type of K and V. They are computed again when
 * the type or n_tokens differs from the previous call with this n. */
static const struct answer *cold_answers(struct world *w, unsigned n, unsigned n_tokens)
{
    static struct {
        const char *type;
        unsigned n_tokens;
        struct answer answers[MAX_BATCH];
    } kept[MAX_BATCH + 1];
    if (kept[n].type == w->type && kept[n].n_tokens == n_tokens)
        return kept[n].answers;
    kept[n].type = w->type;
    kept[n].n_tokens = n_tokens;
    memset(kept[n].answers, 0, sizeof(kept[n].answers));
    for (unsigned i = 0; i < n; i++) {
        struct topic t;
        topic_init(&t, TOPIC(n, i), N_PROMPT);
        t.msg.max_tokens = n_tokens;
        generation_run(w->cold_client, &t.msg, &kept[n].answers[i]);
    }
    return kept[n].answers;
}

/* Sends n prompts at the same time. Each answer must equal that of the request alone. Returns the
 * number of prompt tokens that came from a cache. */
static unsigned ask(struct world *w, unsigned n, unsigned n_tokens)
{
    struct topic t;
    struct generation g[MAX_BATCH];
    unsigned n_cached = 0;
    const struct answer *want = cold_answers(w, n, n_tokens);
    AUTO(mem_free) struct answer *got = calloc(n, sizeof(*got));
    assert_non_null(got);
    for (unsigned i = 0; i < n; i++) {
        topic_init(&t, TOPIC(n, i), N_PROMPT);
        t.msg.max_tokens = n_tokens;
        generation_start(&g[i], w->client, &t.msg, &got[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        topic_same(&got[i], &want[i]);
        n_cached += got[i].cached_tokens;
        w->n_drafted += got[i].drafted;
        w->n_accepted += got[i].accepted;
    }
    return n_cached;
}

/* Repeats requests until draft tokens were accepted and rejected. Without both the comparison
 * proves little. On a busy machine all drafts of a request may be late. */
static void must_draft(struct world *w)
{
    if (LIB_SANITIZED) // so slow that all drafts may be late
        return;
    for (unsigned i = 0; i < TRIES && (!w->n_accepted || w->n_accepted == w->n_drafted); i++) {
        wait_proposers(w->client);
        ask(w, 4, TOPIC_ANSWER);
    }
    assert_true(w->n_accepted > 0 && w->n_accepted < w->n_drafted);
}

static void check_computed_cached_and_restored(const char *type, bool drafts)
{
    struct world w;
    world_start(&w, type, drafts);
    warm_start(&w, "16");
    for (unsigned i = 0; i < ARRAY_LEN(batches); i++) {
        assert_int_equal(ask(&w, batches[i], TOPIC_ANSWER), 0);
        assert_int_equal(ask(&w, batches[i], TOPIC_ANSWER), batches[i] * N_CACHED);
    }
    warm_stop(&w);
    warm_start(&w, "16");
    for (unsigned i = 0; i < ARRAY_LEN(batches); i++)
        assert_in_range(ask(&w, batches[i], TOPIC_ANSWER), 0, batches[i] * N_CACHED);
    if (!LIB_SANITIZED) // the verifier does not wait for a slow disk
        assert_true(metric_of(w.client, "tandem_prefix_cache_hits_total{tier=\"disk\"}") > 0);
    if (drafts)
        must_draft(&w);
    warm_stop(&w);
    world_stop(&w);
}

static void check_preempted_and_restored(const char *type, bool drafts)
{
    struct world w;
    world_start(&w, type, drafts);
    warm_start(&w, "1");
    for (unsigned i = 1; i < ARRAY_LEN(batches); i++) { // a single request is never preempted
        double n_before = metric_of(w.client, "tandem_num_preemptions_total");
        ask(&w, batches[i], batches[i] == 4 ? N_SMALL / 4 - N_PROMPT + N_MORE : 100);
        assert_true(metric_of(w.client, "tandem_num_preemptions_total") > n_before);
    }
    if (drafts)
        must_draft(&w);
    warm_stop(&w);
    world_stop(&w);
}

static void cached_blocks_give_the_same_bits(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ARRAY_LEN(types); i++) {
        check_computed_cached_and_restored(types[i], false);
        check_computed_cached_and_restored(types[i], true);
    }
}

static void blocks_of_preempted_sequences_give_the_same_bits(void **state)
{
    (void)state;
    for (unsigned i = 0; i < lib_amount(1, ARRAY_LEN(types), ARRAY_LEN(types)); i++) {
        check_preempted_and_restored(types[i], false);
        check_preempted_and_restored(types[i], true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_blocks_give_the_same_bits),
        cmocka_unit_test(blocks_of_preempted_sequences_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
