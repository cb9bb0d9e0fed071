/* continuation.h - requests whose answer another verifier has begun.
 *
 * Tokens are a function of model, request, seed and position. So a verifier that gets the committed
 * tokens continues the answer with the same bits. The tokens count as generated for limits,
 * penalties, min_tokens, stop strings and text. Their events are not sent again.
 *
 * Threads: continuation_read() as request_read(); continuation_replay() on the engine thread. */
#pragma once
#include "verifier-svc/engine/request.h"
#include "verifier-svc/engine/seq.h"

struct Tandem__V1__Continuation;

/* Checks the message and copies it to r, whose other fields are read. -EINVAL: it does not fit the
 * request or this context, or names tokens outside the vocabulary; -ESTALE: another fingerprint;
 * -ENOMEM. */
int continuation_read(const struct Tandem__V1__Continuation *m, const struct request_limits *limits,
                      struct request *r);
/* Tokens that the engine replays in one turn, of all sequences together. So other streams do not
 * wait for a long answer, but for this many tokens: 0.3 to 0.6 ms on Zen 3 without stop strings. */
#define CONTINUATION_TURN 4096

/* Before an opened sequence runs: its committed tokens pass seq_commit() again, and their text is
 * dropped. Replays at most *left tokens and subtracts them; the next call continues. s->replayed:
 * all tokens have passed. Then *ret_end is the end that they have reached, of which the client has
 * not heard. -EINVAL: tokens after that end; -ENOMEM. */
int continuation_replay(struct seq *s, uint32_t *left, enum seq_end *ret_end);
