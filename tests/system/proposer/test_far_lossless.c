/* test_far_lossless.c - promise 2 with the drafter on another "host": where drawn drafts come in
 * time and too late, where the time they take tells what was drawn, and where they are lost with
 * the way or with the drafter, the committed tokens follow the target's own law (lib/oracles/token_dist.h). */
#include <inttypes.h>
#include <stdio.h>
#include "lib/oracles/figures.h"
#include "lib/oracles/token_dist.h"
#include "lib/lib.h"
#include "lib/rigs/relay.h"
#include "lib/rigs/services.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define N_VOCAB 4096
#define MOST_BUDGET_MS 250 // that there is
#if LIB_SANITIZED
#define BUDGET_MS MOST_BUDGET_MS
#define N_AT_ONCE 24
#else
#define BUDGET_MS 80
#define N_AT_ONCE 64
#endif
/* Each way: there and back takes half as long again as the budget, or as long as a pass. */
#define FAR_US (BUDGET_MS * 750)
#define NEAR_US 3000

static int host = HOST_NONE; // the drafter's
static char address[RELAY_TARGET_MAX];
static struct relay *relay;
static struct liar *liar;
static struct service drafter, verifier;
static struct rpc_client *client;
static struct token_dist law;

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
    token_dist_learn(&law, client, true, 3);
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

static void spawn_drafter(void)
{
    int ours = host_ours();
    host_enter(host);
    service_spawn(&drafter, "proposer-svc",
                  (const char *[]){"--proposer", "draft", "--draft-model", MODEL,
                                   "--draft-quantize", "q4_0", NULL});
    host_enter(ours);
    host_drop(ours);
    struct service seen = drafter; // from here
    snprintf(seen.target, sizeof(seen.target), "%s", relay_target(relay));
    service_wait_healthy(&seen);
}

static int start_with_draft_model(void **state)
{
    (void)state;
    start_relay();
    drafter = (struct service){0};
    snprintf(drafter.target, sizeof(drafter.target), "%s", address);
    spawn_drafter();
    start_verifier(BUDGET_MS);
    token_dist_learn(&law, client, false, 2);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(client);
    service_stop(&verifier);
    relay_stop(relay);
    service_stop(&drafter);
    liar_stop(liar);
    liar = NULL;
    return 0;
}

/* ---- batches of requests, and what happens to the way meanwhile ---- */

static struct token_dist_batch batch;

/* Runs batch i, of n requests. */
typedef void batch_fn(struct asked *v, unsigned n_rules, uint32_t n, uint32_t i);

static void run_near(struct asked *v, unsigned n_rules, uint32_t n, uint32_t i)
{
    (void)i;
    wait_proposers(client);
    relay_delay(relay, NEAR_US);
    token_dist_start(&law, v, n_rules, n, &batch);
    token_dist_end(&batch);
}

/* Of four, the second finds the drafter far away, and in the fourth it goes there: drafts come too
 * late, and the next ones, which wait behind them, in time. In the others all come in time, for who
 * is late three times in a row is given up for a while. */
static void run_late(struct asked *v, unsigned n_rules, uint32_t n, uint32_t i)
{
    bool is_far = i % 4 == 1, goes_far = i % 4 == 3;
    wait_proposers(client);
    relay_delay(relay, is_far ? FAR_US : NEAR_US);
    token_dist_start(&law, v, n_rules, n, &batch);
    if (goes_far) {
        generation_wait_tokens(&batch.g[0], 1);
        relay_delay(relay, FAR_US);
    }
    /* The first requests are asked for alone, the last with most others: these drafts are late. */
    generation_wait_tokens(&batch.g[is_far ? 1 : n - 1], 2); // of a rule that is waited for
    relay_delay(relay, NEAR_US);
    token_dist_end(&batch);
}

/* Of eight, the first is cut off midway and the second begins so; the drafter of the fifth dies. */
static void run_lost(struct asked *v, unsigned n_rules, uint32_t n, uint32_t i)
{
    if (i % 8 != 1)
        wait_proposers(client);
    token_dist_start(&law, v, n_rules, n, &batch);
    generation_wait_tokens(&batch.g[0], i / 8 % TOKEN_DIST_LEN);
    relay_cut(relay, i % 8 == 0);
    if (i % 8 == 4)
        service_kill(&drafter);
    token_dist_end(&batch);
    if (i % 8 == 4)
        spawn_drafter();
}

/* ---- the law ---- */

static void must_keep_the_law(batch_fn *run_batch)
{
    struct asked v[] = {{.rule = "own-draw"}, // goes on without drafts that the others wait for
                        {.rule = "rejection"},
                        {.rule = "block"},
                        {.rule = "block", .dense = true}};
    uint32_t left = ARRAY_LEN(v) * (uint32_t)lib_amount(250, 1000, 10000);
    for (uint32_t i = 0; left; i++, left -= batch.n)
        run_batch(v, ARRAY_LEN(v), left < N_AT_ONCE ? left : N_AT_ONCE, i);
    for (unsigned i = 0; i < ARRAY_LEN(v); i++) {
        assert_true(token_dist_tail(&law, &v[i]) > SURELY_WRONG);
        assert_true(v[i].n_accepted > 0 || i == 0);
    }
}

static void drafts_that_come_late_do_not_bend_the_law(void **state)
{
    (void)state;
    uint64_t late = late_of(client, 0), drafts = drafts_of(client, 0);
    must_keep_the_law(run_late);
    late = late_of(client, 0) - late;
    drafts = drafts_of(client, 0) - drafts;
    printf("%" PRIu64 " drafts, %" PRIu64 " of them late\n", drafts, late);
    assert_true(late > 0);
}

/* Nobody goes on without its draft because that takes longer than others. */
static void what_the_time_to_draw_tells_does_not_bend_the_law(void **state)
{
    (void)state;
    must_keep_the_law(run_near);
}

static void lost_drafts_and_drafters_do_not_bend_the_law(void **state)
{
    (void)state;
    uint64_t restarts = restarts_of(client, 0);
    must_keep_the_law(run_lost);
    restarts = restarts_of(client, 0) - restarts;
    printf("%" PRIu64 " connections lost\n", restarts);
    assert_true(restarts > 0);
}

int main(void)
{
    host = host_new();
    const struct CMUnitTest drawn[] = {
        cmocka_unit_test(drafts_that_come_late_do_not_bend_the_law),
    };
    const struct CMUnitTest telling[] = {
        cmocka_unit_test(what_the_time_to_draw_tells_does_not_bend_the_law),
    };
    const struct CMUnitTest modelled[] = {
        cmocka_unit_test(drafts_that_come_late_do_not_bend_the_law),
        cmocka_unit_test(lost_drafts_and_drafters_do_not_bend_the_law),
    };
    int failed = cmocka_run_group_tests_name("drawn", drawn, start_with_drawer, stop);
    failed += cmocka_run_group_tests_name("telling", telling, start_with_teller, stop);
    return failed + cmocka_run_group_tests_name("modelled", modelled, start_with_draft_model, stop);
}
