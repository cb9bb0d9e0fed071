/* log.h - one line per event on standard error: `key=value`, with the request id, user text quoted.
 *
 * Services log; libraries log at level debug only. Error: an operator must act. Warning: the
 * service continues, and the line says how. Lines of different threads do not mix.
 *
 * Under systemd a line becomes a journal entry with a field for each key (journal.h). If the
 * journal does not accept the entry, the line gets systemd's priority prefix. Without systemd it
 * begins with the time and the level.
 *
 * Threads: any, after log_init(). */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* program: its name in each line. Lines below `level` are dropped. Call it before threads start. */
void log_init(const char *program, enum log_level level);
bool log_wants(enum log_level level);
/* The level named "error", "warn", "info" or "debug"; -EINVAL: another name. */
int log_level_of(const char *name, enum log_level *ret_level);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)                                                                             \
    do {                                                                                           \
        if (log_wants(LOG_LEVEL_DEBUG))                                                            \
            log_line(LOG_LEVEL_DEBUG, __VA_ARGS__);                                                \
    } while (0)

/* Makes foreign text safe for a log line: in quotes, cut to the size of out. Quotes, control
 * characters and bytes that are no UTF-8 are escaped. Returns out. */
const char *log_quote(const void *text, size_t len, char *out, size_t out_size);
/* Copies a refusal up to the first quoted text ('...'), for its log line. A refusal may quote the
 * request to its sender, but no text of a request is in a log. An apostrophe inside a word is no
 * quote. Returns out. */
const char *log_unquoted(const char *text, char *out, size_t out_size);
