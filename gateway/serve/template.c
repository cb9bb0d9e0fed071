/* template.c - renders chat templates in helper processes. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"
#include "gateway/openai/json_write.h"
#include "gateway/serve/sandbox.h"
#include "gateway/serve/template.h"
#include "gateway/serve/template_reply.h"
#include "gateway/serve/template_turns.h"

#define START_US 20000000 // a cold start of Python on a busy machine is slow
#define STOPPING "the server is shutting down"

extern const char template_worker_source[]; // template_worker.S; a NUL ends it

struct job {
    struct template_turn turn;
    struct buf line;
    template_done *done;
    int64_t took_us; // as for template_turns_end()
};

struct worker {
    struct template *t;
    pthread_t thread;
    pid_t pid; // 0: none
    int fd;    // the gateway's end of the socket pair
    struct buf in;
};

struct template
{
    int stop_fd; // readable after template_stop()
    int64_t timeout_us;
    unsigned n;
    struct worker workers[TEMPLATE_MAX_WORKERS];

    pthread_mutex_t mu; // guards the fields below
    pthread_cond_t changed;
    struct template_turns *turns; // of jobs
    bool stopped;
};

/* ---- the helper process ---- */

static void worker_kill(struct worker *w)
{
    if (!w->pid)
        return;
    close(w->fd);
    kill(w->pid, SIGKILL);
    while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    w->pid = 0;
    buf_done(&w->in);
}

/* Waits until the helper's socket is ready for `events`. -ETIMEDOUT; -ECANCELED:
 * template_stop(). */
static int wait_for(struct worker *w, short events, int64_t until_us)
{
    int64_t left_us = until_us - clock_us();
    struct pollfd p[] = {{w->fd, events, 0}, {w->t->stop_fd, POLLIN, 0}};
    if (left_us <= 0 || poll(p, 2, (int)(left_us / 1000) + 1) == 0)
        return -ETIMEDOUT;
    return p[1].revents ? -ECANCELED : 0;
}

/* Reads a reply, one line. -EPIPE: the helper died before the reply; -EPROTO: it died within the
 * reply, or wrote more than a line; -EMSGSIZE; and the errors of wait_for(). */
