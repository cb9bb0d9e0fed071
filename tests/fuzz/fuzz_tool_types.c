/* The schemas of tools, and values that a model wrote for their parameters: every value becomes
 * JSON. The first line is the tools' JSON array, each later line a value. */
#include <assert.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/openai/json_scan.h"
#include "gateway/openai/tool_types.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The syntax check takes what jansson takes; jansson allows more levels. */
static void check_scan(const char *text, size_t len)
{
    size_t end = 0;
    json_t *j = json_loadb(
        text, len,
        JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL | JSON_DISABLE_EOF_CHECK, NULL);
    if (len && json_scan(text, len, &end) == 0)
        assert(end <= len && (j || end < len));
    json_decref(j);
}

static void convert(const struct tool_types *t, const char *key, const char *value, size_t len)
{
    AUTO(mem_free) char *text = tool_types_value(t, "f", 1, key, value, len);
    if (!text)
        return; // invalid UTF-8
    json_t *j = json_loads(text, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    assert(j);
    json_decref(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *at = (const char *)data, *end = at + n, *line = n ? memchr(at, '\n', n) : NULL;
    struct tool_types *t = NULL;
    if (!line)
        return 0;
    json_t *tools = json_loadb(at, (size_t)(line - at), 0, NULL);
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!json_is_string(
                json_object_get(json_object_get(json_array_get(tools, i), "function"), "name")))
            json_array_remove(tools, i--); // refused when the request is read
    int rc = tool_types_new(tools, &t);
    json_decref(tools);
    assert(rc == 0 && tool_types_bytes(t) <= 64 * n + 4096);
    for (at = line + 1; at < end; at = line + 1) {
        line = memchr(at, '\n', (size_t)(end - at));
        line = line ? line : end;
        size_t len = (size_t)(line - at);
        check_scan(at, len);
        convert(t, "a", at, len);
        convert(t, "b", at, len);
        tool_types_offer(t, at, len);
    }
    tool_types_free(t);
    return 0;
}
