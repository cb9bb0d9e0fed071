/* quantise.h - converts floats to the types of model files, rounded to nearest. */
#pragma once
#include "file/gguf.h"
#include "kernel/kernel.h"

/* Writes n floats, a multiple of the type's block size, to `to`. Returns the bytes written. */
size_t quantise_row(enum kernel_type type, const float *x, uint32_t n, uint8_t *to);

/* Converts a type of weights to its number in GGUF files, and back. */
enum gguf_type quantise_to_gguf(enum kernel_type type);
enum kernel_type quantise_from_gguf(enum gguf_type type);
