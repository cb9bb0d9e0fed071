/* A hostile script in the sandbox of the template helpers. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "gateway/serve/sandbox.h"
#include "lib/lib.h"

#define LIMIT_MS 60000

static const struct sandbox_patience endless = {-1, INT64_MAX / 2};

/* Writes one line for each deed that succeeds, then "done". */
static const char hostile[] =
    "import os, sys, ctypes, socket, signal, resource\n"
    "PARENT = %d\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "def ok(value):\n"
    "    if value < 0:\n"
    "        raise OSError(ctypes.get_errno(), 'refused')\n"
    "def read(path):\n"
    "    with open(path, 'rb') as f: f.read(1)\n"
    "def write(path):\n"
    "    with open(path, 'wb') as f: f.write(b'x')\n"
    "def fork():\n"
    "    if os.fork() == 0: os._exit(0)\n"
    "deeds = {\n"
    "    'inet': lambda: socket.socket(socket.AF_INET),\n"
    "    'unix': lambda: socket.socket(socket.AF_UNIX),\n"
    "    'netlink': lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),\n"
    "    'pair': lambda: socket.socketpair(),\n"
    "    'passwd': lambda: read('/etc/passwd'),\n"
    "    'shadow': lambda: read('/etc/shadow'),\n"
    "    'secret': lambda: read('%s'),\n"
    "    'environ': lambda: read('/proc/%%d/environ' %% PARENT),\n"
    "    'memory': lambda: read('/proc/%%d/mem' %% PARENT),\n"
    "    'list': lambda: os.listdir('/etc'),\n"
    "    'write': lambda: write('%s'),\n"
    "    'tmp': lambda: write('/tmp/tandem-sandbox'),\n"
    "    'mkdir': lambda: os.mkdir('/tmp/tandem-sandbox-folder'),\n"
    "    'unlink': lambda: os.unlink('%s'),\n"
    "    'chmod': lambda: os.chmod('%s', 0o777),\n"
    "    'signal': lambda: os.kill(PARENT, 0),\n"
    "    'group': lambda: os.kill(-1, 0),\n"
    "    'fork': fork,\n"
    "    'spawn': lambda: os.posix_spawn('/bin/true', ['true'], {}),\n"
    "    'exec': lambda: os.execv('/bin/true', ['true']),\n"
    "    'python': lambda: os.execv('/usr/bin/python3', ['python3', '-c', '']),\n"
    "    'ptrace': lambda: ok(libc.ptrace(16, PARENT, 0, 0)),\n"
    "    'unshare': lambda: ok(libc.unshare(0x10000000)),\n"
    "    'mount': lambda: ok(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)),\n"
    "    'setuid': lambda: os.setuid(0),\n"
    "    'limit': lambda: resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999)),\n"
    "    'owner': lambda: ok(libc.fcntl(0, 8, PARENT)),\n"
    "    'memfd': lambda: os.memfd_create('x'),\n"
    "    'shm': lambda: ok(libc.shmget(0, 4096, 0o1777)),\n"
    "}\n"
    "out = b''\n"
    "for name, deed in deeds.items():\n"
    "    try:\n"
    "        deed()\n"
    "        out += name.encode() + b'\\n'\n"
    "    except (OSError, ValueError):\n"
    "        pass\n"
    "import decimal, unicodedata, zoneinfo\n" // files of Python can still be read
    "os.write(1, out + b'done\\n')\n";

static char *run(const char *script, unsigned *ret_missing)
{
    int pair[2];
    pid_t pid;
    static char said[4096];
    size_t n = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    if (sandbox_start(script, pair[1], &endless, &pid, ret_missing) < 0)
        fail_msg("%s", fail_text());
    close(pair[1]);
    for (;;) {
        struct pollfd p = {pair[0], POLLIN, 0};
        assert_int_equal(poll(&p, 1, LIMIT_MS), 1);
        ssize_t more = read(pair[0], said + n, sizeof(said) - 1 - n);
        if (more <= 0)
            break;
        n += (size_t)more;
    }
    said[n] = 0;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(pair[0]);
    return said;
}

static void a_hostile_script_can_do_nothing(void **state)
{
    (void)state;
    char *script, path[] = "/tmp/tandem-sandbox-XXXXXX", layers[40];
    unsigned missing;
    int fd = mkstemp(path); // mode 0600, and ours
    assert_true(fd >= 0);
    close(fd);
    assert_true(asprintf(&script, hostile, (int)getpid(), path, path, path, path) > 0);
    const char *said = run(script, &missing);
    free(script);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
    if (missing & (SANDBOX_LANDLOCK | SANDBOX_SECCOMP)) {
        sandbox_text(missing, layers);
        lib_skip("this kernel refuses layers of the sandbox: %s; what succeeded: %s", layers, said);
    }
    assert_string_equal(said, "done\n");
}

