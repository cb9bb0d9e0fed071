/* openai_chat.c - reads messages and tools, which become the variables of a chat template. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "gateway/openai/openai_read.h"
#include "gateway/openai/tool_types.h"

/* The arguments of a call are JSON text, which the template worker parses. */
static int read_arguments(struct openai_read *r, json_t *call, const char *name)
{
    json_t *function = json_object_get(call, "function");
    json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
        return json_read_refuse(r->json, name, "%s.function must be an object with a name", name);
    if (!json_is_string(arguments))
        return 0;
    const char *text = json_string_value(arguments);
    if (!*text)
        return json_object_set_new(function, "arguments", json_string("{}")) < 0
                   ? json_read_no_memory(r->json)
                   : 0;
    int rc = json_read_shape(r->json, name, text, strlen(text));
    if (rc < 0)
        return rc;
    json_error_t e = {0};
    AUTO(json_decref_own)
    json_t *opened =
        json_read_parse(text, strlen(text), 0, &e); // of repeated keys the last one counts
    if (!opened && json_error_code(&e) == json_error_out_of_memory)
        return json_read_no_memory(r->json);
    if (!opened)
        return json_read_refuse(r->json, name, "%s.function.arguments is not valid JSON", name);
    return 0;
}

/* names: the tool names of the calls so far, by call id. */
static int read_tool_calls(struct openai_read *r, json_t *calls, const char *name, json_t *names)
{
    size_t i;
    json_t *call;
    int rc = 0;
    if (!calls)
        return 0;
    if (!json_is_array(calls))
        return json_read_refuse(r->json, name, "%s must be an array, not %s", name,
                                json_read_type(calls));
    json_array_foreach(calls, i, call)
    {
        char at[96];
        snprintf(at, sizeof(at), "%s[%zu]", name, i);
        if ((rc = read_arguments(r, call, at)) < 0)
            break;
        const char *id = json_string_value(json_object_get(call, "id"));
        if (id && json_object_set(names, id,
                                  json_object_get(json_object_get(call, "function"), "name")) < 0)
            return json_read_no_memory(r->json);
    }
    return rc;
}

static bool known_role(const char *role)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        if (strcmp(role, roles[i]) == 0)
            return true;
    return false;
}

#define NAME_MAX_BYTES 256 // of a tool name that is repeated in the messages with its outputs

/* Adds the tool name to a message with an output: some templates need it. */
static int name_output(struct openai_read *r, json_t *message, const json_t *names)
{
    const char *id = json_string_value(json_object_get(message, "tool_call_id"));
    json_t *name = id ? json_object_get(names, id) : NULL;
    if (!name || json_string_length(name) > NAME_MAX_BYTES || json_read_member(message, "name"))
        return 0;
    return json_object_set(message, "name", name) < 0 ? json_read_no_memory(r->json) : 0;
}

static int read_message(struct openai_read *r, json_t *message, size_t i, json_t *names)
{
    char name[64];
    snprintf(name, sizeof(name), "messages[%zu]", i);
    if (!json_is_object(message))
        return json_read_refuse(r->json, name, "%s must be an object, not %s", name,
                                json_read_type(message));
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role)
        return json_read_refuse(r->json, name, "%s.role must be a string", name);
    if (!known_role(role))
        return json_read_refuse(
            r->json, name,
            "%s.role is '%.40s'; it must be system, developer, user, assistant or tool", name,
            role);
    json_t *content = json_read_member(message, "content"),
           *calls = json_read_member(message, "tool_calls");
    if (!content && strcmp(role, "assistant") != 0)
        return json_read_refuse(r->json, name, "%s.content is missing", name);

    snprintf(name, sizeof(name), "messages[%zu].content", i);
    json_t *text = NULL;
    int rc = content ? json_read_text_parts(r->json, content, name, &text) : 0;
    if (rc < 0)
        return rc;
    if (json_object_set_new(message, "content", content ? text : json_null()) < 0)
        return json_read_no_memory(r->json);
    if (strcmp(role, "tool") == 0 && name_output(r, message, names) < 0)
        return -ENOMEM;
    snprintf(name, sizeof(name), "messages[%zu].tool_calls", i);
    return read_tool_calls(r, calls, name, names);
}

