/* Every rendering of ../shared/data/templates/golden: the same text, or the template's own words.
 */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gateway/template.h"
#include "lib/lib.h"

struct outcome {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    bool here;
    int err;
    char *text;
};

static void keep(void *user, int err, const char *text, size_t len)
{
    struct outcome *o = user;
    pthread_mutex_lock(&o->mu);
    o->err = err;
    o->text = strndup(text, len);
    o->here = true;
    pthread_cond_signal(&o->cv);
    pthread_mutex_unlock(&o->mu);
}

static void render(struct template *t, const char *source, const char *vars, int64_t now,
                   struct outcome *o)
{
    *o = (struct outcome){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, NULL};
    assert_int_equal(template_render(t, source, strlen(source), vars, now, keep, o), 0);
    pthread_mutex_lock(&o->mu);
    while (!o->here)
        pthread_cond_wait(&o->cv, &o->mu);
    pthread_mutex_unlock(&o->mu);
}

/* A template and one of the conversations, compared with what is written down. */
static unsigned compare(struct template *t, const char *source, json_t *cases, json_t *golden)
{
    json_t *vars = json_deep_copy(json_object_get(cases, "common")), *c;
    size_t i;
    json_array_foreach(json_object_get(cases, "cases"), i,
                       c) if (!strcmp(json_string_value(json_object_get(c, "name")),
                                      json_string_value(json_object_get(golden, "case"))))
        json_object_update(vars, json_object_get(c, "args"));
    char *text = json_dumps(vars, 0);
    struct outcome o;
    render(t, source, text, json_integer_value(json_object_get(cases, "now")), &o);
    const char *want = json_string_value(json_object_get(golden, "expected"));
    const char *error = json_string_value(json_object_get(golden, "error"));
    bool same = want ? !o.err && !strcmp(o.text, want)
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

static void every_rendering_is_as_written_down(void **state)
{
    (void)state;
    char folder[4096], path[5000];
    const char *shared = lib_shared("data/templates");
    if (!shared)
        skip();
    snprintf(folder, sizeof(folder), "%s", shared);
    snprintf(path, sizeof(path), "%s/golden/cases.json", folder);
    json_t *cases = json_load_file(path, 0, NULL);
    assert_non_null(cases);
    struct template *t;
    assert_int_equal(template_new(1, 10000, &t), 0);
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
    assert_true(n >= 250);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_rendering_is_as_written_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