static int read_line(struct worker *w, int64_t until_us)
{
    int rc = -EAGAIN;
    buf_init(&w->in, TEMPLATE_REPLY_MAX);
    while (rc == -EAGAIN) {
        if ((rc = wait_for(w, POLLIN, until_us)) < 0)
            return rc;
        char *space = buf_reserve(&w->in, TEMPLATE_REPLY_PIECE);
        if (!space)
            return -EMSGSIZE;
        ssize_t n = recv(w->fd, space, TEMPLATE_REPLY_PIECE, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            rc = -EAGAIN;
        else if (n <= 0)
            rc = w->in.len ? -EPROTO : -EPIPE;
        else
            rc = template_reply_add(&w->in, (size_t)n);
    }
    return rc;
}

static int write_all(struct worker *w, const struct buf *line, int64_t until_us)
{
    for (size_t at = 0; at < line->len;) {
        int rc = wait_for(w, POLLOUT, until_us);
        if (rc < 0)
            return rc;
        ssize_t n = send(w->fd, line->data + at, line->len - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return -EPIPE;
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Once in a process, because all helpers lack the same layers. */
static void warn_missing(unsigned missing)
{
    static atomic_bool warned;
    char text[40];
    sandbox_text(missing, text);
    if (missing && !atomic_exchange(&warned, true))
        log_warn(
            "chat template helpers run without some layers of their sandbox, which this system "
            "refuses missing=\"%s\"",
            text);
}

static int worker_spawn(struct worker *w, int64_t until_us)
{
    const struct sandbox_patience patience = {w->t->stop_fd, until_us};
    int pair[2];
    unsigned missing;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return fail(-EIO, "template: cannot create a socket pair: %s", strerror(errno));
    int rc = sandbox_start(template_worker_source, pair[1], &patience, &w->pid, &missing);
    close(pair[1]);
    w->fd = pair[0];
    if (rc < 0) {
        close(pair[0]);
        w->pid = 0;
        return rc;
    }
    warn_missing(missing);
    return 0;
}

static int worker_start(struct worker *w)
{
    int64_t until_us = clock_us() + START_US;
    int rc = worker_spawn(w, until_us);
    if (rc < 0)
        return rc == -ECANCELED ? fail(rc, STOPPING) : rc;
    rc = read_line(w, until_us); // "ready": the imports are done
    buf_done(&w->in);
    if (rc == 0)
        return 0;
    worker_kill(w);
    if (rc == -ECANCELED)
        return fail(rc, STOPPING);
    return fail(-EIO, "template: the helper does not start; is python3-jinja2 installed?");
}

/* Starts the helper if it does not run. -EIO, -ECANCELED. */
static int worker_ready(struct worker *w)
{
    int rc = w->pid ? 0 : worker_start(w);
    if (rc < 0 && rc != -ECANCELED)
        log_error("%s", fail_text());
    return rc;
}

/* ---- one rendering ---- */

static void done_error(const struct job *j, int err, const char *text)
{
    j->done(j->turn.user, err, j->turn.retry_s, text, strlen(text));
}

/* The CPU time of a helper. Other programs that use the CPUs do not make a payer slow. 0: it is not
 * known. */
static int64_t cpu_us(const struct worker *w)
{
    clockid_t clock;
    struct timespec time;
    if (clock_getcpuclockid(w->pid, &clock) != 0 || clock_gettime(clock, &time) < 0)
        return 0;
    return time.tv_sec * INT64_C(1000000) + time.tv_nsec / 1000;
}

/* Calls done() with the reply. -EPROTO: the reply is malformed, done() was not called. */
static int deliver_reply(const struct job *j, const struct buf *line)
{
    struct template_reply reply;
    int rc = template_reply_parse(line, &reply);
    if (rc == 0)
        j->done(j->turn.user, reply.is_error ? -EINVAL : 0, 0, reply.text, reply.len);
    template_reply_done(&reply);
    return rc;
}

/* One try with a running helper, which is killed if the try fails. */
static int try_render(struct worker *w, struct job *j)
{
    int64_t begun_us = cpu_us(w), until_us = clock_us() + w->t->timeout_us;
    int rc = write_all(w, &j->line, until_us);
    rc = rc < 0 ? rc : read_line(w, until_us);
    int64_t ended_us = cpu_us(w);
    j->took_us += ended_us > begun_us ? ended_us - begun_us : 0;
    rc = rc < 0 ? rc : deliver_reply(j, &w->in);
    if (rc == 0)
        buf_done(&w->in);
    else
        worker_kill(w);
    return rc;
}

/* A helper may have died while it was idle, so the request is tried again after the first
 * -EPIPE. */
static enum template_turns_result render_job(struct worker *w, struct job *j)
{
    int rc = -EPIPE;
    for (unsigned i = 0; i < 2 && rc == -EPIPE; i++) {
        if ((rc = worker_ready(w)) < 0) {
            done_error(j, rc, fail_text());
            return TEMPLATE_TURNS_NOT_TRIED;
        }
        if ((rc = try_render(w, j)) == 0)
            return TEMPLATE_TURNS_DONE;
        if (rc == -ECANCELED) {
            done_error(j, rc, STOPPING);
            return TEMPLATE_TURNS_NOT_TRIED;
        }
        log_warn("chat template helper killed reason=%s", rc == -ETIMEDOUT  ? "time"
                                                          : rc == -EMSGSIZE ? "size"
                                                          : rc == -EPIPE    ? "died"
                                                                            : "broken");
    }
    char text[128] = "the helper process of the chat template failed";
    if (rc == -ETIMEDOUT)
        snprintf(text, sizeof(text), "the chat template took longer than %.1f s",
                 (double)w->t->timeout_us / 1e6);
    else if (rc == -EMSGSIZE)
        snprintf(text, sizeof(text),
                 "the rendering of the chat template is too large: at most %u MiB",
                 TEMPLATE_REPLY_MAX >> 20);
    done_error(j, -EINVAL, text);
    return TEMPLATE_TURNS_FAILED;
}

static void job_free(struct job *j)
{
    buf_done(&j->line);
    free(j);
}

static struct job *job_of(struct template_turn *p)
{
    return p ? (struct job *)((char *)p - offsetof(struct job, turn)) : NULL;
}

/* Waits for the next job; NULL: template_stop(). *ret_rc: as of template_turns_next(). */
static struct job *take_job(struct template *t, int *ret_rc)
{
    struct template_turn *p = NULL;
    pthread_mutex_lock(&t->mu);
    while (!t->stopped) {
        *ret_rc = template_turns_next(t->turns, clock_us(), &p);
        if (p)
            break;
        pthread_cond_wait(&t->changed, &t->mu);
    }
    pthread_mutex_unlock(&t->mu);
    return job_of(p);
}

static void end_job(struct template *t, const struct job *j, enum template_turns_result result)
{
    pthread_mutex_lock(&t->mu);
    if (template_turns_end(t->turns, &j->turn, result, j->took_us, clock_us()))
        pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mu);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct job *j;
    int rc = 0;
    worker_ready(w);
    while ((j = take_job(w->t, &rc))) {
        if (rc < 0)
            done_error(j, rc, fail_text());
        else
            end_job(w->t, j, render_job(w, j));
        job_free(j);
    }
    worker_kill(w);
    return NULL;
}

/* ---- start and end ---- */

int template_new(unsigned n_workers, unsigned timeout_ms, int64_t wait_us, struct template **ret)
{
    AUTO(template_free) struct template *t = calloc(1, sizeof(*t));
    if (!t)
        return fail(-ENOMEM, "template: no memory");
    pthread_mutex_init(&t->mu, NULL);
    pthread_cond_init(&t->changed, NULL);
    t->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->stop_fd < 0 ||
        template_turns_new(n_workers, TEMPLATE_MAX_WAITING, wait_us, &t->turns) < 0)
        return fail(-ENOMEM, "template: no memory or no file descriptor");
    t->timeout_us = (int64_t)timeout_ms * 1000;
    for (; t->n < n_workers; t->n++) {
        struct worker *w = &t->workers[t->n];
        w->t = t;
        int err = thread_start(worker_main, w, 0, &w->thread);
        if (err < 0)
            return err;
    }
    *ret = TAKE(t);
    return 0;
}

/* NULL: none waits. */
static struct job *drop_job(struct template *t)
{
    pthread_mutex_lock(&t->mu);
    struct job *j = job_of(template_turns_drop(t->turns));
    pthread_mutex_unlock(&t->mu);
    return j;
}

void template_stop(struct template *t)
{
    pthread_mutex_lock(&t->mu);
    t->stopped = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->mu);
    eventfd_write(t->stop_fd, 1);
    for (struct job *j; (j = drop_job(t)); job_free(j))
        done_error(j, -ECANCELED, STOPPING);
}

void template_free(struct template *t)
{
    if (!t)
        return;
    if (t->turns)
        template_stop(t);
    for (unsigned i = 0; i < t->n; i++)
        pthread_join(t->workers[i].thread, NULL);
    template_turns_free(t->turns);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->mu);
    if (t->stop_fd >= 0)
        close(t->stop_fd);
    free(t);
}

