/* quantise.h - floats into the types of model files, rounded to the nearest; for made-up models. */
#pragma once
#include "file/gguf.h"
#include "kernel/kernel.h"

/* n floats, a multiple of the type's block, to `to`; returns the bytes written. */
size_t quantise_row(enum kernel_type type, const float *x, uint32_t n, uint8_t *to);

/* The same type of weights in a GGUF file, and back. */
enum gguf_type quantise_to_gguf(enum kernel_type type);
enum kernel_type quantise_from_gguf(enum gguf_type type);
