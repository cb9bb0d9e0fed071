/* fuzz_trace.c - a traceparent from a header: the result is an id of 32 digits, or none. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char id[TRACE_ID_LEN + 1];
    bool good = trace_id(data, n, id);
    if (strlen(id) != (good ? TRACE_ID_LEN : 0) || (good && n != TRACE_LEN))
        abort();
    return 0;
}
