/* kernel_tiers.h - the tiers of kernels that a test compares. */
#pragma once
#include "kernel/kernel.h"

#define KERNEL_TIERS_MAX 5

/* Writes the tiers that this CPU supports, C first; returns their number. Prints the skipped ones
 * once. */
unsigned kernel_tiers_here(const struct kernel *ret[KERNEL_TIERS_MAX]);
/* The same, for a test that only compares tiers: skips it if there is no other tier than C. */
unsigned kernel_tiers_to_compare(const struct kernel *ret[KERNEL_TIERS_MAX]);
/* The step from one number of rows under test to the next: 1, or more for emulated tiers, which are
 * slow. */
unsigned kernel_tiers_step(void);
