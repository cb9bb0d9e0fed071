/* test_seq.c - one generation: its limits, its ends, its rows. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "base/err.h"
#include "tandem/v1/verifier.pb-c.h"
#include "verifier-svc/engine/seq.h"

static struct checkpoint *file;
static struct tok *tok;

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

struct made {
    struct request *r;
    struct seq *s; // running
    struct buf text;
};

static void make(struct made *m, void (*set)(Tandem__V1__GenerateRequest *msg))
{
    Tandem__V1__GenerateRequest msg = TANDEM__V1__GENERATE_REQUEST__INIT;
    msg.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    msg.text = (ProtobufCBinaryData){4, (uint8_t *)"Once"};
    if (set)
        set(&msg);
    struct request_limits limits = {tok, "m", 64, 8, "fp", true};
    assert_int_equal(request_read(&msg, &limits, &m->r), 0);
    assert_int_equal(request_open(m->r, tok), 0);
    m->s = m->r->seqs[0];
    assert_int_equal(seq_open(m->s), 0);
    m->s->state = SEQ_RUNNING;
    buf_init(&m->text, 1 << 20);
}

static void done(struct made *m)
{
    request_drop(m->r);
    buf_done(&m->text);
}

/* Commits the tokens of a text; the end that the last one brought. */
static enum seq_end say(struct made *m, const char *text)
{
    AUTO(mem_free) uint32_t *ids = NULL;
    size_t n;
    enum seq_end end = SEQ_CONTINUES;
    assert_int_equal(tok_encode(tok, text, strlen(text), false, false, &ids, &n), 0);
    for (size_t i = 0; i < n && end == SEQ_CONTINUES; i++)
        end = seq_commit(m->s, ids[i], &m->text);
    return end;
}

static void eos_ends_it_without_text(void **state)
{
    (void)state;
    struct made m;
    make(&m, NULL);
    assert_int_equal(say(&m, " upon"), SEQ_CONTINUES);
    assert_int_equal(seq_commit(m.s, tok_eos(tok), &m.text), SEQ_STOP);
    assert_string_equal(m.text.data, " upon");
    done(&m);
}

static void text_that_fails_is_one_sequences_error(void **state)
{
    (void)state;
    struct made broken, neighbour;
    make(&broken, NULL);
    make(&neighbour, NULL);
    buf_done(&broken.s->detok.held);
    buf_init(&broken.s->detok.held, 1); // bytes
    uint32_t word = 0;
    while (tok_kind_of(tok, word) != TOK_NORMAL || tok_bytes(tok, word, false).len < 3)
        word++;
    assert_int_equal(seq_commit(broken.s, word, &neighbour.text), SEQ_FAILED);
    assert_int_equal(seq_commit(neighbour.s, word, &neighbour.text), SEQ_CONTINUES);
    neighbour.text.max = neighbour.text.len + 1; // no space in the neighbour's text either
    assert_int_equal(seq_commit(neighbour.s, word, &neighbour.text), SEQ_FAILED);
    neighbour.text.max = 1 << 20;
    assert_int_equal(neighbour.text.error, 0);
    done(&broken);
    done(&neighbour);
}

static ProtobufCBinaryData begun = {9, (uint8_t *)" upon all"};

static void set_begun(Tandem__V1__GenerateRequest *msg)
{
    msg->stop = &begun;
    msg->n_stop = 1;
}

static void text_that_fails_at_the_end_is_one_sequences_error_too(void **state)
{
    (void)state;
    struct made m;
    make(&m, set_begun);
    assert_int_equal(say(&m, " once upon"), SEQ_CONTINUES); // " upon" is held back
    size_t len = m.text.len;
    m.text.max = len + 1;
    assert_int_equal(seq_flush(m.s, &m.text), -EMSGSIZE);
    assert_int_equal(m.text.error, 0);
    assert_int_equal(m.text.len, len);
    done(&m);
}

static void set_ignore_eos(Tandem__V1__GenerateRequest *msg)
{
    msg->ignore_eos = true;
}

