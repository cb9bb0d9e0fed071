/* fuzz_conf.c - the text of a configuration file, against a table with every kind of setting. */
#include <stdlib.h>
#include <string.h>
#include "base/conf.h"
#include "base/err.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int64_t k = 5;
    double rate = 1;
    bool lookup = false;
    char *model = NULL, *proposer = NULL;
    struct conf_list listens = {0};
    const struct conf_option options[] = {
        {.name = "k", .kind = CONF_INT, .value = &k, .min = 1, .max = 20, .alias = "n_max|n"},
        {.name = "ngram.rate", .kind = CONF_FLOAT, .value = &rate, .min = 0, .max = 2},
        {.name = "prompt_lookup", .kind = CONF_BOOL, .value = &lookup},
        {.name = "model", .kind = CONF_TEXT, .value = &model},
        {.name = "proposer", .kind = CONF_CHOICE, .value = &proposer, .choices = "none|ngram"},
        {.name = "listen", .kind = CONF_LIST, .value = &listens, .max = 20},
    };
    const struct conf table = {"fuzz", "", options, ARRAY_LEN(options)};
    int r = conf_read_text(&table, "f.conf", (const char *)data, n);
    if (k < 1 || k > 20 || !(rate >= 0 && rate <= 2) || listens.n > 20)
        abort(); // a value outside its range was accepted
    if (proposer && strcmp(proposer, "none") != 0 && strcmp(proposer, "ngram") != 0)
        abort();
    if (r < 0 && !*fail_text())
        abort(); // an error without a sentence
    conf_done(&table);
    return 0;
}
