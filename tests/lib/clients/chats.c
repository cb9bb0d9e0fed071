/* chats.c - chat requests to the gateway. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "lib/clients/chats.h"
#include "lib/lib.h"

char *chat_body(const char *what, const char *more)
{
    char *text;
    assert_true(asprintf(&text, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]%s}", what,
                         more) > 0);
    return text;
}

void begin_chat(struct http_client *c, unsigned at, const char *what, const char *more)
{
    AUTO(mem_free) char *body = chat_body(what, more);
    *c = http_client_open(at);
    http_client_print(
        c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
        strlen(body), body);
}

void begin_stream(struct http_client *c, unsigned at, const char *what)
{
    begin_chat(c, at, what, ",\"stream\":true");
}

char *content_of(char *event)
{
    if (!event)
        return NULL;
    json_t *j = json_loads(event, 0, NULL);
    const char *text = json_string_value(json_object_get(
        json_object_get(json_array_get(json_object_get(j, "choices"), 0), "delta"), "content"));
    char *copy = strdup(text ? text : "");
    json_decref(j);
    free(event);
    return copy;
}

void is_error(struct http_answer a, int status, const char *param, const char *part)
{
    if (a.status != status)
        print_error("status %d, not %d: %s\n", a.status, status, a.body);
    assert_int_equal(a.status, status);
    json_t *j = json_loads(a.body, 0, NULL), *e = json_object_get(j, "error");
    assert_true(json_is_object(e));
    const char *text = json_string_value(json_object_get(e, "message"));
    const char *at = json_string_value(json_object_get(e, "param"));
    assert_non_null(text);
    if (!strstr(text, part))
        fail_msg("'%s' does not contain '%s'", text, part);
    if (param) {
        assert_non_null(at);
        assert_string_equal(at, param);
    }
    assert_true(json_is_string(json_object_get(e, "type")));
    json_decref(j);
    http_answer_done(&a);
}
