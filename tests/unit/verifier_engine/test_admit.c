/* test_admit.c - which requests start; the engine's thread does not run. */
#include <stdlib.h>
#include <string.h>
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
                                          .queue_length = 16,
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

/* A request with n tokens of a topic comes. resumed: a gateway resumes its answer. */
static struct seq *come_as(struct engine *e, unsigned topic, uint32_t n, bool resumed)
{
    struct topic w;
    topic_init(&w, topic, n);
    struct seq *s = topic_request(&w, tok, 2000)->seqs[0];
    s->id = s->order = ++e->next_order;
    s->req->place.resumed = resumed;
    uint32_t n_displaced;
    assert_int_equal(
        flows_enter(e->flows, &s->req->place, s->req->flow, s->req->flow_len, &n_displaced), 0);
    seq_list_add(&e->waiting, s);
    return s;
}

static struct seq *come(struct engine *e, unsigned topic, uint32_t n)
{
    return come_as(e, topic, n, false);
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
    struct seq *older = come(e, 1, 600), *resumed = come_as(e, 2, 600, true);
    admit_waiting(e);
    assert_int_equal(resumed->state, SEQ_RUNNING);
    assert_int_equal(older->state, SEQ_WAITING);
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
        TEST(a_request_that_waits_for_a_prefix_is_passed_by_all),
        TEST(a_prefix_of_another_tenant_is_not_waited_for),
        TEST(a_lack_of_memory_fails_one_request_only),
        TEST(a_resumed_answer_starts_before_new_requests),
        LARGE(a_long_answer_is_replayed_in_several_turns),
        LARGE(several_answers_share_the_tokens_of_a_turn),
        LARGE(a_replay_that_is_cancelled_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
