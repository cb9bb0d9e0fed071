/* framing.c - checks the header fields that delimit a request. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "gateway/http/framing.h"

static bool is_token(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] <= ' ' || (unsigned char)s[i] >= 127 ||
            strchr("\"(),/:;<=>?@[\\]{}", s[i]))
            return false;
    return len > 0;
}

static void add_forwarded(struct framing *f, const char *value)
{
    if (f->n_forwarded == FRAMING_MAX_FORWARDED) {
        memmove(f->forwarded, f->forwarded + 1, sizeof(f->forwarded) - sizeof(f->forwarded[0]));
        f->n_forwarded--;
    }
    f->forwarded[f->n_forwarded++] = value;
}

void framing_add(struct framing *f, const char *name, size_t name_len, const char *value,
                 size_t len)
{
    f->n_bytes += name_len + len + 4;
    f->has_bad_char |= !is_token(name, name_len) || strpbrk(value, "\r\n") || strlen(value) != len;
    if (strcasecmp(name, "Host") == 0) {
        f->n_host++;
    } else if (strcasecmp(name, "Content-Length") == 0) {
        f->n_length++;
        f->length = value;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        f->n_coding++;
        f->coding = value;
    } else if (strcasecmp(name, "X-Request-Id") == 0) {
        f->id = value;
    } else if (strcasecmp(name, "X-Forwarded-For") == 0) {
        add_forwarded(f, value);
    } else if (strcasecmp(name, "Expect") == 0) {
        f->expect = value;
    }
}

const char *framing_fault(const struct framing *f, const char *version)
{
    if (f->has_bad_char)
        return "a header name or value holds forbidden characters";
    if (f->n_host > 1 || f->n_length > 1 || f->n_coding > 1)
        return "Host, Content-Length and Transfer-Encoding must not repeat";
    if (f->n_length && f->n_coding)
        return "Content-Length and Transfer-Encoding exclude each other";
    if (f->coding && (strcasecmp(f->coding, "chunked") != 0 || strcmp(version, "HTTP/1.1") != 0))
        return "the only Transfer-Encoding is chunked, in HTTP/1.1";
    if (f->length && (!*f->length || strspn(f->length, "0123456789") != strlen(f->length)))
        return "Content-Length is not a number";
    return NULL;
}

unsigned long long framing_length(const struct framing *f)
{
    return f->length ? strtoull(f->length, NULL, 10) : 0;
}

bool framing_sane_id(const char *id)
{
    static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = id ? strlen(id) : 0;
    return n > 0 && n <= 64 && strspn(id, chars) == n;
}
