/* responses_request.c - POST /v1/responses: the items of an input become messages of a chat. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "gateway/openai/openai_read.h"

#define MAX_ITEMS OPENAI_MAX_MESSAGES
#define LOGPROBS "message.output_text.logprobs"

/* Texts joined by line breaks. */
struct thoughts {
    struct buf text;
    bool any; // a text was added, perhaps an empty one
};

/* The messages so far. */
struct items {
    struct openai_read *r;
    json_t *messages;
    struct thoughts next, last; // reasoning for the assistant's next message, and of the last one
};

static void add_thought(struct thoughts *t, const char *text, size_t len)
{
    buf_add(&t->text, "\n", t->any);
    buf_add(&t->text, text, len);
    t->any = true;
}

static void clear_thoughts(struct thoughts *t)
{
    buf_clear(&t->text);
    t->any = false;
}

/* Adds the reasoning to the last message. Called when the message is complete: many items may add
 * to its reasoning. */
static int close_message(struct items *s)
{
    json_t *last = json_array_get(s->messages, json_array_size(s->messages) - 1);
    const struct buf *text = &s->last.text;
    if (!s->last.any)
        return 0;
    json_t *all = text->error ? NULL : json_stringn(text->data, text->len);
    clear_thoughts(&s->last);
    return json_object_set_new(last, "reasoning_content", all) < 0 ? json_read_no_memory(s->r->json)
                                                                   : 0;
}

/* Takes the new reference, also on errors. */
static int append_message(struct items *s, json_t *message)
{
    int rc = close_message(s);
    if (json_array_append_new(s->messages, message) < 0)
        return json_read_no_memory(s->r->json);
    return rc;
}

/* ---- content ---- */

static bool is_text(const char *type)
{
    static const char *const types[] = {"input_text", "output_text", "text", "reasoning_text",
                                        "summary_text"};
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

/* A string, or parts; their types become "text", as in chats. */
static int open_parts(struct items *s, json_t *v, const char *name, json_t **ret)
{
    AUTO(json_decref_own) json_t *parts = json_array();
    size_t i;
    json_t *part;
    if (!json_is_array(v))
        return json_read_text_parts(s->r->json, v, name, ret);
    json_array_foreach(v, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type)
            return json_read_refuse(s->r->json, name, "%s[%zu] must be an object with a type", name,
                                    i);
        json_t *one = json_pack("{s:s,s:O?}", "type", is_text(type) ? "text" : type, "text",
                                json_object_get(part, "text"));
        if (json_array_append_new(parts, one) < 0)
            return json_read_no_memory(s->r->json);
    }
    return json_read_text_parts(s->r->json, parts, name, ret);
}

/* ---- items ---- */

/* Moves the pending reasoning to the last message. */
static void add_reasoning(struct items *s)
{
    if (s->next.any)
        add_thought(&s->last, s->next.text.data, s->next.text.len);
    clear_thoughts(&s->next);
}

/* Reasoning without a message, because the answer was cut off, becomes an empty message. */
static int end_reasoning(struct items *s)
{
    if (!s->next.any)
        return 0;
    int rc = append_message(s, json_pack("{s:s,s:s}", "role", "assistant", "content", ""));
    add_reasoning(s);
    return rc;
}

static int read_message(struct items *s, const json_t *item, const char *name)
{
    char at[80];
    snprintf(at, sizeof(at), "%s.content", name);
    const char *role = json_string_value(json_object_get(item, "role"));
    json_t *content = json_read_member(item, "content"), *text = NULL;
    if (!role)
        return json_read_refuse(s->r->json, name, "%s.role must be a string", name);
    if (!content)
        return json_read_refuse(s->r->json, at, "%s is missing", at);
    bool answer = strcmp(role, "assistant") == 0;
    int rc = answer ? 0 : end_reasoning(s);
    rc = rc < 0 ? rc : open_parts(s, content, at, &text);
    rc = rc < 0 ? rc : append_message(s, json_pack("{s:s,s:o}", "role", role, "content", text));
    if (answer)
        add_reasoning(s);
    return rc;
}

