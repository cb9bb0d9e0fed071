/* page.c - the files of the page, and the browser's policy for them. */
#include <string.h>
#include "base/mem.h"
#include "gateway/http/answer.h"
#include "gateway/serve/page.h"

#define HTML "text/html; charset=utf-8"
#define CSS "text/css; charset=utf-8"
#define SVG "image/svg+xml"
#define JS "text/javascript; charset=utf-8"

/* No resources of other origins, no inline code, no frames. */
#define POLICY                                                                                     \
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "            \
    "object-src 'none'"

#define EMBEDDED(name) extern const char page_##name[], page_##name##_end[] // page.S
EMBEDDED(index_html);
EMBEDDED(style_css);
EMBEDDED(icon_svg);
EMBEDDED(app_js);
EMBEDDED(api_js);
EMBEDDED(dom_js);
EMBEDDED(card_js);
EMBEDDED(answer_js);
EMBEDDED(live_js);

#define BYTES(name) page_##name, page_##name##_end
static const struct file {
    const char *path, *type, *data, *end;
} files[] = {
    {"/", HTML, BYTES(index_html)},         {"/ui/style.css", CSS, BYTES(style_css)},
    {"/ui/icon.svg", SVG, BYTES(icon_svg)}, {"/ui/app.js", JS, BYTES(app_js)},
    {"/ui/api.js", JS, BYTES(api_js)},      {"/ui/dom.js", JS, BYTES(dom_js)},
    {"/ui/card.js", JS, BYTES(card_js)},    {"/ui/answer.js", JS, BYTES(answer_js)},
    {"/ui/live.js", JS, BYTES(live_js)},
};

bool page_is_wanted(const struct http_request *r)
{
    const char *accept = http_field(r, "Accept");
    return accept && strstr(accept, "text/html");
}

void page_answer(struct http_request *r)
{
    const struct file *f = NULL;
    for (size_t i = 0; i < ARRAY_LEN(files) && !f; i++)
        if (strcmp(http_path(r), files[i].path) == 0)
            f = &files[i];
    if (!f) {
        answer_error(r, 404, "the page has no such file", "");
        return;
    }
    struct buf body;
    size_t len = (size_t)(f->end - f->data);
    buf_init(&body, len + 1);
    buf_add(&body, f->data, len);
    http_header(r, "Content-Security-Policy", POLICY);
    http_header(r, "X-Content-Type-Options", "nosniff");
    http_reply(r, 200, f->type, &body);
}
