/* secret.h - reads files of keys and certificates, and wipes their content from memory after use.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/mem.h"

#define SECRET_MAX (1 << 20) // bytes of a file

struct secret {
    char *text; // a NUL follows it; NULL: none
    size_t len;
};

/* what: "the TLS key", for error texts. private: log a warning if all users may read the file.
 * -ENOENT, -EACCES ...: the file; -EFBIG: more than SECRET_MAX; -ENOMEM. */
int secret_read(const char *what, const char *path, bool private, struct secret *ret);
/* Wipes and frees the text. */
void secret_done(struct secret *s);
static inline void secret_done_auto(struct secret *s)
{
    secret_done(s);
}
