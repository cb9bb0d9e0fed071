/* test_admit.c - which requests start; the engine's thread does not run. */
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "lib/lib.h"
#include "lib/clients/topic.h"
#include "lib/fakes/failing.h"
#include "verifier-svc/engine/continuation.h"
#include "verifier-svc/engine/engine_impl.h"

#define N_BLOCKS 64
#define MANY_BLOCKS 4096

static const struct kv_layer layer = {.n_heads = 1, .k_dim = 4, .v_dim = 4};
static const struct kv_shape shape = {.n_layers = 1, .layers = &layer};
static struct stats stats;
static struct verifier_options options = {.max_sequences = 16,
                                          .queue_length = 32,
                                          .max_batch_rows = 64,
                                          .prefill_chunk = 64,
                                          .prefix_cache = true,
                                          .kv_disk = ""};
static struct checkpoint *file;
static struct tok *tok;

static int set_up_with(void **state, uint32_t n_blocks)
{
    struct engine *e;
    assert_int_equal(engine_new(&options, &stats, &e), 0);
    assert_int_equal(events_fit(e->events, tok), 0);
    e->loaded = calloc(1, sizeof(*e->loaded));
    assert_non_null(e->loaded);
    assert_int_equal(kv_new(&shape, n_blocks, &e->loaded->run.kv), 0);
    assert_int_equal(kv_open_index(e->loaded->run.kv, 1, kv_hash), 0);
    *state = e;
    return 0;
}

static int set_up(void **state)
{
    return set_up_with(state, N_BLOCKS);
}

static int set_up_large(void **state)
{
    return set_up_with(state, MANY_BLOCKS);
}

static void end(struct engine *e, struct seq_list *l)
{
    while (l->n) {
        struct request *r = l->v[0]->req;
        engine_fail_request(e, r, -1, "");
        request_drop(r);
    }
}

static int tear_down(void **state)
{
    struct engine *e = *state;
    end(e, &e->running);
    end(e, &e->waiting);
    engine_free(e);
    return 0;
}

/* A request for n_choices answers to n tokens of a topic comes. flow: its name, or 0. resumed: a
 * gateway resumes it. */
static struct seq *come_from(struct engine *e, char flow, unsigned topic, uint32_t n,
                             uint32_t n_choices, bool resumed)
{
    struct topic w;
    topic_init(&w, topic, n);
    w.msg.n = n_choices;
    struct seq *s = topic_request(&w, tok, 2000)->seqs[0];
    for (uint32_t i = 0; i < n_choices; i++)
        s->req->seqs[i]->id = s->req->seqs[i]->order = ++e->next_order;
    s->req->place.resumed = resumed;
    s->req->flow[0] = (uint8_t)flow;
    s->req->flow_len = flow != 0;
    uint32_t n_displaced;
    assert_int_equal(
        flows_enter(e->flows, &s->req->place, s->req->flow, s->req->flow_len, &n_displaced), 0);
    seq_list_add(&e->waiting, s);
    return s;
}

static struct seq *come_as(struct engine *e, unsigned topic, uint32_t n, uint32_t n_choices,
                           bool resumed)
{
    return come_from(e, 0, topic, n, n_choices, resumed);
}

static struct seq *come(struct engine *e, unsigned topic, uint32_t n)
{
    return come_as(e, topic, n, 1, false);
}

static struct seq *come_with(struct engine *e, char flow, unsigned topic, uint32_t n,
                             uint32_t n_choices)
{
    return come_from(e, flow, topic, n, n_choices, false);
}

static struct seq *come_of(struct engine *e, char flow, unsigned topic, uint32_t n_choices)
{
    return come_with(e, flow, topic, 10, n_choices);
}

/* The large request waits for one of two reasons, which alternate. Its prompt shares a prefix that
 * is being computed, or there are not enough blocks for it. */
static void at_most_eight_requests_pass_the_head(void **state)
{
    struct engine *e = *state;
    struct seq *running = come(e, 1, 420), *large, *small;
    admit_waiting(e);
    assert_int_equal(running->state, SEQ_RUNNING);
    large = come(e, 2, 800);
    memcpy(running->tokens, large->req->prompt, 420 * sizeof(uint32_t));
    for (unsigned i = 0; i <= SCHED_MAX_PASSING; i++) {
        running->tokens[0] = large->req->prompt[0] + (i % 2 == 0);
        small = come(e, 3 + i, 10);
        admit_waiting(e);
        assert_int_equal(large->state, SEQ_WAITING);
        assert_int_equal(small->state, i < SCHED_MAX_PASSING ? SEQ_RUNNING : SEQ_WAITING);
    }
}

