/* The metrics text of a verifier is merged or dropped; the output is bounded by the input, and all
 * of it is printable ASCII. */
#include <stdlib.h>
#include "gateway/serve/prom_merge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct prom_merge p;
    struct buf out;
    prom_merge_init(&p, n % 2);
    buf_init(&out, 1 << 24);
    prom_merge_add(&p, (const char *)data, n, "one", 3);
    prom_merge_add(&p, (const char *)data, n / 2, (const char *)data, n < 40 ? n : 40);
    prom_merge_write(&p, &out);
    prom_merge_write_openmetrics(&p, &out);
    for (size_t i = 0; i < out.len; i++)
        if ((out.data[i] < ' ' && out.data[i] != '\n') || out.data[i] > '~')
            abort();
    buf_done(&out);
    prom_merge_done(&p);
    return 0;
}
