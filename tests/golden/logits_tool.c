/* logits_tool.c - our logits of a model file, for comparison by a script.
 *
 *   logits_tool FILE [int8|f16|f32] TOKEN...
 *
 * writes float32 (n_tokens, n_vocab) to standard output. The type of K and V is f16 by default. */
#include "lib/rigs/model_rig.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    struct model_rig_options opt = {.max_rows = 16};
    int first = argc > 2 && kernel_kv_type(argv[2], &opt.kv_type) ? 3 : 2;
    if (argc <= first) {
        fprintf(stderr, "logits_tool FILE [int8|f16|f32] TOKEN...\n");
        return 2;
    }
    struct model_rig rig;
    model_rig_open(&rig, argv[1], &opt);
    size_t n = (size_t)(argc - first), n_vocab = rig.model->params.n_vocab;
    uint32_t *tokens = calloc(n, sizeof(*tokens));
    float *logits = calloc(n * n_vocab, sizeof(*logits));
    if (!tokens || !logits)
        return 1;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t)strtoul(argv[i + (size_t)first], NULL, 10);
        if (tokens[i] >= n_vocab) {
            fprintf(stderr, "logits_tool: token %u of %zu\n", tokens[i], n_vocab);
            return 2;
        }
    }
    struct kv_seq seq = model_rig_seq(&rig);
    model_rig_feed(&rig, &seq, tokens, (uint32_t)n, 0, logits);
    kv_seq_done(rig.kv, &seq);
    bool ok = fwrite(logits, sizeof(*logits), n * n_vocab, stdout) == n * n_vocab;
    free(logits);
    free(tokens);
    model_rig_close(&rig);
    return !ok;
}
