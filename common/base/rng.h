/* rng.h - counter-based random numbers: a draw depends on its purpose only, never on earlier draws.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3").
 * key = (seed, choice index) mixed into 64 bits; counter = (stream, position or step, row, token).
 * Streams never share counters. Test vectors: docs/protocol.md, tests/unit/base/test_rng.c. */
#pragma once
#include <stdint.h>

enum rng_stream {
    RNG_TARGET_DRAW = 0, // counter: position; only its key is ever sent (to coupled proposers)
    RNG_ACCEPT = 1,      // counter: step, row
    RNG_RESIDUAL = 2,    // counter: step, row
    RNG_PROPOSER = 3,    // draws in the proposer
};

/* Steele, Lea, Flood 2014. Also one step of the context digest. */
uint64_t rng_splitmix64(uint64_t x);

/* 64 bits from the system that clients cannot guess: for salts, seeds and ids. Waits while the
 * system starts and has no random numbers yet. They come from the clock only where the system
 * refuses getrandom(). */
uint64_t rng_secret(void);

/* splitmix64(splitmix64(seed) + choice): its low half is key word 0, its high half key word 1. */
uint64_t rng_key(int64_t seed, uint32_t choice);

#define RNG_PHILOX_M0 0xd2511f53u // M: factors of a round; W: increments of the key
#define RNG_PHILOX_M1 0xcd9e8d57u
#define RNG_PHILOX_W0 0x9e3779b9u
#define RNG_PHILOX_W1 0xbb67ae85u

/* out = Philox4x32-10(key, counter). */
void rng_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

/* w = out[0] | out[1] << 32 for the counter (stream, position, row, token). */
uint64_t rng_u64(uint64_t key, enum rng_stream stream, uint32_t position, uint32_t row,
                 uint32_t token);

/* u = (w + 1/2) 2^-64 as the nearest double below 1. */
double rng_uniform(uint64_t w);

/* log E of the exponential variate E = -log1p(-u), u = (w + 1/2) 2^-64. The precision is full at
 * both ends (u near 0 and u near 1). argmax over tokens of logit/T - rng_log_exp() is a draw from
 * the softmax. Uses exact_math_log(): the same bits on every machine and in every kernel tier. */
double rng_log_exp(uint64_t w);
