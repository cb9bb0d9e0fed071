/* checkpoint_walk.h - reads everything in an opened checkpoint, for tests with damaged files. */
#pragma once
#include <stdint.h>
#include "file/checkpoint.h"

/* Reads the first and last byte of every tensor and every item of the arrays with known keys. The
 * sum that it returns has no meaning; it keeps the reads. */
uint64_t checkpoint_walk(const struct checkpoint *g);
