/* make_model.c - writes a synthetic Llama model with random weights.
 *
 *   make_model --shape 0.1b|1b|3b --type q8_0|q4_0|f16 --out FILE [--seed N] */
#include "base/err.h"
#include "lib/synth.h"
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static const struct option options[] = {{"shape", required_argument, NULL, 's'},
                                            {"type", required_argument, NULL, 't'},
                                            {"out", required_argument, NULL, 'o'},
                                            {"seed", required_argument, NULL, 'r'},
                                            {0}};
    const char *shape = "0.1b", *type = "q8_0", *out = NULL;
    uint64_t seed = 1;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 's')
            shape = optarg;
        else if (c == 't')
            type = optarg;
        else if (c == 'o')
            out = optarg;
        else if (c == 'r')
            seed = strtoull(optarg, NULL, 10);
        else
            return 2;
    }
    if (!out) {
        fprintf(stderr, "make_model: --out is missing\n");
        return 2;
    }
    if (synth_write(out, shape, type, seed) < 0) {
        fprintf(stderr, "make_model: %s\n", fail_text());
        return 1;
    }
    return 0;
}
