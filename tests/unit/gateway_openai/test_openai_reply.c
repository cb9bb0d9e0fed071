/* Answers have the shapes of OpenAI, streamed or whole. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/openai/openai_error.h"
#include "gateway/openai/openai_reply.h"
#include "gateway/openai/openai_writer.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

static struct openai_text text_of(const char *s)
{
    return (struct openai_text){s, strlen(s)};
}

static struct openai_reply_head head(bool is_chat, bool stream)
{
    return (struct openai_reply_head){.kind = is_chat ? OPENAI_CHAT : OPENAI_COMPLETION,
                                      .stream = stream,
                                      .id = "r1",
                                      .model = text_of("m\"x"),
                                      .fingerprint = text_of("fp"),
                                      .created = 12,
                                      .n = 1,
                                      .n_each = 1};
}

static void say(struct openai_reply *r, unsigned choice, const char *word, struct buf *to)
{
    struct openai_token t = {.text = text_of(word), .bytes = text_of(word), .logprob = -1};
    openai_reply_token(r, choice, &t, to);
}

static void finish(struct openai_reply *r, unsigned choice, struct buf *to)
{
    openai_reply_finished(r, choice, "stop", text_of(""), text_of(""), to);
}

static void a_streamed_chat_is_role_tokens_reason_done(void **state)
{
    (void)state;
    struct openai_reply_head h = head(true, true);
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    openai_reply_started(&r, 0, text_of(""), &b);
    say(&r, 0, "Hi\n", &b);
    finish(&r, 0, &b);
    assert_true(openai_reply_complete(&r, 0));
    assert_int_equal(openai_reply_end(&r, &b), 0);
#define START                                                                                      \
    "data: {\"id\":\"chatcmpl-r1\",\"object\":\"chat.completion.chunk\",\"created\":12,"           \
    "\"model\":\"m\\\"x\",\"system_fingerprint\":\"fp\",\"choices\":[{\"index\":0,"
    assert_string_equal(
        b.data,
        START "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
              "\"finish_reason\":null}]}\n\n" START
              "\"delta\":{\"content\":\"Hi\\n\"},\"logprobs\":null,\"finish_reason\":null}]}"
              "\n\n" START "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\","
              "\"stop_reason\":null}]}\n\ndata: [DONE]\n\n");
    openai_reply_done(&r);
}

static void a_streamed_completion_has_no_role(void **state)
{
    (void)state;
    struct openai_reply_head h = head(false, true);
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    openai_reply_started(&r, 0, text_of("not echoed"), &b);
    assert_int_equal(b.len, 0);
    say(&r, 0, "x", &b);
    assert_non_null(strstr(b.data, "\"object\":\"text_completion\""));
    assert_non_null(strstr(b.data, "{\"index\":0,\"text\":\"x\",\"logprobs\":null,"));
    openai_reply_done(&r);
}

static void a_stream_shows_the_origin_of_tokens_on_request(void **state)
{
    (void)state;
    struct openai_reply_head h = head(true, true);
    h.include_tokens = h.include_usage = true;
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    openai_reply_started(&r, 0, text_of(""), &b);
    struct openai_token t = {.text = text_of("x"),
                             .id = 7,
                             .origin = "accepted",
                             .round = 2,
                             .drafted = 3,
                             .proposer = text_of("n\"g")};
    openai_reply_token(&r, 0, &t, &b);
    finish(&r, 0, &b);
    assert_non_null(strstr(b.data, "\"content\":\"x\"},\"logprobs\":null,\"finish_reason\":null}],"
                                   "\"usage\":null,\"tandem\":{\"tokens\":[{\"id\":7,"
                                   "\"origin\":\"accepted\",\"round\":2,\"drafted\":3,"
                                   "\"proposer\":\"n\\\"g\"}]}}\n\n"));
    assert_null(strstr(strstr(b.data, "tandem") + 1, "tandem")); // the end has no token
    openai_reply_done(&r);
}

static void whole_answers_collect_several_choices(void **state)
{
    (void)state;
    struct openai_reply_head h = head(true, false);
    h.n = h.n_each = 2;
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    r.prompt_tokens = 5;
    r.speculation =
        (struct openai_speculation){4, 2, 6, 3, 1, .k = 5, .accepted_histogram = {1, 0, 0, 1}};
    strcpy(r.rule, "own-draw");
    strcpy(r.proposer, "ngram");
    r.timings = (struct openai_timings){10, 20};
    for (unsigned i = 0; i < 2; i++) {
        openai_reply_started(&r, i, text_of(""), &b);
        say(&r, i, i ? "b" : "a", &b);
        say(&r, i, "\xE2\x82\xAC", &b);
        assert_false(openai_reply_complete(&r, 0));
        finish(&r, i, &b);
    }
    assert_int_equal(b.len, 0);
    assert_int_equal(openai_reply_end(&r, &b), 0);
    json_t *j = json_loads(b.data, 0, NULL);
    const char *one, *two;
    int completion, total, drafted, kept;
    assert_non_null(strstr(b.data, "\"speculative_decoding\":{\"rule\":\"own-draw\","
                                   "\"proposer\":\"ngram\",\"mean_acceptance_length\":2.5,"
                                   "\"draft_acceptance_rate\":0.5,\"num_spec_tokens\":5,"
                                   "\"num_steps\":4,\"num_spec_steps\":2,\"num_draft_tokens\":6,"
                                   "\"num_accepted_draft_tokens\":3,\"num_bonus_tokens\":1,"
                                   "\"acceptance_histogram\":[1,0,0,1]}"));
    assert_non_null(strstr(b.data, "\"timings\":{\"cache_n\":0,\"prompt_n\":5,\"prompt_ms\":10,"
                                   "\"prompt_per_second\":500,\"predicted_n\":4,"
                                   "\"predicted_ms\":20,\"predicted_per_second\":200,"
                                   "\"draft_n\":6,\"draft_n_accepted\":3}"));
    assert_int_equal(json_unpack(j, "{s:[{s:{s:s}},{s:{s:s}}],s:{s:i,s:i},s:{s:{s:i,s:i}}}",
                                 "choices", "message", "content", &one, "message", "content", &two,
                                 "usage", "completion_tokens", &completion, "total_tokens", &total,
                                 "metrics", "speculative_decoding", "num_draft_tokens", &drafted,
                                 "num_accepted_draft_tokens", &kept),
                     0);
    assert_null(strstr(b.data, "prediction_tokens")); // there was no prediction
    assert_string_equal(one, "a\xE2\x82\xAC");
    assert_string_equal(two, "b\xE2\x82\xAC");
    assert_int_equal(completion, 4);
    assert_int_equal(total, 9);
    assert_int_equal(drafted, 6);
    assert_int_equal(kept, 3);
    json_decref(j);
    openai_reply_done(&r);
}

static void an_answer_to_a_prediction_counts_its_tokens(void **state)
{
    (void)state;
    struct openai_reply_head h = head(true, false);
    h.has_prediction = true;
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    r.speculation = (struct openai_speculation){.drafted = 6, .accepted = 4};
    openai_reply_started(&r, 0, text_of(""), &b);
    say(&r, 0, "a", &b);
    finish(&r, 0, &b);
    assert_int_equal(openai_reply_end(&r, &b), 0);
    assert_non_null(strstr(b.data, "\"completion_tokens\":1,\"total_tokens\":1,"));
    assert_non_null(strstr(b.data,
                           "\"completion_tokens_details\":{\"accepted_prediction_tokens\":4,"
                           "\"rejected_prediction_tokens\":2}},"));
    openai_reply_done(&r);
}

static void echo_comes_first_and_shifts_the_offsets(void **state)
{
    (void)state;
    struct openai_reply_head h = head(false, false);
    h.echo = h.logprobs = true;
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    openai_reply_started(&r, 0, text_of("\xC3\xA9t"), &b);
    say(&r, 0, "x", &b);
    say(&r, 0, "y", &b);
    openai_reply_finished(&r, 0, "stop", text_of(""), text_of("END"), &b);
    assert_int_equal(openai_reply_end(&r, &b), 0);
    assert_non_null(strstr(b.data, "\"text\":\"\xC3\xA9txy\""));
    assert_non_null(strstr(b.data, "\"text_offset\":[2,3]")); // characters, not bytes
    assert_non_null(strstr(b.data, "\"stop_reason\":\"END\""));
    openai_reply_done(&r);
}

/* No verifier has such a stop string: a request may have 256 bytes in one. A cut one would make
 * invalid JSON. */
