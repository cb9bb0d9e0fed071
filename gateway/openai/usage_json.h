/* usage_json.h - the statistics in an answer: usage, speculation, times.
 *
 * Threads: one at a time per reply. */
#pragma once
#include "gateway/openai/openai_reply.h"

/* "usage":{...},"metrics":{...},"timings":{...} */
void usage_json_write(const struct openai_reply *r, struct buf *to);
/* Without the usage. */
void usage_json_metrics(const struct openai_reply *r, struct buf *to);