static void eos_can_be_ignored(void **state)
{
    (void)state;
    struct made m;
    make(&m, set_ignore_eos);
    assert_int_equal(seq_commit(m.s, tok_eos(tok), &m.text), SEQ_CONTINUES);
    assert_int_equal(say(&m, " upon"), SEQ_CONTINUES);
    done(&m);
}

static void set_max_3(Tandem__V1__GenerateRequest *msg)
{
    msg->has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    msg->max_tokens = 3;
}

static void max_tokens_ends_it(void **state)
{
    (void)state;
    struct made m;
    make(&m, set_max_3);
    assert_int_equal(seq_left(m.s), 3);
    assert_int_equal(seq_commit(m.s, 100, &m.text), SEQ_CONTINUES);
    assert_int_equal(seq_commit(m.s, 100, &m.text), SEQ_CONTINUES);
    assert_int_equal(seq_commit(m.s, 100, &m.text), SEQ_LENGTH);
    assert_int_equal(seq_generated(m.s), 3);
    done(&m);
}

static void the_contexts_end_is_a_limit_too(void **state)
{
    (void)state;
    struct made m;
    make(&m, NULL);
    enum seq_end end = SEQ_CONTINUES;
    while (end == SEQ_CONTINUES)
        end = seq_commit(m.s, 100, &m.text);
    assert_int_equal(end, SEQ_LENGTH);
    assert_int_equal(m.s->n, 64);
    done(&m);
}

static ProtobufCBinaryData stop_text = {9, (uint8_t *)"little gi"}; // ends inside a word

static void set_stop(Tandem__V1__GenerateRequest *msg)
{
    msg->stop = &stop_text;
    msg->n_stop = 1;
}

static void a_stop_string_across_tokens_is_cut(void **state)
{
    (void)state;
    struct made m;
    make(&m, set_stop);
    assert_int_equal(say(&m, " there was a little girl named"), SEQ_STOP);
    assert_int_equal(m.s->stop, 0);
    assert_string_equal(m.text.data, " there was a ");
    done(&m);
}

static void set_stop_late(Tandem__V1__GenerateRequest *msg)
{
    set_stop(msg);
    msg->min_tokens = 12;
}

static void stops_and_bans_wait_for_min_tokens(void **state)
{
    (void)state;
    struct made m;
    make(&m, set_stop_late);
    assert_non_null(constraint_mask(m.s->constraint));
    assert_false(dist_mask_allows(constraint_mask(m.s->constraint), m.r->ban.tokens[0]));
    assert_int_equal(say(&m, " a little girl"), SEQ_CONTINUES);
    while (seq_generated(m.s) < 12)
        assert_int_equal(seq_commit(m.s, 100, &m.text), SEQ_CONTINUES);
    assert_null(constraint_mask(m.s->constraint));
    assert_int_equal(say(&m, " a little girl"), SEQ_STOP);
    done(&m);
}

static void todo_counts_the_rows_before_the_next_token(void **state)
{
    (void)state;
    struct made m;
    make(&m, NULL);
    assert_int_equal(seq_todo(m.s), m.s->n_prompt);
    m.s->kv.len = m.s->n_prompt;
    m.s->tokens[m.s->n++] = 100;
    assert_int_equal(seq_todo(m.s), 1);
    atomic_store(&m.r->paused, true);
    assert_int_equal(seq_todo(m.s), 0);
    atomic_store(&m.r->paused, false);
    m.s->state = SEQ_BRANCH;
    assert_int_equal(seq_todo(m.s), 0);
    m.s->kv.len = 0;
    done(&m);
}

static struct draft *draft_of(const uint32_t *tokens, const int32_t *parents, const float *survival,
                              uint32_t n)
{
    struct draft *d = draft_new();
    d->n = n;
    for (uint32_t i = 0; i < n; i++) {
        d->tokens[i] = tokens[i];
        d->parents[i] = parents[i];
        d->survival[i] = survival[i];
    }
    return d;
}