/* Of the free blocks, a running sequence that has its blocks is left one, for its next rows. */
static void a_running_sequence_is_left_one_block(void **state)
{
    struct engine *e = *state;
    struct seq *running = come(e, 1, 160);
    admit_waiting(e);
    assert_int_equal(kv_grow(e->loaded->run.kv, &running->kv, 161), 0);
    uint32_t n_left = kv_n_free(e->loaded->run.kv) - 1;
    struct seq *larger = come(e, 2, n_left * KV_BLOCK), *fits = come(e, 3, n_left * KV_BLOCK - 1);
    admit_waiting(e);
    assert_int_equal(larger->state, SEQ_WAITING);
    assert_int_equal(fits->state, SEQ_RUNNING);
}

/* It may wait for any time without an effect on others. */
static void a_request_that_waits_for_a_prefix_is_passed_by_all(void **state)
{
    struct engine *e = *state;
    struct seq *running = come(e, 1, 420), *alike;
    admit_waiting(e);
    alike = come(e, 1, 440);
    for (unsigned i = 0; i < 10; i++) {
        struct seq *other = come(e, 2 + i, 10);
        admit_waiting(e);
        assert_int_equal(alike->state, SEQ_WAITING);
        assert_int_equal(other->state, SEQ_RUNNING);
    }
    struct kv_root root = seq_root(running);
    assert_int_equal(kv_grow(e->loaded->run.kv, &running->kv, 420), 0);
    kv_enter(e->loaded->run.kv, &running->kv, &root, running->tokens, 420);
    admit_waiting(e);
    assert_int_equal(alike->state, SEQ_RUNNING);
}

/* A row takes 0.1 ms here. Prompts of the other flow may delay the rows for longer. */
static void a_prefix_of_another_flow_is_waited_for_as_long_as_it_takes(void **state)
{
    struct engine *e = *state;
    static struct pass_time_measured measured;
    for (unsigned i = 0; i < PASS_TIME_POINTS; i++)
        measured.us[i] = pass_time_rows_at(i) * 100.0;
    pass_time_init(&e->control.pass_time, &measured);
    struct seq *running = come_with(e, 'a', 1, 420, 1);
    admit_waiting(e);
    struct seq *own = come_with(e, 'a', 1, 440, 1), *other = come_with(e, 'b', 1, 440, 1);
    memcpy(own->req->prompt, running->tokens, 420 * sizeof(uint32_t));
    memcpy(other->req->prompt, running->tokens, 420 * sizeof(uint32_t));
    int64_t since_us = clock_us();
    admit_waiting(e);
    assert_int_equal(own->state, SEQ_WAITING);
    assert_int_equal(other->state, SEQ_WAITING);
    assert_in_range(other->share_until_us - since_us, 41600, 2000000);
    assert_int_equal(own->share_until_us, 0);
    other->share_until_us = since_us; // the time is over
    admit_waiting(e);
    assert_int_equal(own->state, SEQ_WAITING);
    assert_int_equal(other->state, SEQ_RUNNING);
}

/* Rows of another tenant are no reason to wait: they are never shared. */
static void a_prefix_of_another_tenant_is_not_waited_for(void **state)
{
    struct engine *e = *state;
    come(e, 1, 420);
    admit_waiting(e);
    struct seq *alike = come(e, 1, 440), *other = come(e, 1, 440), *longer = come(e, 1, 440);
    other->req->tenant[0] = 'x';
    other->req->tenant_len = 1;
    longer->req->tenant_len = 1; // a zero byte
    admit_waiting(e);
    assert_int_equal(alike->state, SEQ_WAITING);
    assert_int_equal(other->state, SEQ_RUNNING);
    assert_int_equal(longer->state, SEQ_WAITING); // for blocks
}

static void a_lack_of_memory_fails_one_request_only(void **state)
{
    struct engine *e = *state;
    struct seq *first = come(e, 1, 20), *second = come(e, 2, 20);
    failing_at(1);
    admit_waiting(e);
    failing_at(0);
    assert_int_equal(first->state, SEQ_ENDED);
    assert_int_equal(flows_state(e->flows, &first->req->place), FLOWS_NONE);
    assert_int_equal(second->state, SEQ_RUNNING);
    assert_int_equal(e->waiting.n, 0);
    request_drop(first->req);
}

/* It starts although older requests wait, which it leaves no blocks for. */
static void a_resumed_answer_starts_before_new_requests(void **state)
{
    struct engine *e = *state;
    struct seq *older = come(e, 1, 600), *resumed = come_as(e, 2, 600, 1, true);
    admit_waiting(e);
    assert_int_equal(resumed->state, SEQ_RUNNING);
    assert_int_equal(older->state, SEQ_WAITING);
}

