/* test_rope.c - frequencies and angles: near exact ones, and their bits. */
#include "base/mem.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/models/tiny.h"
#include "model/rope.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A model with nothing but what the rotation reads from the file. */
struct subject {
    struct model m;
    float freqs[ARCH_MAX_HEAD_DIM / 2];
};

/* rope_dim, base: 0: as the tiny model has it. */
static void read_subject(struct subject *to, const struct tiny *t, uint32_t rope_dim, float base)
{
    size_t len;
    AUTO(mem_free) char *file = tiny_write(t, &len);
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    const struct arch *arch;
    *to = (struct subject){.m.rope_freqs = to->freqs};
    struct model_params *p = &to->m.params;
    assert_int_equal(checkpoint_open_memory(file, len, &g), 0);
    assert_int_equal(arch_read(g, p, &arch), 0);
    p->rope_dim = rope_dim ? rope_dim : p->rope_dim;
    p->rope_base = base > 0 ? base : p->rope_base;
    assert_int_equal(rope_read(g, p, to->freqs, &p->rope_gain), 0);
}

static const struct tiny tiny = {.arch = "llama", .type = KERNEL_Q4_0, .n_layers = 1};
static const uint32_t dims[] = {64, 80, 128};
static const float bases[] = {10000, 500000, 1e6f};

static void frequencies_and_angles_are_the_nearest_floats(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(dims) * ARRAY_LEN(bases); k++) {
        uint32_t n = dims[k % 3];
        float base = bases[k / 3], angles[128];
        struct subject s;
        read_subject(&s, &tiny, n, base);
        for (uint32_t i = 0; i < n / 2; i++) {
            float want = (float)powl(base, -2.0L * i / n);
            if (s.freqs[i] != want)
                fail_msg("base %g, dim %u: frequency %u is %a, not %a", base, n, i, s.freqs[i],
                         want);
        }
        for (uint32_t pos = 0; pos < 140000; pos += 1 + pos / 16) {
            rope_angles(&s.m, pos, angles);
            for (uint32_t i = 0; i < n / 2; i++) {
                long double angle = (long double)pos * s.freqs[i];
                if (angles[2 * i] != (float)cosl(angle) || angles[2 * i + 1] != (float)sinl(angle))
                    fail_msg("base %g, dim %u: pair %u at position %u", base, n, i, pos);
            }
        }
    }
}

static uint64_t mix_floats(uint64_t hash, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        hash = rng_splitmix64(hash ^ bits);
    }
    return hash;
}

static uint64_t bits_of(const struct tiny *t, uint32_t rope_dim, float base)
{
    struct subject s;
    float angles[ARCH_MAX_HEAD_DIM];
    read_subject(&s, t, rope_dim, base);
    uint32_t n = s.m.params.rope_dim;
    uint64_t hash = mix_floats(0, s.freqs, n / 2);
    for (uint32_t pos = 0; pos < 1u << 20; pos += 1 + pos / 64) {
        rope_angles(&s.m, pos, angles);
        hash = mix_floats(hash, angles, n);
    }
    return hash;
}

/* Whatever the compiler, libm and CPU. */
static void bits_are_the_same_everywhere(void **state)
{
    (void)state;
    struct tiny factors = tiny, linear = tiny, yarn = tiny;
    factors.factors = true;
    linear.scaling = "linear";
    yarn.scaling = "yarn";
    const struct {
        const struct tiny *t;
        uint32_t dim;
        float base;
        uint64_t bits;
    } cases[] = {
        {&tiny, 64, 10000, 0x639642ac7ae5b41b},    {&tiny, 128, 500000, 0xca93297473c1d0c3},
        {&tiny, 80, 1e6f, 0xbd4a61f3adcbd701},     {&factors, 0, 500000, 0x5a3c946ec8f2133e},
        {&linear, 128, 10000, 0x9842e2f748d2d21c}, {&yarn, 128, 1e6f, 0x33edd7eda9293844},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t bits = bits_of(cases[i].t, cases[i].dim, cases[i].base);
        if (bits != cases[i].bits)
            fail_msg("case %zu: 0x%016llx", i, (unsigned long long)bits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_and_angles_are_the_nearest_floats),
        cmocka_unit_test(bits_are_the_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