static int read_messages(struct openai_read *r, json_t *messages)
{
    size_t i;
    json_t *m;
    int rc = 0;
    if (!messages)
        return json_read_refuse(r->json, "messages", "messages is missing");
    if (!json_is_array(messages))
        return json_read_refuse(r->json, "messages", "messages must be an array, not %s",
                                json_read_type(messages));
    if (!json_array_size(messages) || json_array_size(messages) > OPENAI_MAX_MESSAGES)
        return json_read_refuse(r->json, "messages",
                                "messages must hold 1 to %u messages, it holds %zu",
                                OPENAI_MAX_MESSAGES, json_array_size(messages));
    AUTO(json_decref_own) json_t *names = json_object();
    json_array_foreach(messages, i, m) if ((rc = read_message(r, m, i, names)) < 0) break;
    return rc;
}

/* *ret_tools: borrowed; NULL: the template gets no tools. */
static int read_tools(struct openai_read *r, const json_t *body, json_t **ret_tools)
{
    json_t *tools = json_read_member(body, "tools"), *tool,
           *choice = json_read_member(body, "tool_choice");
    size_t i;
    if (tools && !json_is_array(tools))
        return json_read_refuse(r->json, "tools", "tools must be an array, not %s",
                                json_read_type(tools));
    json_array_foreach(tools, i, tool)
    {
        if (!json_is_string(json_object_get(json_object_get(tool, "function"), "name")))
            return json_read_refuse(r->json, "tools", "tools[%zu].function.name must be a string",
                                    i);
    }

    const char *word = choice ? json_string_value(choice) : "auto";
    if (json_is_object(choice) || (word && strcmp(word, "required") == 0))
        return json_read_refuse(r->json, "tool_choice",
                                "a forced tool call is not served: tool_choice must be \"auto\" or "
                                "\"none\"");
    if (!word || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0))
        return json_read_refuse(r->json, "tool_choice", "tool_choice must be \"auto\" or \"none\"");
    *ret_tools = tools && json_array_size(tools) && word[0] == 'a' ? tools : NULL;
    return 0;
}

/* chat_template_kwargs may not replace variables that the request itself sets. */
static int add_extra_vars(struct openai_read *r, json_t *vars, json_t *extra)
{
    const char *key;
    json_t *value;
    if (!extra)
        return 0;
    if (!json_is_object(extra))
        return json_read_refuse(r->json, "chat_template_kwargs",
                                "chat_template_kwargs must be an object, not %s",
                                json_read_type(extra));
    json_object_foreach(extra, key, value)
    {
        if (json_object_get(vars, key) || !strcmp(key, "tools") || !strcmp(key, "bos_token") ||
            !strcmp(key, "eos_token"))
            return json_read_refuse(r->json, "chat_template_kwargs",
                                    "chat_template_kwargs may not set '%.40s'", key);
        if (json_object_set(vars, key, value) < 0)
            return json_read_no_memory(r->json);
    }
    return 0;
}

int openai_chat_read(struct openai_read *r, json_t *body)
{
    json_t *messages = json_read_member(body, "messages"), *tools = NULL;
    bool generate = true;
    const json_t *v = json_read_member(body, "add_generation_prompt");
    int rc = v ? json_read_flag(r->json, v, "add_generation_prompt", &generate) : 0;
    rc = rc < 0 ? rc : read_messages(r, messages);
    rc = rc < 0 ? rc : read_tools(r, body, &tools);
    if (rc < 0)
        return rc;
    if (r->q->top_logprobs.set && r->q->top_logprobs.value && !r->q->logprobs)
        return json_read_refuse(r->json, "top_logprobs", "top_logprobs needs logprobs: true");

    json_t *effort = json_read_member(body, "reasoning_effort");
    if (effort && !json_is_string(effort))
        return json_read_refuse(r->json, "reasoning_effort",
                                "reasoning_effort must be a string, not %s",
                                json_read_type(effort));

    AUTO(json_decref_own)
    json_t *vars =
        json_pack("{s:O,s:b}", "messages", messages, "add_generation_prompt", (int)generate);
    if (!vars || (tools && json_object_set(vars, "tools", tools) < 0) ||
        (effort && json_object_set(vars, "reasoning_effort", effort) < 0))
        return json_read_no_memory(r->json);
    if ((rc = add_extra_vars(r, vars, json_read_member(body, "chat_template_kwargs"))) < 0)
        return rc;
    struct buf text;
    buf_init(&text, SIZE_MAX / 2);
    json_read_dump(vars, &text);
    r->q->template_vars = text.error ? NULL : buf_take(&text);
    buf_done(&text);
    if (!r->q->template_vars || (tools && tool_types_new(tools, &r->q->tools) < 0))
        return json_read_no_memory(r->json);
    return 0;
}