/* Up to half of the seats, one for each request; the newest sequences of the other flow wait. */
static void a_flow_with_all_seats_shares_them(void **state)
{
    struct engine *e = *state;
    enum { SEATS = 16 };
    struct seq *a[SEATS + 1], *b[SEATS / 2 + 1];
    for (unsigned i = 0; i <= SEATS; i++)
        a[i] = come_of(e, 'a', 1 + i, 1);
    admit_waiting(e);
    assert_int_equal(e->running.n, SEATS);
    assert_int_equal(a[SEATS]->state, SEQ_WAITING); // its own flow gives no seats
    for (unsigned i = 0; i <= SEATS / 2; i++) {
        b[i] = come_of(e, 'b', 100 + i, 1);
        admit_waiting(e);
        bool shares = i < SEATS / 2;
        assert_int_equal(b[i]->state, shares ? SEQ_RUNNING : SEQ_WAITING);
        assert_int_equal(e->running.n, SEATS);
        for (unsigned k = 0; k < SEATS; k++)
            assert_int_equal(a[k]->state, k + i + shares < SEATS ? SEQ_RUNNING : SEQ_WAITING);
    }
}

static uint32_t n_running(const struct engine *e, char flow)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->running.n; i++)
        n += e->running.v[i]->req->flow[0] == (uint8_t)flow;
    return n;
}

/* Their choices start one by one. */
static void requests_with_choices_share_the_seats(void **state)
{
    struct engine *e = *state;
    for (unsigned i = 0; i < 16; i++)
        come_of(e, 'a', 1 + i, 1);
    admit_waiting(e);
    come_of(e, 'b', 101, 16);
    admit_waiting(e);
    assert_int_equal(n_running(e, 'a'), 8);
    assert_int_equal(n_running(e, 'b'), 8);
    come_of(e, 'c', 102, 16);
    admit_waiting(e);
    assert_in_range(n_running(e, 'c'), 5, 6);
    assert_in_range(n_running(e, 'b'), 5, 6);
    assert_int_equal(e->running.n, 16);
}

/* A request for more choices than there are free seats keeps nobody out. */
static void a_request_with_choices_needs_one_seat(void **state)
{
    struct engine *e = *state;
    struct seq *a = come_of(e, 'a', 1, 12);
    admit_waiting(e);
    struct seq *many = come_of(e, 'b', 2, 16);
    admit_waiting(e);
    assert_int_equal(a->state, SEQ_RUNNING);
    assert_int_equal(many->state, SEQ_RUNNING);
    for (unsigned i = 0; i < 8; i++) {
        struct seq *c = come_of(e, (char)('c' + i), 10 + i, 1);
        admit_waiting(e);
        assert_int_equal(c->state, SEQ_RUNNING);
    }
    assert_int_equal(e->running.n, 16);
    assert_true(n_running(e, 'b') >= 4);
}

/* Ends the running choices of the request. */
static void end_running(struct engine *e, struct request *r)
{
    for (uint32_t i = e->running.n; i-- > 0;) {
        struct seq *s = e->running.v[i];
        if (s->req == r)
            engine_end_seq(e, s, SEQ_LENGTH,
                           events_add(events_reserve(e->events, 0), r, s->choice));
    }
}

/* Its prompt counts once. A request whose choices wait for a seat keeps a place. */
static void choices_start_when_others_have_ended(void **state)
{
    struct engine *e = *state;
    for (unsigned i = 0; i < 13; i++)
        come(e, i, 2);
    struct seq *s = come_as(e, 20, 10, 8, false);
    struct request *r = s->req;
    admit_waiting(e);
    assert_int_equal(e->running.n, 16);
    assert_int_equal(r->n_started, 3);
    assert_int_equal(e->waiting.n, 1); // the next one
    assert_int_equal(e->n_started, 16);
    end_running(e, r);
    assert_int_equal(e->n_started, 13 + 1);
    e->n_started += 34; // as if others had all places
    admit_waiting(e);
    assert_int_equal(r->n_started, 1);
    e->n_started -= 34;
    admit_waiting(e);
    assert_int_equal(r->n_started, 3);
    end_running(e, r);
    admit_waiting(e);
    assert_int_equal(r->n_started, 2); // the last ones
    assert_int_equal(e->waiting.n, 0);
    end_running(e, r);
    assert_int_equal(flows_state(e->flows, &r->place), FLOWS_NONE);
    assert_int_equal(e->n_started, 13);
    request_drop(r);
}