static void a_stop_string_that_is_too_long_loses_the_choice(void **state)
{
    (void)state;
    char stop[5000];
    memset(stop, 's', sizeof(stop) - 1);
    stop[sizeof(stop) - 1] = 0;
    for (unsigned i = 0; i < 4; i++) {
        struct openai_reply_head h = head(i & 1, i & 2);
        struct openai_reply r;
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 20);
        assert_int_equal(openai_reply_init(&r, &h), 0);
        openai_reply_started(&r, 0, text_of(""), &b);
        say(&r, 0, "x", &b);
        openai_reply_finished(&r, 0, "stop", text_of(""), text_of(stop), &b);
        assert_int_equal(openai_reply_end(&r, &b), -EMSGSIZE);
        assert_true(!b.data || !strstr(b.data, "\"stop_reason\":\""));
        openai_reply_done(&r);
    }
}

static void held_back_text_counts_in_the_offsets(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct openai_reply_head h = head(false, stream);
        h.logprobs = true;
        struct openai_reply r;
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 20);
        assert_int_equal(openai_reply_init(&r, &h), 0);
        openai_reply_started(&r, 0, text_of(""), &b);
        struct openai_token t[] = {{.text = text_of("ab"), .bytes = text_of("abE")},
                                   {.bytes = text_of("N"), .n_held = 1},
                                   {.text = text_of("ENx"), .bytes = text_of("x"), .n_held = 2},
                                   {.text = text_of("y"), .bytes = text_of("y")}};
        for (unsigned i = 0; i < ARRAY_LEN(t); i++)
            openai_reply_token(&r, 0, &t[i], &b);
        finish(&r, 0, &b);
        assert_int_equal(openai_reply_end(&r, &b), 0);
        static const char *const offsets[2][4] = {{"\"text_offset\":[0,3,4,5]", "", "", ""},
                                                  {"\"text_offset\":[0]", "\"text_offset\":[3]",
                                                   "\"text_offset\":[4]", "\"text_offset\":[5]"}};
        for (unsigned i = 0; i < 4; i++)
            assert_non_null(strstr(b.data, offsets[stream][i]));
        openai_reply_done(&r);
    }
}

