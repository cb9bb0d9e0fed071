/* kernel_tiers.c - the tiers of kernels that a test compares. */
#include "lib/rigs/kernel_tiers.h"
#include <stdio.h>
#include <string.h>
#include "lib/lib.h"

/* Programs *_emulated have the tiers above AVX2. */
static const char *instead(const char *tier)
{
#ifdef TEST_EMULATED
    if (strcmp(tier, "avx2") != 0 && kernel_tier("avx2"))
        return "; tests *_emulated run its code as plain C";
#endif
    (void)tier;
    return "";
}

unsigned kernel_tiers_here(const struct kernel *ret[KERNEL_TIERS_MAX])
{
    static const char *const names[KERNEL_TIERS_MAX] = {"c", "avx2", "avxvnni", "avx512", "amx"};
    static bool printed;
    unsigned n = 0;
    for (unsigned i = 0; i < KERNEL_TIERS_MAX; i++) {
        const struct kernel *k = kernel_tier(names[i]);
        if (k)
            ret[n++] = k;
        else if (!printed)
            printf("skipped: this CPU does not support %s%s\n", names[i], instead(names[i]));
    }
    printed = true;
    return n;
}

unsigned kernel_tiers_to_compare(const struct kernel *ret[KERNEL_TIERS_MAX])
{
    unsigned n = kernel_tiers_here(ret);
    if (n < 2)
        lib_skip("this CPU supports no tier but C");
    return n;
}

unsigned kernel_tiers_step(void)
{
    return 1;
}
