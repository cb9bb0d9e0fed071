/* process.h - resources that this process uses, under the names of every Prometheus client:
 * process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds,
 * process_start_time_seconds.
 *
 * Threads: any. */
#pragma once
#include "base/buf.h"

/* Appends Prometheus text. Omits metrics whose value cannot be read. */
void process_render(struct buf *to);
