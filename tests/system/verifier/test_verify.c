/* test_verify.c - clients that send their own drafts: which tokens the verifier commits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "lib/oracles/figures.h"
#include "lib/rigs/verifier_rig.h"

static void drafts_are_accepted_wholly_partly_or_not_at_all(void **state)
{
    (void)state;
    const uint32_t *ids = story()->ids;
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 40);
    verify_open(&v, &w.msg);
    uint32_t base = v.prompt_len;

    verify_draft(&v, NULL, NULL, 0); // empty
    assert_int_equal(v.n_run, 1);
    assert_int_equal(v.run[0], ids[0]);
    assert_int_equal(v.origins[0], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_TARGET);

    verify_draft(&v, ids + 1, NULL, 4); // all
    assert_int_equal(v.accepted, 4);
    assert_int_equal(v.n_run, 5);
    assert_memory_equal(v.run, ids + 1, 5 * sizeof(uint32_t));
    assert_int_equal(v.origins[3], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_ACCEPTED);
    assert_int_equal(v.origins[4], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_BONUS);

    verify_draft(&v, (uint32_t[]){ids[6], ids[7], ids[8] + 1, ids[9]}, NULL, 4); // partly
    assert_int_equal(v.accepted, 2);
    assert_int_equal(v.round, 3);
    assert_int_equal(v.drafted, 4);
    assert_memory_equal(v.run, ids + 6, 3 * sizeof(uint32_t));
    assert_int_equal(v.origins[2], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_CORRECTION);

    verify_draft(&v, (uint32_t[]){ids[9] + 1, ids[10]}, NULL, 2); // none
    assert_int_equal(v.accepted, 0);
    assert_int_equal(v.n_run, 1);
    assert_int_equal(v.run[0], ids[9]);
    assert_int_equal(v.base_len, base + 10);
    assert_int_equal(verify_close(&v).code, RPC_OK);
}

static void the_right_branch_of_a_tree_is_found(void **state)
{
    (void)state;
    const uint32_t *ids = story()->ids;
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 40);
    verify_open(&v, &w.msg);
    uint32_t x = ids[0] == 7 ? 8 : 7;
    const uint32_t tokens[] = {x, ids[0], ids[1], ids[1] + 1, ids[1], ids[2], ids[3]};
    const int32_t parents[] = {-1, -1, 0, 1, 1, 4, 5};
    for (uint32_t at = 0; at < 2; at++) { // the second time after the rows of the first tree
        const uint32_t *next = ids + 5 * at;
        const uint32_t t[] = {x, next[0], next[1], next[1] + 1, next[1], next[2], next[3]};
        verify_draft(&v, at ? t : tokens, parents, 7);
        assert_int_equal(v.accepted, 4);
        assert_int_equal(v.n_run, 5);
        assert_memory_equal(v.run, next, 5 * sizeof(uint32_t));
    }
    verify_close(&v);
}

static void rollbacks_change_no_bit(void **state)
{
    (void)state;
    struct wish w;
    struct verify v[3];
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&w, STORY, 60);
    w.msg.logprobs = true;
    w.msg.ignore_eos = true;
    generation_run(client, &w.msg, a);
    unsigned at[3] = {0};
    for (unsigned i = 0; i < 3; i++)
        verify_open(&v[i], &w.msg);
    for (unsigned step = 0; at[0] < 50 || at[1] < 50 || at[2] < 50; step++) {
        unsigned i = step % 3, right = (step * 7 + i) % 5, n = right + 3;
        uint32_t draft[8];
        for (unsigned k = 0; k < n; k++)
            draft[k] = k < right ? a->ids[at[i] + k] : (a->ids[at[i] + k] + 1 + k) % 4096;
        if (at[i] >= 50)
            continue;
        verify_draft(&v[i], draft, NULL, n);
        assert_true(v[i].accepted >= right);
        assert_memory_equal(v[i].run, a->ids + at[i], v[i].n_run * sizeof(uint32_t));
        assert_memory_equal(v[i].logprobs, a->logprobs + at[i], v[i].n_run * sizeof(float));
        at[i] += v[i].n_run;
    }
    for (unsigned i = 0; i < 3; i++)
        verify_close(&v[i]);
}

/* Commits the story up to `at` tokens before its end. */
static void verify_open_before_the_end(struct verify *v, const request *msg, unsigned at)
{
    const struct answer *a = story();
    verify_open(v, msg);
    for (unsigned done = 0; done < a->n - at; done += v->n_run) {
        unsigned n = a->n - at - done - 1;
        verify_draft(v, a->ids + done, NULL, n < DRAFT_MAX_NODES ? n : DRAFT_MAX_NODES);
        assert_memory_equal(v->run, a->ids + done, v->n_run * sizeof(uint32_t));
    }
}

