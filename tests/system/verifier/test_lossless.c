/* test_lossless.c - promise 2 through the real services. Drafts are drawn from a distribution that
 * the proposer reports. The committed tokens follow the target's distribution
 * (lib/oracles/token_dist.h).
 *
 * Drafts have two tokens. They come from
 * - a proposer of the tests; the request's penalties count the draft's tokens;
 * - a draft model, which drafts ahead where nothing is drawn;
 * - a cascade. */
#include <stdio.h>
#include "lib/oracles/figures.h"
#include "lib/oracles/token_dist.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"

#define SMALL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define LARGE SOURCE_DIR "/models/tales-11m-q8_0.gguf"
#define N_VOCAB 4096
#define N_AT_ONCE 25
#define TRIES 100

static struct service verifier, draft_service;
static struct liar *liar;
static struct rpc_client *client;
static struct token_dist dist;

/* ---- services ---- */

static void start_verifier(const char *model, const char *proposer, bool ahead)
{
    service_start(&verifier, "verifier-svc",
                  (const char *[]){"--model", model, "--policy", "fixed", "--k", "2",
                                   "--disable-batch-size", "0", "--proposer-budget-ms", "250",
                                   "--proposers", proposer,
                                   ahead ? "--draft-ahead" : "--no-draft-ahead", NULL});
    assert_int_equal(rpc_client_new(verifier.target, NULL, &client), 0);
    wait_proposers(client);
}

static int start_with_liar(void **state)
{
    (void)state;
    char path[PROPOSER_PATH_MAX], target[PROPOSER_PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s/drawer.sock", service_dir());
    snprintf(target, sizeof(target), "unix:%s", path);
    liar = liar_start(path, LIE_DRAWN, N_VOCAB);
    start_verifier(SMALL, target, false);
    token_dist_learn(&dist, client, true, 3);
    return 0;
}

static int start_with_service(const char *proposer, bool ahead)
{
    service_start(&draft_service, "proposer-svc",
                  (const char *[]){"--proposer", proposer, "--cascade", "suffix,draft",
                                   "--draft-model", SMALL, NULL});
    start_verifier(LARGE, draft_service.target, ahead);
    token_dist_learn(&dist, client, false, 2);
    return 0;
}

static int start_with_draft_model(void **state)
{
    (void)state;
    return start_with_service("draft", true);
}

/* Past outputs are known to it: what it says of them is chosen, what its model says is drawn. */
static int start_with_cascade(void **state)
{
    (void)state;
    return start_with_service("cascade", false);
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(client);
    service_stop(&verifier);
    service_stop(&draft_service);
    liar_stop(liar);
    liar = NULL;
    return 0;
}

/* ---- the distribution ---- */

/* Runs n requests for each rule. Each batch holds requests of all rules. */
static void run_requests(struct asked *v, unsigned n_rules, uint32_t n)
{
    static struct token_dist_batch batch;
    for (uint32_t left = n_rules * n; left; left -= batch.n) {
        token_dist_start(&dist, v, n_rules, left < N_AT_ONCE ? left : N_AT_ONCE, &batch);
        token_dist_end(&batch);
    }
}

static uint32_t n_answers(void)
{
    return (uint32_t)lib_amount(200, 2000, 50000);
}

static void every_lossless_rule_keeps_the_distribution(void **state)
{
    (void)state;
    struct asked v[] = {{.rule = "own-draw"},
                        {.rule = "rejection"},
                        {.rule = "block"},
                        {.rule = "recursive"},
                        {.rule = "block", .dense = true}};
    run_requests(v, ARRAY_LEN(v), n_answers());
    for (unsigned i = 0; i < ARRAY_LEN(v); i++) {
        for (unsigned t = 0; t < TRIES && !v[i].n_accepted; t++) { // drafts were late
            wait_proposers(client);
            run_requests(&v[i], 1, N_AT_ONCE);
        }
        assert_true(token_dist_tail(&dist, &v[i]) > SURELY_WRONG);
        assert_true(v[i].n_accepted > 0);
    }
}

static void lossy_rules_and_a_wrong_q_are_detected(void **state)
{
    (void)state;
    struct asked v[] = {{.rule = "threshold"},
                        {.rule = "lenience", .parameter = .5F},
                        {.rule = "own-draw"}, // runs in every batch with the lossy rules
                        {.rule = "block"}};
    const uint32_t n = (uint32_t)lib_amount(200, 1500, 1500); // sanitizer: too few to detect it
    struct asked lied[] = {{.rule = "rejection"}, {.rule = "block"}};
    run_requests(v, ARRAY_LEN(v), n);
    for (unsigned i = 0; i < ARRAY_LEN(v); i++)
        assert_true(i < 2 ? LIB_SANITIZED || token_dist_tail(&dist, &v[i]) < SURELY_WRONG
                          : token_dist_tail(&dist, &v[i]) > SURELY_WRONG);
    liar_change(liar, LIE_OTHER_Q);
    run_requests(lied, ARRAY_LEN(lied), n);
    for (unsigned i = 0; i < ARRAY_LEN(lied); i++)
        assert_true(LIB_SANITIZED || token_dist_tail(&dist, &lied[i]) < SURELY_WRONG);
}

int main(void)
{
    const struct CMUnitTest told[] = {
        cmocka_unit_test(every_lossless_rule_keeps_the_distribution),
        cmocka_unit_test(lossy_rules_and_a_wrong_q_are_detected),
    };
    const struct CMUnitTest modelled[] = {
        cmocka_unit_test(every_lossless_rule_keeps_the_distribution),
    };
    int failed = cmocka_run_group_tests(told, start_with_liar, stop);
    failed += cmocka_run_group_tests(modelled, start_with_draft_model, stop);
    return failed + cmocka_run_group_tests(modelled, start_with_cascade, stop);
}
