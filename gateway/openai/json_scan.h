/* json_scan.h - checks the syntax of a JSON value, without a tree and without memory.
 *
 * A thread that all streams share checks the output of models with it. The cost is a few
 * nanoseconds per byte, whatever the text holds. A parser's tree could take a hundred times the
 * bytes of the text. The grammar is RFC 8259. As in jansson, these are refused: numbers that no
 * double holds, unpaired surrogates, NUL in a key.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stddef.h>

#define JSON_SCAN_MAX_DEPTH 1024 // nested arrays and objects

/* Reads the value at the start of the text, which has no white space before it.
 * 0: the value has *ret_len bytes; -EAGAIN: the text ends before the value; -EINVAL. */
int json_scan(const char *text, size_t len, size_t *ret_len);
