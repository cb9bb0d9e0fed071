/* test_template_helper.c - helpers of chat templates that misbehave. Each is a child of this test
 * that plays a part (--wrap=sandbox_start). */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/serve/sandbox.h"
#include "gateway/serve/template.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/failing_thread.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"

#define WAIT_US 600000000

/* ---- helpers ---- */

/* What the helper does after it has read a request; a helper plays its part for ever. */
enum part { GOOD, DIES, BROKEN, NO_JSON, NO_TEXT, TWO_LINES, HALF, SLOW, UNREADY, NONE };

static enum part parts[8]; // of the helpers, in the order of their start; the last one repeats
static atomic_uint n_started;
static unsigned missing_layers;

int __wrap_sandbox_start(const char *script, int fd, const struct sandbox_patience *patience,
                         pid_t *ret_pid, unsigned *ret_missing);

static void say(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) < 0)
        _exit(1);
}

static void play(int fd, enum part part)
{
    char line[4096];
    if (part == UNREADY)
        _exit(0);
    say(fd, "ready\n");
    while (read(fd, line, sizeof(line)) > 0) {
        if (part == DIES)
            _exit(0);
        else if (part == SLOW)
            pause();
        else if (part == HALF)
            say(fd, "{\"text\":"), _exit(0);
        say(fd, part == GOOD        ? "{\"text\":\"fine\"}\n"
                : part == BROKEN    ? "{\"error\":\"as you asked\"}\n"
                : part == NO_JSON   ? "fine\n"
                : part == TWO_LINES ? "{\"text\":\"fine\"}\n{}"
                                    : "{\"texts\":\"fine\"}\n");
    }
    _exit(0);
}

int __wrap_sandbox_start(const char *script, int fd, const struct sandbox_patience *patience,
                         pid_t *ret_pid, unsigned *ret_missing)
{
    (void)patience;
    unsigned i = atomic_fetch_add(&n_started, 1);
    enum part part = parts[i < ARRAY_LEN(parts) ? i : ARRAY_LEN(parts) - 1];
    assert_non_null(strstr(script, "jinja2"));
    if (part == NONE)
        return fail(-EIO, "template: no helper today");
    *ret_missing = missing_layers;
    *ret_pid = _Fork();
    if (*ret_pid == 0)
        play(fd, part);
    return 0;
}

/* ---- one rendering ---- */

static struct {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    bool here;
    int err;
    char text[256];
} outcome = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, ""};

static void keep(void *user, int err, unsigned retry_s, const char *text, size_t len)
{
    assert_ptr_equal(user, &outcome);
    assert_int_equal(retry_s, 0);
    pthread_mutex_lock(&outcome.mu);
    outcome.err = err;
    snprintf(outcome.text, sizeof(outcome.text), "%.*s", (int)len, text);
    outcome.here = true;
    pthread_cond_signal(&outcome.cv);
    pthread_mutex_unlock(&outcome.mu);
}

static bool renders_with(struct template *t, const char *vars, int err, const char *text)
{
    outcome.here = false;
    assert_int_equal(template_render(t, "payer", "x", 1, vars, 0, keep, &outcome), 0);
    pthread_mutex_lock(&outcome.mu);
    while (!outcome.here)
        pthread_cond_wait(&outcome.cv, &outcome.mu);
    pthread_mutex_unlock(&outcome.mu);
    return outcome.err == err && strcmp(outcome.text, text) == 0;
}

/* Whether the rendering has this result. */
static bool renders(struct template *t, int err, const char *text)
{
    return renders_with(t, "{}", err, text);
}

static unsigned n_descriptors(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

#define FAILED "the helper process of the chat template failed"

static void each_failure_has_its_error(void **state)
{
    (void)state;
    static const struct {
        enum part first, later; // of the first helper, and of all others
        int err;
        const char *text, *log;
        unsigned n_logged, n_helpers; // after a second rendering
    } v[] = {
        {GOOD, GOOD, 0, "fine", "killed", 0, 1},
        {BROKEN, BROKEN, -EINVAL, "as you asked", "killed", 0, 1},
        {NO_JSON, GOOD, -EINVAL, FAILED, "killed reason=broken", 1, 2},
        {NO_TEXT, GOOD, -EINVAL, FAILED, "killed reason=broken", 1, 2},
        {TWO_LINES, GOOD, -EINVAL, FAILED, "killed reason=broken", 1, 2},
        {HALF, GOOD, -EINVAL, FAILED, "killed reason=broken", 1, 2},
        {SLOW, GOOD, -EINVAL, "the chat template took longer than 0.2 s", "killed reason=time", 1,
         1},
        {DIES, GOOD, 0, "fine", "killed reason=died", 1, 2},
        {DIES, DIES, -EINVAL, FAILED, "killed reason=died", 2, 4},
        {NONE, NONE, -EIO, "template: no helper today", "template: no helper today", 3, 3},
        {UNREADY, UNREADY, -EIO,
         "template: the helper does not start; is python3-jinja2 installed?", "does not start", 3,
         3},
    };
    unsigned before = n_descriptors();
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct template *t = NULL;
        parts[0] = v[i].first;
        for (size_t j = 1; j < ARRAY_LEN(parts); j++)
            parts[j] = v[i].later;
        atomic_store(&n_started, 0);
        logged_begin();
        bool slow = v[i].first == SLOW; // the others have time, also on a busy machine
        assert_int_equal(template_new(1, slow ? 200 : 60000, WAIT_US, &t), 0);
        bool ok = renders(t, v[i].err, v[i].text);
        if (ok && !slow)
            ok = renders(t, v[i].later == GOOD ? 0 : v[i].err,
                         v[i].later == GOOD ? "fine" : v[i].text);
        template_free(t);
        const char *log = logged_end();
        if (!ok)
            fail_msg("case %zu: %d %s", i, outcome.err, outcome.text);
        unsigned n_logged = v[i].n_logged * (v[i].later == DIES ? 2 : 1);
        if (logged_count(log, v[i].log) != n_logged || atomic_load(&n_started) != v[i].n_helpers)
            fail_msg("case %zu: %u helpers, log: %s", i, atomic_load(&n_started), log);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no child is left
        assert_int_equal(errno, ECHILD);
    }
    assert_int_equal(n_descriptors(), before);
}