/* A choice that joins the first one waits for its prompt, so it must not join after that. */
static void choices_join_only_before_the_first_token(void **state)
{
    struct engine *e = *state;
    for (unsigned i = 0; i < 14; i++)
        come(e, i, 2);
    struct seq *s = come_as(e, 20, 10, 8, false);
    struct request *r = s->req;
    admit_waiting(e);
    assert_int_equal(r->n_started, 2);
    r->seqs[1]->state = SEQ_RUNNING;
    s->tokens[s->n++] = 300;
    engine_preempt(e, s);
    for (unsigned i = 0; i < 3; i++) {
        struct request *other = e->running.v[0]->req;
        engine_fail_request(e, other, -1, "");
        request_drop(other);
    }
    admit_waiting(e);
    assert_int_equal(r->n_started, 5);
    for (uint32_t i = 0; i < e->running.n; i++)
        assert_int_equal(e->running.v[i]->state, SEQ_RUNNING);
}

/* Answers whose clients do not read: the flow with most of them gives its places, one by one. */
static void paused_answers_give_their_places_to_other_flows(void **state)
{
    struct engine *e = *state;
    struct seq *a[48];
    for (unsigned i = 0; i < ARRAY_LEN(a); i++) {
        a[i] = come_of(e, 'a', 1 + i, 1);
        admit_waiting(e);
        assert_true(a[i]->started);
        atomic_store(&a[i]->req->paused, true);
    }
    struct seq *more = come_of(e, 'a', 99, 1);
    admit_waiting(e);
    assert_false(more->started);
    assert_int_equal(e->n_started, e->max_started);
    engine_fail_request(e, more->req, -1, "");
    request_drop(more->req);
    struct seq *b = come_of(e, 'b', 100, 16);
    admit_waiting(e);
    assert_int_equal(b->req->n_started, 16); // as many as there are seats
    for (unsigned i = 0; i < ARRAY_LEN(a); i++) {
        assert_int_equal(a[i]->state, i < 32 ? SEQ_WAITING : SEQ_ENDED);
        if (a[i]->state == SEQ_ENDED)
            request_drop(a[i]->req);
    }
    struct seq *c = come_of(e, 'c', 101, 1);
    admit_waiting(e);
    assert_int_equal(c->state, SEQ_RUNNING);
    assert_int_equal(a[31]->state, SEQ_ENDED);
    request_drop(a[31]->req);
}

/* The clients read again, but others have the seats. */
static void answers_that_wait_for_seats_give_places_too(void **state)
{
    struct engine *e = *state;
    struct seq *a[48];
    for (unsigned i = 0; i < ARRAY_LEN(a); i++) {
        a[i] = come_of(e, 'a', 1 + i, 1);
        admit_waiting(e);
        atomic_store(&a[i]->req->paused, true);
    }
    for (unsigned i = 0; i < ARRAY_LEN(a); i++)
        atomic_store(&a[i]->req->paused, false);
    admit_waiting(e);
    struct seq *b = come_of(e, 'b', 100, 1);
    admit_waiting(e);
    assert_int_equal(b->state, SEQ_RUNNING);
    assert_int_equal(e->n_started, e->max_started);
    for (unsigned i = 0; i < ARRAY_LEN(a); i++)
        if (a[i]->state == SEQ_ENDED)
            request_drop(a[i]->req);
}

/* Nobody needs a place while one is free, or of a flow that has as many. */
static void paused_answers_stay_while_there_are_places(void **state)
{
    struct engine *e = *state;
    for (unsigned i = 0; i < 24; i++) {
        struct seq *s = come_of(e, i % 2 ? 'a' : 'b', 1 + i, 2);
        admit_waiting(e);
        atomic_store(&s->req->paused, true);
    }
    assert_int_equal(e->n_started, e->max_started);
    struct seq *more = come_of(e, 'a', 99, 1);
    admit_waiting(e);
    assert_false(more->started);
    assert_int_equal(e->n_started, e->max_started);
}

/* Of a request whose prompt runs, only the last choice returns to the queue. */
static void a_choice_without_rows_gives_its_seat(void **state)
{
    struct engine *e = *state;
    come_of(e, 'a', 1, 8);
    struct seq *a = come_of(e, 'a', 2, 8);
    admit_waiting(e);
    assert_int_equal(e->running.n, 16);
    struct seq *b = come_of(e, 'b', 100, 1);
    admit_waiting(e);
    assert_int_equal(e->running.n, 16);
    assert_int_equal(b->state, SEQ_RUNNING);
    assert_int_equal(a->state, SEQ_RUNNING);
    for (unsigned i = 1; i < 7; i++)
        assert_int_equal(a->req->seqs[i]->state, SEQ_BRANCH);
    assert_int_equal(a->req->seqs[7]->state, SEQ_WAITING);
}