/* The call list of the last message. Calls after a message of the assistant, or after other calls,
 * belong to that message; otherwise they get a new one. */
static json_t *calls_of_last(struct items *s)
{
    json_t *last = json_array_get(s->messages, json_array_size(s->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") != 0) {
        last = json_pack("{s:s,s:n}", "role", "assistant", "content");
        if (append_message(s, last) < 0)
            return NULL;
    }
    add_reasoning(s);
    json_t *calls = json_object_get(last, "tool_calls");
    if (!calls && json_object_set_new(last, "tool_calls", json_array()) == 0)
        calls = json_object_get(last, "tool_calls");
    return calls;
}

static int read_call(struct items *s, const json_t *item, const char *name)
{
    json_t *id = json_object_get(item, "call_id"), *function = json_object_get(item, "name"),
           *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(function) || !json_is_string(arguments))
        return json_read_refuse(s->r->json, name,
                                "%s must have call_id, name and arguments, all strings", name);
    json_t *calls = calls_of_last(s);
    json_t *call = json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function",
                             "name", function, "arguments", arguments);
    return json_array_append_new(calls, call) < 0 ? json_read_no_memory(s->r->json) : 0;
}

static int read_output(struct items *s, const json_t *item, const char *name)
{
    char at[80];
    snprintf(at, sizeof(at), "%s.output", name);
    json_t *id = json_object_get(item, "call_id"), *output = json_read_member(item, "output"),
           *text = NULL;
    if (!json_is_string(id) || !output)
        return json_read_refuse(s->r->json, name, "%s must have a call_id and an output", name);
    int rc = end_reasoning(s);
    rc = rc < 0 ? rc : open_parts(s, output, at, &text);
    if (rc < 0)
        return rc;
    return append_message(
        s, json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", text));
}

/* Earlier reasoning goes to the template, which may show it. Encrypted and summarised reasoning is
 * ignored. */
static int read_reasoning(struct items *s, const json_t *item, const char *name)
{
    char at[80];
    json_t *content = json_read_member(item, "content");
    AUTO(json_decref_own) json_t *text = NULL;
    if (!content || (json_is_array(content) && !json_array_size(content)))
        return 0;
    snprintf(at, sizeof(at), "%s.content", name);
    int rc = open_parts(s, content, at, &text);
    if (rc < 0)
        return rc;
    add_thought(&s->next, json_string_value(text), json_string_length(text));
    return s->next.text.error ? json_read_no_memory(s->r->json) : 0;
}

static int read_item(struct items *s, const json_t *item, size_t i)
{
    char name[48];
    snprintf(name, sizeof(name), "input[%zu]", i);
    const json_t *v = json_read_member(item, "type");
    const char *type = v ? json_string_value(v) : "message";
    if (!json_is_object(item) || !type)
        return json_read_refuse(s->r->json, name, "%s must be an object with a type or a role",
                                name);
    if (strcmp(type, "reasoning") == 0)
        return read_reasoning(s, item, name);
    return strcmp(type, "message") == 0         ? read_message(s, item, name)
           : strcmp(type, "function_call") == 0 ? read_call(s, item, name)
           : strcmp(type, "function_call_output") == 0
               ? read_output(s, item, name)
               : json_read_refuse(s->r->json, name, "%s is of type '%.40s', which is not served",
                                  name, type);
}

static int read_input(struct items *s, json_t *input, const json_t *instructions)
{
    size_t i;
    json_t *item;
    int rc = 0;
    if (instructions && !json_is_string(instructions))
        return json_read_refuse(s->r->json, "instructions", "instructions must be a string, not %s",
                                json_read_type(instructions));
    if (instructions)
        rc = append_message(s, json_pack("{s:s,s:O}", "role", "system", "content", instructions));
    if (rc < 0 || json_is_string(input))
        return rc < 0 ? rc
                      : append_message(s, json_pack("{s:s,s:O}", "role", "user", "content", input));
    if (!json_is_array(input) || !json_array_size(input) || json_array_size(input) > MAX_ITEMS)
        return json_read_refuse(s->r->json, "input",
                                "input must be a string or an array of 1 to %d items", MAX_ITEMS);
    json_array_foreach(input, i, item) if ((rc = read_item(s, item, i)) < 0) break;
    rc = rc < 0 ? rc : end_reasoning(s);
    return rc < 0 ? rc : close_message(s);
}

/* ---- tools ---- */

/* {"type": "function", "name", ...} becomes the form of chats: {"type", "function": {"name",
 * ...}}. */
static int open_tools(struct openai_read *r, const json_t *tools, json_t *ret)
{
    size_t i;
    const json_t *tool;
    if (tools && !json_is_array(tools))
        return json_read_refuse(r->json, "tools", "tools must be an array, not %s",
                                json_read_type(tools));
    json_array_foreach(tools, i, tool)
    {
        char name[32];
        snprintf(name, sizeof(name), "tools[%zu]", i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type || strcmp(type, "function") != 0)
            return json_read_refuse(r->json, name,
                                    "%s must be of type function; no other is served", name);
        if (!json_is_string(json_object_get(tool, "name")))
            return json_read_refuse(r->json, name, "%s.name must be a string", name);
        json_t *one = json_pack("{s:s,s:{s:O,s:O*,s:O*}}", "type", "function", "function", "name",
                                json_object_get(tool, "name"), "description",
                                json_read_member(tool, "description"), "parameters",
                                json_read_member(tool, "parameters"));
        if (json_array_append_new(ret, one) < 0)
            return json_read_no_memory(r->json);
    }
    return 0;
}

/* ---- the body ---- */

static int read_format(struct openai_read *r, const json_t *text)
{
    const json_t *type = json_object_get(json_read_member(text, "format"), "type");
    const char *name = type ? json_string_value(type) : "text";
    if (text && !json_is_object(text))
        return json_read_refuse(r->json, "text", "text must be an object, not %s",
                                json_read_type(text));
    if (!name || strcmp(name, "text") != 0)
        return json_read_refuse(r->json, "text.format",
                                "text.format other than text is not served");
    return 0;
}

/* Only logprobs can be included. The other values belong to tools that are not served. */
static int read_include(struct openai_read *r, const json_t *include)
{
    size_t i;
    const json_t *one;
    if (include && !json_is_array(include))
        return json_read_refuse(r->json, "include", "include must be an array, not %s",
                                json_read_type(include));
    json_array_foreach(include, i, one)
    {
        if (!json_is_string(one))
            return json_read_refuse(r->json, "include", "include[%zu] must be a string", i);
        r->q->logprobs |= strcmp(json_string_value(one), LOGPROBS) == 0;
    }
    if (r->q->top_logprobs.set && r->q->top_logprobs.value && !r->q->logprobs)
        return json_read_refuse(r->json, "top_logprobs",
                                "top_logprobs needs include: [\"" LOGPROBS "\"]");
    return 0;
}

/* Refuses fields that need stored answers, or that the server cannot honour. */
static int refuse_unserved(struct openai_read *r, const json_t *body)
{
    static const char *const state[] = {"previous_response_id", "conversation", "prompt"};
    static const char *const flags[] = {"store", "background"};
    for (size_t i = 0; i < ARRAY_LEN(state); i++)
        if (json_read_member(body, state[i]))
            return json_read_refuse(r->json, state[i],
                                    "%s is not served: nothing is stored; send the whole input",
                                    state[i]);
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        const json_t *v = json_read_member(body, flags[i]);
        bool flag = false;
        int rc = v ? json_read_flag(r->json, v, flags[i], &flag) : 0;
        if (rc < 0 || flag)
            return rc < 0 ? rc
                          : json_read_refuse(r->json, flags[i],
                                             "%s is not served: nothing is stored", flags[i]);
    }
    const char *cut = json_string_value(json_read_member(body, "truncation"));
    if (cut && strcmp(cut, "disabled") != 0)
        return json_read_refuse(r->json, "truncation",
                                "truncation other than disabled is not served");
    int rc = read_include(r, json_read_member(body, "include"));
    return rc < 0 ? rc : read_format(r, json_read_member(body, "text"));
}

