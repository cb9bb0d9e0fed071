/* kernel.c - the choice of a tier, and scalar arithmetic that all tiers share. */
#include "base/err.h"
#include "kernel/kernel_impl.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
#define REQUEST_PERMISSION 0x1023 // ARCH_REQ_XCOMP_PERM of asm/prctl.h, Linux 5.16
#define TILE_DATA 18              // number of the tile data in the saved state (XSAVE)

/* The CPU has AMX, and Linux saves the tile registers of this process. */
static bool may_use_tiles(void)
{
    unsigned a, b, c, d;
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25; // bf16, tiles, int8
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & wanted) != wanted)
        return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

static bool runs_here(const struct kernel *k)
{
#if defined(__x86_64__)
    unsigned a, b, c, d; // clang 14's __builtin_cpu_supports() does not know f16c
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
    if (k == &kernel_avx2)
        return avx2;
    if (k == &kernel_avxvnni)
        return avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bit_AVXVNNI);
    if (k == &kernel_amx)
        return runs_here(&kernel_avx512) && may_use_tiles();
    if (k == &kernel_avx512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    return k == &kernel_c;
}

static const struct kernel *const tiers[] = {
// best first
#if defined(__x86_64__)
    &kernel_amx, &kernel_avx512, &kernel_avxvnni, &kernel_avx2,
#endif
    &kernel_c,
};
#define N_TIERS (sizeof(tiers) / sizeof(*tiers))

const struct kernel *kernel_tier(const char *name)
{
    for (unsigned i = 0; i < N_TIERS; i++)
        if (!strcmp(tiers[i]->name, name))
            return runs_here(tiers[i]) ? tiers[i] : NULL;
    return NULL;
}

int kernel_init(const struct kernel **ret)
{
    const char *name = getenv("TANDEM_CPU");
    if (name && *name) {
        const struct kernel *k = kernel_tier(name);
        if (!k)
            return fail(-ENOTSUP,
                        "TANDEM_CPU=%s: unknown kernels (c, avx2, avxvnni, avx512, amx), or this "
                        "CPU cannot run them",
                        name);
        *ret = k;
        return 0;
    }
    unsigned i = 0;
    while (!runs_here(tiers[i]))
        i++;
    *ret = tiers[i];
    return 0;
}

/* The CPU is a Zen or a later one of AMD. */
static bool is_zen(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

/* Measured on a Xeon (Sapphire Rapids) and an EPYC (Zen 5); see docs/benchmarks.md, "kernels". The
 * prefetchers of the Xeon follow each tile slowly, but many tiles together. Those of the EPYC are
 * fastest for two. */
struct kernel_walk kernel_usual_walk(void)
{
    return (struct kernel_walk){is_zen() ? 2 : KERNEL_STREAMS, KERNEL_AHEAD};
}

bool kernel_has_walks(const struct kernel *k, enum kernel_type type)
{
    return k != &kernel_c && type != KERNEL_F32 && type != KERNEL_F16;
}

void kernel_thread_init(void)
{
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); // FTZ, DAZ
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | 1u << 24)); // FZ
#endif
}

float kernel_f16_to(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 0) {
        float f = (float)mantissa * 0x1p-24f;
        return kernel_float(kernel_bits(f) | sign);
    }
    uint32_t bits =
        exponent == 31 ? 0x7f800000 | mantissa << 13 : (exponent + 112) << 23 | mantissa << 13;
    if (exponent == 31 && mantissa)
        bits |= 0x400000; // a quiet NaN, as the hardware makes it
    return kernel_float(bits | sign);
}

uint16_t kernel_f16_of(float x)
{
    uint32_t bits = kernel_bits(x), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) // NaN
        return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff));
    if (bits >= 0x477ff000) // 65520 and above
        return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000) { // below 2^-14: the last bit of the sum is that of an f16
        float f = kernel_float(bits) + 0.5f;
        return (uint16_t)(sign | (kernel_bits(f) - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits - 0x38000000) >> 13));
}

/* The operations of v_exp() in kernel_body.h. */
float kernel_expf(float x)
{
    x = 89 < x ? 89 : x;
    x = -104 > x ? -104 : x;
    float t = fmaf(x, 0x1.715476p+0f, 0x1.8p+23f), n = t - 0x1.8p+23f;
    float r = fmaf(n, -0x1.c85fep-10f, fmaf(n, -0x1.62p-1f, x));
    float p = fmaf(0x1.6d117cp-10f, r, 0x1.120be2p-7f);
    p = fmaf(p, r, 0x1.555518p-5f);
    p = fmaf(p, r, 0x1.5554dcp-3f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1);
    p = fmaf(p, r, 1);
    int32_t i = (int32_t)(kernel_bits(t) - 0x4b400000u), half = i >> 1;
    p *= kernel_float((uint32_t)(half + 127) << 23);
    return p * kernel_float((uint32_t)(i - half + 127) << 23);
}