static void every_choice_echoes_the_prompt_that_came_with_the_first(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct openai_reply_head h = head(false, stream);
        h.echo = true;
        h.n = h.n_each = 2;
        struct openai_reply r;
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 20);
        assert_int_equal(openai_reply_init(&r, &h), 0);
        openai_reply_started(&r, 0, text_of("Once "), &b);
        openai_reply_started(&r, 1, text_of(""), &b);
        openai_reply_finished(&r, 0, "stop", text_of(""), text_of(""), &b);
        openai_reply_finished(&r, 1, "stop", text_of(""), text_of(""), &b);
        assert_int_equal(openai_reply_end(&r, &b), 0);
        const char *first = strstr(b.data, "\"text\":\"Once \"");
        assert_non_null(first);
        assert_non_null(strstr(first + 1, "\"text\":\"Once \""));
        openai_reply_done(&r);
    }
}

static struct openai_reply_head splitting_head(bool stream)
{
    static const struct output_parser_thinking think = {"<think>", "</think>"};
    struct openai_reply_head h = head(true, stream);
    h.rules = (struct output_parser_rules){.thinking = &think, .format = TOOLS_HERMES};
    h.id_seed = 7;
    return h;
}

static void say_call(struct openai_reply *r, struct buf *to)
{
    static const char *const words[] = {
        "<think>a",    "b</think>\n", "c", "<tool_ca", "ll>{\"name\":\"f\",\"arguments\":{}}",
        "</tool_call>"};
    openai_reply_started(r, 0, text_of(""), to);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        say(r, 0, words[i], to);
    finish(r, 0, to);
    assert_int_equal(openai_reply_end(r, to), 0);
}

