/* session.c - a hash table of sessions, and a list in order of use.
 *
 * One lock guards the table and the list. It is not held while a proposer drafts or learns a
 * context. A session in use is marked busy and is never evicted, so only its stream's thread
 * accesses it. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "proposer-svc/hint.h"
#include "proposer-svc/session.h"

/* A cut context is hashed again from the last kept digest on. So no update hashes more than this
 * many tokens in addition to its new ones. */
#define DIGEST_STEP 256

struct session {
    struct session *next;          // in the bucket
    struct session *newer, *older; // in the order of use
    uint64_t stream, seq;
    int64_t used_us;
    bool busy;
    uint32_t *tokens; // (capacity)
    uint32_t n, capacity, n_prompt;
    uint32_t n_verifying; // draft tokens after n, which the proposer knows too
    uint64_t digest;      // of tokens [0, n)
    uint64_t *digests;    // [i]: of tokens [0, (i + 1) * DIGEST_STEP), up to n
    struct prop_sampling sampling;
    struct dist_bias *bias; // memory of sampling: the biases, then the banned tokens
    uint8_t tenant[PROP_TENANT_MAX];
    uint8_t model[PROP_MODEL_MAX];
    uint32_t tenant_len, model_len;
    struct hint hint;
    max_align_t state[]; // the proposer's, ops->seq_size bytes
};

struct sessions {
    struct sessions_config c;
    pthread_mutex_t mu; // guards the fields below
    struct session *newest, *oldest;
    struct sessions_stats stats;
    uint32_t mask;
    struct session *buckets[];
};

int sessions_new(const struct sessions_config *c, struct sessions **ret)
{
    uint32_t n_buckets = 16;
    while (n_buckets < c->max_sessions)
        n_buckets *= 2;
    struct sessions *s = calloc(1, sizeof(*s) + n_buckets * sizeof(s->buckets[0]));
    if (!s)
        return fail(-ENOMEM, "session: no memory for %u sessions", c->max_sessions);
    s->c = *c;
    s->mask = n_buckets - 1;
    pthread_mutex_init(&s->mu, NULL);
    *ret = s;
    return 0;
}

static struct session **bucket_of(struct sessions *s, uint64_t stream, uint64_t seq)
{
    return &s->buckets[rng_splitmix64(rng_splitmix64(stream) ^ seq) & s->mask];
}

static struct session *find_session(struct sessions *s, uint64_t stream, uint64_t seq)
{
    struct session *e = *bucket_of(s, stream, seq);
    while (e && (e->stream != stream || e->seq != seq))
        e = e->next;
    return e;
}

static void unlink_use(struct sessions *s, struct session *e)
{
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
}

