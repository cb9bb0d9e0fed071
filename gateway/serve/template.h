/* template.h - renders chat templates in helper processes.
 *
 * Templates come from downloaded model files, so they may be hostile. Each helper is
 * `/usr/bin/python3 -I` with Jinja2's SandboxedEnvironment, in a process without network, files and
 * privileges (sandbox.h). A helper that does not answer in time is killed and restarted.
 * Only the request that it rendered gets an error. Clients take turns (template_turns.h).
 *
 * Threads: template_render() and template_cancel() on any. Each helper has a thread that waits for
 * it; callbacks run on that thread, or in template_cancel() and template_stop(), or in
 * template_render() for another request. They must not block. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define TEMPLATE_MAX_WORKERS 64
#define TEMPLATE_MAX_WAITING 1024
#define TEMPLATE_MAX_REQUEST (64u << 20) // bytes of a line to a helper

struct template;

/* timeout_ms: of a rendering; wait_us: for a turn.
 * Starts the helpers. A helper that fails to start is started again for the next rendering.
 * -ENOMEM. */
int template_new(unsigned n_workers, unsigned timeout_ms, int64_t wait_us, struct template **ret);
/* Ends running and waiting renderings immediately with -ECANCELED, and takes no more. Any
 * thread. */
void template_stop(struct template *t);
void template_free(struct template *t);
DEFINE_AUTO(struct template, template_free)

/* Called once. err 0: text is the rendering. Otherwise text is the error:
 * -EINVAL: raised by the template, or caused by it.
 * -EIO: no helper could be started.
 * -ETIMEDOUT: no turn in time.
 * -EBUSY: the template is in a pause, which ends in retry_s.
 * -EDQUOT: its place was given to another payer, because too many of this payer waited.
 * -ECANCELED: template_stop(), template_cancel(). */
typedef void template_done(void *user, int err, unsigned retry_s, const char *text, size_t len);

/* payer: whose turn it takes; vars: a JSON object, the variables of the template; now: for
 * strftime_now(), -1: the current time.
 * -EDQUOT: no place, and too many of this payer wait; -EAGAIN: no place, and none of it waits;
 * -EPIPE: stopped; -EMSGSIZE; -ENOMEM. After an error done is not called. */
int template_render(struct template *t, const char *payer, const void *source, size_t source_len,
                    const char *vars, int64_t now, template_done *done, void *user);
/* If the request of this user waits, it ends immediately with -ECANCELED. No effect on a rendering
 * that has begun. */
void template_cancel(struct template *t, const void *user);