/* Without blocks for the request, a seat would be of no use. Each of the 16 needs two blocks, so 33
 * are free when all have left. */
static void no_seat_is_taken_for_a_request_without_blocks(void **state)
{
    struct engine *e = *state;
    for (unsigned i = 0; i < 16; i++)
        come_of(e, 'a', 1 + i, 1);
    admit_waiting(e);
    struct kv_seq held;
    assert_int_equal(kv_seq_init(&held, N_BLOCKS * KV_BLOCK), 0);
    assert_int_equal(kv_grow(e->loaded->run.kv, &held, N_BLOCKS * KV_BLOCK), 0);
    struct seq *b = come_of(e, 'b', 100, 1);
    admit_waiting(e);
    assert_int_equal(b->state, SEQ_WAITING);
    assert_int_equal(e->running.n, 16);
    assert_int_equal(e->running.v[15]->req->flow[0], 'a');
    kv_release(e->loaded->run.kv, &held);
    admit_waiting(e);
    assert_int_equal(b->state, SEQ_RUNNING);
    kv_seq_done(e->loaded->run.kv, &held);
}

/* Requests of 16 blocks, and one for the next rows. */
static void a_flow_with_all_blocks_shares_them(void **state)
{
    struct engine *e = *state;
    struct seq *a[4];
    for (unsigned i = 0; i < 4; i++)
        a[i] = come_with(e, 'a', 1 + i, 240, 1);
    admit_waiting(e);
    assert_int_equal(e->running.n, 3);
    struct seq *b = come_with(e, 'b', 10, 240, 1);
    admit_waiting(e);
    assert_int_equal(b->state, SEQ_RUNNING);
    assert_int_equal(a[2]->state, SEQ_WAITING); // the newest that ran
    struct seq *more = come_with(e, 'b', 11, 240, 1), *c = come_with(e, 'c', 12, 240, 1);
    admit_waiting(e);
    assert_int_equal(more->state, SEQ_WAITING); // b would have more than a
    assert_int_equal(c->state, SEQ_RUNNING);
    assert_int_equal(a[0]->state, SEQ_RUNNING);
    assert_int_equal(a[1]->state, SEQ_WAITING);
    assert_int_equal(e->running.n, 3);
}

/* a has 25 and 27 blocks, so it keeps 25. */
static void a_flow_keeps_as_much_as_the_other_gets(void **state)
{
    struct engine *e = *state;
    struct seq *first = come_with(e, 'a', 1, 24 * KV_BLOCK - 1, 1);
    struct seq *second = come_with(e, 'a', 2, 26 * KV_BLOCK - 1, 1);
    admit_waiting(e);
    assert_int_equal(second->state, SEQ_RUNNING);
    struct seq *larger = come_with(e, 'b', 10, 26 * KV_BLOCK - 1, 1);
    admit_waiting(e);
    assert_int_equal(larger->state, SEQ_WAITING);
    struct seq *fits = come_with(e, 'c', 11, 25 * KV_BLOCK - 1, 1);
    admit_waiting(e);
    assert_int_equal(fits->state, SEQ_RUNNING);
    assert_int_equal(first->state, SEQ_RUNNING);
    assert_int_equal(second->state, SEQ_WAITING);
}

/* Both sequences of the flow hold the same 29 blocks, so none of the two can give them. */
static void shared_blocks_are_not_given(void **state)
{
    struct engine *e = *state;
    struct seq *a = come_with(e, 'a', 1, 480, 1), *alike;
    struct kv_root root = {NULL, 0};
    admit_waiting(e);
    assert_int_equal(kv_grow(e->loaded->run.kv, &a->kv, 479), 0);
    kv_enter(e->loaded->run.kv, &a->kv, &root, a->tokens, 479);
    alike = come_with(e, 'a', 2, 485, 1);
    memcpy(alike->req->prompt, a->tokens, 480 * sizeof(uint32_t));
    admit_waiting(e);
    assert_int_equal(alike->state, SEQ_RUNNING);
    assert_int_equal(kv_n_own(e->loaded->run.kv, &a->kv), 1);
    struct seq *b = come_with(e, 'b', 3, 35 * KV_BLOCK - 1, 1);
    admit_waiting(e);
    assert_int_equal(b->state, SEQ_WAITING);
    assert_int_equal(a->state, SEQ_RUNNING);
    assert_int_equal(alike->state, SEQ_RUNNING);
}

