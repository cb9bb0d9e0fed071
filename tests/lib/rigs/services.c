/* services.c - real services as child processes. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "lib/lib.h"
#include "base/clock.h"
#include "grpc/health/v1/health.pb-c.h"
#include "lib/rigs/child.h"
#include "lib/rigs/services.h"
#include "rpc/rpc.h"

#define MAX_ARGS 64
#define HEALTHY_WITHIN_US 60000000
#define STOPPED_WITHIN_MS 60000
#define ABORTED_WITHIN_MS 10000

static char dir[96];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void remove_dir(void)
{
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *service_dir(void)
{
    if (!*dir) {
        strcpy(dir, "/tmp/tandem-test-XXXXXX");
        if (!mkdtemp(dir))
            fail_msg("mkdtemp: %s", strerror(errno));
        atexit(remove_dir);
    }
    return dir;
}

void service_spawn(struct service *s, const char *program, const char *const *args)
{
    static unsigned n_started;
    if (!*s->target)
        snprintf(s->target, sizeof(s->target), "unix:%s/%s-%u.sock", service_dir(), program,
                 n_started + 1);
    snprintf(s->admin, sizeof(s->admin), "unix:%s/%s-%u-admin.sock", service_dir(), program,
             ++n_started);
    s->name = strcmp(program, "verifier-svc") == 0 ? "tandem.v1.Verifier" : "tandem.v1.Proposer";
    snprintf(s->log, sizeof(s->log), "%s/%s.log", service_dir(),
             strrchr(s->target, '/') ? strrchr(s->target, '/') + 1 : s->target);
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", BINARY_DIR, program);
    const char *argv[MAX_ARGS] = {path, "--listen", s->target, "--admin-listen", s->admin};
    for (size_t i = 0; args && args[i]; i++) {
        assert_true(i + 6 < MAX_ARGS);
        argv[i + 5] = args[i];
    }
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, s->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    int r = posix_spawn(&s->pid, path, &files, NULL, (char **)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (r)
        fail_msg("%s: %s", path, strerror(r));
    child_register(0, s->pid);
}

static int reap(struct service *s)
{
    int status;
    waitpid(s->pid, &status, 0);
    child_register(s->pid, 0);
    s->pid = 0;
    return status;
}

static void print_log(const struct service *s)
{
    size_t len;
    char *text = lib_read(s->log, &len);
    fprintf(stderr, "---- %s\n%s----\n", s->log, len > 4000 ? text + len - 4000 : text);
    free(text);
}

/* Whether the process ends within ms; then reap() does not block. */
static bool ends_within(const struct service *s, int ms)
{
    int fd = pidfd_open(s->pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    bool ended = fd < 0 || poll(&p, 1, ms) > 0;
    if (fd >= 0)
        close(fd);
    return ended;
}

static bool is_serving(struct rpc_client *c, const char *name)
{
    Grpc__Health__V1__HealthCheckRequest req = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    req.service = (char *)(uintptr_t)name; // the generated messages have no const
    ProtobufCMessage *reply;
    struct rpc_options opt = {.timeout_us = 1000000, .wait_for_ready = true};
    struct rpc_status st = rpc_unary(c, "/grpc.health.v1.Health/Check", &opt, &req.base,
                                     &grpc__health__v1__health_check_response__descriptor, &reply);
    if (st.code != RPC_OK)
        return false;
    bool serving = ((Grpc__Health__V1__HealthCheckResponse *)reply)->status ==
                   GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    protobuf_c_message_free_unpacked(reply, NULL);
    return serving;
}

void service_wait_healthy(const struct service *s)
{
    AUTO(rpc_client_free) struct rpc_client *c = NULL;
    assert_int_equal(rpc_client_new(s->target, NULL, &c), 0);
    int64_t until_us = clock_us() + HEALTHY_WITHIN_US;
    while (!is_serving(c, s->name)) {
        bool died = ends_within(s, 5); // also the pause between two polls
        if (died || clock_us() > until_us) {
            print_log(s);
            fail_msg("%s %s", s->target, died ? "died" : "is not healthy in time");
        }
    }
}

void service_start(struct service *s, const char *program, const char *const *args)
{
    service_spawn(s, program, args);
    service_wait_healthy(s);
}

void service_stop(struct service *s)
{
    if (!s->pid)
        return;
    kill(s->pid, SIGTERM);
    if (!ends_within(s, STOPPED_WITHIN_MS)) {
        kill(s->pid, SIGABRT); // ThreadSanitizer prints where it waits
        ends_within(s, ABORTED_WITHIN_MS);
        service_kill(s);
        print_log(s);
        fail_msg("%s did not stop", s->target);
    }
    int status = reap(s);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        print_log(s);
        fail_msg("%s ended with status %x", s->target, status);
    }
}

void service_kill(struct service *s)
{
    if (!s->pid)
        return;
    kill(s->pid, SIGKILL);
    reap(s);
}

void service_signal(const struct service *s, int sig)
{
    kill(s->pid, sig);
}

void service_client_on_tcp(const struct service *s, struct rpc_client **ret)
{
    unsigned port = 0;
    char target[32];
    size_t len;
    AUTO(mem_free) char *log = lib_read(s->log, &len);
    const char *at = strstr(log, "port=");
    assert_true(at && sscanf(at, "port=%u", &port) == 1);
    snprintf(target, sizeof(target), "127.0.0.1:%u", port);
    assert_int_equal(rpc_client_new(target, NULL, ret), 0);
}

bool service_said(const struct service *s, const char *text)
{
    size_t len;
    char *log = lib_read(s->log, &len);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}
