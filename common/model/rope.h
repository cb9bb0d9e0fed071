/* rope.h - rotary position embedding (Su et al. 2021): frequencies once, angles per position in
 * double, so that a row's rotation depends on its position alone.
 *
 * Threads: any. */
#pragma once
#include "model/arch.h"

/* ret_freqs: (rope_dim / 2) radians per position in float, as training code keeps them, with the
 * file's scaling (linear, YaRN) and the factors of tensor rope_freqs.weight folded in; gain: on
 * cosine and sine. -ENOTSUP: a scaling that is not known, named; -EINVAL. */
int rope_read(const struct checkpoint *c, const struct model_params *p, float *ret_freqs,
              float *ret_gain);

/* Cosine and sine of each pair at a position: to (rope_dim / 2, 2). */
void rope_angles(const struct model *m, uint32_t position, float *to);
/* Rotates one head's vector in place. */
void rope_rotate(const struct model_params *p, const float *angles, float *x);
