/* usage_json.h - what an answer says about itself: usage, speculation, times.
 *
 * Threads: one at a time per reply. */
#pragma once
#include "gateway/openai/openai_reply.h"

/* "usage":{...},"metrics":{...},"timings":{...} */
void usage_json_write(const struct openai_reply *r, struct buf *to);
/* The last two. */
void usage_json_metrics(const struct openai_reply *r, struct buf *to);
