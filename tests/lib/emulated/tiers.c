/* tiers.c - the tiers of kernels that a test compares: C, and the emulated ones. In programs
 * *_emulated, it takes the place of lib/rigs/kernel_tiers.c. */
#include "kernel/kernel_impl.h"
#include "lib/lib.h"
#include "lib/rigs/kernel_tiers.h"

unsigned kernel_tiers_here(const struct kernel *ret[KERNEL_TIERS_MAX])
{
    if (!kernel_tier("avx2"))
        lib_skip("this CPU does not support avx2, which the emulation requires");
    ret[0] = kernel_tier("c");
    ret[1] = &kernel_avxvnni;
    ret[2] = &kernel_avx512;
    ret[3] = &kernel_amx;
    return 4;
}

unsigned kernel_tiers_to_compare(const struct kernel *ret[KERNEL_TIERS_MAX])
{
    return kernel_tiers_here(ret);
}

unsigned kernel_tiers_step(void)
{
    return (unsigned)lib_amount(7, 7, 1);
}
