/* completion.h - one request for tokens: the calls of its prompts, its answer, its end.
 *
 * Private to completions.c, which prepares the prompts, and to completion.c, which makes the calls.
 *
 * Threads: each step runs on the thread on which the step before it ended. A step holds a
 * reference, which it passes to the next step or drops. Then each prompt has a call, and the calls
 * run concurrently. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "base/err.h"
#include "gateway/upstream/upstream_call.h"
#include "gateway/serve/completions.h"
#include "gateway/openai/openai_reply.h"
#include "gateway/serve/access_log.h"
#include "gateway/serve/full_queues.h"
#include "gateway/serve/prompt_places.h"
#include "gateway/serve/reader.h"

#define COMPLETION_STOPPING READER_STOPPING

struct completions {
    struct upstream *upstream;
    struct template *template;
    const char *tool_format; // "auto": recognised from the template
    int64_t load_wait_us, queue_wait_us;
    struct upstream_patience patience;
    atomic_bool draining;
    struct reader *reader; // of large bodies
    struct prompt_places places;
    struct full_queues full;

    pthread_mutex_t mu; // guards the fields below
    bool stopping;      // no step may begin
    struct completion *all;
};

struct completion {
    struct completions *g;
    struct completion *prev, *next; // in g->all, with g's lock
    atomic_uint n_refs;             // of the connection and of the current step
    struct http_request *http;
    struct reader_job reading; // its body is large
    struct openai_request q;
    struct verifier *verifier; // for the first prompt, until its call is made
    const struct upstream_model *model;
    struct affinity_prompt *prompt; // the prefixes of the first prompt, as long as `verifier`
    bool waited;                    // for a verifier that was loading

    pthread_mutex_t answer_mu; // guards the next fields while calls run
    struct openai_reply reply;
    struct access_log log;
    bool streaming;
    const struct upstream_call *failed; // the first call that failed, or NULL
    size_t reserved;                    // bytes that are charged for token ids, and not used yet
    size_t answer_bytes;                // that are charged for what the reply collects
    int refused_status;                 // the answer found no memory; 0: it has
    char refused[FAIL_TEXT_MAX];        // why

    pthread_mutex_t mu;          // guards the fields below
    bool closed;                 // the client has disconnected, or is answered
    bool aborted;                // the server stops
    bool failing;                // a call has failed
    bool renders;                // the chat waits for its template, or is rendered
    bool loads;                  // it waits for a model that is loading
    struct upstream_call *calls; // (n_calls), one per prompt
    unsigned n_calls, n_sent, max_running;
    bool begun;         // an event of a verifier has come
    unsigned n_running; // calls, callers of completion_send(), and the wait for a place
    struct prompt_places_request place; // joined if there are several calls
    unsigned n_places;                  // that it has
    bool waits;                         // for a place; prompt_places_give() may have returned it
};

void completion_unref(struct completion *x);
/* From now on a disconnect cancels the request, and a slow reader pauses it. */
void completion_watch(struct completion *x);
/* Whether the next step may begin. false: the request has been ended. */
bool completion_is_live(struct completion *x);
/* Ends the request with an error: an HTTP status, or an event if the stream has begun. */
void completion_fail(struct completion *x, int status, const char *text, const char *param);

/* The prefixes of a prompt. NULL: it is short, there is only one verifier, or no memory. */
struct affinity_prompt *completion_affinity(const struct completion *x, const void *prompt,
                                            size_t len);
struct affinity_prompt *completion_prompt_affinity(const struct completion *x,
                                                   const struct openai_prompt *p);
/* Prepares the calls of all prompts, after the reply is initialised. -ENOMEM. */
int completion_prepare(struct completion *x, const struct output_parser_rules *rules);
/* Charges what the request keeps while it runs: its calls, its reply, and the ids of the tokens
 * that it may generate. Ids above a limit are charged when they come. After completion_prepare().
 * Errors are those of http_charge(). */
int completion_charge(struct completion *x);
/* Makes calls until max_running of them run, or the next one must wait for a place
 * (prompt_places.h). Until the first event of a verifier, one call runs. During this function the
 * caller counts as a running call. The thread that reduces the count to 0 answers the request and
 * drops the step's reference. */
void completion_send(struct completion *x);
/* With x's lock. Cancels all calls. */
void completion_cancel(struct completion *x);
