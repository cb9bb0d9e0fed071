/* json_write.c - writes JSON values into a buffer. */
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "gateway/openai/json_write.h"

static bool is_tail_byte(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

unsigned json_write_utf8(const unsigned char *s, size_t len)
{
    unsigned char a = s[0], b = len > 1 ? s[1] : 0;
    if (a < 0x80)
        return 1;
    if (a < 0xC2 || a > 0xF4 || !is_tail_byte(b))
        return 0;
    if (a < 0xE0)
        return 2;
    if (len < 3 || !is_tail_byte(s[2]) || (a == 0xE0 && b < 0xA0) || (a == 0xED && b > 0x9F))
        return 0;
    if (a < 0xF0)
        return 3;
    if (len < 4 || !is_tail_byte(s[3]) || (a == 0xF0 && b < 0x90) || (a == 0xF4 && b > 0x8F))
        return 0;
    return 4;
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
}

static void write_escape(struct buf *to, unsigned char c)
{
    switch (c) {
    case '"':
        buf_puts(to, "\\\"");
        return;
    case '\\':
        buf_puts(to, "\\\\");
        return;
    case '\n':
        buf_puts(to, "\\n");
        return;
    case '\r':
        buf_puts(to, "\\r");
        return;
    case '\t':
        buf_puts(to, "\\t");
        return;
    default:
        buf_printf(to, "\\u%04x", c);
    }
}

void json_write_chars(struct buf *to, const void *text, size_t len)
{
    const unsigned char *s = text;
    size_t i = 0;
    while (i < len) {
        size_t run = i;
        while (run < len && is_plain(s[run]))
            run++;
        buf_add(to, s + i, run - i);
        if ((i = run) == len)
            return;
        unsigned n = s[i] < 0x80 ? 0 : json_write_utf8(s + i, len - i);
        if (n)
            buf_add(to, s + i, n);
        else if (s[i] < 0x80)
            write_escape(to, s[i]);
        else
            buf_puts(to, "\xEF\xBF\xBD");
        i += n ? n : 1;
    }
}

void json_write_text(struct buf *to, const void *text, size_t len)
{
    buf_add(to, "\"", 1);
    json_write_chars(to, text, len);
    buf_add(to, "\"", 1);
}

void json_write_cstr(struct buf *to, const char *text)
{
    json_write_text(to, text, strlen(text));
}

void json_write_bytes(struct buf *to, const void *data, size_t len)
{
    const unsigned char *s = data;
    buf_puts(to, "[");
    for (size_t i = 0; i < len; i++)
        buf_printf(to, "%s%u", i ? "," : "", s[i]);
    buf_puts(to, "]");
}

void json_write_float(struct buf *to, float value)
{
    if (isfinite(value) && value > -9999)
        buf_printf(to, "%.9g", (double)value);
    else
        buf_puts(to, "-9999.0");
}

void json_write_double(struct buf *to, double value)
{
    buf_printf(to, "%.6g", isfinite(value) ? value : 0);
}
