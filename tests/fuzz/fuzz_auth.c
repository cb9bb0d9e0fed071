/* A file of API keys is read or refused; keys that are not in it are not accepted. */
#include <stdlib.h>
#include "gateway/keys/auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct auth *a = NULL;
    struct auth_guest *key;
    struct auth_levels levels;
    if (auth_new_text("corpus", (const char *)data, n, &a) == 0 &&
        auth_enter(a, "sk-nobody-has-this-key", true, 1, &key, &levels) == 0)
        abort();
    auth_free(a);
    return 0;
}
