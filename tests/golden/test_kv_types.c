/* test_kv_types.c - the effect of K and V as f16 or int8 on the predictions of held-out text. The
 * model is the embedded target. The reference has K and V as f32. */
#include <math.h>
#include <stdlib.h>
#include "lib/lib.h"
#include "lib/rigs/model_rig.h"
#include "lib/models/texts.h"

#define EMBEDDED SOURCE_DIR "/models/tales-11m-q8_0.gguf"
#define FEW 24 // documents; the long suite uses all
#define MAX_TOKENS 1024

/* -log p of a token. */
static double loss_of(const struct kernel *k, const float *logits, uint32_t n, uint32_t token)
{
    return k->logsumexp(logits, n) - (double)logits[token];
}

/* The perplexity of all tokens except the first of each document. */
static double perplexity(const struct texts *t, enum kernel_kv type)
{
    struct model_rig r;
    double sum = 0;
    uint32_t n = 0;
    model_rig_open(&r, EMBEDDED,
                   &(struct model_rig_options){.kv_type = type, .n_threads = 2, .max_rows = 64});
    size_t n_vocab = r.model->params.n_vocab;
    AUTO(mem_free) float *logits = calloc(MAX_TOKENS * n_vocab, sizeof(*logits));
    assert_non_null(logits);
    for (unsigned i = 0; i < t->n; i++) {
        const struct text_sample *s = &t->samples[i];
        uint32_t n_tokens = s->n < MAX_TOKENS ? s->n : MAX_TOKENS;
        struct kv_seq seq = model_rig_seq(&r);
        model_rig_feed(&r, &seq, s->tokens, n_tokens, 0, logits);
        kv_seq_done(r.kv, &seq);
        for (uint32_t at = 0; at + 1 < n_tokens; at++, n++)
            sum += loss_of(r.model->kernel, logits + at * n_vocab, (uint32_t)n_vocab,
                           s->tokens[at + 1]);
    }
    model_rig_close(&r);
    double got = exp(sum / n);
    print_message("%s: perplexity %.4f of %u tokens in %u documents\n", kernel_kv_name(type), got,
                  n, t->n);
    return got;
}

static void int8_predicts_as_well_as_floats(void **state)
{
    (void)state;
    lib_need_shared("models/heldout.jsonl");
    struct tok *tok = texts_vocabulary(EMBEDDED);
    struct texts t = texts_load(TEXTS_TALES, tok, getenv("TANDEM_TEST_LONG") ? UINT32_MAX : FEW);
    assert_true(t.n >= FEW);
    double f32 = perplexity(&t, KERNEL_KV_F32), f16 = perplexity(&t, KERNEL_KV_F16);
    double int8 = perplexity(&t, KERNEL_KV_INT8);
    print_message("f16 of f32: %+.3f %%, int8 of f16: %+.3f %%\n", 100 * (f16 / f32 - 1),
                  100 * (int8 / f16 - 1));
    assert_true(fabs(f16 / f32 - 1) < 5e-3);
    assert_true(fabs(int8 / f16 - 1) < 5e-3);
    texts_done(&t);
    tok_free(tok);
}

int main(void)
{
    kernel_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_predicts_as_well_as_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
