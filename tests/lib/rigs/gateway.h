/* gateway.h - the gateway as a child process, before a verifier that is played. Ends the test on
 * errors. */
#pragma once
#include "lib/rigs/child.h"
#include "lib/fakes/fake_verifier.h"

/* Listens on a free port of 127.0.0.1 when this returns, unless `more` says otherwise (flags, NULL
 * behind the last; NULL for none). */
struct child gateway_listen(const char *verifier, const char *const *more, unsigned *ret_port);
/* And its verifier is ready. */
struct child gateway_start(const char *verifier, const char *const *more, unsigned *ret_port);
/* Waits at most 10 s for so many calls to run at the verifier. */
void gateway_await_running(struct fake_verifier *f, unsigned n);
