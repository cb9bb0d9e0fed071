/* template.h - renders chat templates in helper processes.
 *
 * Templates come out of downloaded model files, so they are hostile. Each helper is
 * `/usr/bin/python3 -I` with Jinja2's SandboxedEnvironment, an empty environment and hard limits
 * (256 MiB, 16 files, CPU time); one that does not answer in time is killed and started anew, and
 * only the request it worked for sees an error. Each helper has a thread that waits for it; nobody
 * else ever waits.
 *
 * Threads: template_render() from any; its callback runs on a helper's thread and must not block.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define TEMPLATE_MAX_WORKERS 64
#define TEMPLATE_MAX_WAITING 1024
#define TEMPLATE_MAX_REQUEST (64u << 20) // bytes of one line to a helper
#define TEMPLATE_MAX_REPLY (100u << 20)  // and back: 16 Mi characters, escaped

struct template;

/* Starts the helpers; one that cannot start is tried again with the next rendering. -ENOMEM. */
int template_new(unsigned n_workers, unsigned timeout_ms, struct template **ret);
/* Ends at once, with -ECANCELED, what renders and what waits; takes no more. Any thread. */
void template_stop(struct template *t);
void template_free(struct template *t);
DEFINE_AUTO(struct template, template_free)

/* 0: text is the rendering; -EINVAL: the template's own words, or what it did wrong (the request's
 * fault or the model's); -EIO: no helper could be started; -ECANCELED. Called once. */
typedef void template_done(void *user, int err, const char *text, size_t len);

/* vars: a JSON object, the template's variables; now: for strftime_now(), -1: the present.
 * -EAGAIN: too many wait; -EPIPE: stopped; -EMSGSIZE; -ENOMEM. Then `done` is not called. */
int template_render(struct template *t, const void *source, size_t source_len, const char *vars,
                    int64_t now, template_done *done, void *user);
