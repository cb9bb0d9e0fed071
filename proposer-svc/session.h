/* session.h - the sequences that a proposer knows, and their contexts.
 *
 * A session belongs to the stream that opened it; its key is (stream, seq). An update has the
 * number of tokens that stay (keep), the new tokens, and the digest of the whole context. An update
 * that does not match is answered with "need context". So a session can be dropped at any time.
 * It is dropped when its stream ends, when it is idle, or when memory is needed and it is the least
 * recently used one.
 *
 * Threads: any, also several at the same time. Updates of one stream must not overlap. */
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
    uint64_t max_tokens;  // allocated for all contexts and hints together
    uint32_t max_context; // tokens of one context; longer ones get empty drafts
    uint32_t k_max;       // tokens of a draft, or on a path of a draft ahead; <= DRAFT_MAX_NODES
    int64_t idle_us;      // sessions that are unused longer than this are dropped
};

struct session;

/* A RoundSequence of proposer.proto. */
struct session_update {
    uint64_t seq;
    uint32_t base_len, keep;
    const uint32_t *tokens; // base_len - keep of them
    size_t n_tokens;
    uint64_t digest;    // of [0, base_len)
    uint32_t k;         // requested tokens on one path; 0: only update the context
    uint32_t max_nodes; // requested tokens with those of `verifying`; 0: unset, see RoundSequence
    const uint32_t *verifying; // draft tokens after base_len, which are being verified
    size_t n_verifying;
    uint32_t prompt_len;
    enum draft_q_mode q_mode;
    uint64_t draw_key;
    const struct prop_sampling *sampling; // NULL: unchanged
    float p_min;
    const uint8_t *tenant;  // comes with the first update
    size_t tenant_len;      // 0: unchanged
    const uint8_t *model;   // the same; the target's fingerprint
    size_t model_len;       // 0: unchanged
    const uint32_t *hint;   // comes with the first update; ignored if max_tokens leaves no space
    size_t n_hint;          // 0: unchanged
    bool close, unfinished; // drop the session; the sequence has ended, or may come back
    bool more;              // the rest of the context follows: no draft
};

enum session_answer {
    SESSION_SILENT,      // the update is not answered
    SESSION_DRAFT,       // *ret_ask is to be drafted for
    SESSION_EMPTY,       // the answer is a draft without tokens
    SESSION_NEED_CONTEXT // the answer is a request for the whole context
};

/* -ENOMEM. */
int sessions_new(const struct sessions_config *c, struct sessions **ret);
void sessions_free(struct sessions *s);
DEFINE_AUTO(struct sessions, sessions_free)

/* Applies one sequence's update, and returns how to answer it. SESSION_DRAFT: *ret_session is busy
 * with *ret_ask until sessions_end(); the caller sets until_us and to.
 * -EINVAL: fields of the update contradict each other; the error text is for its sender.
 * -EBUSY: the session is busy with its last ask, which must end first. */
int sessions_update(struct sessions *s, uint64_t stream, const struct session_update *u,
                    int64_t now_us, enum session_answer *ret_answer, struct session **ret_session,
                    struct prop_ask *ret_ask);
/* Drafts for the ask from its session's hint. False: the hint gives no draft. */
bool sessions_hint(struct session *e, struct prop_ask *ask);
/* The ask is done or cancelled: the session is no longer busy. */
void sessions_end(struct sessions *s, struct session *e);
/* Drops all sessions of a stream that has ended. None may be busy. */
void sessions_end_stream(struct sessions *s, uint64_t stream);
/* Drops the sessions that are idle longer than idle_us. */
void sessions_expire(struct sessions *s, int64_t now_us);

struct sessions_stats {
    uint32_t n_sessions;
    uint64_t n_tokens;  // allocated for contexts and hints
    uint64_t n_evicted; // dropped because of max_sessions and max_tokens, since the start
};
void sessions_stats(struct sessions *s, struct sessions_stats *ret);