static int push_job(struct template *t, struct job *j, const char *payer, const void *source,
                    size_t len)
{
    struct template_turn *p = NULL;
    pthread_mutex_lock(&t->mu);
    int rc = t->stopped
                 ? fail(-EPIPE, STOPPING)
                 : template_turns_enter(t->turns, &j->turn, payer, source, len, clock_us(), &p);
    if (rc == 0)
        pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mu);
    if (p) {
        done_error(job_of(p), -EDQUOT, fail_text());
        job_free(job_of(p));
    }
    return rc;
}

int template_render(struct template *t, const char *payer, const void *source, size_t source_len,
                    const char *vars, int64_t now, template_done *done, void *user)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return fail(-ENOMEM, "template: no memory");
    *j =
        (struct job){.turn.user = user, .turn.cost_us = template_turns_cost_us(vars), .done = done};
    buf_init(&j->line, TEMPLATE_MAX_REQUEST);
    buf_puts(&j->line, "{\"template\":");
    json_write_text(&j->line, source, source_len);
    if (now >= 0)
        buf_printf(&j->line, ",\"now\":%" PRId64, now);
    buf_puts(&j->line, ",\"vars\":");
    buf_puts(&j->line, vars);
    buf_puts(&j->line, "}\n");
    int rc = buf_error(&j->line);
    rc = rc < 0 ? rc : push_job(t, j, payer, source, source_len);
    if (rc < 0)
        job_free(j);
    return rc;
}

void template_cancel(struct template *t, const void *user)
{
    pthread_mutex_lock(&t->mu);
    struct job *j = job_of(template_turns_leave(t->turns, user));
    pthread_mutex_unlock(&t->mu);
    if (!j)
        return;
    done_error(j, -ECANCELED, "the request was cancelled");
    job_free(j);
}