static void eos_inside_a_draft_ends_it_there(void **state)
{
    (void)state;
    const struct answer *a = story();
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 900);
    verify_open_before_the_end(&v, &w.msg, 5);
    uint32_t draft[8];
    memcpy(draft, a->ids + a->n - 5, 5 * sizeof(uint32_t)); // the last of these is EOS
    memcpy(draft + 5, a->ids, 3 * sizeof(uint32_t));
    verify_draft(&v, draft, NULL, 8);
    assert_int_equal(v.n_run, 5);
    assert_int_equal(v.accepted, 5);
    assert_int_equal(v.reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
    assert_int_equal(v.origins[4], TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_ACCEPTED);
    assert_int_equal(verify_close(&v).code, RPC_OK);
}

static void max_tokens_inside_a_draft_ends_it_there(void **state)
{
    (void)state;
    const uint32_t *ids = story()->ids;
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 3);
    verify_open(&v, &w.msg);
    verify_draft(&v, ids, NULL, 8);
    assert_int_equal(v.n_run, 3);
    assert_memory_equal(v.run, ids, 3 * sizeof(uint32_t));
    assert_int_equal(v.reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    verify_close(&v);
}

static void a_stop_string_inside_a_draft_ends_it_there(void **state)
{
    (void)state;
    const struct answer *a = story();
    struct wish w;
    struct verify v;
    AUTO(mem_free) struct answer *stopped = answers_new(1);
    char word[6] = {0};
    memcpy(word, a->text + 20, 5);
    ProtobufCBinaryData stop = text_of(word);
    wish_init(&w, STORY, 40);
    w.msg.stop = &stop;
    w.msg.n_stop = 1;
    generation_run(client, &w.msg, stopped);
    assert_true(stopped->n < 20);
    verify_open(&v, &w.msg);
    verify_draft(&v, a->ids, NULL, 20);
    assert_int_equal(v.n_run, stopped->n);
    assert_int_equal(v.reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
    verify_close(&v);
}

static void a_draft_before_the_close_is_still_verified(void **state)
{
    (void)state;
    const struct answer *want = story();
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 100);
    Tandem__V1__VerifyDraft d = TANDEM__V1__VERIFY_DRAFT__INIT;
    d.base_len = want->prompt_tokens;
    d.tokens = (uint32_t *)want->ids;
    d.n_tokens = 3;
    verify_open_at(client, &v, NULL);
    verify_send(&v, &w.msg, NULL);
    verify_send(&v, NULL, &d);
    assert_int_equal(verify_close(&v).code, RPC_OK);
    assert_int_equal(v.n_commits, 1);
    assert_int_equal(v.n_run, 4);
    assert_memory_equal(v.run, want->ids, 4 * sizeof(uint32_t));
    wait_requests(client, 0, 0);
}

static void a_closed_stream_is_a_success(void **state)
{
    (void)state;
    const char *closed = "tandem_request_success_total{finished_reason=\"closed\"}";
    double n_closed = metric_of(client, closed);
    double n_failed = metric_of(client, "tandem_request_failed_total");
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 100);
    w.msg.id = text_of("to-be-closed");
    verify_open(&v, &w.msg);
    assert_int_equal(verify_close(&v).code, RPC_OK); // before any draft
    verify_open(&v, &w.msg);
    verify_draft(&v, story()->ids, NULL, 3);
    assert_int_equal(verify_close(&v).code, RPC_OK);
    assert_true(metric_of(client, closed) == n_closed + 2);
    assert_true(metric_of(client, "tandem_request_failed_total") == n_failed);
    assert_true(service_said(&verifier, "request done id=to-be-closed"));
}

