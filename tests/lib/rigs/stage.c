/* stage.c - a gateway with a fake verifier. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/rigs/stage.h"

struct stage stage;

int stage_open_verifier(void **state)
{
    (void)state;
    snprintf(stage.address, sizeof(stage.address), "unix:%s/verifier.sock", service_dir());
    snprintf(stage.keys, sizeof(stage.keys), "%s/api-keys", service_dir());
    stage.verifier = fake_verifier_start(stage.address);
    return 0;
}

int stage_close_verifier(void **state)
{
    (void)state;
    fake_verifier_stop(stage.verifier);
    unlink(stage.keys);
    return 0;
}

void stage_write_keys(const char *text)
{
    FILE *f = fopen(stage.keys, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(stage.keys, 0600);
}

int stage_open(const char *const *more)
{
    stage_open_verifier(NULL);
    stage.gateway = gateway_start(stage.address, more, &stage.port);
    return 0;
}

int stage_close(void **state)
{
    child_stop(&stage.gateway);
    return stage_close_verifier(state);
}

struct http_answer stage_chat(const char *what, const char *more)
{
    AUTO(mem_free) char *body = chat_body(what, more);
    return http_call(stage.port, "POST", "/v1/chat/completions", body);
}

struct http_answer stage_raw(const char *text)
{
    struct http_client c = http_client_open(stage.port);
    http_client_send(&c, text, strlen(text));
    struct http_answer a = http_client_read(&c, 10000);
    http_client_close(&c);
    return a;
}

void stage_still_serves(void)
{
    struct http_answer a = stage_chat("say 2", "");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
}

struct http_client stage_open_stream(const char *what)
{
    struct http_client c;
    begin_stream(&c, stage.port, what);
    assert_int_equal(http_client_read_head(&c, 20000), 200);
    return c;
}

bool stage_becomes(bool (*is)(unsigned x), unsigned x)
{
    int64_t until_us = clock_us() + 60000000;
    while (clock_us() < until_us) {
        if (is(x))
            return true;
        poll(NULL, 0, 5);
    }
    return false;
}
