/* kernel_quantise.c - floats to Q8_0 and Q4_0. The number furthest from 0 scales each block. */
#include <assert.h>
#include <math.h>
#include "kernel/kernel_impl.h"

static float furthest(const float *x)
{
    float most = 0;
    for (unsigned i = 0; i < KERNEL_BLOCK; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    return most;
}

static float put_scale(float d, uint8_t *to)
{
    uint16_t h = kernel_f16_of(d);
    memcpy(to, &h, sizeof(h));
    return d != 0 ? 1 / d : 0;
}

static int nearest(float x, int low, int high)
{
    long q = lrintf(x);
    return (int)(q < low ? low : q > high ? high : q);
}

static void put_q8(const float *x, uint8_t *to)
{
    float by = put_scale(fabsf(furthest(x)) / 127, to);
    for (unsigned k = 0; k < KERNEL_BLOCK; k++)
        to[2 + k] = (uint8_t)(int8_t)nearest(x[k] * by, -127, 127);
}

/* The number furthest from 0 becomes -8; there is no +8. Weights k and k + 16 share a byte. */
static void put_q4(const float *x, uint8_t *to)
{
    float by = put_scale(furthest(x) / -8, to);
    for (unsigned k = 0; k < KERNEL_BLOCK / 2; k++)
        to[2 + k] = (uint8_t)(nearest(x[k] * by + 8, 0, 15) |
                              nearest(x[k + KERNEL_BLOCK / 2] * by + 8, 0, 15) << 4);
}

void kernel_quantise(enum kernel_type type, const float *x, uint32_t n_in, void *row)
{
    assert(type == KERNEL_Q8_0 || type == KERNEL_Q4_0);
    const struct kernel_layout *l = kernel_layout(type);
    for (uint32_t i = 0; i < n_in / KERNEL_BLOCK; i++) {
        uint8_t *to = (uint8_t *)row + (size_t)i * l->n_bytes;
        (type == KERNEL_Q8_0 ? put_q8 : put_q4)(x + (size_t)i * KERNEL_BLOCK, to);
    }
}