static void missing_layers_are_one_warning(void **state)
{
    (void)state;
    struct template *t = NULL;
    for (size_t j = 0; j < ARRAY_LEN(parts); j++)
        parts[j] = GOOD;
    logged_begin();
    for (unsigned i = 0; i < 3; i++) {
        missing_layers = i ? SANDBOX_LANDLOCK : 0;
        assert_int_equal(template_new(1, 20000, WAIT_US, &t), 0);
        assert_true(renders(t, 0, "fine"));
        template_free(t);
    }
    const char *log = logged_end();
    assert_int_equal(logged_count(log, "without some layers"), 1);
    assert_int_equal(logged_count(log, "missing=\"landlock\""), 1);
    missing_layers = 0;
}

static void a_stop_ends_a_start_and_a_rendering(void **state)
{
    (void)state;
    struct template *t = NULL;
    for (size_t j = 0; j < ARRAY_LEN(parts); j++)
        parts[j] = SLOW;
    assert_int_equal(template_new(1, 600000, WAIT_US, &t), 0);
    outcome.here = false;
    assert_int_equal(template_render(t, "payer", "x", 1, "{}", -1, keep, &outcome), 0);
    template_stop(t);
    template_free(t);
    assert_true(outcome.here);
    assert_int_equal(outcome.err, -ECANCELED);
    assert_string_equal(outcome.text, "the server is shutting down");
    template_free(NULL);
}

#define TOO_SLOW "the chat template took longer than 0.2 s"

static struct template *of_helpers(enum part part, unsigned timeout_ms)
{
    struct template *t = NULL;
    for (size_t j = 0; j < ARRAY_LEN(parts); j++)
        parts[j] = part;
    assert_int_equal(template_new(1, timeout_ms, WAIT_US, &t), 0);
    return t;
}

/* The request is larger than what a socket holds. */
static void a_helper_that_does_not_read_is_killed(void **state)
{
    (void)state;
    static char vars[4 << 20];
    memset(vars, ' ', sizeof(vars) - 1);
    vars[0] = '{';
    vars[sizeof(vars) - 2] = '}';
    struct template *t = of_helpers(SLOW, 200);
    logged_begin();
    bool ok = renders_with(t, vars, -EINVAL, TOO_SLOW);
    template_free(t);
    const char *log = logged_end();
    assert_true(ok);
    assert_int_equal(logged_count(log, "killed reason=time"), 1);
}

static void ignore(int signal)
{
    (void)signal;
}

/* The main thread does not take them. */
static void signals_do_not_end_a_wait(void **state)
{
    (void)state;
    struct sigaction old, none = {.sa_handler = ignore}; // without SA_RESTART
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    assert_int_equal(sigaction(SIGALRM, &none, &old), 0);
    struct template *t = of_helpers(SLOW, 200);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    logged_begin();
    setitimer(ITIMER_REAL, &often, NULL);
    bool ok = renders(t, -EINVAL, TOO_SLOW);
    setitimer(ITIMER_REAL, &never, NULL);
    template_free(t);
    const char *log = logged_end();
    assert_true(ok);
    assert_int_equal(logged_count(log, "killed reason=time"), 1);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    sigaction(SIGALRM, &old, NULL);
}

/* One is free, for template_new() itself. */
static void a_helper_without_a_descriptor_is_started_later(void **state)
{
    (void)state;
    struct rlimit before;
    logged_begin();
    int next = dup(STDIN_FILENO);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit few = {(rlim_t)next + 1, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct template *t = of_helpers(GOOD, 60000);
    bool ok = renders(t, -EIO, "template: cannot create a socket pair: Too many open files");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    ok = ok && renders(t, 0, "fine");
    template_free(t);
    const char *log = logged_end();
    assert_true(ok);
    assert_int_equal(logged_count(log, "template: cannot create a socket pair"), 2);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    struct template *t = NULL;
    unsigned before = n_descriptors();
    for (unsigned n = 1; n <= 2; n++) {
        failing_at(n);
        assert_int_equal(template_new(1, 200, WAIT_US, &t), -ENOMEM);
        assert_true(failing_has_failed());
    }
    failing_thread_at(2);
    assert_int_equal(template_new(2, 200, WAIT_US, &t), -EAGAIN);
    assert_string_equal(fail_text(), "cannot start a thread: Resource temporarily unavailable");
    assert_null(t);
    assert_int_equal(n_descriptors(), before);
    t = of_helpers(GOOD, 20000);
    assert_true(renders(t, 0, "fine"));
    failing_at(1);
    assert_int_equal(template_render(t, "payer", "x", 1, "{}", 0, keep, &outcome), -ENOMEM);
    failing_at(2);
    assert_int_equal(template_render(t, "payer", "x", 1, "{}", 0, keep, &outcome), -ENOMEM);
    failing_at(0);
    template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failure_has_its_error),
        cmocka_unit_test(missing_layers_are_one_warning),
        cmocka_unit_test(a_stop_ends_a_start_and_a_rendering),
        cmocka_unit_test(a_helper_that_does_not_read_is_killed),
        cmocka_unit_test(signals_do_not_end_a_wait),
        cmocka_unit_test(a_helper_without_a_descriptor_is_started_later),
        cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