static void a_whole_answer_has_its_parts(void **state)
{
    (void)state;
    struct openai_reply_head h = splitting_head(false);
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    say_call(&r, &b);
    assert_non_null(strstr(b.data,
                           "\"content\":\"c\",\"reasoning_content\":\"ab\",\"tool_calls\":[{"
                           "\"id\":\"call_"));
    assert_non_null(strstr(b.data, "\"type\":\"function\",\"function\":{\"name\":\"f\","
                                   "\"arguments\":\"{}\"}}],\"refusal\":null}"));
    assert_non_null(strstr(b.data, "\"finish_reason\":\"tool_calls\""));
    assert_non_null(strstr(b.data, "\"completion_tokens_details\":{\"reasoning_tokens\":2}"));
    openai_reply_done(&r);
}

/* Of gpt-oss, a token per word. Headers are hidden with the reasoning. */
static void channels_are_hidden_with_the_reasoning(void **state)
{
    (void)state;
    static const char *const words[] = {
        "<|channel|>", "analysis",    "<|message|>", "secret",          "<|end|>",     "<|start|>",
        "assistant",   "<|channel|>", "commentary",  " to=functions.f", "<|message|>", "{}"};
    for (int hides = 0; hides < 2; hides++) {
        struct openai_reply_head h = splitting_head(true);
        struct openai_reply r;
        AUTO(buf_done) struct buf b = {0};
        h.rules.is_harmony = h.logprobs = true;
        h.rules.format = TOOLS_HARMONY;
        h.hides_reasoning = hides;
        buf_init(&b, 1 << 20);
        assert_int_equal(openai_reply_init(&r, &h), 0);
        openai_reply_started(&r, 0, text_of(""), &b);
        for (size_t i = 0; i < ARRAY_LEN(words); i++)
            say(&r, 0, words[i], &b);
        finish(&r, 0, &b);
        assert_int_equal(openai_reply_end(&r, &b), 0);
        assert_int_equal(strstr(b.data, "secret") != NULL, !hides);
        assert_int_equal(strstr(b.data, "commentary") != NULL, !hides); // only in the logprobs
        assert_non_null(strstr(b.data, "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}"));
        assert_non_null(strstr(b.data, "\"finish_reason\":\"tool_calls\""));
        openai_reply_done(&r);
    }
}

/* The limit of tokens was the reason, also if calls came before it. */
static void calls_cut_by_the_limit_keep_the_reason(void **state)
{
    (void)state;
    static const char *const reasons[] = {"length", "stop"};
    for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
        struct openai_reply_head h = splitting_head(false);
        struct openai_reply r;
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 20);
        assert_int_equal(openai_reply_init(&r, &h), 0);
        say(&r, 0, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", &b);
        openai_reply_finished(&r, 0, reasons[i], text_of(""), text_of(""), &b);
        assert_int_equal(openai_reply_end(&r, &b), 0);
        assert_non_null(strstr(b.data, i ? "\"finish_reason\":\"tool_calls\""
                                         : "\"finish_reason\":\"length\""));
        openai_reply_done(&r);
    }
}

static void a_stream_has_one_event_for_each_token(void **state)
{
    (void)state;
    static const char *const deltas[] = {
        "{\"role\":\"assistant\",\"content\":\"\"}",
        "{\"reasoning_content\":\"a\"}",
        "{\"reasoning_content\":\"b\"}",
        "{\"content\":\"c\"}",
        "{\"content\":\"\"}",
        "{\"content\":\"\"}",
        "{\"tool_calls\":[{\"index\":0,\"id\":\"call_",
        "{},\"logprobs\":null,\"finish_reason\":\"tool_calls\"",
    };
    struct openai_reply_head h = splitting_head(true);
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    say_call(&r, &b);
    const char *at = b.data;
    for (size_t i = 0; i < ARRAY_LEN(deltas); i++) {
        at = strstr(at, "\"delta\":");
        assert_non_null(at);
        at += strlen("\"delta\":");
        if (strncmp(at, deltas[i], strlen(deltas[i])) != 0)
            fail_msg("%zu: %.80s", i, at);
    }
    assert_null(strstr(at, "\"delta\":"));
    openai_reply_done(&r);
}

