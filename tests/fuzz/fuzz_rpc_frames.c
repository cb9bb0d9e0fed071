/* fuzz_rpc_frames.c - the frames of a peer: the verdict does not depend on how the bytes are cut,
 * and nothing passes after a refusal. The first byte says how long the parts are. */
#include <stdint.h>
#include <stdlib.h>
#include "rpc/rpc_frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct rpc_frames whole = {0}, parts = {0};
    if (n == 0)
        return 0;
    const size_t most = 1 + *data++ % 32u;
    n--;
    bool passes = rpc_frames_pass(&whole, data, n, 1), others = true;
    for (size_t at = 0, len; at < n; at += len) {
        len = n - at < most ? n - at : most;
        bool before = others;
        others = rpc_frames_pass(&parts, data + at, len, 1);
        if (others && !before)
            abort();
    }
    if (n && passes != others)
        abort();
    return 0;
}
