/* gateway.c - the gateway as a child process. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/rigs/gateway.h"
#include "lib/lib.h"

struct child gateway_listen(const char *verifier, const char *const *more, unsigned *ret_port)
{
    const char *args[CHILD_MAX_ARGS] = {"--listen", "127.0.0.1:0", "--verifiers",
                                        verifier,   "--instance",  "gateway"};
    for (unsigned i = 0; more && more[i]; i++)
        args[6 + i] = more[i];
    struct child s = child_start(BINARY_DIR "/gateway", args);
    AUTO(mem_free) char *rest = child_wait_log(&s, "listening on ");
    const char *colon = strchr(rest, ':');
    *ret_port = colon ? (unsigned)atoi(colon + 1) : 0;
    return s;
}

struct child gateway_start(const char *verifier, const char *const *more, unsigned *ret_port)
{
    struct child s = gateway_listen(verifier, more, ret_port);
    free(child_wait_log(&s, "verifier ready"));
    return s;
}

void gateway_await_running(struct fake_verifier *f, unsigned n)
{
    int64_t until_us = clock_us() + 10000000;
    while (fake_verifier_running(f) != n) {
        if (clock_us() > until_us)
            fail_msg("%u calls run, not %u", fake_verifier_running(f), n);
        poll(NULL, 0, 5);
    }
}
