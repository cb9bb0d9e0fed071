/* template.c - renders chat templates in helper processes. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/queue.h"
#include "gateway/openai/json_write.h"
#include "gateway/serve/template.h"

#define START_US 20000000 // a cold start of Python on a busy machine is slow
#define STOPPING "the server is shutting down"

extern const char template_worker_source[]; // template_worker.S
extern const uint64_t template_worker_size;

struct job {
    struct buf line;
    template_done *done;
    void *user;
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
    struct queue *jobs;
    int stop_fd; // readable after template_stop()
    int64_t timeout_us;
    unsigned n;
    struct worker workers[TEMPLATE_MAX_WORKERS];
};

/* ---- the helper process ---- */

static void set_limit(pid_t pid, __rlimit_resource_t what, rlim_t value)
{
    struct rlimit l = {value, value};
    prlimit(pid, what, &l, NULL);
}

static void set_limits(pid_t pid)
{
    set_limit(pid, RLIMIT_AS, 256u << 20);
    set_limit(pid, RLIMIT_NOFILE, 16);
    set_limit(pid, RLIMIT_FSIZE, 0);
    set_limit(pid, RLIMIT_CORE, 0);
    set_limit(pid, RLIMIT_NPROC, 0);
}

/* Sets the limit of CPU time for the next rendering. The kernel enforces the limit even if the
 * gateway fails to. */
static void grant_cpu(const struct worker *w)
{
    clockid_t clock;
    struct timespec used = {0};
    if (clock_getcpuclockid(w->pid, &clock) == 0)
        clock_gettime(clock, &used);
    struct rlimit l = {(rlim_t)used.tv_sec + (rlim_t)(w->t->timeout_us / 1000000) + 2,
                       RLIM_INFINITY};
    prlimit(w->pid, RLIMIT_CPU, &l, NULL);
}

static int script_fd(void)
{
    size_t len = template_worker_size;
    int fd = memfd_create("template_worker.py", MFD_CLOEXEC);
    if (fd >= 0 && write(fd, template_worker_source, len) == (ssize_t)len)
        return fd;
    int e = errno;
    if (fd >= 0)
        close(fd);
    return fail(-e, "template: cannot create the file of the helper's script: %s", strerror(e));
}

/* helper_fd becomes the helper's descriptors 0 and 1, the script becomes 3. All other descriptors
 * are close-on-exec. */
static int spawn_helper(int helper_fd, int script, pid_t *ret_pid)
{
    char *argv[] = {"/usr/bin/python3", "-I", "/proc/self/fd/3", NULL}, *envp[] = {NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, helper_fd, 0);
    posix_spawn_file_actions_adddup2(&files, helper_fd, 1);
    posix_spawn_file_actions_adddup2(&files, script, 3);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0); // Ctrl-C in a terminal goes to the gateway only
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                        POSIX_SPAWN_SETPGROUP);
    int e = posix_spawn(ret_pid, argv[0], &files, &attr, argv, envp);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    return e ? fail(-EIO, "template: cannot start %s: %s", argv[0], strerror(e)) : 0;
}

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
    buf_init(&w->in, TEMPLATE_MAX_REPLY);
    for (;;) {
        int rc = wait_for(w, POLLIN, until_us);
        if (rc < 0)
            return rc;
        char *space = buf_reserve(&w->in, 65536);
        if (!space)
            return -EMSGSIZE;
        ssize_t n = recv(w->fd, space, 65536, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return w->in.len ? -EPROTO : -EPIPE;
        w->in.len += (size_t)n;
        if (memchr(space, '\n', (size_t)n))
            return space[n - 1] == '\n' ? 0 : -EPROTO;
    }
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

static int worker_start(struct worker *w)
{
    int pair[2], script = script_fd();
    if (script < 0)
        return script;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        int e = errno;
        close(script);
        return fail(-EIO, "template: cannot create a socket pair: %s", strerror(e));
    }
    int rc = spawn_helper(pair[1], script, &w->pid);
    close(script);
    close(pair[1]);
    w->fd = pair[0];
    if (rc < 0) {
        close(pair[0]);
        w->pid = 0;
        return rc;
    }
    set_limits(w->pid);
    grant_cpu(w);
    rc = read_line(w, clock_us() + START_US); // "ready": the imports are done
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
    j->done(j->user, err, text, strlen(text));
}