/* The same with a q, whose rows are those of the nodes. */
static struct draft *drawn_draft_of(const uint32_t *tokens, const int32_t *parents,
                                    const float *survival, uint32_t n)
{
    struct draft *d = draft_of(tokens, parents, survival, n);
    d->q = calloc(1, sizeof(*d->q));
    for (uint32_t i = 0; i < n; i++)
        d->q->row[i] = (uint8_t)i;
    return d;
}

static void take_draft(struct seq *s, const uint32_t *tokens, const int32_t *parents, uint32_t n,
                       int proposer)
{
    static const float survival[] = {.9f, .8f, .7f};
    seq_take_draft(s, draft_of(tokens, parents, survival, n), proposer);
}

static void a_verify_stream_keeps_its_last_row_for_the_draft(void **state)
{
    (void)state;
    struct made m;
    make(&m, NULL);
    m.r->verify = true;
    uint32_t n = m.s->n = 5; // as if the prompt had five tokens
    assert_int_equal(seq_todo(m.s), n - 1);
    m.s->kv.len = n - 1;
    assert_int_equal(seq_todo(m.s), 0);
    take_draft(m.s, NULL, NULL, 0, SEQ_NO_PROPOSER);
    assert_int_equal(seq_todo(m.s), 1);
    m.s->kv.len = n - 2;
    assert_int_equal(seq_todo(m.s), 1);
    m.s->kv.len = 0; // preempted with its draft
    assert_int_equal(seq_todo(m.s), n - 1);
    done(&m);
}

static void a_held_draft_waits_for_the_rows_before_it(void **state)
{
    (void)state;
    struct made m;
    make(&m, NULL);
    uint32_t n = m.s->n = 5;
    take_draft(m.s, (uint32_t[]){1, 2}, (int32_t[]){-1, 0}, 2, 0);
    assert_int_equal(seq_todo(m.s), n - 1);
    m.s->kv.len = n - 2;
    assert_int_equal(seq_todo(m.s), 1);
    m.s->kv.len = n - 1;
    assert_int_equal(seq_todo(m.s), 1);
    m.s->held_until_us = 1; // for another draft
    assert_int_equal(seq_todo(m.s), 0);
    m.s->kv.len = 0;
    done(&m);
}

static void a_draft_is_known_as_chain_or_tree(void **state)
{
    (void)state;
    struct made m;
    make(&m, NULL);
    uint32_t tokens[] = {1, 2, 3};
    take_draft(m.s, tokens, (int32_t[]){-1, 0, 1}, 3, 1);
    assert_false(m.s->draft->tree);
    take_draft(m.s, tokens, (int32_t[]){-1, -1, 1}, 3, 1);
    assert_true(m.s->draft->tree);
    seq_drop_draft(m.s);
    assert_null(m.s->draft);
    done(&m);
}

static void a_drawn_draft_keeps_its_q(void **state)
{
    (void)state;
    struct made m;
    make(&m, NULL);
    uint32_t tokens[] = {1, 2, 3};
    int32_t parents[] = {-1, 0, -1};
    float survival[3] = {1, 1, 1};
    struct draft *d = drawn_draft_of(tokens, parents, survival, 3);
    const struct draft_q *q = d->q;
    seq_take_draft(m.s, d, 1);
    seq_trim_draft(m.s, 3, 1);
    assert_int_equal(seq_n_draft(m.s), 2);
    assert_int_equal(m.s->draft->q->row[1], 2);
    assert_ptr_equal(m.s->draft->q, q);
    seq_take_draft(m.s, drawn_draft_of(tokens, parents, survival, 3), 1); // the old one is freed
    assert_int_equal(m.s->draft->q->row[1], 1);
    seq_drop_draft(m.s);
    assert_null(m.s->draft);
    seq_take_draft(m.s, drawn_draft_of(tokens, parents, survival, 3), 1); // freed with the sequence
    done(&m);
}

