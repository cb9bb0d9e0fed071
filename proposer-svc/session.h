/* session.h - the sequences a proposer knows: their contexts, kept in step with their verifiers.
 *
 * A session belongs to the stream that opened it and is found by (stream, seq). Each update says
 * what stays (keep), what comes, and the digest of the whole; what does not fit is answered with
 * "need context", so a session can be dropped at any time: when its stream ends, when it idles, or
 * when it is the least recently used and room is needed.
 *
 * Threads: any, and several at once; the updates of one stream come one after the other. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "proposer-svc/props/prop.h"

struct sessions;

struct sessions_config {
    const struct prop_ops *ops;
    void *shared; // what its open() returned
    uint32_t max_sessions;
    uint64_t max_tokens;  // of all contexts together, as allocated
    uint32_t max_context; // tokens of one; longer ones get empty drafts
    uint32_t k_max;       // <= DRAFT_MAX_NODES
    int64_t idle_us;      // a session unused for so long is dropped
};

struct session;

struct session_update { // a RoundSequence
    uint64_t seq;
    uint32_t base_len, keep;
    const uint32_t *tokens; // base_len - keep of them
    size_t n_tokens;
    uint64_t digest;           // of [0, base_len)
    uint32_t k;                // 0: only learn the context
    const uint32_t *verifying; // draft tokens behind base_len that are being verified
    size_t n_verifying;
    uint32_t prompt_len;
    enum draft_q_mode q_mode;
    uint64_t draw_key;
    const struct prop_sampling *sampling; // NULL: as before
    float p_min;
    const uint8_t *tenant; // with the first update; 0 bytes: as before
    size_t tenant_len;
    const uint32_t *hint; // likewise; what there is no room for is left out
    size_t n_hint;
    bool close, unfinished, more;
};

/* DRAFT: *ret_ask is to be drafted for; *ret_session is busy with it until sessions_end(). EMPTY: a
 * draft without tokens. */
enum session_answer { SESSION_SILENT, SESSION_DRAFT, SESSION_EMPTY, SESSION_NEED_CONTEXT };

/* -ENOMEM. */
int sessions_new(const struct sessions_config *c, struct sessions **ret);
void sessions_free(struct sessions *s);
DEFINE_AUTO(struct sessions, sessions_free)

/* Takes one sequence's update. -EINVAL: the update contradicts itself; the sentence goes to its
 * sender. -EBUSY: the session is busy with the ask before, which must end first. The ask lacks time
 * and where to draft to. */
int sessions_update(struct sessions *s, uint64_t stream, const struct session_update *u,
                    int64_t now_us, enum session_answer *ret_answer, struct session **ret_session,
                    struct prop_ask *ret_ask);
/* Drafts from the hint of a session that is busy with the ask. False: there is nothing. */
bool sessions_hint(struct session *e, struct prop_ask *ask);
/* The draft is made or given up. */
void sessions_end(struct sessions *s, struct session *e);
/* Drops all sessions of a stream that has ended; none is busy. */
void sessions_end_stream(struct sessions *s, uint64_t stream);
/* Drops what has idled for too long. */
void sessions_expire(struct sessions *s, int64_t now_us);

struct sessions_stats {
    uint32_t n_sessions;
    uint64_t n_tokens;  // room allocated for contexts and hints
    uint64_t n_evicted; // dropped to make room, since the start
};
void sessions_stats(struct sessions *s, struct sessions_stats *ret);
