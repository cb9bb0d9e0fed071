/* logits_tool.c - our logits of a model file, for comparison by a script.
 *
 *   logits_tool FILE TOKEN...      writes float32 (n_tokens, n_vocab) to standard output */
#include "lib/rig.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "logits_tool FILE TOKEN...\n");
        return 2;
    }
    struct rig rig;
    rig_open(&rig, argv[1], &(struct rig_options){.max_rows = 16});
    size_t n = (size_t)argc - 2, n_vocab = rig.model->params.n_vocab;
    uint32_t *tokens = calloc(n, sizeof(*tokens));
    float *logits = calloc(n * n_vocab, sizeof(*logits));
    if (!tokens || !logits)
        return 1;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t)strtoul(argv[i + 2], NULL, 10);
        if (tokens[i] >= n_vocab) {
            fprintf(stderr, "logits_tool: token %u of %zu\n", tokens[i], n_vocab);
            return 2;
        }
    }
    struct kv_seq seq = rig_seq(&rig);
    rig_feed(&rig, &seq, tokens, (uint32_t)n, 0, logits);
    kv_seq_done(rig.kv, &seq);
    bool ok = fwrite(logits, sizeof(*logits), n * n_vocab, stdout) == n * n_vocab;
    free(logits);
    free(tokens);
    rig_close(&rig);
    return !ok;
}
