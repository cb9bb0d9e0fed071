/* utf8.c - checks and decodes UTF-8. */
#include <string.h>
#include "base/utf8.h"

/* Bytes of a character that begins with `first` (0: no character does), and the range of its second
 * byte. */
static unsigned char_bytes(uint8_t first, uint8_t *ret_low, uint8_t *ret_high)
{
    *ret_low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *ret_high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

unsigned utf8_step(const char *s, size_t len, enum utf8_what *ret_what)
{
    const uint8_t *at = (const uint8_t *)s;
    uint8_t low, high;
    unsigned need = char_bytes(at[0], &low, &high), have = 1;
    *ret_what = need > 0 ? UTF8_CHAR : UTF8_BAD;
    while (have < need) {
        if (have == len) {
            *ret_what = UTF8_CUT;
            return have;
        }
        if (at[have] < low || at[have] > high) {
            *ret_what = UTF8_BAD;
            return have;
        }
        low = 0x80;
        high = 0xbf;
        have++;
    }
    return have;
}

unsigned utf8_next(const char *s, size_t len, uint32_t *ret_code)
{
    static const uint8_t mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    enum utf8_what what;
    if (len == 0)
        return 0;
    unsigned n = utf8_step(s, len, &what);
    if (what != UTF8_CHAR)
        return 0;
    uint32_t code = (uint8_t)s[0] & mask[n];
    for (unsigned i = 1; i < n; i++)
        code = code << 6 | ((uint8_t)s[i] & 0x3f);
    *ret_code = code;
    return n;
}

size_t utf8_valid(const char *s, size_t len)
{
    size_t at = 0;
    while (at < len) {
        uint64_t eight;
        if (len - at >= sizeof(eight)) { // most text is ASCII
            memcpy(&eight, s + at, sizeof(eight));
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof(eight);
                continue;
            }
        }
        enum utf8_what what;
        unsigned n = utf8_step(s + at, len - at, &what);
        if (what != UTF8_CHAR)
            return at;
        at += n;
    }
    return len;
}
