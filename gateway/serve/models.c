/* models.c - GET /v1/models and /v1/models/{id}. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include "gateway/http/answer.h"
#include "gateway/openai/json_write.h"
#include "gateway/serve/models.h"

/* The models of all reachable verifiers, each name once. */
struct models {
    bool hidden; // the key may not use a further one
    unsigned n;
    const struct upstream_model *v[UPSTREAM_MAX];
};

static bool same_name(const struct upstream_model *a, const char *name, size_t len)
{
    return a->info->name.len == len && memcmp(a->info->name.data, name, len) == 0;
}

/* guest: leaves out the models that its key may not use. */
static void collect_models(struct gateway *g, const struct auth_guest *guest, struct models *m)
{
    *m = (struct models){0};
    for (unsigned i = 0; i < upstream_n(g->upstream); i++) {
        const struct upstream_model *model;
        char problem[FAIL_TEXT_MAX];
        enum upstream_state state = upstream_state(upstream_at(g->upstream, i), &model, problem);
        bool skipped =
            !model || state == UPSTREAM_DOWN || state == UPSTREAM_REFUSED || !model->info->name.len;
        if (!skipped && !auth_allows_model(guest, model->info->name.data, model->info->name.len))
            skipped = m->hidden = true;
        for (unsigned k = 0; k < m->n && !skipped; k++)
            skipped = same_name(m->v[k], (char *)model->info->name.data, model->info->name.len);
        if (skipped)
            upstream_model_unref(model);
        else
            m->v[m->n++] = model;
    }
}

static void models_done(struct models *m)
{
    for (unsigned i = 0; i < m->n; i++)
        upstream_model_unref(m->v[i]);
}

static void write_model(const struct upstream_model *m, struct buf *to)
{
    const Tandem__V1__ModelInfo *i = m->info;
    buf_puts(to, "{\"id\":");
    json_write_text(to, i->name.data, i->name.len);
    buf_printf(to,
               ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"tandem\","
               "\"max_model_len\":%u,\"architecture\":",
               i->created, i->context_length);
    json_write_text(to, i->architecture.data, i->architecture.len);
    buf_printf(to, ",\"n_parameters\":%" PRIu64 ",\"weight_type\":", i->n_parameters);
    json_write_text(to, i->weight_type.data, i->weight_type.len);
    buf_puts(to, "}");
}

void models_list(struct gateway *g, struct http_request *r)
{
    struct models m;
    struct buf body;
    collect_models(g, http_attached(r), &m);
    buf_init(&body, 1 << 20);
    buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    for (unsigned i = 0; i < m.n; i++) {
        buf_puts(&body, i ? "," : "");
        write_model(m.v[i], &body);
    }
    buf_puts(&body, "]}\n");
    if (m.n || m.hidden) {
        answer_json(r, 200, &body);
    } else {
        buf_done(&body);
        answer_error(r, 503, "no verifier can be reached, so no model is known", "");
    }
    models_done(&m);
}

void models_one(struct gateway *g, struct http_request *r)
{
    const char *name = http_path(r) + strlen("/v1/models/");
    const struct upstream_model *found = NULL;
    struct models m;
    struct buf body;
    collect_models(g, http_attached(r), &m);
    for (unsigned i = 0; i < m.n; i++)
        if (same_name(m.v[i], name, strlen(name)) || strcmp(name, "default") == 0)
            found = m.v[i];
    if (found) {
        buf_init(&body, 1 << 20);
        write_model(found, &body);
        answer_json(r, 200, &body);
    } else {
        fail(-ENOENT, "the model '%.200s' is not served here", name);
        answer_error(r, 404, fail_text(), "model");
    }
    models_done(&m);
}
