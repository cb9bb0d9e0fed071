/* proposers.h - proposers for tests: an honest one, and one that does what no proposer should.
 *
 * Both serve tandem.v1.Proposer inside the test's process, on a unix socket of their own. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"

#define PROPOSER_PATH_MAX 100

/* ---- honest: the real service with the n-gram proposer ---- */

struct honest;

/* path: of the socket, as "/tmp/x/p.sock"; the n-gram settings are the defaults. */
struct honest *honest_start(const char *path);
void honest_stop(struct honest *h);
DEFINE_AUTO(struct honest, honest_stop)
uint32_t honest_n_sessions(struct honest *h);

/* ---- a liar, and one that draws ---- */

enum lie {
    LIE_NOTHING,      // random tokens of the vocabulary, well formed: an adversarial guess
    LIE_EMPTY,        // never a guess
    LIE_SILENT,       // takes Rounds and never answers
    LIE_LATE,         // answers LIAR_LATE_MS late
    LIE_STALE,        // answers for another context
    LIE_OVERLONG,     // more tokens than were asked for
    LIE_VOCABULARY,   // tokens that do not exist
    LIE_PARENTS,      // a tree in which children come first
    LIE_NAN,          // survival estimates that are no numbers
    LIE_Q_MODE,       // a q mode nobody asked for
    LIE_GARBAGE,      // bytes that are no message
    LIE_HUGE,         // an answer with a million sequences
    LIE_FLOOD,        // a hundred answers to each question
    LIE_NEED_CONTEXT, // never knows the context
    LIE_HANG_UP,      // ends the stream at each Round
    LIE_DEAF,         // reads nothing on a new stream
    LIE_PROTOCOL,     // describes itself with protocol version 99
    LIE_DIGEST,       // describes another vocabulary
    LIE_NO_DESCRIBE,  // Describe fails
    LIE_DRAWN,        // no lie: tokens drawn from liar_law, told in the mode that was asked for
    LIE_DRAWN_LATE,   // the same; every eighth answer LIAR_LATE_MS late
    LIE_DRAWN_TELLS,  // the same; LIAR_LATE_MS late if it tells q and LIAR_TOKEN(2) comes first
    LIE_OTHER_Q,      // the same as LIE_DRAWN, drawn from the law read backwards
    LIE_COUNT
};

#define LIAR_LATE_MS 60
#define LIAR_LAW 3
/* Of 65536, which they sum to; LIAR_TOKEN(i) is the token. */
static const uint16_t liar_law[LIAR_LAW] = {39322, 6553, 19661};
#define LIAR_TOKEN(i) (300u + 100u * (i))

struct liar;

struct liar *liar_start(const char *path, enum lie lie, uint32_t n_vocab);
struct liar *liar_listen(const char *target, enum lie lie, uint32_t n_vocab); // "127.0.0.1:PORT"
void liar_stop(struct liar *l);
DEFINE_AUTO(struct liar, liar_stop)
/* From the next Round on. */
void liar_change(struct liar *l, enum lie lie);
unsigned liar_n_described(struct liar *l); // times, all of these
unsigned liar_n_rounds(struct liar *l);
unsigned liar_n_streams(struct liar *l);
unsigned liar_n_drawn(struct liar *l); // tokens
unsigned liar_n_ahead(struct liar *l); // drafts that were asked for behind tokens being verified
/* Asked for the newest sequence: bits 1 << QMode. */
unsigned liar_q_modes(struct liar *l);
unsigned liar_n_ended(struct liar *l); // sequences that were closed, and had ended
unsigned liar_n_left(struct liar *l);  // or had not
const char *lie_name(enum lie lie);