static void hidden_reasoning_has_no_logprobs(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct openai_reply_head h = splitting_head(stream);
        h.hides_reasoning = h.logprobs = h.include_tokens = true;
        struct openai_reply r;
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 20);
        assert_int_equal(openai_reply_init(&r, &h), 0);
        openai_reply_started(&r, 0, text_of(""), &b);
        struct openai_token t[] = {{.text = text_of("<think>secret"), .id = 51},
                                   {.text = text_of("more</think>"), .id = 52},
                                   {.text = text_of("said"), .id = 53}};
        for (unsigned i = 0; i < ARRAY_LEN(t); i++) {
            t[i].bytes = t[i].text;
            t[i].origin = "target";
            openai_reply_token(&r, 0, &t[i], &b);
        }
        finish(&r, 0, &b);
        assert_int_equal(openai_reply_end(&r, &b), 0);
        assert_null(strstr(b.data, "secret"));
        assert_null(strstr(b.data, "more"));
        assert_null(strstr(b.data, "\"id\":51"));
        assert_null(strstr(b.data, "\"id\":52"));
        assert_non_null(strstr(b.data, "\"content\":[{\"token\":\"said\","));
        assert_int_equal(r.completion_tokens, 3);
        openai_reply_done(&r);
    }
}

static void errors_follow_from_the_status(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *param, *want;
    } v[] = {
        {400, "n",
         "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":\"invalid_request_error\","
         "\"param\":\"n\",\"code\":null}}"},
        {404, "model",
         "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":\"invalid_request_error\","
         "\"param\":\"model\",\"code\":\"model_not_found\"}}"},
        {429, "",
         "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":\"rate_limit_error\","
         "\"param\":null,\"code\":\"rate_limit_exceeded\"}}"},
        {503, "",
         "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":\"server_error\","
         "\"param\":null,\"code\":\"service_unavailable\"}}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 4096);
        openai_error(&b, v[i].status, "a \"b\"", v[i].param);
        assert_string_equal(b.data, v[i].want);
    }
}

/* The statuses and their type and code. */
static void errors_have_type_and_code(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *param, *type, *code;
    } v[] = {{400, "n", "invalid_request_error", "null"},
             {401, "", "invalid_request_error", "\"invalid_api_key\""},
             {403, "", "invalid_request_error", "null"},
             {404, "model", "invalid_request_error", "\"model_not_found\""},
             {404, "", "invalid_request_error", "\"not_found\""},
             {408, "", "invalid_request_error", "null"},
             {413, "", "invalid_request_error", "null"},
             {429, "", "rate_limit_error", "\"rate_limit_exceeded\""},
             {499, "", "invalid_request_error", "null"},
             {500, "", "server_error", "null"},
             {502, "", "server_error", "null"},
             {503, "", "server_error", "\"service_unavailable\""},
             {504, "", "server_error", "\"timeout\""}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(buf_done) struct buf b = {0};
        AUTO(mem_free) char *want = NULL;
        buf_init(&b, 1 << 12);
        openai_error(&b, v[i].status, "a \"text\"", v[i].param);
        assert_true(asprintf(&want,
                             "{\"error\":{\"message\":\"a \\\"text\\\"\",\"type\":\"%s\","
                             "\"param\":%s%s%s,\"code\":%s}}",
                             v[i].type, *v[i].param ? "\"" : "", *v[i].param ? v[i].param : "null",
                             *v[i].param ? "\"" : "", v[i].code) > 0);
        assert_string_equal(b.data, want);
    }
    AUTO(buf_done) struct buf event = {0};
    buf_init(&event, 1 << 12);
    openai_error_event(&event, 503, "x");
    assert_string_equal(event.data, "data: {\"error\":{\"message\":\"x\",\"type\":\"server_error\","
                                    "\"param\":null,\"code\":\"service_unavailable\"}}\n\n"
                                    "data: [DONE]\n\n");
}

