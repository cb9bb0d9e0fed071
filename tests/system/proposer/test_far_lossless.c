/* test_far_lossless.c - promise 2 with the proposer on another "host". The committed tokens follow
 * the target's distribution (lib/oracles/token_dist.h) when drawn drafts
 * - arrive in time or too late;
 * - take a time that depends on the drawn tokens;
 * - are lost with the connection or with the proposer. */
#include <inttypes.h>
#include <stdio.h>
#include "lib/oracles/figures.h"
#include "lib/oracles/token_dist.h"
#include "lib/lib.h"
#include "lib/rigs/relay.h"
#include "lib/rigs/services.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define N_VOCAB 4096
#define MOST_BUDGET_MS 250 // the maximum of the option
#if LIB_SANITIZED
#define BUDGET_MS MOST_BUDGET_MS
#define N_AT_ONCE 24
#else
#define BUDGET_MS 80
#define N_AT_ONCE 64
#endif
#define TRIES 100
/* One way. FAR: a round trip takes 1.5 times the budget. NEAR: about as long as a pass. */
#define FAR_US (BUDGET_MS * 750)
#define NEAR_US 3000

static int host = HOST_NONE; // of the proposer
static char address[RELAY_TARGET_MAX];
static struct relay *relay;
static struct liar *liar;
static struct service proposer, verifier;
static struct rpc_client *client;
static struct token_dist dist;

/* ---- services ---- */

static void start_relay(void)
{
    host_address(host, address);
    relay = relay_start(host, address);
}

static void start_verifier(unsigned budget_ms)
{
    char budget[8];
    snprintf(budget, sizeof(budget), "%u", budget_ms);
    service_start(&verifier, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--policy", "fixed", "--k", "2",
                                   "--disable-batch-size", "0", "--proposer-budget-ms", budget,
                                   "--proposers", relay_target(relay), NULL});
    assert_int_equal(rpc_client_new(verifier.target, NULL, &client), 0);
    wait_proposers(client);
}

static int start_with_liar(enum lie lie, unsigned budget_ms)
{
    start_relay();
    int ours = host_ours();
    host_enter(host);
    liar = liar_listen(address, lie, N_VOCAB);
    host_enter(ours);
    host_drop(ours);
    start_verifier(budget_ms);
    token_dist_learn(&dist, client, true, 3);
    return 0;
}

static int start_with_drawer(void **state)
{
    (void)state;
    return start_with_liar(LIE_DRAWN, BUDGET_MS);
}

static int start_with_teller(void **state)
{
    (void)state;
    return start_with_liar(LIE_DRAWN_TELLS, MOST_BUDGET_MS);
}

static void spawn_proposer(void)
{
    int ours = host_ours();
    host_enter(host);
    service_spawn(&proposer, "proposer-svc",
                  (const char *[]){"--insecure-listen", "--proposer", "draft", "--draft-model",
                                   MODEL, "--draft-quantize", "q4_0", NULL});
    host_enter(ours);
    host_drop(ours);
    struct service seen = proposer; // the address on this host
    snprintf(seen.target, sizeof(seen.target), "%s", relay_target(relay));
    service_wait_healthy(&seen);
}

static int start_with_draft_model(void **state)
{
    (void)state;
    start_relay();
    proposer = (struct service){0};
    snprintf(proposer.target, sizeof(proposer.target), "%s", address);
    spawn_proposer();
    start_verifier(BUDGET_MS);
    token_dist_learn(&dist, client, false, 2);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(client);
    service_stop(&verifier);
    relay_stop(relay);
    service_stop(&proposer);
    liar_stop(liar);
    liar = NULL;
    return 0;
}

/* ---- batches of requests over a changing connection ---- */

static struct token_dist_batch batch;

/* Runs batch i with n requests. */
typedef void batch_fn(struct asked *v, unsigned n_rules, uint32_t n, uint32_t i);

static void run_near(struct asked *v, unsigned n_rules, uint32_t n, uint32_t i)
{
    (void)i;
    wait_proposers(client);
    relay_delay(relay, NEAR_US);
    token_dist_start(&dist, v, n_rules, n, &batch);
    token_dist_end(&batch);
}

/* In the second of four batches the proposer is far away, in the fourth it moves far away. There
 * drafts arrive too late, and the next ones, which queue after them, in time. In the other batches
 * all drafts are in time, because a proposer that is late three times in a row is excluded for a
 * while. */
