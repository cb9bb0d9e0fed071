/* sse.h - server-sent events: one line of JSON, framed.
 *
 * json_write.h escapes line breaks, so an event is always one `data:` line. */
#pragma once
#include "base/buf.h"

#define SSE_PING ": \n\n" // a comment: keeps proxies from closing a silent stream

static inline void sse_begin(struct buf *to)
{
    buf_add(to, "data: ", 6);
}
static inline void sse_end(struct buf *to)
{
    buf_add(to, "\n\n", 2);
}
static inline void sse_done(struct buf *to)
{
    buf_puts(to, "data: [DONE]\n\n");
}
