/* synth.h - Llama-shaped models of real sizes with random weights, for the bench: speeds are real,
 * texts are not. The same arguments give the same bytes. */
#pragma once
#include <stdint.h>

/* shape: "0.1b" (SmolLM2-135M's), "1b" (Llama-3.2-1B's), "3b" (Llama-3.2-3B's), each with an untied
 * head and a vocabulary of 32,000 (SentencePiece: bytes and made-up words). type: "q8_0", "q4_0",
 * "f16". -EINVAL: another one, named; -EIO and the like. */
int synth_write(const char *path, const char *shape, const char *type, uint64_t seed);
