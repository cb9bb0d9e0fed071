/* rope.h - rotary position embedding (Su et al. 2021): frequencies once, angles per position in
 * double. So a row's rotation depends only on its position.
 *
 * Threads: any. */
#pragma once
#include "model/arch.h"

/* ret_freqs: (rope_dim / 2) radians per position in float, as training code keeps them. The file's
 * scaling (linear, YaRN) and the factors of role ROPE_FREQS are folded in. ret_gain: factor of
 * cosine and sine. -ENOTSUP: the scaling is not supported. -EINVAL: a parameter is out of range. */
int rope_read(const struct checkpoint *c, const struct model_params *p, float *ret_freqs,
              float *ret_gain);

/* Cosine and sine of each pair at a position: to (rope_dim / 2, 2). */
void rope_angles(const struct model *m, uint32_t position, float *to);
/* Rotates one head's vector in place. */
void rope_rotate(const struct model_params *p, const float *angles, float *x);
