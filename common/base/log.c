/* log.c - log lines on standard error or in the journal. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/err.h"
#include "base/journal.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"

#define LINE_MAX_BYTES 2048

static struct {
    const char *program;
    enum log_level level;
    bool entries, prefix; // journal entries; systemd's priority prefix
} config = {.program = "tandem", .level = LOG_LEVEL_INFO};

static const struct {
    const char *name;
    int syslog;
} levels[] = {{"error", 3}, {"warn", 4}, {"info", 6}, {"debug", 7}};

void log_init(const char *program, enum log_level level)
{
    config.program = program;
    config.level = level;
    config.prefix = getenv("JOURNAL_STREAM") != NULL;
    config.entries = journal_is_connected();
}

bool log_wants(enum log_level level)
{
    return level <= config.level;
}

int log_level_of(const char *name, enum log_level *ret_level)
{
    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        if (strcmp(levels[i].name, name) == 0) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    }
    return fail(-EINVAL, "log level '%s' is not one of error, warn, info, debug", name);
}

static size_t write_prefix(enum log_level level, char *out, size_t size)
{
    if (config.prefix)
        return (size_t)snprintf(out, size, "<%d>", levels[level].syslog);
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t n = strftime(out, size, "%F %T", &local);
    n += (size_t)snprintf(out + n, size - n, ".%03ld %s %s: ", now.tv_nsec / 1000000,
                          config.program, levels[level].name);
    return n;
}

void log_line(enum log_level level, const char *format, ...)
{
    if (!log_wants(level))
        return;
    char line[LINE_MAX_BYTES];
    size_t n = write_prefix(level, line, sizeof(line)), prefix_bytes = n;
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + n, sizeof(line) - n, format, args);
    va_end(args);
    if (body < 0)
        return;
    n += (size_t)body;
    if (n > sizeof(line) - 1)
        n = sizeof(line) - 1;
    for (size_t i = prefix_bytes; i < n; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            line[i] = ' '; // foreign text must not start a new line
    if (config.entries && journal_send(config.program, levels[level].syslog, line + prefix_bytes))
        return;
    line[n++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, n); // one call: lines of threads do not mix
    (void)written;                                   // a failure cannot be reported
}

/* Length of the character at s if a log line may hold it. 0: it is a control character, or not
 * UTF-8. The journal shows a line with such bytes as binary data. */
static unsigned printable(const char *s, size_t len)
{
    uint32_t code = 0;
    unsigned n = utf8_next(s, len, &code);
    return code < 0x20 || (code >= 0x7f && code < 0xa0) ? 0 : n;
}

const char *log_quote(const void *text, size_t len, char *out, size_t out_size)
{
    const char *s = text ? text : "", *end = s + len;
    size_t n = 0;
    out[n++] = '"';
    while (s < end && n + 6 < out_size) {
        unsigned bytes = printable(s, (size_t)(end - s));
        if (bytes == 0) {
            n += (size_t)snprintf(out + n, out_size - n, "\\x%02x", (uint8_t)*s++);
            continue;
        }
        if (*s == '"' || *s == '\\')
            out[n++] = '\\';
        memcpy(out + n, s, bytes);
        n += bytes;
        s += bytes;
    }
    out[n++] = '"';
    out[n] = 0;
    return out;
}

static const char *first_quote(const char *text)
{
    const char *at = strchr(text, '\'');
    while (at && at > text && isalpha((unsigned char)at[-1]))
        at = strchr(at + 1, '\'');
    return at;
}

const char *log_unquoted(const char *text, char *out, size_t out_size)
{
    const char *quote = first_quote(text);
    int n = quote ? (int)(quote - text) : (int)strlen(text);
    snprintf(out, out_size, "%.*s%s", n, text, quote ? "..." : "");
    return out;
}
