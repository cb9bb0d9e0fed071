/* framing.h - the header fields that say where a request begins and ends, and that a proxy in front
 * must not understand differently.
 *
 * libmicrohttpd 0.9.75 accepts repeated lengths, a length beside a coding, repeated hosts and names
 * with blanks; whoever reads them the other way sees two requests where we see one. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct framing {    // begins zeroed; the texts live as long as the header
    size_t n_bytes; // of the header
    unsigned n_host, n_length, n_coding;
    const char *coding, *length, *id, *expect; // NULL: absent
    bool odd;                                  // characters that must not be
};

/* One field. value: NUL behind it; len: what arrived. */
void framing_add(struct framing *f, const char *name, size_t name_len, const char *value,
                 size_t len);
/* A sentence, or NULL. version: "HTTP/1.1". */
const char *framing_fault(const struct framing *f, const char *version);
/* The body's length as announced; 0 without one, all ones when it does not fit. */
unsigned long long framing_length(const struct framing *f);
/* Letters, digits, '.', '_' and '-', at most 64. */
bool framing_sane_id(const char *id);
