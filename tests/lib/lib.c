/* lib.c - functions for all tests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/lib.h"

uint64_t lib_amount(uint64_t little, uint64_t some, uint64_t much)
{
    return LIB_SANITIZED ? little : getenv("TANDEM_TEST_LONG") ? much : some;
}

uint64_t lib_next_call(uint64_t n, uint64_t part)
{
    return n + 1 + n / lib_amount(part, part, UINT64_MAX);
}

const char *lib_shared(const char *path)
{
    static char full[4096];
    snprintf(full, sizeof(full), "%s/../shared/%s", SOURCE_DIR, path);
    if (access(full, R_OK) == 0)
        return full;
    printf("skipped: there is no ../shared/%s next to the checkout\n", path);
    return NULL;
}

const char *lib_need_shared(const char *path)
{
    const char *full = lib_shared(path);
    if (!full)
        skip();
    return full;
}

char *lib_read(const char *path, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = malloc((size_t)n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)n, f), n);
    fclose(f);
    text[n] = 0;
    *ret_len = (size_t)n;
    return text;
}

unsigned lib_put_utf8(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    unsigned n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (unsigned i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    out[0] = (char)((0xf00 >> n) | code);
    return n;
}

bool lib_listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p; p = strchr(p, ','), p += p != NULL)
        if (!strncmp(p, name, n) && (p[n] == ',' || !p[n]))
            return true;
    return false;
}