/* Sets the members of the answer that repeat the request, with defaults for absent ones. */
static int set_echoed(struct openai_read *r, const json_t *body)
{
    static const struct {
        const char *name, *fallback;
    } v[] = {{"background", "false"},
             {"instructions", "null"},
             {"max_output_tokens", "null"},
             {"metadata", "{}"},
             {"parallel_tool_calls", "true"},
             {"previous_response_id", "null"},
             {"reasoning", "{\"effort\":null,\"summary\":null}"},
             {"store", "false"},
             {"temperature", "1.0"},
             {"text", "{\"format\":{\"type\":\"text\"}}"},
             {"tool_choice", "\"auto\""},
             {"tools", "[]"},
             {"top_logprobs", "0"},
             {"top_p", "1.0"},
             {"truncation", "\"disabled\""},
             {"user", "null"}};
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, SIZE_MAX / 2);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        const json_t *own = json_read_member(body, v[i].name);
        buf_printf(&text, "%s\"%s\":%s", i ? "," : "", v[i].name, own ? "" : v[i].fallback);
        if (own)
            json_read_dump(own, &text);
    }
    r->q->echoed = text.error ? NULL : buf_take(&text);
    return r->q->echoed ? 0 : json_read_no_memory(r->json);
}

/* Sets a member of the chat. v: borrowed; NULL: none. */
static int set_member(struct openai_read *r, json_t *chat, const char *name, json_t *v)
{
    return v && json_object_set(chat, name, v) < 0 ? json_read_no_memory(r->json) : 0;
}

