/* test_engine_inbox.c - what arrives at the engine thread, which the test plays. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "base/err.h"
#include "lib/clients/topic.h"
#include "verifier-svc/engine/engine_impl.h"

#define N_PROMPT 10

static const struct kv_layer layer = {.n_heads = 1, .k_dim = 4, .v_dim = 4};
static const struct kv_shape shape = {.n_layers = 1, .layers = &layer};
static const struct verifier_options options = {
    .max_sequences = 4, .queue_length = 4, .max_batch_rows = 64, .kv_disk = ""};
static struct stats stats;
static struct checkpoint *file;
static struct tok *tok;

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

static int set_up(void **state)
{
    struct engine *e;
    assert_int_equal(engine_new(&options, &stats, &e), 0);
    assert_int_equal(events_fit(e->events, tok), 0);
    e->loaded = calloc(1, sizeof(*e->loaded));
    assert_non_null(e->loaded);
    e->loaded->tok = tok;
    atomic_store(&e->ready, e->loaded);
    assert_int_equal(kv_new(&shape, 20, &e->loaded->run.kv), 0);
    assert_int_equal(kv_open_index(e->loaded->run.kv, 1, kv_hash), 0);
    *state = e;
    return 0;
}

static int tear_down(void **state)
{
    struct engine *e = *state;
    while (e->waiting.n) {
        struct request *r = e->waiting.v[0]->req;
        engine_fail_request(e, r, -1, "");
        request_drop(r);
    }
    e->loaded->tok = NULL; // the test's
    engine_free(e);
    return 0;
}

static struct request *request_of(uint32_t n_choices)
{
    struct topic w;
    topic_init(&w, 1, N_PROMPT);
    w.msg.n = n_choices;
    return topic_request(&w, tok, 1000);
}

/* Submits it, and the engine takes it. */
static struct request *take(struct engine *e, struct request *r)
{
    assert_int_equal(engine_submit(e, r), 0);
    engine_take_inbox(e, 0);
    request_drop(r); // the client's
    return r;
}

static struct draft *draft_of(uint32_t token)
{
    struct draft *d = draft_new();
    assert_non_null(d);
    d->n = 1;
    d->tokens[0] = token;
    d->parents[0] = -1;
    d->survival[0] = 1;
    return d;
}

/* ---- requests ---- */

static void each_sequence_has_the_next_id_and_order(void **state)
{
    struct engine *e = *state;
    const struct request *first = take(e, request_of(2)), *second = take(e, request_of(1));
    const struct seq *seqs[] = {first->seqs[0], first->seqs[1], second->seqs[0]};
    for (uint64_t i = 0; i < 3; i++)
        assert_true(seqs[i]->id == i + 1 && seqs[i]->order == i + 1);
    assert_int_equal(e->waiting.n, 2); // the other choice waits for the first one's prompt
    assert_ptr_equal(e->waiting.v[0], first->seqs[0]);
    assert_ptr_equal(e->waiting.v[1], second->seqs[0]);
}

/* Another verifier has finished two of the choices. */
static void the_first_choice_that_continues_waits(void **state)
{
    struct engine *e = *state;
    struct request *r = request_of(3);
    r->seqs[0]->state = r->seqs[1]->state = SEQ_ENDED;
    take(e, r);
    assert_int_equal(e->waiting.n, 1);
    assert_ptr_equal(e->waiting.v[0], r->seqs[2]);
}

/* ---- drafts of a client ---- */

/* The error of the only event, with a part of its text. */
static void must_fail(struct engine *e, int error, const char *text)
{
    events_send(e->events);
    struct event_batch *b = events_next(e->events, 0);
    assert_non_null(b);
    assert_true(b->n == 1 && b->v[0].last && b->v[0].error == error);
    assert_string_equal(b->v[0].error_text, text);
    request_drop(b->v[0].req);
    events_return(e->events, b);
}

static void a_clients_draft_is_taken(void **state)
{
    struct engine *e = *state;
    struct request *r = take(e, request_of(1));
    struct seq *s = r->seqs[0];
    s->idle_us = 77;
    assert_int_equal(engine_verify(e, r, N_PROMPT, draft_of(5)), 0);
    assert_true(atomic_load(&r->draft_pending));
    assert_int_equal(engine_verify(e, r, N_PROMPT, draft_of(6)), -ESTALE);
    assert_string_equal(fail_text(), "the last draft is still being verified");
    engine_take_inbox(e, 0);
    assert_false(atomic_load(&r->draft_pending));
    assert_true(seq_n_draft(s) == 1 && s->draft->tokens[0] == 5 && s->idle_us == 0);
    assert_int_equal(s->proposer, SEQ_NO_PROPOSER);
    assert_int_equal(atomic_load(&r->n_holders), 1);
    assert_int_equal(engine_verify(e, r, N_PROMPT, draft_of(4096)), -EINVAL);
    assert_string_equal(fail_text(), "the draft has a token outside the vocabulary, or a parent "
                                     "that does not precede its child");
    assert_false(atomic_load(&r->draft_pending));
    assert_int_equal(engine_verify(e, r, N_PROMPT, draft_of(7)), 0);
    engine_take_inbox(e, 0); // the first one has not been verified
    must_fail(e, -ESTALE, "the last draft is still being verified");
}

