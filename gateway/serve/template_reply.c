/* template_reply.c - the replies of the helper processes of template.h. */
#include <errno.h>
#include <string.h>
#include "gateway/openai/json_read.h"
#include "gateway/serve/template_reply.h"

#define REPLY_VALUES 2 // as json_read_shape() counts an object of one member

int template_reply_add(struct buf *line, size_t n)
{
    const char *piece = line->data + line->len, *end = memchr(piece, '\n', n);
    line->len += n;
    line->data[line->len] = 0;
    if (!end)
        return -EAGAIN;
    return end == piece + n - 1 ? 0 : -EPROTO;
}

/* A tree of many values would take a hundred times the bytes of the line. */
static bool has_shape(const struct buf *line)
{
    struct openai_fault fault;
    struct json_read r = {.fault = &fault};
    return json_read_shape(&r, "", line->data, line->len) == 0 && r.n_values == REPLY_VALUES;
}

int template_reply_parse(const struct buf *line, struct template_reply *ret)
{
    *ret = (struct template_reply){0};
    if (!has_shape(line))
        return -EPROTO;
    AUTO(json_decref_own)
    json_t *tree = json_loadb(line->data, line->len, JSON_ALLOW_NUL, NULL);
    const json_t *text = json_object_get(tree, "text"), *error = json_object_get(tree, "error");
    const json_t *found = text ? text : error;
    if (!json_is_string(found))
        return -EPROTO;
    *ret = (struct template_reply){.is_error = !text,
                                   .text = json_string_value(found),
                                   .len = json_string_length(found),
                                   .tree = TAKE(tree)};
    return 0;
}

void template_reply_done(struct template_reply *r)
{
    json_decref(r->tree);
    *r = (struct template_reply){0};
}
