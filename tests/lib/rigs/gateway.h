/* gateway.h - the gateway as a child process, with a fake verifier. Ends the test on errors. */
#pragma once
#include "lib/rigs/child.h"
#include "lib/fakes/fake_verifier.h"

/* Starts a gateway and waits until it listens, by default on a free port of 127.0.0.1.
 * more: further flags, terminated by NULL; NULL for none. */
struct child gateway_listen(const char *verifier, const char *const *more, unsigned *ret_port);
/* The same; also waits until the gateway sees its verifier as ready. */
struct child gateway_start(const char *verifier, const char *const *more, unsigned *ret_port);
/* Waits at most 10 s until exactly n calls run at the verifier. */
void gateway_await_running(struct fake_verifier *f, unsigned n);
