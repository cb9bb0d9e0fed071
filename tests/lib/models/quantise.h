/* quantise.h - floats into the types of model files, rounded to the nearest; for made-up models. */
#pragma once
#include "kernel/kernel.h"

/* n floats, a multiple of the type's block, to `to`; returns the bytes written. */
size_t quantise_row(enum kernel_type type, const float *x, uint32_t n, uint8_t *to);
