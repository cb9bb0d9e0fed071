/* completion.h - one request for tokens: its prompts at verifiers, its answer, its end. Private to
 * generate.c, which leads it there, and generation.c.
 *
 * Steps follow one another, each on the thread its predecessor ended on, until the prompts are
 * asked; then each of them has a call of its own. Whoever does a step holds a reference, and hands
 * it on or drops it. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "gateway/upstream/upstream_call.h"
#include "gateway/serve/completions.h"
#include "gateway/openai/openai_reply.h"
#include "gateway/serve/access_log.h"

#define COMPLETION_STOPPING "the server is shutting down"

struct completions {
    struct upstream *upstream;
    struct template *template;
    const char *tool_format; // "auto": the template's
    int64_t load_wait_us, queue_wait_us;
    atomic_bool draining;

    pthread_mutex_t mu; // for what follows
    bool stopping;      // no step begins any more
    struct completion *all;
};

struct completion {
    struct completions *g;
    struct completion *prev, *next; // in g->all, with g's lock
    atomic_uint n_refs;             // the connection's, and the current step's
    struct http_request *http;
    struct openai_request q;
    struct verifier *verifier; // of the first prompt, until it is asked
    const struct upstream_model *model;
    struct affinity_prompt *prompt; // how the first one begins, until then
    bool waited;

    pthread_mutex_t answer_mu; // while prompts are asked, for what follows
    struct openai_reply reply;
    struct access_log log;
    bool streaming;
    unsigned n_begun;                   // prompts
    const struct upstream_call *failed; // the first one that did

    pthread_mutex_t mu;          // for what follows
    bool gone;                   // nobody reads the answer
    bool aborted;                // the server stops
    bool failing;                // a prompt has failed
    struct upstream_call *calls; // (n_calls) of the prompts
    unsigned n_calls, n_sent, n_running, max_running;
};

void completion_unref(struct completion *x);
/* Its client's hang-ups and pauses are heeded from now on. */
void completion_watch(struct completion *x);
/* Whether the next step may begin. Otherwise the request has been ended. */
bool completion_is_live(struct completion *x);
/* Ends the request with an error, as a status or, once events have left, as an event. */
void completion_fail(struct completion *x, int status, const char *text, const char *param);

/* How a prompt begins: NULL when it is short, does not matter, or there is no memory. */
struct affinity_prompt *completion_affinity(const struct completion *x, const void *prompt,
                                            size_t len);
struct affinity_prompt *completion_prompt_affinity(const struct completion *x,
                                                   const struct openai_prompt *p);
/* The calls for all its prompts, once its reply is there. -ENOMEM. */
int completion_prepare(struct completion *x, const struct output_parser_rules *rules);
/* Asks as many prompts as may run at a time. The caller, who counts as running, then does so no
 * longer; the last one answers and ends the request, and takes the step's reference along. */
void completion_send(struct completion *x);
/* With x's lock: all calls end. */
void completion_cancel(struct completion *x);