/* Calls done() with the reply. false: the reply is malformed, done() was not called. */
static bool deliver_reply(const struct job *j, const struct buf *in)
{
    json_t *reply = json_loadb(in->data, in->len, JSON_ALLOW_NUL, NULL);
    const json_t *text = json_object_get(reply, "text"), *error = json_object_get(reply, "error");
    bool ok = json_is_string(text) || json_is_string(error);
    if (json_is_string(text))
        j->done(j->user, 0, json_string_value(text), json_string_length(text));
    else if (ok)
        j->done(j->user, -EINVAL, json_string_value(error), json_string_length(error));
    json_decref(reply);
    return ok;
}

/* One try with a running helper, which is killed if the try fails. */
static int try_render(struct worker *w, const struct job *j)
{
    grant_cpu(w);
    int64_t until_us = clock_us() + w->t->timeout_us;
    int rc = write_all(w, &j->line, until_us);
    rc = rc < 0 ? rc : read_line(w, until_us);
    if (rc == 0 && !deliver_reply(j, &w->in))
        rc = -EPROTO;
    if (rc == 0)
        buf_done(&w->in);
    else
        worker_kill(w);
    return rc;
}

/* A helper may have died while it was idle, so the request is tried again after the first
 * -EPIPE. */
static void render_job(struct worker *w, const struct job *j)
{
    int rc = -EPIPE;
    for (unsigned i = 0; i < 2 && rc == -EPIPE; i++) {
        if ((rc = worker_ready(w)) < 0) {
            done_error(j, rc, fail_text());
            return;
        }
        if ((rc = try_render(w, j)) == 0)
            return;
        if (rc == -ECANCELED) {
            done_error(j, rc, STOPPING);
            return;
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
                 TEMPLATE_MAX_REPLY >> 20);
    done_error(j, -EINVAL, text);
}

static void job_free(struct job *j)
{
    buf_done(&j->line);
    free(j);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct job *j;
    worker_ready(w);
    while ((j = queue_pop(w->t->jobs, -1))) {
        render_job(w, j);
        job_free(j);
    }
    worker_kill(w);
    return NULL;
}

/* ---- start and end ---- */

int template_new(unsigned n_workers, unsigned timeout_ms, struct template **ret)
{
    AUTO(template_free) struct template *t = calloc(1, sizeof(*t));
    if (!t)
        return fail(-ENOMEM, "template: no memory");
    t->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->stop_fd < 0 || queue_new(TEMPLATE_MAX_WAITING, &t->jobs) < 0)
        return fail(-ENOMEM, "template: no memory or no file descriptor");
    t->timeout_us = (int64_t)timeout_ms * 1000;
    for (; t->n < n_workers; t->n++) {
        struct worker *w = &t->workers[t->n];
        w->t = t;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            return fail(-ENOMEM, "template: cannot start a thread");
    }
    *ret = TAKE(t);
    return 0;
}

void template_stop(struct template *t)
{
    queue_close(t->jobs);
    eventfd_write(t->stop_fd, 1);
    for (struct job *j; (j = queue_pop(t->jobs, 0)); job_free(j))
        done_error(j, -ECANCELED, STOPPING);
}

void template_free(struct template *t)
{
    if (!t)
        return;
    if (t->jobs)
        template_stop(t);
    for (unsigned i = 0; i < t->n; i++)
        pthread_join(t->workers[i].thread, NULL);
    queue_free(t->jobs);
    if (t->stop_fd >= 0)
        close(t->stop_fd);
    free(t);
}

int template_render(struct template *t, const void *source, size_t source_len, const char *vars,
                    int64_t now, template_done *done, void *user)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return fail(-ENOMEM, "template: no memory");
    *j = (struct job){.done = done, .user = user};
    buf_init(&j->line, TEMPLATE_MAX_REQUEST);
    buf_puts(&j->line, "{\"template\":");
    json_write_text(&j->line, source, source_len);
    if (now >= 0)
        buf_printf(&j->line, ",\"now\":%" PRId64, now);
    buf_puts(&j->line, ",\"vars\":");
    buf_puts(&j->line, vars);
    buf_puts(&j->line, "}\n");
    int rc = buf_error(&j->line);
    if (rc == 0 && (rc = queue_push(t->jobs, j)) < 0)
        fail(rc, rc == -EPIPE ? STOPPING : "%d chats already wait for their templates; try again",
             TEMPLATE_MAX_WAITING);
    if (rc < 0)
        job_free(j);
    return rc;
}
