/* journal.h - lines of the log as entries of systemd's journal, their key=value words as fields.
 *
 * `request done id=a7 status=200` is found by `journalctl TANDEM_ID=a7`. With svc.h the only file
 * that includes libsystemd. Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#define JOURNAL_MAX_FIELDS 32 // of a line; more stay in its text
#define JOURNAL_MAX_TEXT 4096 // bytes of all fields

struct journal_fields {
    struct iovec v[JOURNAL_MAX_FIELDS]; // "TANDEM_ID=a7"
    unsigned n;
    char text[JOURNAL_MAX_TEXT]; // what v points to
    size_t used;
};

/* The key=value words of a line: up to the first that ends with ':', as a sentence follows, perhaps
 * with foreign text in it. Quotes (log_quote()) are taken off. */
void journal_fields(const char *line, struct journal_fields *ret);

/* Whether standard error goes to the journal. */
bool journal_is_there(void);
/* priority: syslog's. false: the journal does not take it. */
bool journal_send(const char *program, int priority, const char *line);
