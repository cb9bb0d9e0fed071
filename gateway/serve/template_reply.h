/* template_reply.h - the replies of the helper processes of template.h.
 *
 * A reply is one line of JSON: {"text": STRING} or {"error": STRING}. A helper runs foreign
 * templates, so its replies are foreign, too. Their size and the memory of their parsing are
 * bounded.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stdbool.h>
#include "base/buf.h"

#define TEMPLATE_REPLY_MAX (100u << 20) // bytes of a line: 16 Mi characters, escaped
#define TEMPLATE_REPLY_PIECE 65536      // bytes that are read at a time, at most

struct json_t;

struct template_reply {
    struct json_t *tree; // owns the text
    bool is_error;
    const char *text; // UTF-8; may hold NULs, and a NUL follows
    size_t len;
};

/* n bytes were written at buf_reserve(), after the end of `line`.
 * 0: the line is complete; -EAGAIN: it is not; -EPROTO: more follows the line. */
int template_reply_add(struct buf *line, size_t n);
/* -EPROTO: the line is no reply. */
int template_reply_parse(const struct buf *line, struct template_reply *ret);
void template_reply_done(struct template_reply *r);
