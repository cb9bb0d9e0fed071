/* kernel_int8_unpack.h - unpacks blocks of quantised weights to bytes and scales. It uses the
 * operations of a tier on columns (see kernel_int8.h). */
#pragma once
#include "kernel/kernel_impl.h"

/* The constants of a type. They are constant arguments, so the compiler folds them. */
struct int8_type {
    int lo, hi, offset, group;
    bool min, halves;
    enum kernel_book book;
};

/* Bytes of a packed group, except a tile's last group, which may be shorter. */
INLINE size_t int8_group_bytes(const struct int8_type t)
{
    return (size_t)(KERNEL_HEAD_BYTES(t.group, t.min, t.halves) +
                    t.group * KERNEL_BLOCK_BYTES(t.lo, t.hi));
}

/* Unpacks C_LANES columns of a block. p: the block, moved on by 4 bytes per earlier column. */
INLINE void int8_unpack(const struct int8_type t, const uint8_t *p, cb w[8])
{
    if (t.lo == 8) {
        EACH (g, 8)
            w[g] = c_bytes(p + 64 * g);
        return;
    }
    EACH (g, 4) {
        cb both = c_bytes(p + 64 * g);
        w[g] = c_and(both, 0x0f);
        w[g + 4] = c_and(c_right(both, 4), 0x0f);
    }
    if (t.book) {
        const cb book = c_16_bytes(kernel_codebooks[t.book]);
        EACH (g, 8)
            w[g] = c_lookup(book, w[g]);
    }
    if (!t.hi)
        return;
    const uint8_t *high = p + 256;
    EACH (g, 8) {
        int bit = t.hi == 1 ? g : 2 * (g % 4); // moves to bit 4
        cb h = c_bytes(high + (t.hi == 1 ? 0 : 64 * (g / 4)));
        h = bit > 4 ? c_right(h, bit - 4) : c_left(h, 4 - bit);
        w[g] = c_or(w[g], c_and(h, t.hi == 1 ? 0x10 : 0x30));
    }
}

/* Scales and mins of block i of a group of types of 32, for the columns from `lane` on. */
INLINE void int8_scales(const struct int8_type t, const uint8_t *group, int i, int lane, cf *d,
                        cf *m)
{
    const uint8_t *p = group + 2 * lane + 32 * i;
    *d = t.book == KERNEL_BOOK_E2M1 ? c_bf16s(p) : c_halfs(p);
    if (t.min)
        *m = c_halfs(p + 64);
}

/* Types of 256: the integer scales of a column come as pairs of words. Pair i has the scales of
 * blocks 2 i and 2 i + 1, or, for types with halves, of the halves of block i. The minima come as
 * pairs, too. */
INLINE int int8_n_pairs(const struct int8_type t)
{
    return t.halves ? 8 : 4;
}

INLINE ci int8_pair(const uint8_t *group, int i, int lane)
{
    return c_words(group + 64 + 32 * i + 2 * lane);
}

INLINE ci int8_min_pair(const uint8_t *group, int i, int lane)
{
    return c_words(group + 192 + 32 * i + 2 * lane);
}
