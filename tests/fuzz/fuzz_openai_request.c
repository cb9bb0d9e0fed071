/* Bodies of all endpoints: refused with a sentence, or a struct within its limits. */
#include <assert.h>
#include <string.h>
#include "gateway/openai/openai_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void one(int rc, struct openai_request *q, const struct openai_fault *fault)
{
    if (rc < 0) {
        assert(fault->status >= 400 && fault->text[0]);
        return;
    }
    assert(q->n_stops <= OPENAI_MAX_STOPS && q->n_stop_ids <= OPENAI_MAX_STOP_IDS);
    assert(q->n_bias <= OPENAI_MAX_BIAS);
    assert(!q->n.set || (q->n.value >= 1 && q->n.value <= OPENAI_MAX_N));
    openai_request_done(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct openai_request q;
    struct openai_fault fault;
    const char *body = (const char *)data;
    one(openai_request_parse(OPENAI_CHAT, body, n, NULL, &q, &fault), &q, &fault);
    one(openai_request_parse(OPENAI_COMPLETION, body, n, NULL, &q, &fault), &q, &fault);
    one(openai_request_parse(OPENAI_RESPONSES, body, n, NULL, &q, &fault), &q, &fault);
    one(openai_tokenize_parse(body, n, NULL, &q, &fault), &q, &fault);
    one(openai_detokenize_parse(body, n, NULL, &q, &fault), &q, &fault);
    return 0;
}
