/* costly.h - requests with the worst tool schemas, and the outputs that cost the gateway most.
 *
 * For a gateway with --tool-format qwen-coder. */
#pragma once
#include "lib/fakes/fake_verifier.h"

#define COSTLY_N 3 // kinds of outputs: the letters from 'a' on

/* Sets what the letters send: a long call, and two long texts that are no call. */
void costly_outputs(struct fake_verifier *f);
/* The body of a streaming chat with 170 KiB of schemas. The answer is the output of this kind, in
 * tokens of token_bytes, one every pace_ms. Free it. */
char *costly_body(char kind, unsigned token_bytes, unsigned pace_ms);