/* A completion of three choices of two prompts, with everything that has a number. */
static void prompts_are_counted_once_each(void **state)
{
    (void)state;
    struct openai_reply_head h = head(false, false);
    h.n = 4;
    h.n_each = 2;
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    openai_reply_prompt(&r, 0, 10, 3);
    openai_reply_prompt(&r, 1, 10, 5); // the maximum counts
    openai_reply_prompt(&r, 2, 7, 7);
    openai_reply_prompt(&r, 3, 7, 2);
    for (unsigned i = 0; i < 4; i++) {
        say(&r, i, "x", &b);
        assert_false(openai_reply_complete(&r, i / 2));
        finish(&r, i, &b);
        finish(&r, i, &b); // only once
        assert_int_equal(openai_reply_complete(&r, i / 2), i % 2);
    }
    assert_int_equal(openai_reply_end(&r, &b), 0);
    assert_non_null(strstr(b.data, "\"usage\":{\"prompt_tokens\":17,\"completion_tokens\":4,"
                                   "\"total_tokens\":21,\"prompt_tokens_details\":{"
                                   "\"cached_tokens\":12}}"));
    openai_reply_done(&r);
}

/* A part of a choice over its limit makes the whole answer an error. */
static void a_part_that_is_too_large_is_an_error(void **state)
{
    (void)state;
    for (unsigned part = 0; part < 7; part++) {
        struct openai_reply_head h = head(part < 3, false);
        struct openai_reply r;
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 20);
        h.logprobs = part >= 3;
        assert_int_equal(openai_reply_init(&r, &h), 0);
        say(&r, 0, "x", &b);
        struct openai_choice *c = r.choices;
        struct buf *parts[] = {&c->text,
                               &c->reasoning,
                               &c->items,
                               &c->logprobs.tokens,
                               &c->logprobs.values,
                               &c->logprobs.tops,
                               &c->logprobs.offsets};
        parts[part]->error = -EMSGSIZE;
        finish(&r, 0, &b);
        assert_int_equal(openai_reply_end(&r, &b), -EMSGSIZE);
        openai_reply_done(&r);
    }
}

static void a_part_of_a_response_that_is_too_large_is_an_error(void **state)
{
    (void)state;
    for (unsigned part = 0; part < 2; part++) {
        struct openai_reply_head h = head(true, false);
        struct openai_reply r;
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 20);
        h.kind = OPENAI_RESPONSES;
        h.echoed = strdup("\"a\":1");
        assert_int_equal(openai_reply_init(&r, &h), 0);
        struct openai_choice *c = r.choices;
        (part ? &c->logprobs.tokens : &c->items)->error = -EMSGSIZE;
        finish(&r, 0, &b);
        assert_int_equal(openai_reply_end(&r, &b), -EMSGSIZE);
        openai_reply_done(&r);
    }
}

/* Also if later tokens find memory. */
static void a_token_that_is_lost_is_an_error(void **state)
{
    (void)state;
    struct openai_reply_head h = head(true, false);
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    assert_int_equal(openai_reply_init(&r, &h), 0);
    failing_at(1);
    say(&r, 0, "lost", &b);
    assert_true(failing_has_failed());
    say(&r, 0, "kept", &b);
    finish(&r, 0, &b);
    assert_int_equal(openai_reply_end(&r, &b), -ENOMEM);
    openai_reply_done(&r);
}

static void ids_of_calls_are_the_models_or_are_made(void **state)
{
    (void)state;
    struct openai_reply r = {.id_seed = 7, .rules.format = TOOLS_KIMI};
    struct tool_call named = {.id = (char *)"functions.f:0"}, unnamed = {0};
    char made[OPENAI_CALL_ID], again[OPENAI_CALL_ID];
    assert_string_equal(openai_call_id(&r, 0, 0, &named, made), "functions.f:0");
    const char *id = openai_call_id(&r, 0, 0, &unnamed, made);
    assert_int_equal(strncmp(id, "call_", 5), 0);
    assert_int_equal(strlen(id), 14);
    assert_string_equal(openai_call_id(&r, 0, 0, &unnamed, again), id);
    assert_string_not_equal(openai_call_id(&r, 0, 1, &unnamed, again), id);
    assert_string_not_equal(openai_call_id(&r, 1, 0, &unnamed, again), id);
    r.rules.format = TOOLS_MISTRAL;
    assert_int_equal(strlen(openai_call_id(&r, 0, 0, &unnamed, made)), 9);
}

