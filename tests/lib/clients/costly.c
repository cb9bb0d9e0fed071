/* costly.c - requests and outputs that cost the gateway most. */
#include "lib/clients/costly.h"
#include "base/buf.h"

static void repeat_to(struct buf *to, size_t len, const char *text)
{
    while (to->len < len)
        buf_puts(to, text);
}

/* A parameter that may be one of many values, through many references. */
char *costly_body(char kind, unsigned token_bytes, unsigned pace_ms)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_printf(&b,
               "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"spell %u %u %c\"}],"
               "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
               "{\"$defs\":{\"E\":{\"enum\":[0",
               token_bytes, pace_ms, kind);
    repeat_to(&b, 80 << 10, ",0");
    buf_puts(&b, "]}},\"properties\":{\"p\":{\"anyOf\":[{\"$ref\":\"#/$defs/E\"}");
    repeat_to(&b, 170 << 10, ",{\"$ref\":\"#/$defs/E\"}");
    buf_puts(&b, "]}}}}}]}");
    return buf_take(&b);
}

static const char *long_call(void)
{
    static struct buf b;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "<tool_call><function=f>");
    for (unsigned i = 0; b.len < 250 << 10; i++)
        buf_printf(&b, "<parameter=%x>[[],{}]</parameter><parameter=p>1</parameter>", i);
    buf_puts(&b, "</function></tool_call>");
    return b.data;
}

/* Text between its parameters makes it no call. */
static const char *failed_call(struct buf *to, size_t len, const char *inside)
{
    buf_init(to, 1 << 20);
    buf_puts(to, "<function=f><parameter=a></parameter>text");
    repeat_to(to, len, inside);
    buf_puts(to, "</function>");
    return to->data;
}

void costly_outputs(struct fake_verifier *f)
{
    static struct buf beginnings, calls; // reachable for leak checkers
    fake_verifier_text(f, 'a', long_call());
    fake_verifier_text(f, 'b', failed_call(&beginnings, 250 << 10, "<function=!"));
    fake_verifier_text(f, 'c', failed_call(&calls, 60 << 10, "<function=f><parameter=a>"));
}