/* The head waits for blocks that its flow has: flows that have less do not wait for it, until they
 * have as much. Each small request takes two blocks. */
static void the_head_of_a_large_flow_is_passed_by_small_ones(void **state)
{
    struct engine *e = *state;
    struct seq *a = come_with(e, 'a', 1, 23 * KV_BLOCK - 1, 1); // 24 blocks
    admit_waiting(e);
    struct seq *head = come_with(e, 'a', 2, 45 * KV_BLOCK - 1, 1), *small[13];
    for (unsigned i = 0; i < 13; i++) {
        small[i] = come_of(e, 'b', 10 + i, 1);
        admit_waiting(e);
        assert_int_equal(small[i]->state, i < 12 ? SEQ_RUNNING : SEQ_WAITING);
    }
    assert_int_equal(a->state, SEQ_RUNNING);
    assert_int_equal(head->state, SEQ_WAITING);
}

/* The head's flow has nothing, so small requests of another flow do not starve it. */
static void the_head_of_a_small_flow_is_passed_by_eight(void **state)
{
    struct engine *e = *state;
    come_with(e, 'a', 1, 23 * KV_BLOCK - 1, 1);
    admit_waiting(e);
    struct seq *head = come_with(e, 'c', 2, 45 * KV_BLOCK - 1, 1);
    for (unsigned i = 0; i <= SCHED_MAX_PASSING; i++) {
        struct seq *small = come_of(e, 'b', 10 + i, 1);
        admit_waiting(e);
        assert_int_equal(small->state, i < SCHED_MAX_PASSING ? SEQ_RUNNING : SEQ_WAITING);
    }
    assert_int_equal(head->state, SEQ_WAITING);
}

/* A request comes whose answer has n tokens already. */
static struct seq *come_continued(struct engine *e, unsigned topic, uint32_t n)
{
    struct seq *s = come(e, topic, 20);
    struct request *r = s->req;
    r->continued = calloc(1, sizeof(*r->continued));
    r->continued->tokens = malloc(n * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++)
        r->continued->tokens[i] = 300 + i % 1000;
    r->continued->n = n;
    r->max_tokens = n + 100;
    s->max_len = s->n_prompt + r->max_tokens;
    return s;
}

/* Other requests start meanwhile, and the engine does not sleep. */
static void a_long_answer_is_replayed_in_several_turns(void **state)
{
    struct engine *e = *state;
    uint32_t n = 2 * CONTINUATION_TURN + 10;
    struct seq *s = come_continued(e, 1, n), *other = come(e, 2, 20);
    for (uint32_t i = 1; i <= 2; i++) {
        admit_waiting(e);
        assert_int_equal(s->state, SEQ_WAITING);
        assert_int_equal(s->n_replayed, i * CONTINUATION_TURN);
        assert_int_equal(s->n, 20 + n);
        assert_true(e->replays);
        assert_int_equal(other->state, SEQ_RUNNING);
    }
    admit_waiting(e);
    assert_int_equal(s->state, SEQ_RUNNING);
    assert_true(s->replayed);
    assert_false(e->replays);
    assert_int_equal(s->n, 20 + n);
    assert_int_equal(s->tokens[20 + n - 1], s->req->continued->tokens[n - 1]);
}

static void several_answers_share_the_tokens_of_a_turn(void **state)
{
    struct engine *e = *state;
    struct seq *v[3];
    for (unsigned i = 0; i < 3; i++)
        v[i] = come_continued(e, i, CONTINUATION_TURN * 2 / 3);
    admit_waiting(e);
    assert_int_equal(v[0]->n_replayed + v[1]->n_replayed + v[2]->n_replayed, CONTINUATION_TURN);
    admit_waiting(e);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(v[i]->state, SEQ_RUNNING);
}

static void a_replay_that_is_cancelled_leaves_nothing(void **state)
{
    struct engine *e = *state;
    struct seq *s = come_continued(e, 1, CONTINUATION_TURN + 1);
    admit_waiting(e);
    assert_int_equal(s->state, SEQ_WAITING);
    engine_fail_request(e, s->req, -1, "");
    request_drop(s->req);
    admit_waiting(e);
    assert_int_equal(e->waiting.n + e->running.n, 0);
    assert_false(e->replays);
}

/* ---- what there must be for a request ---- */

/* A running sequence of 33 tokens needs 3 blocks and one more, so 60 of 64 are left. They hold 959
 * tokens and a row for the next one. */
