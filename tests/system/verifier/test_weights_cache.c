/* test_weights_cache.c - services that map packed weights: the same bits, and the weights in memory
 * once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/clients/generate.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define N_TOKENS 30

static char folder[256];

static void answer_of(const struct service *s, struct answer *a)
{
    struct rpc_client *c = NULL;
    Tandem__V1__GenerateRequest req = TANDEM__V1__GENERATE_REQUEST__INIT;
    Tandem__V1__Sampling sampling = TANDEM__V1__SAMPLING__INIT;
    static const char prompt[] = "Once upon a time";
    sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    sampling.seed = 7;
    req.sampling = &sampling;
    req.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    req.text.data = (uint8_t *)(uintptr_t)prompt;
    req.text.len = strlen(prompt);
    req.ignore_eos = req.logprobs = true;
    req.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    req.max_tokens = N_TOKENS;
    assert_int_equal(rpc_client_new(s->target, NULL, &c), 0);
    generation_run(c, &req, a);
    rpc_client_free(c);
    assert_int_equal(a->n, N_TOKENS);
}

static void must_answer(const struct service *s, const struct answer *want)
{
    static struct answer got;
    answer_of(s, &got);
    assert_memory_equal(got.ids, want->ids, N_TOKENS * sizeof(*got.ids));
    assert_memory_equal(got.logprobs, want->logprobs, N_TOKENS * sizeof(*got.logprobs));
}

/* KiB of the mapped weights of a process: all its pages, and its share of them. */
static void mapped_kib(const struct service *s, unsigned long *ret_all, unsigned long *ret_share)
{
    char path[64], line[512];
    bool weights = false;
    unsigned long from, to;
    snprintf(path, sizeof(path), "/proc/%d/smaps", s->pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    *ret_all = *ret_share = 0;
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) // a mapping; its figures follow
            weights = strstr(line, ".weights") != NULL;
        if (weights && !strncmp(line, "Rss:", 4))
            *ret_all += strtoul(line + 4, NULL, 10);
        if (weights && !strncmp(line, "Pss:", 4))
            *ret_share += strtoul(line + 4, NULL, 10);
    }
    fclose(f);
}

static void must_share(const struct service *s, unsigned n)
{
    unsigned long all, share;
    mapped_kib(s, &all, &share);
    if (all < 1000 || share > all / n + 100)
        fail_msg("%lu KiB are mapped, and the share is %lu", all, share);
}

static void services_share_their_weights(void **state)
{
    (void)state;
    static struct answer want;
    struct service plain = {0}, first = {0}, second = {0}, proposer = {0};
    char command[300];
    snprintf(folder, sizeof(folder), "%s/weights", service_dir());
    snprintf(command, sizeof(command), "mkdir %s", folder);
    assert_int_equal(system(command), 0);
    service_start(&plain, "verifier-svc", (const char *[]){"--model", MODEL, NULL});
    answer_of(&plain, &want);
    service_stop(&plain);

    const char *const args[] = {"--model", MODEL, "--weights-cache", folder, NULL};
    service_spawn(&first, "verifier-svc", args); // both pack, or one waits for the other
    service_spawn(&second, "verifier-svc", args);
    service_wait_healthy(&first);
    service_wait_healthy(&second);
    must_answer(&first, &want);
    must_answer(&second, &want);
    must_share(&first, 2);
    must_share(&second, 2);
    assert_int_equal(service_said(&first, "packed weights are mapped") +
                         service_said(&second, "packed weights are mapped"),
                     1);

    service_start(&proposer, "proposer-svc",
                  (const char *[]){"--proposer", "draft", "--draft-model", MODEL,
                                   "--draft-weights-cache", folder, NULL});
    must_share(&proposer, 3);
    assert_true(service_said(&proposer, "packed weights are mapped"));

    snprintf(command, sizeof(command), "rm %s/*.weights", folder);
    assert_int_equal(system(command), 0);
    must_answer(&second, &want);
    service_stop(&first);
    service_stop(&second);
    service_stop(&proposer);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(services_share_their_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
