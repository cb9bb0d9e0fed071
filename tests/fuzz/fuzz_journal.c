/* fuzz_journal.c - a log line with foreign text: its fields stay within their buffer, and their
 * names begin with TANDEM_. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/journal.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct journal_fields f;
    AUTO(mem_free) char *line = strndup((const char *)data, n);
    if (!line)
        return 0;
    journal_fields(line, &f);
    if (f.n > JOURNAL_MAX_FIELDS || f.used > sizeof(f.text))
        abort();
    for (unsigned i = 0; i < f.n; i++) {
        const char *s = f.v[i].iov_base;
        size_t len = f.v[i].iov_len;
        if (s < f.text || s + len > f.text + f.used + 1 || memcmp(s, "TANDEM_", 7) != 0 ||
            !memchr(s, '=', len))
            abort();
    }
    return 0;
}
