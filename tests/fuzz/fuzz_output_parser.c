/* The text of a model is split into reasoning, content and calls. The result is the same whole and
 * byte by byte, the arguments of every call are JSON, and without a call no byte is lost. The first
 * byte chooses the rules. */
#include <assert.h>
#include <jansson.h>
#include <stdint.h>
#include <string.h>
#include "gateway/openai/output_parser.h"
#include "lib/clients/tools.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void split(const struct output_parser_rules *rules, const char *text, size_t len,
                  size_t step, struct output_parser_out *to)
{
    struct output_parser p;
    output_parser_init(&p, rules);
    output_parser_out_init(to);
    for (size_t at = 0; at < len; at += step)
        output_parser_feed(&p, text + at, step < len - at ? step : len - at, to);
    output_parser_end(&p, to);
    output_parser_done(&p);
}

static void same(const struct buf *a, const struct buf *b)
{
    assert(a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0));
}

static void compare(const struct output_parser_out *a, const struct output_parser_out *b)
{
    same(&a->reasoning, &b->reasoning);
    same(&a->content, &b->content);
    assert(a->calls.n == b->calls.n);
    for (unsigned i = 0; i < a->calls.n; i++) {
        json_t *args =
            json_loads(a->calls.v[i].arguments, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        assert(json_is_object(args));
        json_decref(args);
        assert(strcmp(a->calls.v[i].name, b->calls.v[i].name) == 0);
        assert(strcmp(a->calls.v[i].arguments, b->calls.v[i].arguments) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct output_parser_thinking think = {"<think>", "</think>"};
    if (!n)
        return 0;
    struct tool_types *types = tools_of(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
        "\"s\":{\"type\":\"string\"},\"b\":{\"type\":\"boolean\"}}}}}]");
    struct output_parser_rules rules = {.thinking = data[0] & 16 ? &think : NULL,
                                        .begun = (data[0] & 96) == 32,
                                        .closed = (data[0] & 96) == 64,
                                        .format = data[0] % 16 % TOOLS_N_FORMATS,
                                        .types = types};
    rules.is_harmony = data[0] & 128 || rules.format == TOOLS_HARMONY;
    struct output_parser_out whole, bytes, some;
    split(&rules, (const char *)data + 1, n - 1, n, &whole);
    split(&rules, (const char *)data + 1, n - 1, 1, &bytes);
    split(&rules, (const char *)data + 1, n - 1, 7, &some);
    compare(&whole, &bytes);
    compare(&whole, &some);
    if (!rules.thinking && !rules.is_harmony && !whole.calls.n)
        same(&whole.content, &(struct buf){.data = (char *)data + 1, .len = n - 1});
    output_parser_out_done(&whole);
    output_parser_out_done(&bytes);
    output_parser_out_done(&some);
    tool_types_free(types);
    return 0;
}
