/* journal.c - writes log lines as entries of systemd's journal. */
#include "base/journal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define SD_JOURNAL_SUPPRESS_LOCATION // the source location would always be this file
#include <systemd/sd-journal.h>

#define PREFIX "TANDEM_"
#define KEY_CHARS "abcdefghijklmnopqrstuvwxyz0123456789_"

/* Appends a character to the field that is being written. */
static void append_char(struct journal_fields *f, char c)
{
    if (f->used < sizeof(f->text))
        f->text[f->used++] = c;
}

/* Appends the value at s to the field; returns the position after the value. */
static const char *append_value(struct journal_fields *f, const char *s)
{
    if (*s != '"') {
        for (; *s && *s != ' '; s++)
            append_char(f, *s);
        return s;
    }
    for (s++; *s && *s != '"'; s++) {
        s += *s == '\\' && (s[1] == '"' || s[1] == '\\');
        append_char(f, *s);
    }
    return s + (*s == '"');
}

/* Appends the word at s as a field if it is key=value. Returns the position after the word, or NULL
 * if no field follows. */
static const char *append_word(struct journal_fields *f, const char *s)
{
    size_t key = strspn(s, KEY_CHARS), begin = f->used;
    if (!key || s[key] != '=') {
        size_t len = strcspn(s, " ");
        return len && s[len - 1] == ':' ? NULL : s + len;
    }
    for (const char *c = PREFIX; *c; c++)
        append_char(f, *c);
    for (size_t i = 0; i < key; i++)
        append_char(f, s[i] >= 'a' && s[i] <= 'z' ? (char)(s[i] - 'a' + 'A') : s[i]);
    append_char(f, '=');
    bool quoted = s[key + 1] == '"';
    const char *rest = append_value(f, s + key + 1);
    char last = f->text[f->used - 1];
    bool sentence_follows = quoted ? *rest == ':' : last == ':';
    if (!quoted && strchr(",;:", last))
        f->used--;
    if (f->used < sizeof(f->text)) // otherwise the field may be incomplete
        f->v[f->n++] = (struct iovec){f->text + begin, f->used - begin};
    return sentence_follows ? NULL : rest;
}

void journal_fields(const char *line, struct journal_fields *ret)
{
    ret->n = 0;
    ret->used = 0;
    while (line && *line && ret->n < JOURNAL_MAX_FIELDS) {
        line += strspn(line, " ,;");
        if (*line)
            line = append_word(ret, line);
    }
}

bool journal_is_connected(void)
{
    const char *journal = getenv("JOURNAL_STREAM"); // "device:inode"
    char own[64];
    struct stat s;
    if (!journal || fstat(STDERR_FILENO, &s) < 0)
        return false;
    snprintf(own, sizeof(own), "%llu:%llu", (unsigned long long)s.st_dev,
             (unsigned long long)s.st_ino);
    return strcmp(journal, own) == 0;
}

static struct iovec format_field(char *to, size_t size, const char *name, const char *value)
{
    int n = snprintf(to, size, "%s=%s", name, value);
    return (struct iovec){to, (size_t)n < size ? (size_t)n : size - 1};
}

bool journal_send(const char *program, int priority, const char *line)
{
    struct journal_fields f;
    struct iovec v[JOURNAL_MAX_FIELDS + 3];
    char message[JOURNAL_MAX_TEXT], name[64], number[16], level[32];
    snprintf(number, sizeof(number), "%d", priority);
    v[0] = format_field(message, sizeof(message), "MESSAGE", line);
    v[1] = format_field(level, sizeof(level), "PRIORITY", number);
    v[2] = format_field(name, sizeof(name), "SYSLOG_IDENTIFIER", program);
    journal_fields(line, &f);
    memcpy(v + 3, f.v, f.n * sizeof(*v));
    return sd_journal_sendv(v, (int)f.n + 3) == 0;
}