static void link_newest(struct sessions *s, struct session *e)
{
    e->newer = NULL;
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

static struct prop_context context_of(const struct session *e)
{
    return (struct prop_context){.tokens = e->tokens,
                                 .n = e->n + e->n_verifying,
                                 .n_prompt = e->n_prompt,
                                 .n_verifying = e->n_verifying,
                                 .tenant = e->tenant,
                                 .tenant_len = e->tenant_len,
                                 .model = e->model,
                                 .model_len = e->model_len};
}

/* Frees a session. Needs the lock. A busy session may only be dropped by the thread that uses
 * it. */
static void drop_session(struct sessions *s, struct session *e, bool ended)
{
    struct session **p = bucket_of(s, e->stream, e->seq);
    while (*p != e)
        p = &(*p)->next;
    *p = e->next;
    unlink_use(s, e);
    s->stats.n_sessions--;
    s->stats.n_tokens -= e->capacity + e->hint.n;
    e->n_verifying = 0;
    struct prop_context c = context_of(e);
    s->c.ops->seq_done(s->c.shared, e->state, ended ? &c : NULL);
    free(e->tokens);
    free(e->digests);
    free(e->hint.tokens);
    free(e->bias);
    free(e);
}

void sessions_free(struct sessions *s)
{
    if (!s)
        return;
    while (s->oldest)
        drop_session(s, s->oldest, false);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* Drops the least recently used sessions until n_sessions and n_tokens more are within the limits.
 * False: that is impossible, because the others are busy. */
static bool evict_for(struct sessions *s, uint32_t n_sessions, uint64_t n_tokens)
{
    for (struct session *e = s->oldest, *newer;
         e && (s->stats.n_sessions + n_sessions > s->c.max_sessions ||
               s->stats.n_tokens + n_tokens > s->c.max_tokens);
         e = newer) {
        newer = e->newer;
        if (e->busy)
            continue;
        s->stats.n_evicted++;
        drop_session(s, e, false);
    }
    return s->stats.n_sessions + n_sessions <= s->c.max_sessions &&
           s->stats.n_tokens + n_tokens <= s->c.max_tokens;
}

static struct session *add_session(struct sessions *s, uint64_t stream, uint64_t seq)
{
    if (!evict_for(s, 1, 0))
        return NULL;
    struct session *e = calloc(1, sizeof(*e) + s->c.ops->seq_size);
    if (!e)
        return NULL;
    struct session **p = bucket_of(s, stream, seq);
    e->stream = stream;
    e->seq = seq;
    e->sampling.params = (struct dist_params){.top_p = 1, .repetition = 1};
    e->next = *p;
    *p = e;
    link_newest(s, e);
    s->stats.n_sessions++;
    return e;
}

/* Reserves memory for n tokens of context. False: limits or memory do not allow it. */
static bool reserve_context(struct sessions *s, struct session *e, uint32_t n)
{
    if (n <= e->capacity)
        return true;
    uint64_t capacity = (uint64_t)n + n / 4 + 64;
    if (capacity > s->c.max_context)
        capacity = s->c.max_context;
    if (!evict_for(s, 0, capacity - e->capacity))
        return false;
    uint32_t *tokens = realloc(e->tokens, capacity * sizeof(*tokens));
    e->tokens = tokens ? tokens : e->tokens;
    uint64_t *digests = realloc(e->digests, (capacity / DIGEST_STEP + 1) * sizeof(*digests));
    e->digests = digests ? digests : e->digests;
    if (!tokens || !digests)
        return false;
    s->stats.n_tokens += capacity - e->capacity;
    e->capacity = (uint32_t)capacity;
    return true;
}

/* Copies the update's hint. Limits or lack of memory leave the session without one. */
static void take_hint(struct sessions *s, struct session *e, const struct session_update *u)
{
    uint32_t n = u->n_hint < HINT_TOKENS_MAX ? (uint32_t)u->n_hint : HINT_TOKENS_MAX;
    if (!n || e->hint.n || !evict_for(s, 0, n))
        return;
    e->hint.tokens = malloc(n * sizeof(*e->hint.tokens));
    if (!e->hint.tokens)
        return;
    memcpy(e->hint.tokens, u->hint, n * sizeof(*u->hint));
    e->hint.n = n;
    s->stats.n_tokens += n;
}

/* Moves e->digest from tokens [0, n) to [0, to), to >= n. */
static void extend_digest(struct session *e, uint32_t n, uint32_t to)
{
    for (uint32_t i = n; i < to; i++) {
        e->digest = rng_splitmix64(e->digest ^ ((uint64_t)e->tokens[i] + 1));
        if ((i + 1) % DIGEST_STEP == 0)
            e->digests[i / DIGEST_STEP] = e->digest;
    }
}

/* The digest of the context's first n tokens. */
static void cut_digest(struct session *e, uint32_t n)
{
    uint32_t steps = n / DIGEST_STEP;
    e->digest = steps ? e->digests[steps - 1] : 0;
    extend_digest(e, steps * DIGEST_STEP, n);
}

/* Finds or adds the session, marks it busy and reserves its context. *ret NULL: the whole context
 * is needed. -EBUSY: the session is busy already. */
static int begin_update(struct sessions *s, uint64_t stream, const struct session_update *u,
                        int64_t now_us, struct session **ret)
{
    pthread_mutex_lock(&s->mu);
    struct session *e = find_session(s, stream, u->seq);
    if (e && e->busy) {
        pthread_mutex_unlock(&s->mu);
        return -EBUSY;
    }
    if (!e && u->keep == 0)
        e = add_session(s, stream, u->seq);
    if (e) {
        e->busy = true;
        e->used_us = now_us;
        unlink_use(s, e);
        link_newest(s, e);
    }
    if (e && (u->keep > e->n || !reserve_context(s, e, u->base_len + (uint32_t)u->n_verifying))) {
        drop_session(s, e, false);
        e = NULL;
    }
    if (e)
        take_hint(s, e, u);
    pthread_mutex_unlock(&s->mu);
    *ret = e;
    return 0;
}

static void end_busy(struct sessions *s, struct session *e, bool keep)
{
    pthread_mutex_lock(&s->mu);
    e->busy = false;
    if (!keep)
        drop_session(s, e, false);
    pthread_mutex_unlock(&s->mu);
}

/* Cuts the context to `keep`. The proposer keeps tokens that were being verified up to the first
 * one that was not committed. */
static void cut_context(struct sessions *s, struct session *e, const struct session_update *u)
{
    uint32_t known = e->n + e->n_verifying, same = u->keep;
    while (u->keep == e->n && same < known && same < u->base_len &&
           e->tokens[same] == u->tokens[same - u->keep])
        same++;
    if (same < known) {
        struct prop_context c = context_of(e);
        s->c.ops->cut(s->c.shared, e->state, &c, same);
        hint_cut(&e->hint, same);
    }
    if (u->keep < e->n)
        cut_digest(e, u->keep);
    e->n = u->keep;
    e->n_verifying = 0;
}

/* Copies the parameters. Without memory for bans and biases there are none. */
static void take_sampling(struct session *e, const struct prop_sampling *from)
{
    const struct dist_params *p = &from->params;
    free(e->bias);
    e->bias = malloc(p->n_bias * sizeof(*p->bias) + from->ban.n * sizeof(uint32_t) + 1);
    uint32_t *banned = e->bias ? (uint32_t *)(e->bias + p->n_bias) : NULL;
    if (e->bias && p->n_bias)
        memcpy(e->bias, p->bias, p->n_bias * sizeof(*p->bias));
    if (e->bias && from->ban.n)
        memcpy(banned, from->ban.tokens, from->ban.n * sizeof(*banned));
    e->sampling = *from;
    e->sampling.params.bias = e->bias;
    e->sampling.ban.tokens = banned;
    if (!e->bias)
        e->sampling.params.n_bias = e->sampling.ban.n = 0;
}

/* Applies the update to the session. False: the digest differs, so it is not the verifier's
 * context, or the proposer has no memory. */
static bool apply_update(struct sessions *s, struct session *e, const struct session_update *u)
{
    cut_context(s, e, u);
    if (u->n_tokens)
        memcpy(e->tokens + e->n, u->tokens, u->n_tokens * sizeof(*u->tokens));
    extend_digest(e, e->n, u->base_len);
    e->n = u->base_len;
    if (u->prompt_len)
        e->n_prompt = u->prompt_len;
    if (u->sampling)
        take_sampling(e, u->sampling);
    if (u->tenant_len) {
        memcpy(e->tenant, u->tenant, u->tenant_len);
        e->tenant_len = (uint32_t)u->tenant_len;
    }
    if (u->model_len) {
        memcpy(e->model, u->model, u->model_len);
        e->model_len = (uint32_t)u->model_len;
    }
    if (e->digest != u->digest)
        return false;
    if (u->n_verifying)
        memcpy(e->tokens + e->n, u->verifying, u->n_verifying * sizeof(*u->verifying));
    e->n_verifying = (uint32_t)u->n_verifying;
    struct prop_context c = context_of(e);
    return s->c.ops->grow(s->c.shared, e->state, &c) == 0;
}

static int close_session(struct sessions *s, uint64_t stream, uint64_t seq, bool ended)
{
    pthread_mutex_lock(&s->mu);
    struct session *e = find_session(s, stream, seq);
    int r = e && e->busy ? -EBUSY : 0;
    if (e && !r)
        drop_session(s, e, ended);
    pthread_mutex_unlock(&s->mu);
    return r;
}

static int check_update(const struct session_update *u)
{
    if (u->keep > u->base_len || u->n_tokens != u->base_len - u->keep)
        return fail(-EINVAL, "sequence %llu: %zu tokens do not lead from keep %u to base_len %u",
                    (unsigned long long)u->seq, u->n_tokens, u->keep, u->base_len);
    if (u->tenant_len > PROP_TENANT_MAX)
        return fail(-EINVAL, "sequence %llu: the tenant has %zu bytes, at most %d are allowed",
                    (unsigned long long)u->seq, u->tenant_len, PROP_TENANT_MAX);
    if (u->model_len > PROP_MODEL_MAX)
        return fail(-EINVAL, "sequence %llu: the model has %zu bytes, at most %d are allowed",
                    (unsigned long long)u->seq, u->model_len, PROP_MODEL_MAX);
    if (u->n_verifying >= DRAFT_MAX_NODES)
        return fail(-EINVAL, "sequence %llu: %zu tokens are being verified, at most %d are allowed",
                    (unsigned long long)u->seq, u->n_verifying, DRAFT_MAX_NODES - 1);
    if (u->max_nodes && u->max_nodes <= u->n_verifying)
        return fail(-EINVAL, "sequence %llu: max_nodes %u leaves none after the %zu being verified",
                    (unsigned long long)u->seq, u->max_nodes, u->n_verifying);
    return 0;
}

/* The most tokens of the draft for the update, over all branches and without those that are being
 * verified. k_max limits a draft, but only the paths of a draft ahead. */
static uint32_t max_nodes_of(const struct session_update *u, uint32_t k_max)
{
    uint32_t ahead = (uint32_t)u->n_verifying, max = ahead ? DRAFT_MAX_NODES - ahead : k_max;
    uint32_t wanted = u->max_nodes ? u->max_nodes - ahead : ahead ? max : u->k;
    return wanted < max ? wanted : max;
}

static struct prop_ask ask_of(struct session *e, const struct session_update *u, uint32_t k_max)
{
    uint32_t max_nodes = max_nodes_of(u, k_max), max_depth = u->k < k_max ? u->k : k_max;
    return (struct prop_ask){.seq = e->state,
                             .context = context_of(e),
                             .max_depth = max_depth < max_nodes ? max_depth : max_nodes,
                             .max_nodes = max_nodes,
                             .q_mode = u->q_mode,
                             .sampling = e->sampling,
                             .p_min = u->p_min,
                             .draw_key = u->draw_key};
}

int sessions_update(struct sessions *s, uint64_t stream, const struct session_update *u,
                    int64_t now_us, enum session_answer *ret_answer, struct session **ret_session,
                    struct prop_ask *ret_ask)
{
    bool wants_draft = u->k && !u->close && !u->more;
    *ret_answer = wants_draft ? SESSION_EMPTY : SESSION_SILENT;
    if (u->close)
        return close_session(s, stream, u->seq, !u->unfinished);
    int r = check_update(u);
    if (r < 0)
        return r;
    if (u->base_len > s->c.max_context)
        return close_session(s, stream, u->seq, true); // the context can only grow
    struct session_update fits = *u;
    if (u->base_len + u->n_verifying > s->c.max_context) { // a draft ahead would exceed it
        fits.n_verifying = 0;
        wants_draft = false;
    }

    struct session *e;
    r = begin_update(s, stream, &fits, now_us, &e);
    if (r < 0)
        return r;
    bool known = e && apply_update(s, e, &fits);
    if (!known) {
        *ret_answer = SESSION_NEED_CONTEXT;
    } else if (wants_draft) {
        *ret_answer = SESSION_DRAFT;
        *ret_session = e;
        *ret_ask = ask_of(e, u, s->c.k_max);
        return 0;
    }
    if (e)
        end_busy(s, e, known);
    return 0;
}

bool sessions_hint(struct session *e, struct prop_ask *ask)
{
    return hint_draft(&e->hint, &ask->context, ask->max_depth, ask->to);
}

void sessions_end(struct sessions *s, struct session *e)
{
    end_busy(s, e, true);
}

void sessions_end_stream(struct sessions *s, uint64_t stream)
{
    pthread_mutex_lock(&s->mu);
    for (struct session *e = s->oldest, *newer; e; e = newer) {
        newer = e->newer;
        if (e->stream == stream)
            drop_session(s, e, false);
    }
    pthread_mutex_unlock(&s->mu);
}

void sessions_expire(struct sessions *s, int64_t now_us)
{
    pthread_mutex_lock(&s->mu);
    while (s->oldest && !s->oldest->busy && now_us - s->oldest->used_us > s->c.idle_us)
        drop_session(s, s->oldest, false);
    pthread_mutex_unlock(&s->mu);
}

void sessions_stats(struct sessions *s, struct sessions_stats *ret)
{
    pthread_mutex_lock(&s->mu);
    *ret = s->stats;
    pthread_mutex_unlock(&s->mu);
}