static void a_failed_allocation_is_an_error(void **state)
{
    (void)state;
    struct openai_reply_head h = head(true, false);
    unsigned n = 0;
    for (bool failed = true; failed;) {
        struct openai_reply r;
        h.echoed = strdup("\"a\":1");
        failing_at(++n);
        int rc = openai_reply_init(&r, &h);
        failed = failing_has_failed();
        assert_int_equal(rc, failed ? -ENOMEM : 0);
        if (rc == 0) {
            assert_int_equal(openai_reply_kept_bytes(&r), 6);
            openai_reply_done(&r);
        }
    }
    assert_true(n >= 3);
}

/* Three events repeat what the request has set. */
static void a_stream_keeps_four_copies(void **state)
{
    (void)state;
    struct openai_reply_head h = head(true, true);
    struct openai_reply r;
    h.echoed = strdup("\"a\":1");
    assert_int_equal(openai_reply_init(&r, &h), 0);
    assert_int_equal(openai_reply_kept_bytes(&r), 4 * 6);
    openai_reply_done(&r);
}

/* A failed call becomes the text of one token. The buffer of that text is shared by all choices. */
static void the_parsed_text_of_a_token_counts(void **state)
{
    (void)state;
    enum { BYTES = 100000 };
    struct openai_reply_head h = splitting_head(true);
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    AUTO(mem_free) char *text = malloc(BYTES + 1);
    buf_init(&b, 1 << 20);
    h.n = h.n_each = 2;
    assert_int_equal(openai_reply_init(&r, &h), 0);
    memset(text, 'x', BYTES);
    text[BYTES] = 0;
    for (unsigned i = 0; i < 2; i++) {
        openai_reply_started(&r, i, text_of(""), &b);
        say(&r, i, "<tool_call>{", &b);
        say(&r, i, text, &b);
        size_t call = r.collected_bytes;
        openai_reply_finished(&r, i, "length", text_of(""), text_of(""), &b);
        assert_true(r.out.content.cap > BYTES);
        assert_in_range(r.collected_bytes, i ? call : call + r.out.content.cap,
                        call + r.out.content.cap + 1024);
    }
    assert_in_range(r.collected_bytes, r.out.content.cap, 5 * r.out.content.cap);
    openai_reply_drop(&r);
    assert_int_equal(r.out.content.cap, 0);
    openai_reply_done(&r);
}

/* Sends the event, as a server does, unless it is broken. */
static void send_event(struct buf *event, struct buf *sent)
{
    if (!event->error)
        buf_add(sent, event->data, event->len);
    buf_clear(event);
}

/* The answer to a request of this kind when the n-th allocation fails; 0: none. Returns the error
 * of its end. */
static int answer_without(unsigned n, enum openai_kind kind, bool stream, struct buf *sent)
{
    static char words[400];
    const char *const tokens[] = {"<think>a", words, "b</think>\n", words, "c", "<tool_ca"};
    struct openai_reply_head h = splitting_head(stream);
    struct openai_reply r;
    struct buf event;
    memset(words, 'w', sizeof(words) - 1);
    buf_clear(sent);
    buf_init(&event, 1 << 20);
    h.kind = kind;
    h.logprobs = true;
    if (kind == OPENAI_RESPONSES)
        h.echoed = strdup("\"a\":1");
    if (kind == OPENAI_COMPLETION)
        h.rules = (struct output_parser_rules){0};
    assert_int_equal(openai_reply_init(&r, &h), 0);
    failing_at(n);
    openai_reply_started(&r, 0, text_of(""), &event);
    send_event(&event, sent);
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
        say(&r, 0, tokens[i], &event);
        send_event(&event, sent);
    }
    finish(&r, 0, &event);
    send_event(&event, sent);
    int rc = openai_reply_end(&r, &event);
    send_event(&event, sent);
    buf_done(&event);
    openai_reply_done(&r);
    return rc;
}

static void no_answer_lacks_a_part_silently(void **state)
{
    (void)state;
    static const enum openai_kind kinds[] = {OPENAI_CHAT, OPENAI_COMPLETION, OPENAI_RESPONSES};
    AUTO(buf_done) struct buf want = {0}, got = {0};
    buf_init(&want, 1 << 20);
    buf_init(&got, 1 << 20);
    buf_reserve(&got, 1 << 16);
    for (unsigned i = 0; i < 2 * ARRAY_LEN(kinds); i++) {
        unsigned n = 0;
        bool failed = true;
        assert_int_equal(answer_without(0, kinds[i / 2], i % 2, &want), 0);
        while (failed) {
            int rc = answer_without(++n, kinds[i / 2], i % 2, &got);
            failed = failing_has_failed();
            if (rc != (failed ? -ENOMEM : 0) && strcmp(got.data, want.data) != 0)
                fail_msg("kind %d stream %u allocation %u: %d\n%s", (int)kinds[i / 2], i % 2, n, rc,
                         got.data);
        }
        assert_true(n > 4);
    }
}

