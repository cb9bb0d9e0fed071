/* test_events.c - batches of events: what fits, and the way from engine to edge. */
#include "lib/lib.h"
#include "verifier-svc/engine/events.h"

#define MAX_EVENTS 3
#define MAX_TOKENS (DRAFT_MAX_NODES + 1)

static struct checkpoint *file;
static struct tok *tok;
static struct request requests[2];

static int open_model(void **state)
{
    (void)state;
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

static struct events *new_events(void)
{
    struct events *e = NULL;
    assert_int_equal(events_new(MAX_EVENTS, MAX_TOKENS, &e), 0);
    assert_int_equal(events_fit(e, tok), 0);
    return e;
}

/* Adds an event of n tokens. Returns its batch. */
static struct event_batch *add(struct events *e, uint32_t n)
{
    struct event_batch *b = events_reserve(e, n);
    struct event *ev = events_add(b, &requests[1], 5);
    assert_true(ev->req == &requests[1] && ev->choice == 5 && ev->first == b->n_tokens);
    assert_true(ev->stop == DETOK_NONE && ev->n_tokens == 0 && ev->end == SEQ_CONTINUES);
    b->n_tokens += n;
    return b;
}

/* The edge receives and returns a batch of n events and n_tokens tokens. */
static struct event_batch *receive(struct events *e, uint32_t n, uint32_t n_tokens)
{
    struct event_batch *b = events_next(e, 0);
    assert_non_null(b);
    assert_int_equal(b->n, n);
    assert_int_equal(b->n_tokens, n_tokens);
    return b;
}

static void a_batch_holds_as_many_events_as_fit(void **state)
{
    (void)state;
    AUTO(events_free) struct events *e = new_events();
    struct event_batch *first = add(e, 0);
    for (int i = 1; i < MAX_EVENTS; i++)
        assert_ptr_equal(add(e, 0), first);
    assert_null(events_next(e, 0));
    struct event_batch *second = add(e, 0); // the first is full
    assert_ptr_not_equal(second, first);
    assert_ptr_equal(receive(e, MAX_EVENTS, 0), first);
    assert_null(events_next(e, 0));
    events_send(e);
    assert_ptr_equal(receive(e, 1, 0), second);
    events_send(e); // nothing to send
    assert_null(events_next(e, 0));
}

static void a_batch_holds_as_many_tokens_as_fit(void **state)
{
    (void)state;
    AUTO(events_free) struct events *e = new_events();
    struct event_batch *first = add(e, MAX_TOKENS - 2);
    assert_ptr_equal(add(e, 2), first);
    assert_ptr_not_equal(add(e, 1), first);
    receive(e, 2, MAX_TOKENS);
}

/* Each token may add text, and a sequence may release what it has held back. */
static void a_batch_holds_as_much_text_as_fits(void **state)
{
    (void)state;
    const size_t of_token = detok_max_added(tok), held = detok_max_held(tok);
    for (int extra = 0; extra < 2; extra++) {
        AUTO(events_free) struct events *e = new_events();
        struct event_batch *first = add(e, 1);
        assert_int_equal(first->text.max,
                         MAX_TOKENS * 16 + (DRAFT_MAX_NODES + 1) * of_token + held);
        first->text.len = first->text.max - (2 * of_token + held) + (size_t)extra;
        assert_ptr_equal(add(e, 0), first); // has no text
        if (extra)
            assert_ptr_not_equal(add(e, 2), first);
        else
            assert_ptr_equal(add(e, 2), first);
    }
}

static void a_returned_batch_is_empty(void **state)
{
    (void)state;
    AUTO(events_free) struct events *e = new_events();
    for (int i = 0; i < 3 * EVENTS_BATCHES; i++) {
        struct event_batch *b = add(e, 2);
        assert_int_equal(b->n, 1);
        assert_int_equal(b->n_tokens, 2);
        assert_int_equal(b->text.len, 0);
        b->text.len = 7;
        events_send(e);
        events_return(e, receive(e, 1, 2));
    }
}

static void after_the_end_what_was_sent_is_still_received(void **state)
{
    (void)state;
    AUTO(events_free) struct events *e = new_events();
    add(e, 0);
    events_send(e);
    assert_false(events_closed(e));
    events_close(e);
    assert_false(events_closed(e));
    receive(e, 1, 0);
    assert_true(events_closed(e));
}

/* Otherwise this test waits for ever. */
static void a_wake_ends_a_wait_for_events(void **state)
{
    (void)state;
    AUTO(events_free) struct events *e = new_events();
    events_wake(e);
    assert_null(events_next(e, -1));
    assert_false(events_closed(e)); // although it is empty
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_holds_as_many_events_as_fit),
        cmocka_unit_test(a_batch_holds_as_many_tokens_as_fit),
        cmocka_unit_test(a_batch_holds_as_much_text_as_fits),
        cmocka_unit_test(a_returned_batch_is_empty),
        cmocka_unit_test(after_the_end_what_was_sent_is_still_received),
        cmocka_unit_test(a_wake_ends_a_wait_for_events),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