static void a_clients_draft_must_continue_the_committed_tokens(void **state)
{
    struct engine *e = *state;
    for (int off = -1; off <= 1; off += 2) {
        struct request *r = take(e, request_of(1));
        assert_int_equal(engine_verify(e, r, (uint32_t)(N_PROMPT + off), draft_of(5)), 0);
        engine_take_inbox(e, 0);
        must_fail(e, -ESTALE,
                  off < 0 ? "the draft continues a length of 9, 10 tokens are committed"
                          : "the draft continues a length of 11, 10 tokens are committed");
    }
    assert_int_equal(e->waiting.n, 0);
    assert_int_equal(engine_n_requests(e), 0);
}

static void a_draft_for_an_ended_stream_is_dropped(void **state)
{
    struct engine *e = *state;
    struct request *r = request_of(1);
    r->seqs[0]->state = SEQ_ENDED;
    assert_int_equal(engine_verify(e, r, N_PROMPT, draft_of(5)), 0);
    engine_take_inbox(e, 0);
    assert_true(!r->seqs[0]->draft && atomic_load(&r->n_holders) == 1);
    request_drop(r);
}

/* ---- proposers ---- */

/* Two sequences wait with drafts of places 2 and 3. */
static void a_new_proposer_in_a_place_drops_what_was_there(void **state)
{
    struct engine *e = *state;
    struct seq *s[2];
    for (unsigned i = 0; i < 2; i++) {
        s[i] = take(e, request_of(1))->seqs[0];
        seq_take_draft(s[i], draft_of(5), 2 + (int)i);
        control_asked(&s[i]->control, 2 + i, 0, 1);
        control_answered(&e->control, &s[i]->control, 2 + i, 1, 100, false);
    }
    seq_list_remove(&e->waiting, s[0]); // runs
    seq_list_add(&e->running, s[0]);
    assert_int_equal(engine_proposer_named(e, 2, "new"), 0);
    engine_take_inbox(e, 0);
    assert_true(!s[0]->draft && s[0]->proposer == SEQ_NO_PROPOSER && s[0]->control.granted < 0);
    assert_true(s[1]->draft && s[1]->proposer == 3 && s[1]->control.granted >= 0);
    assert_true(e->control.proposers[2].wished == 0 && e->control.proposers[3].wished == 1);
    assert_string_equal(e->stats->proposers[2].name, "new");
    assert_string_equal(e->stats->proposers[3].name, "");
    assert_int_equal(engine_proposer_named(e, 3, "other"), 0);
    engine_take_inbox(e, 0);
    assert_null(s[1]->draft);
    seq_list_remove(&e->running, s[0]);
    seq_list_add(&e->waiting, s[0]);
}

/* ---- the inbox ---- */

/* Its places are limited: draft after draft arrives, and no thread takes them. */
static void a_full_inbox_loses_drafts_and_refuses_requests(void **state)
{
    struct engine *e = *state;
    unsigned n = 0;
    for (; n < 1000; n++) {
        struct draft_answer a = {.seq = 99, .draft = draft_of(1)};
        engine_draft_arrived(e, &a);
        bool lost = a.draft;
        draft_free(a.draft);
        if (lost)
            break;
    }
    /* Requests and displaced ones, resumed ones, four drafts per sequence, and some in between. */
    assert_int_equal(n, 2 * 4 + (4 + 4) + 4 * 4 + 64);
    AUTO(request_drop) struct request *r = request_of(1);
    assert_int_equal(engine_submit(e, r), -EAGAIN);
    assert_string_equal(fail_text(), "the engine's queue is full");
    assert_true(engine_n_requests(e) == 0 && atomic_load(&r->n_holders) == 1);
    assert_int_equal(flows_state(e->flows, &r->place), FLOWS_NONE);
    assert_int_equal(engine_verify(e, r, N_PROMPT, draft_of(5)), -EAGAIN);
    assert_int_equal(atomic_load(&r->n_holders), 1);
    engine_take_inbox(e, 0);
    queue_close(e->inbox);
    assert_int_equal(engine_submit(e, r), -EPIPE);
    assert_string_equal(fail_text(), "the server is stopping");
}

/* The inbox frees its items with it. */
static void the_rest_of_the_inbox_is_freed(void **state)
{
    struct engine *e = *state;
    AUTO(request_drop) struct request *r = request_of(1), *other = request_of(1);
    assert_int_equal(engine_submit(e, r), 0);
    assert_int_equal(engine_verify(e, other, N_PROMPT, draft_of(5)), 0);
    struct draft_answer a = {.seq = 99, .draft = draft_of(1)};
    engine_draft_arrived(e, &a);
    assert_null(a.draft);
    engine_free_inbox(e);
    e->inbox = NULL;
    assert_int_equal(atomic_load(&r->n_holders), 1);
    assert_int_equal(atomic_load(&other->n_holders), 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_sequence_has_the_next_id_and_order),
        TEST(the_first_choice_that_continues_waits),
        TEST(a_clients_draft_is_taken),
        TEST(a_clients_draft_must_continue_the_committed_tokens),
        TEST(a_draft_for_an_ended_stream_is_dropped),
        TEST(a_new_proposer_in_a_place_drops_what_was_there),
        TEST(a_full_inbox_loses_drafts_and_refuses_requests),
        TEST(the_rest_of_the_inbox_is_freed),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
