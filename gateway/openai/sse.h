/* sse.h - server-sent events: one line of JSON, framed.
 *
 * The JSON holds no raw line break (jsonw.h escapes them), so an event is always one `data:` line.
 */
#pragma once
#include "base/buf.h"

#define SSE_PING ": \n\n" // a comment: tells proxies and dead connections apart from slow answers

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
