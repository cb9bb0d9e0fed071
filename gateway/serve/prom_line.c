/* prom_line.c - reads a line of Prometheus metrics. */
#include <ctype.h>
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

static bool span_is(struct prom_line_text s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.at, text, s.len) == 0;
}

static bool is_printable(struct prom_line_text line)
{
    for (size_t i = 0; i < line.len; i++)
        if ((line.at[i] < ' ' && line.at[i] != '\t') || line.at[i] > '~')
            return false;
    return true;
}

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    return at;
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

/* After the brace that closes the labels. NULL: they are malformed. at: after the first brace;
 * ret_instance: whether a label has this name. */
static const char *skip_labels(const char *at, const char *end, bool *ret_instance)
{
    *ret_instance = false;
    while ((at = skip_blanks(at, end)) < end && *at != '}') {
        struct prom_line_text name = prom_line_name(at, (size_t)(end - at));
        at = skip_blanks(name.at + name.len, end);
        if (!name.len || at == end || *at != '=')
            return NULL;
        *ret_instance |= span_is(name, "instance");
        at = skip_quoted(skip_blanks(at + 1, end), end);
        if (!at || (at = skip_blanks(at, end)) == end || (*at != ',' && *at != '}'))
            return NULL;
        at += *at == ',';
    }
    return at < end ? at + 1 : NULL;
}

static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && isdigit((unsigned char)*at))
        at++;
    return at;
}

static bool is_decimal(const char *at, const char *end)
{
    at += at < end && (*at == '-' || *at == '+');
    const char *first = at;
    at = skip_digits(at, end);
    size_t n = (size_t)(at - first);
    if (at < end && *at == '.') {
        first = ++at;
        at = skip_digits(at, end);
        n += (size_t)(at - first);
    }
    if (n && at < end && (*at == 'e' || *at == 'E')) {
        at++;
        at += at < end && (*at == '-' || *at == '+');
        first = at;
        at = skip_digits(at, end);
        n = (size_t)(at - first);
    }
    return n && at == end;
}

/* After blanks and a number. NULL: there is none. */
static const char *skip_number(const char *at, const char *end)
{
    static const char *const words[] = {"NaN", "Inf", "+Inf", "-Inf"};
    const char *first = skip_blanks(at, end), *stop = first;
    while (stop < end && *stop != ' ' && *stop != '\t')
        stop++;
    struct prom_line_text number = {first, (size_t)(stop - first)};
    bool ok = first > at && is_decimal(first, stop);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        ok |= first > at && span_is(number, words[i]);
    return ok ? stop : NULL;
}

/* ` # {...} value` or ` # {...} value seconds`. */
static bool is_exemplar(const char *at, const char *end)
{
    bool instance;
    if (end - at < 4 || memcmp(at, " # {", 4) != 0)
        return false;
    at = skip_labels(at + 4, end, &instance);
    at = at ? skip_number(at, end) : NULL;
    if (at && at < end)
        at = skip_number(at, end);
    return at && at == end;
}

bool prom_line_read_sample(struct prom_line_text line, struct prom_line_sample *ret)
{
    const char *end = line.at + line.len, *at, *value;
    bool instance = false;
    *ret = (struct prom_line_sample){.name = prom_line_name(line.at, line.len)};
    if (!ret->name.len || !is_printable(line))
        return false;
    at = value = line.at + ret->name.len;
    if (at < end && *at == '{') {
        value = skip_labels(at + 1, end, &instance);
        if (!value || instance)
            return false;
        ret->labels = (struct prom_line_text){at + 1, (size_t)(value - at - 2)};
    }
    ret->rest = (struct prom_line_text){value, (size_t)(end - value)};
    at = skip_number(value, end);
    return at && (at == end || is_exemplar(at, end));
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
        if (rest.len && span_is((struct prom_line_text){rest.at + 1, rest.len - 1}, types[i]))
            return true;
    return false;
}