/* The text of a response over its limit; an item ends after it. */
static void a_response_that_is_too_large_is_not_completed(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct openai_reply_head h = splitting_head(stream);
        struct openai_reply r;
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 20);
        h.kind = OPENAI_RESPONSES;
        h.echoed = strdup("\"a\":1");
        assert_int_equal(openai_reply_init(&r, &h), 0);
        r.choices[0].text.max = 10;
        say(&r, 0, "<think>far too long", &b);
        say(&r, 0, "</think>short", &b);
        finish(&r, 0, &b);
        assert_int_equal(openai_reply_end(&r, &b), -EMSGSIZE);
        openai_reply_done(&r);
    }
}

static void items_of_a_response_have_the_fields_of_their_type(void **state)
{
    (void)state;
    struct openai_reply_head h = splitting_head(true);
    struct openai_reply r;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    h.kind = OPENAI_RESPONSES;
    h.echoed = strdup("\"a\":1");
    assert_int_equal(openai_reply_init(&r, &h), 0);
    say(&r, 0, "<think>why</think>so", &b);
    finish(&r, 0, &b);
    assert_int_equal(openai_reply_end(&r, &b), 0);
    buf_add(&b, "", 1);
    static const char *const status[] = {"in_progress", "completed"};
    for (unsigned i = 0; i < 2; i++) {
        char want[100];
        snprintf(want, sizeof(want), "\"type\":\"reasoning\",\"status\":\"%s\",\"summary\":[]",
                 status[i]);
        assert_non_null(strstr(b.data, want));
        snprintf(want, sizeof(want),
                 "\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\"", status[i]);
        assert_non_null(strstr(b.data, want));
    }
    openai_reply_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_of_a_response_have_the_fields_of_their_type),
        cmocka_unit_test(a_streamed_chat_is_role_tokens_reason_done),
        cmocka_unit_test(a_streamed_completion_has_no_role),
        cmocka_unit_test(a_stream_shows_the_origin_of_tokens_on_request),
        cmocka_unit_test(whole_answers_collect_several_choices),
        cmocka_unit_test(an_answer_to_a_prediction_counts_its_tokens),
        cmocka_unit_test(echo_comes_first_and_shifts_the_offsets),
        cmocka_unit_test(a_stop_string_that_is_too_long_loses_the_choice),
        cmocka_unit_test(held_back_text_counts_in_the_offsets),
        cmocka_unit_test(every_choice_echoes_the_prompt_that_came_with_the_first),
        cmocka_unit_test(a_whole_answer_has_its_parts),
        cmocka_unit_test(channels_are_hidden_with_the_reasoning),
        cmocka_unit_test(a_stream_has_one_event_for_each_token),
        cmocka_unit_test(hidden_reasoning_has_no_logprobs),
        cmocka_unit_test(errors_follow_from_the_status),
        cmocka_unit_test(calls_cut_by_the_limit_keep_the_reason),
        cmocka_unit_test(errors_have_type_and_code),
        cmocka_unit_test(prompts_are_counted_once_each),
        cmocka_unit_test(a_part_that_is_too_large_is_an_error),
        cmocka_unit_test(a_part_of_a_response_that_is_too_large_is_an_error),
        cmocka_unit_test(a_token_that_is_lost_is_an_error),
        cmocka_unit_test(ids_of_calls_are_the_models_or_are_made),
        cmocka_unit_test(a_failed_allocation_is_an_error),
        cmocka_unit_test(a_stream_keeps_four_copies),
        cmocka_unit_test(the_parsed_text_of_a_token_counts),
        cmocka_unit_test(no_answer_lacks_a_part_silently),
        cmocka_unit_test(a_response_that_is_too_large_is_not_completed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
