/* drafts_client.c - a client of drafts.h in place of the engine. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/queue.h"
#include "lib/clients/drafts_client.h"
#include "lib/lib.h"

#define BUDGET_MIN_US 50000
#define SEQUENCES_MAX 256
#define PERIOD 50

struct drafts_client {
    struct drafts *drafts;
    struct queue *inbox; // of struct draft_answer
    uint32_t *context;
    int64_t longest_ask_us;
};

uint32_t drafts_client_token(uint32_t position)
{
    return position % PERIOD;
}

static void answer_free(struct draft_answer *a)
{
    if (a)
        draft_free(a->draft);
    free(a);
}
DEFINE_AUTO(struct draft_answer, answer_free)

static void arrived(void *user, struct draft_answer *answer)
{
    struct drafts_client *a = user;
    struct draft_answer *copy = malloc(sizeof(*copy));
    *copy = *answer;
    answer->draft = NULL;
    if (queue_push(a->inbox, copy) < 0)
        answer_free(copy);
}

struct drafts_client *drafts_client_new(const char *const *targets, unsigned n_targets,
                                        uint32_t max_sequences)
{
    struct drafts_client *a = calloc(1, sizeof(*a));
    a->context = malloc(DRAFTS_CLIENT_CONTEXT_MAX * sizeof(*a->context));
    for (uint32_t i = 0; i < DRAFTS_CLIENT_CONTEXT_MAX; i++)
        a->context[i] = drafts_client_token(i);
    assert_int_equal(queue_new(4096, &a->inbox), 0);
    struct drafts_config c = {.n_targets = n_targets,
                              .model = "test",
                              .n_vocab = DRAFTS_CLIENT_VOCAB,
                              .vocab_digest = 0x1234,
                              .max_sequences = max_sequences,
                              .arrived = arrived,
                              .user = a};
    for (unsigned i = 0; i < n_targets; i++)
        snprintf(c.targets[i].target, sizeof(c.targets[i].target), "%s", targets[i]);
    if (drafts_new(&c, &a->drafts) < 0)
        fail_msg("%s", fail_text());
    return a;
}

void drafts_client_free(struct drafts_client *a)
{
    if (!a)
        return;
    drafts_free(a->drafts);
    for (void *d; (d = queue_pop(a->inbox, 0));)
        answer_free(d);
    queue_free(a->inbox);
    free(a->context);
    free(a);
}

struct drafts *drafts_client_drafts(struct drafts_client *a)
{
    return a->drafts;
}

bool drafts_client_usable(struct drafts_client *a, unsigned i)
{
    struct drafts_stats s;
    return drafts_stats(a->drafts, i, &s) && s.connected && !s.benched;
}

bool drafts_client_wait_usable(struct drafts_client *a, unsigned i, bool wanted)
{
    int64_t until = clock_us() + 20000000;
    while (drafts_client_usable(a, i) != wanted) {
        if (clock_us() > until)
            return false;
        poll(NULL, 0, 1); // drafts.h has no event for a connection
    }
    return true;
}

static int64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static unsigned request_drafts(struct drafts_client *a, unsigned i, uint64_t first_seq, unsigned n,
                               uint32_t base_len, uint32_t k, int64_t wait_us)
{
    uint32_t budget_us = wait_us > BUDGET_MIN_US ? (uint32_t)wait_us : BUDGET_MIN_US;
    struct drafts_wish wishes[SEQUENCES_MAX] = {0};
    assert_true(n <= SEQUENCES_MAX && base_len <= DRAFTS_CLIENT_CONTEXT_MAX);
    for (unsigned s = 0; s < n; s++)
        wishes[s] = (struct drafts_wish){.seq = first_seq + s,
                                         .context = a->context,
                                         .base_len = base_len,
                                         .max_nodes = k,
                                         .max_depth = k};
    int64_t since = cpu_us();
    unsigned n_awaited = drafts_ask(a->drafts, i, wishes, n, budget_us, clock_us());
    int64_t took = cpu_us() - since;
    a->longest_ask_us = took > a->longest_ask_us ? took : a->longest_ask_us;
    return n_awaited;
}

unsigned drafts_client_round(struct drafts_client *a, unsigned i, uint64_t first_seq, unsigned n,
                             uint32_t base_len, uint32_t k, int64_t wait_us, unsigned *ret_right)
{
    unsigned n_awaited = request_drafts(a, i, first_seq, n, base_len, k, wait_us), n_came = 0;
    int64_t until = clock_us() + wait_us;
    *ret_right = 0;
    while (n_came < n_awaited) {
        int64_t left = until - clock_us();
        AUTO(answer_free) struct draft_answer *d = queue_pop(a->inbox, left > 0 ? left : 0);
        if (!d)
            return n_came;
        if (d->base_len != base_len || d->seq < first_seq || d->seq >= first_seq + n)
            continue; // late: for a shorter context, or requested by an earlier round
        n_came++;
        assert_true(d->draft->n <= k);
        assert_int_equal(d->proposer, i);
        for (uint32_t t = 0; t < d->draft->n; t++) {
            assert_true(d->draft->tokens[t] < DRAFTS_CLIENT_VOCAB);
            *ret_right += d->draft->tokens[t] == drafts_client_token(base_len + t);
        }
    }
    return n_came;
}

int64_t drafts_client_longest_ask_us(struct drafts_client *a)
{
    return a->longest_ask_us;
}
