/* test_svc.c - the test acts as the service manager: it reads the notification socket and passes
 * listening sockets to a child. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/svc.h"
#include "lib/lib.h"
#include "lib/rigs/manager.h"

static int64_t ahead_us; // of the clock

int64_t __real_clock_us(void);
int64_t __wrap_clock_us(void);
int64_t __wrap_clock_us(void)
{
    return __real_clock_us() + ahead_us;
}

static void the_manager_is_notified_of_each_state(void **state)
{
    (void)state;
    svc_status("loading %d%%", 40);
    assert_string_equal(manager_message(), "STATUS=loading 40%");
    svc_extend(30000000);
    assert_string_equal(manager_message(), "EXTEND_TIMEOUT_USEC=30000000");
    svc_ready("serving tales");
    assert_string_equal(manager_message(), "READY=1\nSTATUS=serving tales");
    svc_stopping(120000000);
    assert_string_equal(manager_message(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=120000000");
}

static void without_a_manager_nothing_happens(void **state)
{
    (void)state;
    unsetenv("NOTIFY_SOCKET");
    svc_ready(NULL);
    svc_status("x");
    svc_watchdog();
    assert_string_equal(manager_message(), "");
    int fds[SVC_MAX_FDS];
    assert_int_equal(svc_listen_fds(fds), 0);
}

static void the_watchdog_is_fed_at_its_pace(void **state)
{
    (void)state;
    setenv("WATCHDOG_USEC", "80000", 1);
    svc_init();
    assert_int_equal(svc_watchdog_interval_us(), 40000);
    svc_watchdog();
    assert_string_equal(manager_message(), "WATCHDOG=1");
    int64_t last = 0;         // time before the last notification
    for (int n = 0; n < 3;) { // a busy loop calls it far more often than needed
        int64_t before = clock_us();
        svc_watchdog();
        if (!*manager_message())
            continue;
        assert_true(clock_us() - last >= 10000);
        last = before;
        n++;
    }
    unsetenv("WATCHDOG_USEC");
    svc_init();
    assert_int_equal(svc_watchdog_interval_us(), 0);
    svc_watchdog();
    assert_string_equal(manager_message(), "");
}

/* Waits for the whole limit, then calls svc_watchdog(); returns the notification. */
static const char *notification_after_the_limit(void)
{
    assert_int_equal(svc_wait_signal(50000), 0);
    svc_watchdog();
    return manager_message();
}

static void a_thread_that_hangs_stops_the_feeding(void **state)
{
    (void)state;
    setenv("WATCHDOG_USEC", "40000", 1);
    svc_init();
    assert_string_equal(notification_after_the_limit(), "WATCHDOG=1"); // no thread is watched
    svc_awake();
    assert_string_equal(notification_after_the_limit(), "");
    do { // the thread is alive again
        svc_awake();
        svc_watchdog();
    } while (!*manager_message());
    assert_string_equal(notification_after_the_limit(), "");
    svc_asleep();
    assert_string_equal(notification_after_the_limit(), "WATCHDOG=1");
    assert_string_equal(notification_after_the_limit(), "WATCHDOG=1");
    unsetenv("WATCHDOG_USEC");
    svc_init();
}

static void count_reload(void *user)
{
    ++*(int *)user;
}

static void signals_are_waited_for(void **state)
{
    (void)state;
    svc_init();
    assert_int_equal(svc_wait_signal(0), 0);
    kill(getpid(), SIGTERM);
    assert_int_equal(svc_wait_signal(-1), SIGTERM);
    kill(getpid(), SIGHUP);
    assert_int_equal(svc_wait_signal(0), 0); // SIGHUP without a reload function does not stop
    int n_reloads = 0;
    svc_on_reload(count_reload, &n_reloads);
    kill(getpid(), SIGHUP);
    assert_int_equal(svc_wait_signal(0), 0);
    assert_int_equal(n_reloads, 1);
    svc_on_reload(NULL, NULL);
    kill(getpid(), SIGINT);
    assert_int_equal(svc_wait_signal(10000000), SIGINT);
    int64_t from = clock_us();
    assert_int_equal(svc_wait_signal(20000), 0);
    assert_true(clock_us() - from >= 19000);
    raise(SIGPIPE); // ignored; otherwise the test program ends here
}

static void the_limit_of_open_files_is_raised(void **state)
{
    (void)state;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 64;
    setrlimit(RLIMIT_NOFILE, &limit);
    svc_init();
    getrlimit(RLIMIT_NOFILE, &limit);
    assert_int_equal(limit.rlim_cur, limit.rlim_max);
}

