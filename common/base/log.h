/* log.h - one line per event on standard error: `key=value`, the request id in it, user text
 * quoted.
 *
 * Libraries are silent above debug; services speak. Error: an operator must act. Warning: we went
 * on, and the line says how. Any thread; a line is written whole. Under systemd lines become
 * entries of its journal with a field for each key (journal.h), or carry the priority prefix if it
 * does not take them; else they have the time and the level. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* program: named in each line. Default level: info. Before threads start. */
void log_init(const char *program, enum log_level level);
bool log_wants(enum log_level level);
/* "error", "warn", "info", "debug"; -EINVAL with a sentence for others. */
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

/* Text from outside, made safe for a log line: quoted, control characters and quotes escaped, cut
 * to what fits into out. Returns out. */
const char *log_quote(const void *text, size_t len, char *out, size_t out_size);
