/* json_scan.c - checks the syntax of a JSON value. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "gateway/openai/json_scan.h"
#include "gateway/openai/json_write.h"

struct scan {
    const unsigned char *at, *end;
    int depth;
    uint8_t objects[JSON_SCAN_MAX_DEPTH / 8]; // a bit for each open array (0) or object (1)
};

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static void skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

/* ---- strings ---- */

/* Takes the four digits after \u. */
static int scan_hex(struct scan *s, unsigned *ret)
{
    *ret = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        if (s->at == s->end)
            return -EAGAIN;
        unsigned char c = *s->at, low = c | 0x20;
        if (!is_digit(c) && (low < 'a' || low > 'f'))
            return -EINVAL;
        *ret = *ret << 4 | (unsigned)(is_digit(c) ? c - '0' : low - 'a' + 10);
    }
    return 0;
}

static int scan_unicode(struct scan *s, bool key)
{
    unsigned first, second;
    int rc = scan_hex(s, &first);
    if (rc < 0 || (first & 0xF800) != 0xD800)
        return rc < 0 ? rc : key && !first ? -EINVAL : 0;
    if (first >= 0xDC00)
        return -EINVAL;
    for (const char *c = "\\u"; *c; c++, s->at++) {
        if (s->at == s->end)
            return -EAGAIN;
        if (*s->at != (unsigned char)*c)
            return -EINVAL;
    }
    rc = scan_hex(s, &second);
    return rc < 0 ? rc : (second & 0xFC00) == 0xDC00 ? 0 : -EINVAL;
}

/* Takes what follows a backslash. */
static int scan_escape(struct scan *s, bool key)
{
    if (s->at == s->end)
        return -EAGAIN;
    unsigned char c = *s->at++;
    if (c == 'u')
        return scan_unicode(s, key);
    return c && strchr("\"\\/bfnrt", c) ? 0 : -EINVAL;
}

/* Takes a string; its first quote is at `at`. */
static int scan_string(struct scan *s, bool key)
{
    s->at++;
    while (s->at < s->end) {
        unsigned char c = *s->at;
        unsigned n = c < 0x80 ? c >= ' ' : json_write_utf8(s->at, (size_t)(s->end - s->at));
        if (!n)
            return -EINVAL;
        s->at += n;
        if (c == '"')
            return 0;
        int rc = c == '\\' ? scan_escape(s, key) : 0;
        if (rc < 0)
            return rc;
    }
    return -EAGAIN;
}

/* ---- numbers ---- */

/* The size of a number: it is 0.d1d2d3... times 10 to the power `power`, d1 is not 0. */
struct size {
    char digits[18]; // the first ones
    unsigned n_digits;
    int64_t power;
    bool fraction; // the next digit is one
};

static void add_digit(struct size *z, unsigned char c)
{
    bool leading = !z->n_digits && c == '0';
    if (!leading && z->n_digits < sizeof(z->digits) - 1)
        z->digits[z->n_digits++] = (char)c;
    z->power += z->fraction ? -(int64_t)leading : !leading;
}

/* Takes at least one digit. */
static int scan_digits(struct scan *s, struct size *z)
{
    if (s->at == s->end)
        return -EAGAIN;
    if (!is_digit(*s->at))
        return -EINVAL;
    for (; s->at < s->end && is_digit(*s->at); s->at++)
        add_digit(z, *s->at);
    return 0;
}

static int scan_exponent(struct scan *s, struct size *z)
{
    bool negative = s->at < s->end && *s->at == '-';
    s->at += s->at < s->end && (negative || *s->at == '+');
    const unsigned char *from = s->at;
    int rc = scan_digits(s, &(struct size){0});
    int64_t power = 0;
    for (; from < s->at && power < INT32_MAX; from++)
        power = power * 10 + (*from - '0');
    z->power += negative ? -power : power;
    return rc;
}