static size_t resident_bytes(void)
{
    size_t all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%zu %zu", &all, &resident), 2);
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Frees so many small blocks below one that stays, so the heap cannot shrink by itself. Returns
 * that one. */
static void *free_below(size_t n_bytes)
{
    enum { PIECE = 8000 };
    size_t n = n_bytes / PIECE;
    char **pieces = malloc(n * sizeof(*pieces));
    assert_non_null(pieces);
    for (size_t i = 0; i < n; i++) {
        pieces[i] = malloc(PIECE);
        assert_non_null(pieces[i]);
        memset(pieces[i], 1, PIECE);
    }
    void *top = malloc(1000);
    for (size_t i = 0; i < n; i++)
        free(pieces[i]);
    free(pieces);
    return top;
}

/* After a burst. Few freed bytes stay, since the next messages need them; so do all until the next
 * look. */
static void freed_memory_returns_to_the_kernel(void **state)
{
    enum { FEW = 48 << 20, MANY = 200 << 20 };
    (void)state;
    if (LIB_SANITIZED)
        lib_leave_out("sanitizers have their own malloc");
    svc_init();
    size_t before = resident_bytes();
    void *few = free_below(FEW);
    svc_trim();
    assert_true(resident_bytes() > before + FEW / 2);
    void *many = free_below(MANY);
    svc_trim();
    assert_true(resident_bytes() > before + MANY / 2);
    ahead_us = SVC_TRIM_PACE_US;
    svc_trim();
    assert_true(resident_bytes() < before + MANY / 10);
    ahead_us = 0;
    free(few);
    free(many);
}

/* Calls svc_listen_fds() in a child whose descriptors 3, 4 ... are fds; returns its result as the
 * exit status of the child. */
static int listen_fds_with(const int *fds, int n, const char *count)
{
    pid_t pid = fork();
    if (pid == 0) {
        int high[SVC_MAX_FDS + 2];
        for (int i = 0; i < n; i++)
            high[i] = fcntl(fds[i], F_DUPFD, 40);
        for (int i = 0; i < n; i++)
            dup2(high[i], 3 + i);
        char text[16];
        snprintf(text, sizeof(text), "%d", getpid());
        setenv("LISTEN_PID", text, 1);
        setenv("LISTEN_FDS", count, 1);
        int got[SVC_MAX_FDS], r = svc_listen_fds(got);
        for (int i = 0; i < r; i++) {
            if (got[i] != 3 + i || !(fcntl(got[i], F_GETFD) & FD_CLOEXEC))
                _exit(100);
        }
        if (r > 0 && svc_listen_fds(got) != 0)
            _exit(101);
        if (r < 0 && !*fail_text())
            _exit(102);
        _exit(r >= 0 ? r : 50 - r);
    }
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int listening(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(sa_family_t)), 0); // a unique name
    assert_int_equal(listen(fd, 1), 0);
    return fd;
}

static void passed_sockets_are_taken_over(void **state)
{
    (void)state;
    int fds[SVC_MAX_FDS + 1];
    for (size_t i = 0; i < SVC_MAX_FDS + 1; i++)
        fds[i] = listening();
    assert_int_equal(listen_fds_with(fds, 2, "2"), 2);
    assert_int_equal(listen_fds_with(fds, SVC_MAX_FDS, "8"), SVC_MAX_FDS);
    assert_int_equal(listen_fds_with(fds, SVC_MAX_FDS + 1, "9"), 50 + EINVAL);
    assert_int_equal(listen_fds_with(fds, 1, "many"), 50 + EINVAL);
    for (size_t i = 0; i < SVC_MAX_FDS + 1; i++)
        close(fds[i]);
}

static void only_listening_stream_sockets_are_accepted(void **state)
{
    (void)state;
    int fds[] = {listening(), socket(AF_UNIX, SOCK_DGRAM, 0), open("/dev/null", O_RDONLY),
                 socket(AF_UNIX, SOCK_STREAM, 0)};
    for (int i = 1; i < 4; i++) {
        int pair[] = {fds[0], fds[i]};
        assert_int_equal(listen_fds_with(pair, 2, "2"), 50 + EINVAL);
    }
    for (int i = 0; i < 4; i++)
        close(fds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_manager_is_notified_of_each_state, manager_open,
                                        manager_close),
        cmocka_unit_test_setup_teardown(without_a_manager_nothing_happens, manager_open,
                                        manager_close),
        cmocka_unit_test_setup_teardown(the_watchdog_is_fed_at_its_pace, manager_open,
                                        manager_close),
        cmocka_unit_test_setup_teardown(a_thread_that_hangs_stops_the_feeding, manager_open,
                                        manager_close),
        cmocka_unit_test(signals_are_waited_for),
        cmocka_unit_test(the_limit_of_open_files_is_raised),
        cmocka_unit_test(freed_memory_returns_to_the_kernel),
        cmocka_unit_test(passed_sockets_are_taken_over),
        cmocka_unit_test(only_listening_stream_sockets_are_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
