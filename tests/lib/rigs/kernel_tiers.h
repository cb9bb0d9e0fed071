/* kernel_tiers.h - the tiers of kernels that a test compares. */
#pragma once
#include "kernel/kernel.h"

#define KERNEL_TIERS_MAX 5

/* Those this CPU has, C first, and their number; says once which are skipped. */
unsigned kernel_tiers_here(const struct kernel *ret[KERNEL_TIERS_MAX]);