static void a_request_starts_if_its_blocks_are_free(void **state)
{
    struct engine *e = *state;
    struct seq *running = come(e, 1, 33), *large;
    admit_waiting(e);
    assert_int_equal(running->state, SEQ_RUNNING);
    large = come(e, 2, 960);
    admit_waiting(e);
    assert_int_equal(large->state, SEQ_WAITING);
    engine_fail_request(e, large->req, -1, "");
    request_drop(large->req);
    large = come(e, 3, 959);
    admit_waiting(e);
    assert_int_equal(large->state, SEQ_RUNNING);
}

/* Each further choice needs a copy of the last block, and one for its next rows. */
static void further_choices_need_a_block_each(void **state)
{
    struct engine *e = *state;
    struct seq *running = come(e, 1, 33), *large;
    admit_waiting(e);
    assert_int_equal(running->state, SEQ_RUNNING);
    large = come_as(e, 2, 959 - 5 * KV_BLOCK + 1, 3, false);
    admit_waiting(e);
    assert_int_equal(large->state, SEQ_RUNNING);
    assert_int_equal(e->running.n, 3); // the last choice waits in the queue
    assert_int_equal(large->req->seqs[2]->state, SEQ_WAITING);
    engine_fail_request(e, large->req, -1, "");
    request_drop(large->req);
    large = come_as(e, 3, 959 - 5 * KV_BLOCK, 3, false);
    admit_waiting(e);
    assert_int_equal(large->state, SEQ_RUNNING);
    assert_int_equal(e->running.n, 4); // its choices wait in the list for the prompt
    assert_int_equal(e->n_started, 4);
}

/* A request that needs more than the pool starts when all of it is free. */
static void a_request_needs_at_most_the_whole_pool(void **state)
{
    struct engine *e = *state;
    struct seq *large = come(e, 1, 1024); // 65 blocks
    admit_waiting(e);
    assert_int_equal(large->state, SEQ_RUNNING);
}

/* Blocks that a running sequence has in the index count as present for the head. */
static void shared_blocks_are_not_needed_again(void **state)
{
    struct engine *e = *state;
    struct seq *running = come(e, 1, 500), *alike;
    struct kv_root root = {NULL, 0};
    admit_waiting(e);
    assert_int_equal(kv_grow(e->loaded->run.kv, &running->kv, 499), 0); // 32 blocks, 32 free
    kv_enter(e->loaded->run.kv, &running->kv, &root, running->tokens, 499);
    alike = come(e, 1, 900); // 57 blocks, of which 31 are shared
    admit_waiting(e);
    assert_int_equal(alike->state, SEQ_RUNNING);
    assert_int_equal(alike->n_cached, 31 * KV_BLOCK);
}

/* `waiting` must have space to put back all that have started. */
static void requests_start_up_to_the_most_started(void **state)
{
    struct engine *e = *state;
    e->n_started = e->max_started - 1;
    struct seq *two = come_as(e, 1, 10, 2, false), *one = come(e, 2, 10);
    admit_waiting(e);
    assert_int_equal(two->req->n_started, 1);
    assert_int_equal(one->state, SEQ_WAITING);
    e->n_started = 1; // of this one
    admit_waiting(e);
    assert_int_equal(two->req->n_started, 2);
    assert_int_equal(one->state, SEQ_RUNNING);
}

/* ---- prefixes that are being computed ---- */

/* A request for n tokens, of which the first n_common are those of a running sequence. */
static struct seq *come_alike(struct engine *e, const struct seq *running, uint32_t n,
                              uint32_t n_common)
{
    struct seq *s = come(e, 40, n);
    memcpy(s->req->prompt, running->tokens, n_common * sizeof(uint32_t));
    s->req->prompt[n_common] = running->tokens[n_common] + 1;
    return s;
}

/* Whole blocks of the common prefix, at least half of the rows. */
static void at_least_half_of_the_rows_are_waited_for(void **state)
{
    static const struct {
        uint32_t n, n_common, n_done;
        bool waits;
    } cases[] = {
        {416, 208, 0, true},                         // 13 blocks are half
        {417, 208, 0, false},                        // a row less than half
        {416, 207, 0, false},                        // 12 blocks
        {416, 223, 0, true},  {400, 208, 48, false}, // of the 352 rows to run, 160
        {400, 224, 48, true},                        // 176
        {20, 17, 0, true},                           // a block, and 4 rows
        {20, 15, 0, false},
    };
    struct engine *e = *state;
    struct seq *running = come(e, 1, 420);
    admit_waiting(e);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(kv_grow(e->loaded->run.kv, &running->kv, cases[i].n_done), 0);
        struct seq *s = come_alike(e, running, cases[i].n, cases[i].n_common);
        admit_waiting(e);
        assert_int_equal(s->state, cases[i].waits ? SEQ_WAITING : SEQ_RUNNING);
        engine_fail_request(e, s->req, -1, "");
        request_drop(s->req);
        kv_release(e->loaded->run.kv, &running->kv);
    }
}

