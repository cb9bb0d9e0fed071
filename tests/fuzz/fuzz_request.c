/* fuzz_request.c - any bytes as a GenerateRequest, through the request checker. */
#include <stdint.h>
#include <stdlib.h>
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"
#include "verifier-svc/engine/continuation.h"
#include "verifier-svc/engine/request.h"
#include "verifier-svc/engine/seq.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void open_seq(struct seq *s)
{
    enum seq_end end;
    uint32_t left = 1; // the first turn replays one token
    if (seq_open(s) == 0 && s->req->continued && continuation_replay(s, &left, &end) == 0 &&
        !s->replayed) {
        left = UINT32_MAX;
        continuation_replay(s, &left, &end);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct checkpoint *file;
    static struct tok *tok;
    if (!tok && (checkpoint_open(SOURCE_DIR "/models/tales-1m-q8_0.gguf", &file) < 0 ||
                 tok_new(file, &tok) < 0))
        abort();

    struct rpc_msg *msg = rpc_msg_of(data, n);
    Tandem__V1__GenerateRequest *m =
        (Tandem__V1__GenerateRequest *)rpc_unpack(&tandem__v1__generate_request__descriptor, msg);
    rpc_msg_free(msg);
    if (!m)
        return 0;
    struct request_limits limits = {tok, "tales-1m-q8_0", 256, 8, "fp", n % 2};
    struct request *r = NULL;
    if (request_read(m, &limits, &r) == 0 && request_open(r, tok) == 0)
        for (uint32_t i = 0; i < r->n; i++)
            open_seq(r->seqs[i]);
    request_drop(r);
    tandem__v1__generate_request__free_unpacked(m, NULL);
    return 0;
}
