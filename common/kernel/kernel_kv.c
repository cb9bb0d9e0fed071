/* kernel_kv.c - the layout of K and V in a block of one head.
 *
 *   F16, F32   K (16, head_dim), V (16, head_dim)
 *   INT8       dim is head_dim, filled up to a multiple of 16.
 *              Scales of K (16) f32; K (dim / 4, 16, 4): the values plus 128, four values of each
 *              of the sixteen positions side by side.
 *              Scales of V (16) f32; V (4, dim, 4): one value of each of four positions side by
 *              side. */
#include "kernel/kernel_impl.h"
#include <string.h>

static const char *const names[] = {
    [KERNEL_KV_F16] = "f16", [KERNEL_KV_F32] = "f32", [KERNEL_KV_INT8] = "int8"};

const char *kernel_kv_name(enum kernel_kv type)
{
    return names[type];
}

bool kernel_kv_type(const char *name, enum kernel_kv *ret)
{
    for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strcmp(names[i], name) == 0) {
            *ret = (enum kernel_kv)i;
            return true;
        }
    return false;
}

size_t kernel_kv_bytes(enum kernel_kv type, uint32_t head_dim)
{
    if (type == KERNEL_KV_INT8)
        return 2 * kernel_kv8_half(head_dim);
    return 2 * kernel_kv_row(type, head_dim) * KERNEL_KV_BLOCK;
}

static void move_int8(uint32_t head_dim, const uint8_t *from, uint32_t place, uint8_t *to,
                      uint32_t to_place)
{
    size_t v = kernel_kv8_half(head_dim);
    memcpy(to + 4 * to_place, from + 4 * place, 4);
    memcpy(to + v + 4 * to_place, from + v + 4 * place, 4);
    for (uint32_t d = 0; d < head_dim; d += 4)
        memcpy(to + kernel_kv8_k(to_place, d), from + kernel_kv8_k(place, d), 4);
    for (uint32_t d = 0; d < head_dim; d++)
        to[v + kernel_kv8_v(head_dim, to_place, d)] = from[v + kernel_kv8_v(head_dim, place, d)];
}

void kernel_kv_move(enum kernel_kv type, uint32_t head_dim, const void *from, uint32_t place,
                    void *to, uint32_t to_place)
{
    if (type == KERNEL_KV_INT8) {
        move_int8(head_dim, from, place, to, to_place);
        return;
    }
    size_t row = kernel_kv_row(type, head_dim), v = row * KERNEL_KV_BLOCK;
    memmove((char *)to + to_place * row, (const char *)from + place * row, row);
    memmove((char *)to + v + to_place * row, (const char *)from + v + place * row, row);
}
