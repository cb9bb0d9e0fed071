/* test_prefix.c - a common prefix of prompts is computed once: which requests share blocks, what is
 * counted, and that the answers have the same bits. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "lib/oracles/figures.h"
#include "lib/clients/generate.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/clients/topic.h"
#include "kv/kv.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define N_PROMPT 200

static struct service verifier, cold; // with and without a prefix cache
static struct rpc_client *client, *cold_client;

static int start(void **state)
{
    (void)state;
    service_start(&verifier, "verifier-svc", (const char *[]){"--model", MODEL, NULL});
    service_start(&cold, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--no-prefix-cache", NULL});
    assert_int_equal(rpc_client_new(verifier.target, NULL, &client), 0);
    assert_int_equal(rpc_client_new(cold.target, NULL, &cold_client), 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(client);
    rpc_client_free(cold_client);
    service_stop(&verifier);
    service_stop(&cold);
    return 0;
}

/* ---- requests ---- */

static struct answer *answers_new(unsigned n)
{
    struct answer *a = calloc(n, sizeof(*a));
    assert_non_null(a);
    return a;
}

/* Sends a request. `cached` tokens of its prompt must come from the cache, and the answer must
 * equal that of a verifier without cache. */
static void ask_of(struct rpc_client *c, struct topic *w, unsigned cached, struct answer *a)
{
    AUTO(mem_free) struct answer *plain = answers_new(1);
    memset(a, 0, sizeof(*a));
    generation_run(cold_client, &w->msg, plain);
    generation_run(c, &w->msg, a);
    assert_int_equal(plain->cached_tokens, 0);
    assert_int_equal(a->cached_tokens, cached);
    assert_int_equal(a->prompt_tokens, w->prompt.n_ids);
    topic_same(a, plain);
}

static void ask(struct topic *w, unsigned cached)
{
    AUTO(mem_free) struct answer *a = answers_new(1);
    ask_of(client, w, cached, a);
}

/* ---- hits ---- */

static void a_prompt_is_computed_once_except_for_its_end(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 16, 17, 31, 32, 33, N_PROMPT};
    for (unsigned i = 0; i < ARRAY_LEN(lengths); i++) {
        struct topic w;
        topic_init(&w, 100 + i, lengths[i]);
        ask(&w, 0);
        ask(&w, (lengths[i] - 1) / KV_BLOCK * KV_BLOCK);
        w.sampling.seed = 99;
        ask(&w, (lengths[i] - 1) / KV_BLOCK * KV_BLOCK);
    }
}

static void prompts_share_their_common_prefix(void **state)
{
    (void)state;
    struct topic w;
    topic_init(&w, 1, N_PROMPT);
    ask(&w, 0);
    w.tokens[100]++;
    ask(&w, 96);
    w.tokens[96]++;
    ask(&w, 96);
    w.tokens[95]++;
    ask(&w, 80);
    w.tokens[0]++;
    ask(&w, 0);
}

/* The last block of an answer is not complete: the row of the last token has not run. */
static void the_next_turn_of_a_chat_reuses_the_answer(void **state)
{
    (void)state;
    struct topic w;
    AUTO(mem_free) struct answer *a = answers_new(1);
    topic_init(&w, 2, 50);
    ask_of(client, &w, 0, a);
    for (unsigned turn = 0; turn < 4; turn++) {
        uint32_t n = (uint32_t)w.prompt.n_ids;
        memcpy(w.tokens + n, a->ids, a->n * sizeof(*a->ids));
        for (uint32_t i = 0; i < 23; i++) // the next question
            w.tokens[n + a->n + i] = 500 + turn + i;
        w.prompt.n_ids = n + a->n + 23;
        ask_of(client, &w, (n + a->n - 1) / KV_BLOCK * KV_BLOCK, a);
    }
}

static void a_running_request_shares_its_blocks(void **state)
{
    (void)state;
    struct topic long_one, w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    topic_init(&long_one, 3, N_PROMPT);
    long_one.msg.max_tokens = 700;
    generation_start(&g, client, &long_one.msg, a);
    generation_wait_tokens(&g, 1);
    topic_init(&w, 3, N_PROMPT);
    ask(&w, 192);
    rpc_stream_cancel(g.stream);
    generation_end(&g);
}

static void tenants_do_not_share(void **state)
{
    (void)state;
    struct topic w;
    static const char *const salts[] = {"", "a", "b", "aa"};
    for (unsigned i = 0; i < ARRAY_LEN(salts); i++) {
        topic_init(&w, 4, N_PROMPT);
        w.msg.tenant = rpc_text(salts[i]);
        ask(&w, 0);
        ask(&w, 192);
    }
}