static void a_sequence_that_decodes_is_not_waited_for(void **state)
{
    struct engine *e = *state;
    struct seq *running = come(e, 1, 420);
    admit_waiting(e);
    assert_int_equal(kv_grow(e->loaded->run.kv, &running->kv, 418), 0); // two rows to run
    struct seq *s = come_alike(e, running, 419, 416);
    admit_waiting(e);
    assert_int_equal(s->state, SEQ_RUNNING); // all common rows are done
    engine_fail_request(e, s->req, -1, "");
    request_drop(s->req);
    kv_release(e->loaded->run.kv, &running->kv);
    assert_int_equal(kv_grow(e->loaded->run.kv, &running->kv, 100), 0);
    s = come_alike(e, running, 300, 290);
    admit_waiting(e);
    assert_int_equal(s->state, SEQ_WAITING);
    kv_release(e->loaded->run.kv, &running->kv);
    assert_int_equal(kv_grow(e->loaded->run.kv, &running->kv, 419), 0); // one row: it decodes
    admit_waiting(e);
    assert_int_equal(s->state, SEQ_RUNNING);
}

/* Comparing takes time: only the first 16 wait for a prefix. */
static void sixteen_requests_are_compared(void **state)
{
    struct engine *e = *state;
    struct seq *running = come(e, 1, 100), *v[17];
    admit_waiting(e);
    assert_int_equal(running->state, SEQ_RUNNING);
    for (unsigned i = 0; i < 17; i++)
        v[i] = come_alike(e, running, 90, 80);
    admit_waiting(e);
    for (unsigned i = 0; i < 17; i++)
        assert_int_equal(v[i]->state, i < 16 ? SEQ_WAITING : SEQ_RUNNING);
}

static int open_model(void **state)
{
    (void)state;
    stats_init(&stats);
    assert_int_equal(checkpoint_open(SOURCE_DIR "/models/tales-1m-q8_0.gguf", &file), 0);
    assert_int_equal(tok_new(file, &tok), 0);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    tok_free(tok);
    checkpoint_close(file);
    return 0;
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
#define LARGE(f) cmocka_unit_test_setup_teardown(f, set_up_large, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(at_most_eight_requests_pass_the_head),
        TEST(no_seat_is_taken_for_a_request_without_blocks),
        TEST(requests_with_choices_share_the_seats),
        TEST(a_request_with_choices_needs_one_seat),
        TEST(choices_start_when_others_have_ended),
        TEST(choices_join_only_before_the_first_token),
        TEST(a_choice_without_rows_gives_its_seat),
        TEST(paused_answers_give_their_places_to_other_flows),
        TEST(answers_that_wait_for_seats_give_places_too),
        TEST(paused_answers_stay_while_there_are_places),
        TEST(a_flow_with_all_blocks_shares_them),
        TEST(a_flow_keeps_as_much_as_the_other_gets),
        TEST(shared_blocks_are_not_given),
        TEST(the_head_of_a_large_flow_is_passed_by_small_ones),
        TEST(the_head_of_a_small_flow_is_passed_by_eight),
        TEST(a_flow_with_all_seats_shares_them),
        TEST(a_running_sequence_is_left_one_block),
        TEST(a_request_that_waits_for_a_prefix_is_passed_by_all),
        TEST(a_prefix_of_another_tenant_is_not_waited_for),
        TEST(a_prefix_of_another_flow_is_waited_for_as_long_as_it_takes),
        TEST(a_lack_of_memory_fails_one_request_only),
        TEST(a_resumed_answer_starts_before_new_requests),
        TEST(a_request_starts_if_its_blocks_are_free),
        TEST(further_choices_need_a_block_each),
        TEST(a_request_needs_at_most_the_whole_pool),
        TEST(shared_blocks_are_not_needed_again),
        TEST(requests_start_up_to_the_most_started),
        TEST(at_least_half_of_the_rows_are_waited_for),
        TEST(a_sequence_that_decodes_is_not_waited_for),
        TEST(sixteen_requests_are_compared),
        LARGE(a_long_answer_is_replayed_in_several_turns),
        LARGE(several_answers_share_the_tokens_of_a_turn),
        LARGE(a_replay_that_is_cancelled_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