static void a_script_cannot_use_the_limits_of_its_parent(void **state)
{
    (void)state;
    unsigned missing;
    const char *said =
        run("import os, resource as r\n"
            "l = [r.getrlimit(i) for i in (r.RLIMIT_AS, r.RLIMIT_NOFILE, "
            "r.RLIMIT_FSIZE, r.RLIMIT_CORE, r.RLIMIT_NPROC)]\n"
            "os.write(1, repr((l, os.environ.get('HOME'), os.getuid() == 0)).encode())\n",
            &missing);
    assert_string_equal(said, "([(268435456, 268435456), (16, 16), (0, 0), (0, 0), (0, 0)], None, "
                              "False)");
}

/* The script never reads its socket, so it does not notice the end by itself. */
static void a_script_ends_with_the_process_that_started_it(void **state)
{
    (void)state;
    int pair[2];
    char on[8];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pid_t starter = fork();
    if (starter == 0) {
        pid_t pid;
        unsigned missing;
        int rc = sandbox_start("import os, time\n"
                               "os.write(1, b'on')\n"
                               "end = time.time() + 2 * 60\n"
                               "while time.time() < end: pass\n",
                               pair[1], &endless, &pid, &missing);
        _exit(rc < 0 || read(pair[1], on, 1) != 1);
    }
    close(pair[1]);
    struct pollfd p = {pair[0], POLLIN, 0};
    assert_int_equal(poll(&p, 1, LIMIT_MS), 1);
    assert_int_equal(read(pair[0], on, sizeof(on)), 2);
    assert_int_equal(kill(starter, SIGKILL), 0);
    waitpid(starter, NULL, 0);
    assert_int_equal(poll(&p, 1, LIMIT_MS), 1);
    assert_int_equal(read(pair[0], on, sizeof(on)), 0);
    close(pair[0]);
}

static void a_limit_that_cannot_be_set_is_an_error(void **state)
{
    (void)state;
    int status;
    pid_t starter = fork();
    if (starter == 0) {
        struct rlimit few = {14, 14}; // the sandbox wants 16
        int pair[2];
        pid_t pid;
        unsigned missing;
        bool ok = socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 &&
                  setrlimit(RLIMIT_NOFILE, &few) == 0 &&
                  sandbox_start("", pair[1], &endless, &pid, &missing) == -EIO &&
                  strstr(fail_text(), "prlimit");
        _exit(ok ? 0 : 1);
    }
    assert_int_equal(waitpid(starter, &status, 0), starter);
    assert_int_equal(status, 0);
}

static bool holds; // a new child stops before it does anything

pid_t __real__Fork(void);
pid_t __wrap__Fork(void);

pid_t __wrap__Fork(void)
{
    pid_t pid = __real__Fork();
    if (pid == 0 && holds)
        kill(getpid(), SIGSTOP);
    return pid;
}

static void a_child_that_is_held_is_not_awaited(void **state)
{
    (void)state;
    int pair[2];
    pid_t pid;
    unsigned missing;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(write(pair[0], "x", 1), 1);
    const struct sandbox_patience stopped = {pair[1], INT64_MAX / 2},
                                  over = {-1, clock_us() + 10000};
    holds = true;
    assert_int_equal(sandbox_start("", pair[1], &stopped, &pid, &missing), -ECANCELED);
    assert_int_equal(sandbox_start("", pair[1], &over, &pid, &missing), -EIO);
    assert_non_null(strstr(fail_text(), "child: Connection timed out"));
    holds = false;
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no child is left
    close(pair[0]);
    close(pair[1]);
}

static void missing_layers_have_names(void **state)
{
    (void)state;
    char text[40];
    sandbox_text(0, text);
    assert_string_equal(text, "");
    sandbox_text(SANDBOX_NAMESPACES, text);
    assert_string_equal(text, "namespaces");
    sandbox_text(SANDBOX_NAMESPACES | SANDBOX_LANDLOCK | SANDBOX_SECCOMP, text);
    assert_string_equal(text, "namespaces landlock seccomp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hostile_script_can_do_nothing),
        cmocka_unit_test(a_script_cannot_use_the_limits_of_its_parent),
        cmocka_unit_test(a_script_ends_with_the_process_that_started_it),
        cmocka_unit_test(a_limit_that_cannot_be_set_is_an_error),
        cmocka_unit_test(a_child_that_is_held_is_not_awaited),
        cmocka_unit_test(missing_layers_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
