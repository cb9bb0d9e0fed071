/* test_templates.c - every rendering of ../shared/data/templates/golden, starting from a request:
 * the same text, or the error message of the template. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/openai/openai_request.h"
#include "gateway/serve/template.h"
#include "lib/lib.h"

#define WAIT_US 600000000

struct outcome {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    bool here;
    int err;
    char *text; // with a NUL at the end
    size_t len;
};

static void keep(void *user, int err, unsigned retry_s, const char *text, size_t len)
{
    struct outcome *o = user;
    (void)retry_s;
    pthread_mutex_lock(&o->mu);
    o->err = err;
    o->text = memcpy(calloc(1, len + 1), text, len);
    o->len = len;
    o->here = true;
    pthread_cond_signal(&o->cv);
    pthread_mutex_unlock(&o->mu);
}

static void render(struct template *t, const char *source, const char *vars, int64_t now,
                   struct outcome *o)
{
    *o = (struct outcome){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, NULL, 0};
    assert_int_equal(template_render(t, "payer", source, strlen(source), vars, now, keep, o), 0);
    pthread_mutex_lock(&o->mu);
    while (!o->here)
        pthread_cond_wait(&o->cv, &o->mu);
    pthread_mutex_unlock(&o->mu);
}

/* Converts the arguments of calls to text, as clients send them. */
static void close_arguments(json_t *messages)
{
    size_t i, k;
    json_t *message, *call;
    json_array_foreach(messages, i, message)
    {
        json_array_foreach(json_object_get(message, "tool_calls"), k, call)
        {
            json_t *function = json_object_get(call, "function");
            char *text = json_dumps(json_object_get(function, "arguments"), 0);
            json_object_set_new(function, "arguments", json_string(text));
            free(text);
        }
    }
}

/* The variables as they come from a request, with those of the model. */
static char *through_a_request(json_t *vars)
{
    static const char *const own[] = {"messages", "tools", "add_generation_prompt"};
    static const char *const models[] = {"bos_token", "eos_token"};
    json_t *body = json_object(), *all = json_object();
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        json_object_set(all, models[i], json_object_get(vars, models[i]));
        json_object_del(vars, models[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (json_object_get(vars, own[i])) {
            json_object_set_new(body, own[i], json_deep_copy(json_object_get(vars, own[i])));
            json_object_del(vars, own[i]);
        }
    close_arguments(json_object_get(body, "messages"));
    json_object_set(body, "chat_template_kwargs", vars);
    char *text = json_dumps(body, 0);
    struct openai_request q;
    struct openai_fault fault;
    if (openai_request_parse(OPENAI_CHAT, text, strlen(text), NULL, &q, &fault) < 0)
        fail_msg("%s: %s", text, fault.text);
    free(text);
    json_t *read = json_loads(q.template_vars, 0, NULL);
    json_object_update(all, read);
    text = json_dumps(all, 0);
    json_decref(read);
    json_decref(all);
    json_decref(body);
    openai_request_done(&q);
    return text;
}

/* Renders one conversation with a template and compares it with the golden text. Returns whether it
 * differs. */
static unsigned compare(struct template *t, const char *source, json_t *cases, json_t *golden)
{
    json_t *vars = json_deep_copy(json_object_get(cases, "common")), *c;
    size_t i;
    json_array_foreach(json_object_get(cases, "cases"), i,
                       c) if (!strcmp(json_string_value(json_object_get(c, "name")),
                                      json_string_value(json_object_get(golden, "case"))))
        json_object_update(vars, json_object_get(c, "args"));
    char *text = through_a_request(vars);
    struct outcome o;
    render(t, source, text, json_integer_value(json_object_get(cases, "now")), &o);
    const json_t *expected = json_object_get(golden, "expected");
    const char *want = json_string_value(expected);
    const char *error = json_string_value(json_object_get(golden, "error"));
    bool same =
        want ? !o.err && o.len == json_string_length(expected) && !memcmp(o.text, want, o.len)
             : o.err == -EINVAL && !strncmp(o.text, error, strlen(error));
    if (!same)
        print_error("%s\n  got  %d %s\n  want %s\n",
                    json_string_value(json_object_get(golden, "case")), o.err, o.text,
                    want ? want : error);
    free(o.text);
    free(text);
    json_decref(vars);
    return !same;
}

static void every_rendering_equals_the_golden_text(void **state)
{
    (void)state;
    char folder[4096], path[5000];
    const char *shared = lib_need_shared("data/templates");
    snprintf(folder, sizeof(folder), "%s", shared);
    snprintf(path, sizeof(path), "%s/golden/cases.json", folder);
    json_t *cases = json_load_file(path, 0, NULL);
    assert_non_null(cases);
    struct template *t;
    assert_int_equal(template_new(1, 10000, WAIT_US, &t), 0);
    unsigned n = 0, n_wrong = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) {
        char *dot = strstr(e->d_name, ".jinja");
        size_t len;
        if (!dot)
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        char *source = lib_read(path, &len);
        snprintf(path, sizeof(path), "%s/golden/%.*s.json", folder, (int)(dot - e->d_name),
                 e->d_name);
        json_t *golden = json_load_file(path, 0, NULL), *g;
        size_t i;
        json_array_foreach(golden, i, g)
        {
            unsigned wrong = compare(t, source, cases, g);
            if (wrong)
                print_error("%s\n", e->d_name);
            n_wrong += wrong;
            n++;
        }
        json_decref(golden);
        free(source);
    }
    closedir(d);
    template_free(t);
    json_decref(cases);
    print_message("%u renderings\n", n);
    assert_int_equal(n, 250);
    assert_int_equal(n_wrong, 0);
}

/* The template of R1 shows calls only where the content is null, and joins their arguments to text.
 * The expected text is that of jinja2 for null content and arguments as text. */
static void r1_shows_the_calls_of_its_history(void **state)
{
    (void)state;
#define CALL(id, city)                                                                             \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\","             \
    "\"arguments\":\"{\\\"city\\\":  \\\"" city "\\\"}\"}}"
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":"
        "null,"
        "\"tool_calls\":[" CALL("1", "Paris") "," CALL(
            "2", "Bern") "]},"
                         "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"sun\"},"
                         "{\"role\":\"tool\",\"tool_call_id\":\"2\",\"content\":\"rain\"}]}";
    static const char want[] =
        "<｜User｜>Hi<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
        "function<｜tool▁sep｜>get_weather\n```json\n{\"city\":  \"Paris\"}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        "```json\n{\"city\":  \"Bern\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        "<｜end▁of▁sentence｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>sun"
        "<｜tool▁output▁end｜>\n<｜tool▁output▁begin｜>rain<｜tool▁output▁end｜>"
        "<｜tool▁outputs▁end｜>";
    const char *shared = lib_need_shared("data/templates");
    char path[5000];
    size_t len;
    snprintf(path, sizeof(path), "%s/deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja", shared);
    char *source = lib_read(path, &len);
    struct openai_request q;
    struct openai_fault fault;
    struct template *t;
    struct outcome o;
    assert_int_equal(openai_request_parse(OPENAI_CHAT, body, strlen(body), NULL, &q, &fault), 0);
    assert_int_equal(template_new(1, 10000, WAIT_US, &t), 0);
    render(t, source, q.template_vars, 0, &o);
    assert_string_equal(o.text, want);
    free(o.text);
    template_free(t);
    openai_request_done(&q);
    free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rendering_equals_the_golden_text),
        cmocka_unit_test(r1_shows_the_calls_of_its_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