static void a_stream_without_drafts_ends(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    struct verify v;
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--verify-timeout", "1", NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wish_init(&w, STORY, 40);
    verify_open_at(c, &v, &w.msg);
    verify_draft(&v, NULL, NULL, 0);
    verify_wait(&v, 0, true);
    assert_int_equal(v.status.code, RPC_DEADLINE_EXCEEDED);
    assert_string_equal(v.status.text, "no draft came for 1 s");
    verify_close(&v);
    wait_requests(c, 0, 0);
    assert_true(metric_of(c, "tandem_kv_cache_usage_ratio") == 0);
    rpc_client_free(c);
    service_stop(&s);
}

static void drafts_that_do_not_fit_end_their_stream_only(void **state)
{
    (void)state;
    struct wish w;
    struct verify good, v;
    const uint32_t foreign = 4096;
    wish_init(&w, STORY, 40);
    verify_open(&good, &w.msg);

    Tandem__V1__VerifyDraft d = TANDEM__V1__VERIFY_DRAFT__INIT;
    verify_open(&v, &w.msg);
    d.base_len = v.base_len + 2;
    verify_send(&v, NULL, &d);
    char sentence[80];
    snprintf(sentence, sizeof(sentence), "continues a length of %u, %u tokens are committed",
             d.base_len, v.base_len);
    verify_must_end(&v, RPC_FAILED_PRECONDITION, sentence);

    verify_open(&v, NULL);
    verify_send(&v, NULL, &d); // no `open` was sent
    verify_must_end(&v, RPC_FAILED_PRECONDITION, "before `open`");

    verify_open(&v, &w.msg);
    d.base_len = v.base_len;
    d.tokens = (uint32_t *)&foreign;
    d.n_tokens = 1;
    verify_send(&v, NULL, &d);
    verify_must_end(&v, RPC_INVALID_ARGUMENT, "vocabulary");

    uint32_t two[2] = {1, 1};
    int32_t parent = -1;
    verify_open(&v, &w.msg);
    d.tokens = two;
    d.n_tokens = 2;
    d.parents = &parent;
    d.n_parents = 1;
    verify_send(&v, NULL, &d);
    verify_must_end(&v, RPC_INVALID_ARGUMENT, "the draft has 2 tokens and 1 parents");
    d.n_parents = 0;

    uint32_t many[DRAFT_MAX_NODES + 1] = {0};
    verify_open(&v, &w.msg);
    d.tokens = many;
    d.n_tokens = DRAFT_MAX_NODES + 1;
    verify_send(&v, NULL, &d);
    verify_must_end(&v, RPC_INVALID_ARGUMENT, "65 tokens, at most 64");

    verify_open(&v, &w.msg);
    rpc_stream_send(v.stream, rpc_msg_of("\x12\xff\xff\xff", 4));
    verify_must_end(&v, RPC_INVALID_ARGUMENT, "VerifyRequest");

    verify_draft(&good, NULL, NULL, 0);
    assert_int_equal(good.run[0], story()->ids[0]);
    verify_close(&good);
    wait_requests(client, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_accepted_wholly_partly_or_not_at_all),
        cmocka_unit_test(the_right_branch_of_a_tree_is_found),
        cmocka_unit_test(rollbacks_change_no_bit),
        cmocka_unit_test(eos_inside_a_draft_ends_it_there),
        cmocka_unit_test(max_tokens_inside_a_draft_ends_it_there),
        cmocka_unit_test(a_stop_string_inside_a_draft_ends_it_there),
        cmocka_unit_test(a_draft_before_the_close_is_still_verified),
        cmocka_unit_test(a_closed_stream_is_a_success),
        cmocka_unit_test(a_stream_without_drafts_ends),
        cmocka_unit_test(drafts_that_do_not_fit_end_their_stream_only),
    };
    return cmocka_run_group_tests(tests, start_verifier, stop_verifier);
}
