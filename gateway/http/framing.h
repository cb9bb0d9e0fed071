/* framing.h - checks the header fields that delimit a request, against request smuggling.
 *
 * A proxy in front of the gateway must find the same end of a request as the gateway.
 * libmicrohttpd 0.9.75 accepts several lengths, a length together with a transfer coding, several
 * hosts, and names with blanks. Another parser may then see two requests instead of one.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define FRAMING_MAX_FORWARDED 8 // fields X-Forwarded-For that are kept: the last ones

struct framing {    // zeroed at first; the texts live as long as the header
    size_t n_bytes; // of the header
    unsigned n_host, n_length, n_coding;
    const char *coding, *length, *id, *expect;    // NULL: absent
    const char *forwarded[FRAMING_MAX_FORWARDED]; // in the order of arrival
    unsigned n_forwarded;
    bool has_bad_char; // a forbidden character was seen
};

/* Adds one field. value: ends in NUL; len: its bytes as they arrived. */
void framing_add(struct framing *f, const char *name, size_t name_len, const char *value,
                 size_t len);
/* What is wrong, as a sentence, or NULL. version: "HTTP/1.1". */
const char *framing_fault(const struct framing *f, const char *version);
/* The announced length of the body; 0: none announced, ULLONG_MAX: it does not fit. */
unsigned long long framing_length(const struct framing *f);
/* Whether the id has 1 to 64 letters, digits, '.', '_' and '-'. */
bool framing_sane_id(const char *id);