/* Whether a double can hold it: DBL_MAX is 0.17976931348623157... times 10^309. */
static bool fits(const struct size *z)
{
    static const char max[] = "17976931348623157";
    return !z->n_digits || z->power < 309 ||
           (z->power == 309 && memcmp(z->digits, max, z->n_digits) <= 0);
}

static int scan_number(struct scan *s)
{
    struct size z = {0};
    s->at += *s->at == '-';
    const unsigned char *first = s->at;
    int rc = scan_digits(s, &z);
    if (rc == 0 && *first == '0' && s->at > first + 1)
        rc = -EINVAL;
    if (rc == 0 && s->at < s->end && *s->at == '.') {
        s->at++;
        z.fraction = true;
        rc = scan_digits(s, &z);
    }
    if (rc == 0 && s->at < s->end && (*s->at | 0x20) == 'e') {
        s->at++;
        rc = scan_exponent(s, &z);
    }
    return rc == 0 && !fits(&z) ? -EINVAL : rc;
}

/* ---- values ---- */

static int scan_word(struct scan *s, const char *word)
{
    for (; *word; word++, s->at++) {
        if (s->at == s->end)
            return -EAGAIN;
        if (*s->at != (unsigned char)*word)
            return -EINVAL;
    }
    return 0;
}

static int open_level(struct scan *s, bool object)
{
    if (s->depth == JSON_SCAN_MAX_DEPTH)
        return -EINVAL;
    uint8_t bit = (uint8_t)(1u << s->depth % 8), *at = &s->objects[s->depth / 8];
    *at = (uint8_t)(object ? *at | bit : *at & ~bit);
    s->depth++;
    s->at++;
    return 0;
}

static bool in_object(const struct scan *s)
{
    return s->objects[(s->depth - 1) / 8] >> (s->depth - 1) % 8 & 1;
}

/* Takes a value, or the bracket that begins one. */
static int scan_value(struct scan *s)
{
    unsigned char c = *s->at;
    if (c == '{' || c == '[')
        return open_level(s, c == '{');
    return c == '"'                  ? scan_string(s, false)
           : c == '-' || is_digit(c) ? scan_number(s)
           : c == 't'                ? scan_word(s, "true")
           : c == 'f'                ? scan_word(s, "false")
           : c == 'n'                ? scan_word(s, "null")
                                     : -EINVAL;
}

/* Takes a key and its colon. */
static int scan_key(struct scan *s)
{
    int rc = *s->at == '"' ? scan_string(s, true) : -EINVAL;
    if (rc < 0)
        return rc;
    skip_space(s);
    if (s->at == s->end)
        return -EAGAIN;
    return *s->at++ == ':' ? 0 : -EINVAL;
}

/* What may come next. */
enum next { VALUE, MEMBER, FIRST, AFTER };

/* Takes one step inside an array or an object; *next is what came before, then what may follow. */
static int scan_step(struct scan *s, enum next *next)
{
    bool object = in_object(s), closes = *s->at == (object ? '}' : ']');
    int rc = 0;
    if (closes && (*next == FIRST || *next == AFTER)) {
        s->at++;
        s->depth--;
        *next = AFTER;
    } else if (*next == AFTER) {
        rc = *s->at++ == ',' ? 0 : -EINVAL;
        *next = object ? MEMBER : VALUE;
    } else if (*next == MEMBER || (*next == FIRST && object)) {
        rc = scan_key(s);
        *next = VALUE;
    } else {
        int before = s->depth;
        rc = scan_value(s);
        *next = s->depth > before ? FIRST : AFTER;
    }
    return rc;
}

int json_scan(const char *text, size_t len, size_t *ret_len)
{
    struct scan s = {.at = (const unsigned char *)text, .end = (const unsigned char *)text + len};
    int rc = len ? scan_value(&s) : -EAGAIN;
    for (enum next next = FIRST; rc == 0 && s.depth;) {
        skip_space(&s);
        rc = s.at < s.end ? scan_step(&s, &next) : -EAGAIN;
    }
    if (rc == 0)
        *ret_len = (size_t)(s.at - (const unsigned char *)text);
    return rc;
}
