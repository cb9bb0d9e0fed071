/* journal.h - writes log lines as entries of systemd's journal, with their key=value words as
 * fields.
 *
 * `journalctl TANDEM_ID=a7` then finds `request done id=a7 status=200`. Only journal.c and svc.c
 * include headers of libsystemd.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#define JOURNAL_MAX_FIELDS 32 // fields of a line; further words stay in its text only
#define JOURNAL_MAX_TEXT 4096 // bytes of all fields of a line

struct journal_fields {
    struct iovec v[JOURNAL_MAX_FIELDS]; // "TANDEM_ID=a7"
    unsigned n;
    char text[JOURNAL_MAX_TEXT]; // v points into it
    size_t used;
};

/* Extracts the key=value words of a line, up to the first word that ends with ':'. A sentence
 * follows that word, and it may contain foreign text. Removes the quotes of log_quote(). */
void journal_fields(const char *line, struct journal_fields *ret);

/* Whether standard error is connected to the journal. */
bool journal_is_connected(void);
/* priority: as in syslog(3). false: the journal did not accept the entry. */
bool journal_send(const char *program, int priority, const char *line);
