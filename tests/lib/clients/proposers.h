/* proposers.h - proposers for tests: an honest one, and a liar that breaks the protocol on purpose.
 *
 * Each serves tandem.v1.Proposer inside the test's process, on a separate unix socket. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"

#define PROPOSER_PATH_MAX 100

/* ---- honest: the real service with the n-gram proposer ---- */

struct honest;

/* path: the socket, for example "/tmp/x/p.sock". The n-gram settings are the defaults. */
struct honest *honest_start(const char *path);
void honest_stop(struct honest *h);
DEFINE_AUTO(struct honest, honest_stop)
uint32_t honest_n_sessions(struct honest *h);

/* ---- liar ---- */

enum lie {
    LIE_NOTHING,      // well-formed drafts of random tokens
    LIE_EMPTY,        // drafts without tokens
    LIE_SILENT,       // takes Rounds and never answers
    LIE_LATE,         // answers LIAR_LATE_MS late
    LIE_STALE,        // answers for another context
    LIE_OVERLONG,     // more than k tokens
    LIE_VOCABULARY,   // token ids outside the vocabulary
    LIE_PARENTS,      // a tree in which children precede their parents
    LIE_NAN,          // survival estimates that are NaN
    LIE_Q_MODE,       // a q mode that was not requested
    LIE_GARBAGE,      // bytes that are not a message
    LIE_HUGE,         // an answer with a million sequences
    LIE_FLOOD,        // a hundred answers to each Round
    LIE_NEED_CONTEXT, // always requests the context
    LIE_HANG_UP,      // ends the stream at each Round
    LIE_DEAF,         // reads nothing on a new stream
    LIE_PROTOCOL,     // describes itself with protocol version 99
    LIE_DIGEST,       // describes another vocabulary
    LIE_NO_DESCRIBE,  // Describe fails
    LIE_DRAWN,        // honest: tokens drawn from liar_probs, with q in the requested mode
    LIE_DRAWN_LATE,   // like LIE_DRAWN; every eighth answer is LIAR_LATE_MS late
    LIE_DRAWN_TELLS,  // like LIE_DRAWN; late if it has q and begins with LIAR_TOKEN(2)
    LIE_OTHER_Q,      // like LIE_DRAWN, but not drawn from its q: liar_probs reversed
    LIE_COUNT
};

#define LIAR_LATE_MS 60
#define LIAR_TOKENS 3
/* The probability of LIAR_TOKEN(i), in 1/65536. */
static const uint16_t liar_probs[LIAR_TOKENS] = {39322, 6553, 19661};
#define LIAR_TOKEN(i) (300u + 100u * (i))

struct liar;

struct liar *liar_start(const char *path, enum lie lie, uint32_t n_vocab);
struct liar *liar_listen(const char *target, enum lie lie, uint32_t n_vocab); // "127.0.0.1:PORT"
void liar_stop(struct liar *l);
DEFINE_AUTO(struct liar, liar_stop)
/* Takes effect with the next Round. */
void liar_change(struct liar *l, enum lie lie);
/* How often the liar received each of these since its start. */
unsigned liar_n_described(struct liar *l);
unsigned liar_n_rounds(struct liar *l);
unsigned liar_n_streams(struct liar *l);
unsigned liar_n_drawn(struct liar *l); // tokens drawn
unsigned liar_n_ahead(struct liar *l); // requests for drafts ahead
/* The modes that were requested for the newest sequence: bits 1 << QMode. */
unsigned liar_q_modes(struct liar *l);
unsigned liar_n_ended(struct liar *l); // closed sequences that had ended
unsigned liar_n_left(struct liar *l);  // closed sequences that had not ended
const char *lie_name(enum lie lie);
