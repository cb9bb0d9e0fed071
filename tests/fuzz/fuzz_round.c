/* fuzz_round.c - Rounds of hostile verifiers, read by the n-gram proposer. */
#include "lib/rigs/rounds.h"
#include "proposer-svc/props/prop_ngram.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool is_open;
    if (!is_open) {
        prop_ngram_settings = (struct prop_ngram_settings){4, 1, (char *)"latest", false};
        rounds_open(&prop_ngram);
        is_open = true;
    }
    rounds_read(data, n);
    return 0;
}