static void every_choice_reports_the_same_cached_tokens(void **state)
{
    (void)state;
    struct topic w;
    topic_init(&w, 5, N_PROMPT);
    w.msg.n = 4;
    ask(&w, 0);
    ask(&w, 192);
    wait_requests(client, 0, 0);
}

/* One request computes the prompt. The others wait for its blocks. */
static void equal_prompts_at_the_same_time_are_computed_once(void **state)
{
    (void)state;
    enum { N = 6 };
    struct service s = {0};
    struct rpc_client *c;
    struct topic w;
    struct generation g[N];
    AUTO(mem_free) struct answer *a = answers_new(N + 1);
    unsigned n_first = 0;
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--prefill-chunk", "16", NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    topic_init(&w, 8, 600);
    generation_run(cold_client, &w.msg, &a[N]);
    for (unsigned i = 0; i < N; i++)
        generation_start(&g[i], c, &w.msg, &a[i]);
    for (unsigned i = 0; i < N; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        assert_int_equal(a[i].cached_tokens, a[i].cached_tokens ? 592 : 0);
        n_first += !a[i].cached_tokens;
        topic_same(&a[i], &a[N]);
    }
    assert_int_equal(n_first, 1);
    rpc_client_free(c);
    service_stop(&s);
}

/* ---- figures ---- */

#define HITS "tandem_prefix_cache_hits_total{tier=\"memory\"}"

static void figures_count_cached_blocks_and_name_the_largest_holders(void **state)
{
    (void)state;
    struct topic w, longer;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    double queries = metric_of(client, "tandem_prefix_cache_queries_total");
    double hits = metric_of(client, HITS);
    topic_init(&w, 9, N_PROMPT);
    ask(&w, 0);
    ask(&w, 192);
    assert_true(metric_of(client, "tandem_prefix_cache_queries_total") - queries == 2 * N_PROMPT);
    assert_true(metric_of(client, HITS) - hits == 192);

    topic_init(&longer, 9, 300);
    longer.msg.id = rpc_text("the-longer-one");
    longer.msg.max_tokens = 700;
    generation_start(&g, client, &longer.msg, a);
    generation_wait_tokens(&g, 1);
    wait_requests(client, 1, 0);
    Tandem__V1__StatsReply *r = stats_of(client);
    assert_int_equal(r->cache->n_holders, 1);
    assert_int_equal(r->cache->holders[0]->id.len, strlen("the-longer-one"));
    assert_memory_equal(r->cache->holders[0]->id.data, "the-longer-one", 14);
    assert_true(r->cache->holders[0]->tokens > 300);
    assert_true(r->cache->holders[0]->blocks * KV_BLOCK >= r->cache->holders[0]->tokens - 1);
    assert_int_equal(r->cache->blocks_used, r->cache->holders[0]->blocks);
    tandem__v1__stats_reply__free_unpacked(r, NULL);
    rpc_stream_cancel(g.stream);
    generation_end(&g);

    wait_requests(client, 0, 0);
    r = stats_of(client);
    assert_int_equal(r->cache->n_holders, 0);
    assert_int_equal(r->cache->blocks_used, 0);
    assert_int_equal(r->cache->blocks_shared, 0);
    assert_true(r->cache->blocks_evictable >= 300 / KV_BLOCK);
    assert_true(r->cache->blocks_evictable <= r->cache->blocks_total);
    assert_true(r->cache->hit_tokens < r->cache->prompt_tokens);
    tandem__v1__stats_reply__free_unpacked(r, NULL);
}

/* ---- a pool that is too small ---- */

#define SMALL_POOL "--kv-mib", "1"