static void a_draft_ends_where_the_request_says(void **state)
{
    (void)state;
    struct made m;
    make(&m, NULL);
    uint32_t tokens[] = {1, 2, 3};
    int32_t parents[] = {-1, 0, 1};
    float survival[] = {.9f, .8f, .6f}; // of each alone: .9, .89, .75
    m.r->p_min = .8f;
    seq_take_draft(m.s, draft_of(tokens, parents, survival, 3), 1);
    assert_int_equal(seq_n_draft(m.s), 2);
    m.r->n_min = 3;
    seq_take_draft(m.s, draft_of(tokens, parents, survival, 3), 1);
    assert_int_equal(seq_n_draft(m.s), 0);
    assert_non_null(m.s->draft); // nothing more is waited for

    m.r->p_min = .89f;
    // Drawn: the unlikely token stays, and the draft is not too short.
    seq_take_draft(m.s, drawn_draft_of(tokens, parents, survival, 3), 1);
    assert_int_equal(seq_n_draft(m.s), 2);

    // The client's own.
    seq_take_draft(m.s, draft_of(tokens, parents, survival, 3), SEQ_NO_PROPOSER);
    assert_int_equal(seq_n_draft(m.s), 3);
    done(&m);
}

static void set_n_3(Tandem__V1__GenerateRequest *msg)
{
    msg->n = 3;
}

static void set_penalised_choices(Tandem__V1__GenerateRequest *msg)
{
    static Tandem__V1__Sampling sampling;
    tandem__v1__sampling__init(&sampling);
    sampling.has_repetition_case = TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY;
    sampling.repetition_penalty = 2;
    msg->sampling = &sampling;
    msg->n = 3;
}

static void every_choice_is_penalised_for_the_prompt(void **state)
{
    (void)state;
    struct made m;
    const struct kernel *kernel;
    AUTO(dist_free) struct dist *d = NULL;
    make(&m, set_penalised_choices);
    uint32_t n_vocab = tok_n_vocab(tok), word = m.r->prompt[0];
    assert_int_equal(kernel_init(&kernel), 0);
    assert_int_equal(dist_new(n_vocab, kernel, &d), 0);
    AUTO(mem_free) float *logits = calloc(n_vocab, sizeof(*logits));
    logits[word] = 1;
    for (uint32_t i = 0; i < m.r->n; i++) {
        struct seq *s = m.r->seqs[i];
        if (i > 0)
            assert_int_equal(seq_open(s), 0);
        double want = exp(0.5) / (exp(0.5) + n_vocab - 1);
        AUTO(mem_free) double *probs = calloc(n_vocab, sizeof(*probs));
        dist_set(d, logits, &m.r->params, s->counts, NULL);
        dist_probs(d, probs);
        assert_true(fabs(probs[word] - want) < 1e-9);
    }
    done(&m);
}

static void each_choice_has_its_own_key(void **state)
{
    (void)state;
    struct made m;
    make(&m, set_n_3);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(m.r->seqs[i]->key == rng_key(m.r->seed, i));
    assert_int_equal(m.r->seqs[1]->state, SEQ_BRANCH);
    done(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eos_ends_it_without_text),
        cmocka_unit_test(text_that_fails_is_one_sequences_error),
        cmocka_unit_test(text_that_fails_at_the_end_is_one_sequences_error_too),
        cmocka_unit_test(eos_can_be_ignored),
        cmocka_unit_test(max_tokens_ends_it),
        cmocka_unit_test(the_contexts_end_is_a_limit_too),
        cmocka_unit_test(a_stop_string_across_tokens_is_cut),
        cmocka_unit_test(stops_and_bans_wait_for_min_tokens),
        cmocka_unit_test(todo_counts_the_rows_before_the_next_token),
        cmocka_unit_test(a_verify_stream_keeps_its_last_row_for_the_draft),
        cmocka_unit_test(a_held_draft_waits_for_the_rows_before_it),
        cmocka_unit_test(a_draft_is_known_as_chain_or_tree),
        cmocka_unit_test(a_draft_ends_where_the_request_says),
        cmocka_unit_test(a_drawn_draft_keeps_its_q),
        cmocka_unit_test(every_choice_is_penalised_for_the_prompt),
        cmocka_unit_test(each_choice_has_its_own_key),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
