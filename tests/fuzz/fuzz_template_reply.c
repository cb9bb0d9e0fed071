/* fuzz_template_reply.c - replies of a hostile template helper, in pieces. The first byte is the
 * size of the pieces. A reply that is taken has a text of UTF-8, and a reply with this text is
 * taken, too. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/openai/json_write.h"
#include "gateway/serve/template_reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int add(struct buf *line, const uint8_t *data, size_t n)
{
    char *to = buf_reserve(line, n);
    if (!to)
        abort();
    memcpy(to, data, n);
    return template_reply_add(line, n);
}

static void check_text(const struct template_reply *r)
{
    for (size_t at = 0, len; at < r->len; at += len)
        if (!(len = json_write_utf8((const unsigned char *)r->text + at, r->len - at)))
            abort();
    if (r->text[r->len])
        abort();
}

static void check_again(const struct template_reply *r)
{
    struct template_reply again;
    AUTO(buf_done) struct buf line = {0};
    buf_init(&line, TEMPLATE_REPLY_MAX);
    buf_puts(&line, r->is_error ? "{\"error\":" : "{\"text\":");
    json_write_text(&line, r->text, r->len);
    buf_puts(&line, "}\n");
    if (template_reply_parse(&line, &again) < 0 || again.is_error != r->is_error ||
        again.len != r->len || memcmp(again.text, r->text, r->len) != 0)
        abort();
    template_reply_done(&again);
}

static void check_line(const struct buf *line)
{
    struct template_reply r;
    if (memchr(line->data, '\n', line->len) != line->data + line->len - 1)
        abort();
    if (template_reply_parse(line, &r) == 0) {
        check_text(&r);
        check_again(&r);
    } else if (r.tree) {
        abort();
    }
    template_reply_done(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    AUTO(buf_done) struct buf line = {0};
    size_t piece = n ? 1 + data[0] : 1;
    int rc = -EAGAIN;
    buf_init(&line, TEMPLATE_REPLY_MAX);
    for (size_t at = 1; at < n && rc == -EAGAIN; at += piece)
        rc = add(&line, data + at, piece < n - at ? piece : n - at);
    if (rc == 0)
        check_line(&line);
    return 0;
}
