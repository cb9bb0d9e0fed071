/* fuzz_round.c - Rounds of a hostile verifier: a stream of messages, each after its length (2
 * bytes, little-endian). */
#include <stdlib.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include "proposer-svc/props/prop_ngram.h"
#include "proposer-svc/proposer.h"
#include "rpc/rpc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct sessions *sessions;
static struct proposer *service;

static void start(void)
{
    void *shared;
    prop_ngram_settings = (struct prop_ngram_settings){4, 1, (char *)"latest", false};
    if (prop_ngram.open(&shared) < 0)
        abort();
    struct sessions_config sc = {.ops = &prop_ngram,
                                 .shared = shared,
                                 .max_sessions = 4,
                                 .max_tokens = 1000,
                                 .max_context = 500,
                                 .k_max = 20,
                                 .idle_us = INT64_MAX};
    struct proposer_config c = {.name = "ngram", .k_max = 20, .ops = &prop_ngram, .shared = shared};
    if (sessions_new(&sc, &sessions) < 0)
        abort();
    c.sessions = sessions;
    if (proposer_new(&c, &service) < 0)
        abort();
}

static void take(uint64_t stream, const uint8_t *data, size_t n)
{
    struct rpc_msg *msg = rpc_msg_of(data, n), *answer = NULL;
    Tandem__V1__Round *round = (Tandem__V1__Round *)rpc_unpack(&tandem__v1__round__descriptor, msg);
    rpc_msg_free(msg);
    if (!round)
        return;
    proposer_round(service, stream, round, &answer);
    rpc_msg_free(answer);
    tandem__v1__round__free_unpacked(round, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!service)
        start();
    for (unsigned i = 0; n >= 2; i++) {
        size_t len = data[0] | (size_t)data[1] << 8;
        len = len < n - 2 ? len : n - 2;
        take(1 + i % 2, data + 2, len);
        data += 2 + len;
        n -= 2 + len;
    }
    struct sessions_stats stats;
    sessions_stats(sessions, &stats);
    if (stats.n_sessions > 4 || stats.n_tokens > 1000)
        abort();
    sessions_end_stream(sessions, 1);
    sessions_end_stream(sessions, 2);
    sessions_stats(sessions, &stats);
    if (stats.n_sessions || stats.n_tokens)
        abort();
    return 0;
}