int openai_responses_read(struct openai_read *r, json_t *body)
{
    AUTO(json_decref_own) json_t *chat = json_object();
    AUTO(json_decref_own) json_t *messages = json_array();
    AUTO(json_decref_own) json_t *tools = json_array();
    struct items items = {.r = r, .messages = messages};
    buf_init(&items.next.text, SIZE_MAX / 2);
    buf_init(&items.last.text, SIZE_MAX / 2);
    int rc = refuse_unserved(r, body);
    if (rc == 0 && !json_read_member(body, "input"))
        rc = json_read_refuse(r->json, "input", "input is missing");
    rc = rc < 0 ? rc
                : read_input(&items, json_read_member(body, "input"),
                             json_read_member(body, "instructions"));
    buf_done(&items.next.text);
    buf_done(&items.last.text);
    rc = rc < 0 ? rc : open_tools(r, json_read_member(body, "tools"), tools);
    if (rc < 0)
        return rc;
    const struct {
        const char *name;
        json_t *value;
    } members[] = {
        {"messages", messages},
        {"tools", tools},
        {"tool_choice", json_read_member(body, "tool_choice")},
        {"chat_template_kwargs", json_read_member(body, "chat_template_kwargs")},
        {"reasoning_effort", json_read_member(json_read_member(body, "reasoning"), "effort")}};
    for (size_t i = 0; i < ARRAY_LEN(members) && rc == 0; i++)
        rc = set_member(r, chat, members[i].name, members[i].value);
    rc = rc < 0 ? rc : openai_chat_read(r, chat);
    if (rc < 0 && strncmp(r->json->fault->param, "messages", strlen("messages")) == 0)
        snprintf(r->json->fault->param, sizeof(r->json->fault->param), "input");
    return rc < 0 ? rc : set_echoed(r, body);
}
