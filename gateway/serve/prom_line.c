/* prom_line.c - reads a line of Prometheus metrics. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/serve/prom_line.h"

struct prom_line_text prom_line_name(const char *s, size_t len)
{
    size_t n = 0;
    while (n < len && (isalpha((unsigned char)s[n]) || s[n] == '_' || s[n] == ':' ||
                       (n && isdigit((unsigned char)s[n]))))
        n++;
    return (struct prom_line_text){s, n};
}

static bool text_is(struct prom_line_text s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.at, text, s.len) == 0;
}

static bool is_printable(struct prom_line_text line)
{
    for (size_t i = 0; i < line.len; i++)
        if (line.at[i] < ' ' || line.at[i] > '~')
            return false;
    return true;
}

/* After the text in quotes at `at`, which may escape quotes, backslashes and newlines. NULL: it is
 * none. */
static const char *skip_quoted(const char *at, const char *end)
{
    if (at == end || *at != '"')
        return NULL;
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\' && (++at == end || !strchr("\\\"n", *at)))
            return NULL;
    return at < end ? at + 1 : NULL;
}

/* Names with two underscores belong to Prometheus. */
static bool is_label(struct prom_line_text name)
{
    return name.len && !memchr(name.at, ':', name.len) &&
           !(name.len > 1 && memcmp(name.at, "__", 2) == 0);
}

static bool is_among(struct prom_line_text name, const struct prom_line_text *names, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (names[i].len == name.len && memcmp(names[i].at, name.at, name.len) == 0)
            return true;
    return false;
}

/* After the brace that closes the labels. NULL: they are malformed. at: after the first brace;
 * taken: a name that no label may have, or NULL. */
static const char *skip_labels(const char *at, const char *end, const char *taken)
{
    struct prom_line_text names[PROM_LINE_MAX_LABELS];
    unsigned n = 0;
    if (at < end && *at == '}')
        return at + 1;
    for (; at < end; at++) { // a comma is skipped
        struct prom_line_text name = prom_line_name(at, (size_t)(end - at));
        at += name.len;
        if (!is_label(name) || (taken && text_is(name, taken)) || is_among(name, names, n) ||
            n == PROM_LINE_MAX_LABELS || at == end || *at != '=')
            return NULL;
        names[n++] = name;
        at = skip_quoted(at + 1, end);
        if (!at || at == end || (*at != ',' && *at != '}'))
            return NULL;
        if (*at == '}')
            return at + 1;
    }
    return NULL;
}

static const char *skip_digits(const char *at)
{
    while (isdigit((unsigned char)*at))
        at++;
    return at;
}

/* strtod() takes more than Prometheus does, for example hexadecimal numbers. */
static bool is_decimal(const char *at)
{
    at += *at == '-' || *at == '+';
    const char *first = at;
    at = skip_digits(at);
    size_t n = (size_t)(at - first);
    if (*at == '.') {
        first = ++at;
        at = skip_digits(at);
        n += (size_t)(at - first);
    }
    if (n && (*at == 'e' || *at == 'E')) {
        at++;
        at += *at == '-' || *at == '+';
        first = at;
        at = skip_digits(at);
        n = (size_t)(at - first);
    }
    return n && !*at;
}

/* words: NaN and Inf are numbers, too. */
static bool is_number(const char *text, bool words)
{
    static const char *const v[] = {"NaN", "Inf", "+Inf", "-Inf"};
    for (size_t i = 0; i < ARRAY_LEN(v) && words; i++)
        if (strcmp(text, v[i]) == 0)
            return true;
    return is_decimal(text) && isfinite(strtod(text, NULL));
}

/* After a blank and a number, see is_number(). NULL: there is none. */
static const char *skip_number(const char *at, const char *end, bool words)
{
    char number[64];
    size_t n = 0;
    if (at == end || *at++ != ' ')
        return NULL;
    for (; at < end && *at != ' ' && n + 1 < sizeof(number); at++)
        number[n++] = *at;
    number[n] = 0;
    return (at == end || *at == ' ') && is_number(number, words) ? at : NULL;
}

/* ` # {...} value` or ` # {...} value seconds`. */
static bool is_exemplar(const char *at, const char *end)
{
    if (end - at < 4 || memcmp(at, " # {", 4) != 0)
        return false;
    at = skip_labels(at + 4, end, NULL);
    at = at ? skip_number(at, end, true) : NULL;
    if (at && at < end)
        at = skip_number(at, end, false);
    return at && at == end;
}

bool prom_line_read_sample(struct prom_line_text line, struct prom_line_sample *ret)
{
    const char *end = line.at + line.len;
    *ret = (struct prom_line_sample){.name = prom_line_name(line.at, line.len)};
    const char *at = line.at + ret->name.len;
    if (!ret->name.len || !is_printable(line))
        return false;
    if (at < end && *at == '{') {
        const char *labels = at + 1;
        at = skip_labels(labels, end, "instance");
        if (!at)
            return false;
        ret->labels = (struct prom_line_text){labels, (size_t)(at - labels) - 1};
    }
    ret->rest = (struct prom_line_text){at, (size_t)(end - at)};
    at = skip_number(at, end, true);
    ret->has_exemplar = at && at < end;
    return at && (!ret->has_exemplar || is_exemplar(at, end));
}

bool prom_line_read_comment(struct prom_line_text line, struct prom_line_text *ret_name)
{
    static const char *const types[] = {"counter", "gauge", "histogram", "summary", "untyped"};
    bool help = line.len >= 8 && memcmp(line.at, "# HELP ", 7) == 0;
    bool type = line.len >= 8 && memcmp(line.at, "# TYPE ", 7) == 0;
    if ((!help && !type) || !is_printable(line))
        return false;
    *ret_name = prom_line_name(line.at + 7, line.len - 7);
    struct prom_line_text rest = {line.at + 7 + ret_name->len, line.len - 7 - ret_name->len};
    if (!ret_name->len || (rest.len && *rest.at != ' '))
        return false;
    if (help)
        return true;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (rest.len && text_is((struct prom_line_text){rest.at + 1, rest.len - 1}, types[i]))
            return true;
    return false;
}
