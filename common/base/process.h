/* process.h - what this process takes of its machine, with the names that every Prometheus client
 * gives: process_cpu_seconds_total, process_resident_memory_bytes, process_open_fds,
 * process_start_time_seconds.
 *
 * Threads: any. */
#pragma once
#include "base/buf.h"

/* Appends Prometheus text. What cannot be read is left out. */
void process_render(struct buf *to);
