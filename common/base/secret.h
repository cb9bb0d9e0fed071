/* secret.h - files of keys and certificates: read whole, wiped afterwards.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/mem.h"

#define SECRET_MAX (1 << 20) // bytes of a file

struct secret {
    char *text; // NUL behind it; NULL: none
    size_t len;
};

/* what: "the TLS key", for sentences. keep: a warning if everybody on this machine may read it.
 * -ENOENT, -EACCES ..., -EFBIG, -ENOMEM. */
int secret_read(const char *what, const char *path, bool keep, struct secret *ret);
void secret_done(struct secret *s);
static inline void secret_done_auto(struct secret *s)
{
    secret_done(s);
}