/* Blocks of old prompts are evicted for new ones. The answers stay the same. */
static void evicted_prompts_are_computed_again(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct topic w;
    AUTO(mem_free) struct answer *a = answers_new(1);
    service_start(&s, "verifier-svc", (const char *[]){"--model", MODEL, SMALL_POOL, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    for (unsigned topic = 10; topic < 16; topic++) {
        topic_init(&w, topic, 900);
        ask_of(c, &w, 0, a);
    }
    assert_true(metric_of(c, "tandem_prefix_cache_evictions_total") > 0);
    ask_of(c, &w, 896, a);
    topic_init(&w, 10, 900);
    ask_of(c, &w, 0, a);
    rpc_client_free(c);
    service_stop(&s);
}

static void a_request_that_can_never_fit_is_refused_with_the_reason(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct topic w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, SMALL_POOL, "--context", "100000", NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    AUTO(mem_free) uint32_t *ids = calloc(50000, sizeof(*ids));
    assert_non_null(ids);
    topic_init(&w, 0, 1);
    w.prompt.ids = ids;
    w.prompt.n_ids = 50000;
    generation_start(&g, c, &w.msg, a);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_INVALID_ARGUMENT);
    assert_non_null(strstr(g.status.text, "the prompt has 50000 tokens; the context holds"));
    rpc_client_free(c);
    service_stop(&s);
}

static bool has_ended(struct generation *g)
{
    pthread_mutex_lock(&g->mu);
    bool ended = g->ended;
    pthread_mutex_unlock(&g->mu);
    return ended;
}

/* Short requests keep arriving until the long one, which was among the first, has ended. */
static void a_long_request_ends_beside_many_short_ones(void **state)
{
    (void)state;
    enum { AT_ONCE = 12, MOST = 1000 };
    struct service s = {0};
    struct rpc_client *c;
    struct topic w, long_one;
    struct generation g[AT_ONCE], g_long;
    AUTO(mem_free) struct answer *a = answers_new(AT_ONCE), *a_long = answers_new(2);
    unsigned n = 0, n_before = 0;
    service_start(&s, "verifier-svc", (const char *[]){"--model", MODEL, SMALL_POOL, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    topic_init(&long_one, 20, 700);
    long_one.msg.max_tokens = 300;
    generation_run(cold_client, &long_one.msg, &a_long[1]);
    for (; n < AT_ONCE; n++) {
        topic_init(&w, 21 + n, 150);
        w.msg.max_tokens = 60;
        generation_start(&g[n], c, &w.msg, &a[n]);
        if (n == AT_ONCE / 2)
            generation_start(&g_long, c, &long_one.msg, a_long);
    }
    for (; !has_ended(&g_long); n++) {
        assert_true(n < MOST);
        generation_end(&g[n % AT_ONCE]);
        assert_int_equal(g[n % AT_ONCE].status.code, RPC_OK);
        n_before += !has_ended(&g_long);
        topic_init(&w, 21 + n, 150);
        w.msg.max_tokens = 60;
        memset(&a[n % AT_ONCE], 0, sizeof(*a));
        generation_start(&g[n % AT_ONCE], c, &w.msg, &a[n % AT_ONCE]);
    }
    for (unsigned i = 0; i < AT_ONCE; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        assert_int_equal(a[i].n, 60);
    }
    generation_end(&g_long);
    topic_same(a_long, &a_long[1]);
    assert_true(n_before > 0);
    wait_requests(c, 0, 0);
    rpc_client_free(c);
    service_stop(&s);
}

/* ---- with proposers ---- */

/* Rejected draft tokens leave nothing in the cache. Accepted ones are cached. */
static void speculation_costs_no_hits(void **state)
{
    (void)state;
    static const char *const proposers[] = {"ngram", "draft", "suffix"};
    for (unsigned i = 0; i < ARRAY_LEN(proposers); i++) {
        struct service p = {0}, s = {0};
        struct rpc_client *c;
        struct topic w;
        AUTO(mem_free) struct answer *a = answers_new(1);
        service_start(&p, "proposer-svc",
                      (const char *[]){"--proposer", proposers[i], "--draft-model", MODEL, NULL});
        service_start(&s, "verifier-svc",
                      (const char *[]){"--model", MODEL, "--policy", "fixed", "--k", "6",
                                       "--proposers", p.target, NULL});
        assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
        wait_proposers(c);
        topic_init(&w, 6, 60);
        w.msg.max_tokens = 100;
        ask_of(c, &w, 0, a);
        memcpy(w.tokens + 60, a->ids, a->n * sizeof(*a->ids));
        w.prompt.n_ids = 60 + a->n;
        ask_of(c, &w, (60 + 100 - 1) / KV_BLOCK * KV_BLOCK, a);
        rpc_client_free(c);
        service_stop(&s);
        service_stop(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_computed_once_except_for_its_end),
        cmocka_unit_test(prompts_share_their_common_prefix),
        cmocka_unit_test(the_next_turn_of_a_chat_reuses_the_answer),
        cmocka_unit_test(a_running_request_shares_its_blocks),
        cmocka_unit_test(tenants_do_not_share),
        cmocka_unit_test(every_choice_reports_the_same_cached_tokens),
        cmocka_unit_test(equal_prompts_at_the_same_time_are_computed_once),
        cmocka_unit_test(figures_count_cached_blocks_and_name_the_largest_holders),
        cmocka_unit_test(evicted_prompts_are_computed_again),
        cmocka_unit_test(a_request_that_can_never_fit_is_refused_with_the_reason),
        cmocka_unit_test(a_long_request_ends_beside_many_short_ones),
        cmocka_unit_test(speculation_costs_no_hits),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