static void run_late(struct asked *v, unsigned n_rules, uint32_t n, uint32_t i)
{
    bool is_far = i % 4 == 1, goes_far = i % 4 == 3;
    wait_proposers(client);
    relay_delay(relay, is_far ? FAR_US : NEAR_US);
    token_dist_start(&dist, v, n_rules, n, &batch);
    if (goes_far) {
        generation_wait_tokens(&batch.g[0], 1);
        relay_delay(relay, FAR_US);
    }
    /* The first request runs alone, the last with most others: the drafts of these two are late. */
    generation_wait_tokens(&batch.g[is_far ? 1 : n - 1], 2); // its rule waits for drafts
    relay_delay(relay, NEAR_US);
    token_dist_end(&batch);
}

/* Of eight batches, the first is cut off midway, the second starts cut off, the fifth loses its
 * proposer. */
static void run_lost(struct asked *v, unsigned n_rules, uint32_t n, uint32_t i)
{
    if (i % 8 != 1)
        wait_proposers(client);
    token_dist_start(&dist, v, n_rules, n, &batch);
    generation_wait_tokens(&batch.g[0], i / 8 % TOKEN_DIST_LEN);
    relay_cut(relay, i % 8 == 0);
    if (i % 8 == 4)
        service_kill(&proposer);
    token_dist_end(&batch);
    if (i % 8 == 4)
        spawn_proposer();
}

/* ---- the distribution ---- */

static void must_keep_the_distribution(batch_fn *run_batch)
{
    struct asked v[] = {{.rule = "own-draw"}, // does not wait for late drafts
                        {.rule = "rejection"},
                        {.rule = "block"},
                        {.rule = "block", .dense = true}};
    uint32_t left = ARRAY_LEN(v) * (uint32_t)lib_amount(250, 1000, 10000);
    for (uint32_t i = 0; left; i++, left -= batch.n)
        run_batch(v, ARRAY_LEN(v), left < N_AT_ONCE ? left : N_AT_ONCE, i);
    for (unsigned i = 0; i < ARRAY_LEN(v); i++) {
        for (unsigned t = 0; t < TRIES && i && !v[i].n_accepted; t++) // drafts were late or lost
            run_near(&v[i], 1, N_AT_ONCE, 0);
        assert_true(token_dist_tail(&dist, &v[i]) > SURELY_WRONG);
        assert_true(v[i].n_accepted > 0 || i == 0);
    }
}

static void late_drafts_keep_the_distribution(void **state)
{
    (void)state;
    uint64_t late = late_of(client, 0), drafts = drafts_of(client, 0);
    must_keep_the_distribution(run_late);
    late = late_of(client, 0) - late;
    drafts = drafts_of(client, 0) - drafts;
    printf("%" PRIu64 " drafts, %" PRIu64 " of them late\n", drafts, late);
    assert_true(late > 0);
}

/* No sequence continues without its draft because that draft takes longer than others. */
static void drafts_with_telltale_times_keep_the_distribution(void **state)
{
    (void)state;
    must_keep_the_distribution(run_near);
}

static void lost_drafts_and_proposers_keep_the_distribution(void **state)
{
    (void)state;
    uint64_t restarts = restarts_of(client, 0);
    must_keep_the_distribution(run_lost);
    restarts = restarts_of(client, 0) - restarts;
    printf("%" PRIu64 " connections lost\n", restarts);
    assert_true(restarts > 0);
}

int main(void)
{
    host = host_new();
    const struct CMUnitTest drawn[] = {
        cmocka_unit_test(late_drafts_keep_the_distribution),
    };
    const struct CMUnitTest telling[] = {
        cmocka_unit_test(drafts_with_telltale_times_keep_the_distribution),
    };
    const struct CMUnitTest modelled[] = {
        cmocka_unit_test(late_drafts_keep_the_distribution),
        cmocka_unit_test(lost_drafts_and_proposers_keep_the_distribution),
    };
    int failed = cmocka_run_group_tests_name("drawn", drawn, start_with_drawer, stop);
    failed += cmocka_run_group_tests_name("telling", telling, start_with_teller, stop);
    return failed + cmocka_run_group_tests_name("modelled", modelled, start_with_draft_model, stop);
}
