/* stage.c - a gateway before a verifier that is played. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/rigs/stage.h"

struct stage stage;

int stage_open(const char *const *more)
{
    snprintf(stage.address, sizeof(stage.address), "unix:%s/verifier.sock", service_dir());
    stage.verifier = fake_verifier_start(stage.address);
    stage.gateway = gateway_start(stage.address, more, &stage.port);
    return 0;
}

int stage_close(void **state)
{
    (void)state;
    child_stop(&stage.gateway);
    fake_verifier_stop(stage.verifier);
    return 0;
}

struct http_answer chat(const char *what, const char *more)
{
    AUTO(mem_free) char *body = chat_body(what, more);
    return http_call(stage.port, "POST", "/v1/chat/completions", body);
}

struct http_answer raw(const char *text)
{
    struct http_client c = http_client_open(stage.port);
    http_client_send(&c, text, strlen(text));
    struct http_answer a = http_client_read(&c, 10000);
    http_client_close(&c);
    return a;
}

void still_serves(void)
{
    struct http_answer a = chat("say 2", "");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
}

struct http_client open_stream(const char *what)
{
    struct http_client c;
    begin_stream(&c, stage.port, what);
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    return c;
}

bool soon(bool (*is)(unsigned x), unsigned x)
{
    int64_t until_us = clock_us() + 10000000;
    while (clock_us() < until_us) {
        if (is(x))
            return true;
        poll(NULL, 0, 5);
    }
    return false;
}
