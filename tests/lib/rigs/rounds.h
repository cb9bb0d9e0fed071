/* rounds.h - a proposer that reads the Rounds of hostile verifiers, for fuzzers.
 *
 * Threads: the fuzzer's only. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "proposer-svc/props/prop.h"

/* Opens the proposer, whose settings are set, with small limits. Once per process. */
void rounds_open(const struct prop_ops *ops);
/* Two streams of messages in turn, each message after its length (2 bytes, little-endian). If the
 * length's top bit is set, the proposer drafts only after a later message. Ends the program if an
 * answer is malformed, or if anything remains after the streams have ended. */
void rounds_read(const uint8_t *data, size_t n);
