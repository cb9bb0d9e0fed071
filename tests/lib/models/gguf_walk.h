/* gguf_walk.h - touches everything that an opened GGUF file offers, for tests with damaged files.
 */
#pragma once
#include <stdint.h>
#include "file/checkpoint.h"

/* A sum over the first and last byte of every tensor and every item of every array whose key is
 * known here; what it is does not matter, reading it does. */
uint64_t gguf_walk(const struct checkpoint *g);
