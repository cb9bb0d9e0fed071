/* A hostile script in the sandbox of the template helpers, and the system calls that build the
 * sandbox, one of which fails. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "gateway/serve/sandbox.h"
#include "lib/lib.h"

#define LIMIT_MS 60000

static const struct sandbox_patience endless = {-1, INT64_MAX / 2};

/* ---- the child's system calls, seen from the parent (--wrap=syscall) ---- */

#define CALLS_MAX 400

static struct shared {
    long failing;        // this call fails ...
    unsigned nth, error; // ... the nth time, with this errno
    long held;           // this call waits for ever
    bool grants;         // namespaces and landlock succeed without effect, also if refused here
    unsigned n;
    struct {
        long number, args[5], result;
    } calls[CALLS_MAX];
    unsigned short n_filter;
    struct sock_filter filter[BPF_MAXINSNS];
} * shared;

long __real_syscall(long number, long a, long b, long c, long d, long e);
long __wrap_syscall(long number, long a, long b, long c, long d, long e);

static bool is_layer(long number)
{
    return number == SYS_unshare || number == SYS_landlock_create_ruleset ||
           number == SYS_landlock_add_rule || number == SYS_landlock_restrict_self;
}

static long granted(long number, long flags)
{
    if (number != SYS_landlock_create_ruleset)
        return 0;
    return flags ? 2 : __real_syscall(SYS_dup, 0, 0, 0, 0, 0); // the version, or a descriptor
}

long __wrap_syscall(long number, long a, long b, long c, long d, long e)
{
    unsigned i = shared->n < CALLS_MAX - 1 ? shared->n++ : CALLS_MAX - 1;
    shared->calls[i].number = number;
    memcpy(shared->calls[i].args, (long[]){a, b, c, d, e}, sizeof(shared->calls[i].args));
    if (number == SYS_prctl && a == PR_SET_SECCOMP) {
        const struct sock_fprog *program = (const struct sock_fprog *)c;
        shared->n_filter = program->len;
        memcpy(shared->filter, program->filter, program->len * sizeof(struct sock_filter));
    }
    if (number == shared->held) // reads its socket: the filter allows that
        __real_syscall(SYS_read, 0, (long)&(char){0}, 1, 0, 0);
    if (number == shared->failing && shared->nth && !--shared->nth) {
        errno = (int)shared->error;
        return shared->calls[i].result = -1;
    }
    shared->calls[i].result = shared->grants && is_layer(number)
                                  ? granted(number, c)
                                  : __real_syscall(number, a, b, c, d, e);
    return shared->calls[i].result;
}

static void fail_call(long number, unsigned nth, int error)
{
    shared->n = shared->n_filter = 0;
    shared->failing = number;
    shared->error = (unsigned)error;
    shared->nth = nth;
}

/* How often a call with these first two arguments (-1: any) was made. */
static unsigned n_calls(long number, long a, long b)
{
    unsigned n = 0;
    for (unsigned i = 0; i < shared->n; i++)
        n += shared->calls[i].number == number && (a == -1 || shared->calls[i].args[0] == a) &&
             (b == -1 || shared->calls[i].args[1] == b);
    return n;
}

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
static bool forks_fail;

pid_t __real__Fork(void);
pid_t __wrap__Fork(void);

pid_t __wrap__Fork(void)
{
    if (forks_fail) {
        errno = EAGAIN;
        return -1;
    }
    pid_t pid = __real__Fork();
    if (pid == 0 && holds)
        kill(getpid(), SIGSTOP);
    return pid;
}

static unsigned n_interrupts; // of waits for a child

pid_t __real_waitpid(pid_t pid, int *status, int options);
pid_t __wrap_waitpid(pid_t pid, int *status, int options);

pid_t __wrap_waitpid(pid_t pid, int *status, int options)
{
    if (!n_interrupts)
        return __real_waitpid(pid, status, options);
    n_interrupts--;
    errno = EINTR;
    return -1;
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
    n_interrupts = 2;
    assert_int_equal(sandbox_start("", pair[1], &stopped, &pid, &missing), -ECANCELED);
    assert_int_equal(sandbox_start("", pair[1], &over, &pid, &missing), -EIO);
    assert_non_null(strstr(fail_text(), "child: Connection timed out"));
    holds = false;
    assert_int_equal(n_interrupts, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no child is left
    close(pair[0]);
    close(pair[1]);
}

/* It has reported its layers, and the kernel holds it in execve(). */
static void a_python_that_does_not_start_is_not_awaited(void **state)
{
    (void)state;
    int pair[2];
    pid_t pid;
    unsigned missing;
    fail_call(0, 0, 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    shared->held = SYS_execve;
    const struct sandbox_patience over = {-1, clock_us() + 200000};
    assert_int_equal(sandbox_start("", pair[1], &over, &pid, &missing), -EIO);
    shared->held = 0;
    if (n_calls(SYS_execve, -1, -1)) // on a slow machine, it may not have come so far
        assert_non_null(strstr(fail_text(), "of a helper: execve: Connection timed out"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no child is left
    close(pair[0]);
    close(pair[1]);
}

static void ignore(int signal)
{
    (void)signal;
}

static void signals_do_not_end_the_wait_for_a_child(void **state)
{
    (void)state;
    int pair[2];
    pid_t pid;
    unsigned missing;
    struct sigaction old, none = {.sa_handler = ignore}; // without SA_RESTART
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(sigaction(SIGALRM, &none, &old), 0);
    int64_t until_us = clock_us() + 50000;
    const struct sandbox_patience some = {-1, until_us};
    holds = true;
    setitimer(ITIMER_REAL, &often, NULL);
    int rc = sandbox_start("", pair[1], &some, &pid, &missing);
    setitimer(ITIMER_REAL, &never, NULL);
    holds = false;
    sigaction(SIGALRM, &old, NULL);
    assert_int_equal(rc, -EIO);
    assert_true(clock_us() >= until_us);
    assert_non_null(strstr(fail_text(), "child: Connection timed out"));
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

/* Starts a script that ends immediately. */
static int starts(unsigned *ret_missing)
{
    int pair[2];
    pid_t pid;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    int rc = sandbox_start("", pair[1], &endless, &pid, ret_missing);
    close(pair[0]);
    close(pair[1]);
    if (rc == 0)
        waitpid(pid, NULL, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no child is left
    return rc;
}

static void a_process_that_cannot_be_made_is_an_error(void **state)
{
    (void)state;
    unsigned missing, before = n_descriptors();
    forks_fail = true;
    assert_int_equal(starts(&missing), -EIO);
    forks_fail = false;
    assert_string_equal(fail_text(),
                        "template: cannot start a process: Resource temporarily unavailable");
    assert_int_equal(n_descriptors(), before);
}

/* For /dev/null, or for the pipe of the report. */
static void descriptors_that_cannot_be_opened_are_an_error(void **state)
{
    (void)state;
    struct rlimit files;
    unsigned missing, before = n_descriptors();
    pid_t pid;
    int next = dup(STDIN_FILENO);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    for (unsigned n_free = 0; n_free < 3; n_free++) {
        struct rlimit few = {(rlim_t)next + n_free, files.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        int rc = sandbox_start("", STDIN_FILENO, &endless, &pid, &missing);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
        assert_int_equal(rc, -EIO);
        assert_string_equal(fail_text(),
                            "template: no descriptors for a helper: Too many open files");
        assert_int_equal(n_descriptors(), before);
    }
}

static void a_layer_that_is_refused_is_missing(void **state)
{
    (void)state;
    static const struct {
        long number;
        unsigned nth, missing;
    } v[] = {{SYS_unshare, 1, SANDBOX_NAMESPACES},
             {SYS_landlock_create_ruleset, 1, SANDBOX_LANDLOCK},
             {SYS_landlock_create_ruleset, 2, SANDBOX_LANDLOCK},
             {SYS_landlock_add_rule, 1, SANDBOX_LANDLOCK},
             {SYS_landlock_restrict_self, 1, SANDBOX_LANDLOCK},
             {SYS_prctl, 3, SANDBOX_SECCOMP}};
    unsigned here, missing;
    fail_call(0, 0, 0);
    shared->grants = true;
    assert_int_equal(starts(&here), 0);
    assert_int_equal(here & (SANDBOX_NAMESPACES | SANDBOX_LANDLOCK), 0);
    assert_int_equal(n_calls(SYS_landlock_restrict_self, -1, 0), 1);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        if (here & v[i].missing)
            continue; // of this kernel, too
        fail_call(v[i].number, v[i].nth, EPERM);
        assert_int_equal(starts(&missing), 0);
        if (missing != (here | v[i].missing))
            fail_msg("case %zu: %u is missing", i, missing);
    }
    fail_call(SYS_openat, 5, ENOENT); // a folder that this system does not have
    assert_int_equal(starts(&missing), 0);
    assert_int_equal(missing, here);
    fail_call(SYS_openat, 5, EACCES);
    assert_int_equal(starts(&missing), 0);
    assert_int_equal(missing, here | SANDBOX_LANDLOCK);
    shared->grants = false;
}

static void a_step_that_fails_is_named(void **state)
{
    (void)state;
    static const struct {
        long number;
        unsigned nth;
        const char *step;
    } v[] = {{SYS_dup3, 1, "child"},          {SYS_dup3, 2, "dup3"},
             {SYS_dup3, 4, "dup3"},           {SYS_close_range, 1, "dup3"},
             {SYS_prlimit64, 1, "prlimit"},   {SYS_prlimit64, 2, "prlimit"},
             {SYS_prlimit64, 3, "prlimit"},   {SYS_prlimit64, 4, "prlimit"},
             {SYS_prlimit64, 5, "prlimit"},   {SYS_prctl, 1, "prctl"},
             {SYS_prctl, 2, "prctl"},         {SYS_execve, 1, "/usr/bin/python"},
             {SYS_write, 1, "child"},         {SYS_setgroups, 1, "setresuid"},
             {SYS_setresgid, 1, "setresuid"}, {SYS_setresuid, 1, "setresuid"}};
    unsigned missing, before = n_descriptors();
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char says[64];
        if (strcmp(v[i].step, "setresuid") == 0 && geteuid() != 0)
            continue; // there is nothing to leave
        fail_call(v[i].number, v[i].nth, ENOLCK);
        if (strcmp(v[i].step, "child") == 0) {
            assert_int_equal(starts(&missing), -EIO);
            assert_non_null(strstr(fail_text(), "of a helper: child: Input/output error"));
            continue;
        }
        assert_int_equal(starts(&missing), -EIO);
        snprintf(says, sizeof(says), "of a helper: %s: %s", v[i].step, strerror(ENOLCK));
        if (!strstr(fail_text(), says))
            fail_msg("case %zu: %s", i, fail_text());
    }
    assert_int_equal(n_descriptors(), before);
}

/* The limits and descriptors of the header, and no others. */
static void the_layers_are_what_they_should_be(void **state)
{
    (void)state;
    unsigned missing, before = n_descriptors();
    fail_call(0, 0, 0);
    assert_int_equal(starts(&missing), 0);
    assert_int_equal(n_descriptors(), before);
    assert_int_equal(
        n_calls(SYS_unshare,
                CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWUTS, -1),
        1);
    assert_int_equal(n_calls(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1), 1);
    assert_int_equal(n_calls(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL), 1);
    assert_int_equal(n_calls(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER), 1);
    assert_int_equal(n_calls(SYS_setpgid, 0, 0), 1);
    for (int i = 1; i <= 64; i++)
        assert_int_equal(n_calls(SYS_rt_sigaction, i, -1), 1);
    assert_int_equal(n_calls(SYS_rt_sigaction, -1, -1), 64);
    assert_int_equal(n_calls(SYS_rt_sigprocmask, SIG_SETMASK, -1), 1);
    assert_int_equal(n_calls(SYS_close_range, 4, (long)~0u), 1);
    assert_int_equal(n_calls(SYS_dup3, -1, 3), 1);
    for (int i = 0; i <= 2; i++)
        assert_int_equal(n_calls(SYS_dup3, -1, i), 1);
    if (geteuid() == 0) {
        assert_int_equal(n_calls(SYS_setgroups, 0, 0), 1);
        assert_int_equal(n_calls(SYS_setresgid, 65534, 65534), 1);
        assert_int_equal(n_calls(SYS_setresuid, 65534, 65534), 1);
    }
    assert_int_equal(n_calls(SYS_landlock_add_rule, -1, LANDLOCK_RULE_PATH_BENEATH),
                     n_calls(SYS_landlock_add_rule, -1, -1));
    if (!(missing & SANDBOX_LANDLOCK)) // the rules, of the folders that are here
        assert_true(n_calls(SYS_landlock_add_rule, -1, -1) >= 4);
}

/* Runs the filter, as the kernel does. */
static uint32_t filtered(uint32_t arch, long number, const uint64_t args[6])
{
    struct seccomp_data data = {.nr = (int)number, .arch = arch};
    uint32_t a = 0;
    memcpy(data.args, args, sizeof(data.args));
    for (unsigned at = 0; at < shared->n_filter; at++) {
        const struct sock_filter *f = &shared->filter[at];
        if (f->code == (BPF_LD | BPF_W | BPF_ABS))
            memcpy(&a, (char *)&data + f->k, 4);
        else if (f->code == (BPF_JMP | BPF_JEQ | BPF_K))
            at += a == f->k ? f->jt : f->jf;
        else if (f->code == (BPF_JMP | BPF_JSET | BPF_K))
            at += a & f->k ? f->jt : f->jf;
        else if (f->code == (BPF_RET | BPF_K))
            return f->k;
        else
            fail_msg("instruction %u has code %x", at, f->code);
    }
    fail_msg("the filter has no end");
    return 0;
}

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif
#define ANY UINT64_C(0xA5A5A5A55A5A5A5A) // no value that is checked

/* The result for a call whose argument i is `value`, and the others any. */
static bool is_allowed(long number, unsigned i, uint64_t value)
{
    uint64_t args[6] = {ANY, ANY, ANY, ANY, ANY, ANY};
    args[i] = value;
    uint32_t result = filtered(ARCH, number, args);
    assert_true(result == SECCOMP_RET_ALLOW || result == (SECCOMP_RET_ERRNO | EPERM));
    return result == SECCOMP_RET_ALLOW;
}

static void the_filter_allows_some_calls_only(void **state)
{
    (void)state;
    static const int some[] = {SYS_read, SYS_mmap, SYS_restart_syscall, SYS_exit_group, SYS_futex},
                     others[] = {SYS_socket,   SYS_connect, SYS_clone, SYS_kill,     SYS_ptrace,
                                 SYS_unlinkat, SYS_setuid,  SYS_mount, SYS_execveat, SYS_bpf};
    static const unsigned long ioctls[] = {TCGETS, FIOCLEX, FIONCLEX},
                               fcntls[] = {F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC};
    static const uint64_t writes[] = {O_WRONLY, O_RDWR, O_CREAT, O_TRUNC};
    unsigned missing, n_plain = 0;
    fail_call(0, 0, 0);
    assert_int_equal(starts(&missing), 0);
    assert_true(shared->n_filter > 0);
    for (size_t i = 0; i < ARRAY_LEN(some); i++)
        assert_true(is_allowed(some[i], 0, ANY));
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_false(is_allowed(others[i], 0, ANY));
    for (long i = 0; i < 1024; i++)
        n_plain += is_allowed(i, 0, ANY);
#ifdef __x86_64__
    assert_int_equal(n_plain, 53);
    assert_true(is_allowed(SYS_arch_prctl, 0, ANY));
    assert_true(is_allowed(SYS_open, 1, O_CLOEXEC));
    for (size_t i = 0; i < ARRAY_LEN(writes); i++)
        assert_false(is_allowed(SYS_open, 1, writes[i]));
#endif
    assert_true(is_allowed(SYS_openat, 2, O_CLOEXEC | O_NOFOLLOW));
    for (size_t i = 0; i < ARRAY_LEN(writes); i++)
        assert_false(is_allowed(SYS_openat, 2, O_CLOEXEC | writes[i]));
    assert_true(is_allowed(SYS_prlimit64, 2, 0));
    assert_false(is_allowed(SYS_prlimit64, 2, 1));
    assert_false(is_allowed(SYS_prlimit64, 2, UINT64_C(1) << 32)); // a pointer has both halves
    for (size_t i = 0; i < ARRAY_LEN(ioctls); i++) {
        assert_true(is_allowed(SYS_ioctl, 1, ioctls[i]));
        assert_false(is_allowed(SYS_ioctl, 1, ioctls[i] | UINT64_C(1) << 32));
        assert_false(is_allowed(SYS_ioctl, 0, ioctls[i]));
    }
    assert_false(is_allowed(SYS_ioctl, 1, FIONREAD));
    for (size_t i = 0; i < ARRAY_LEN(fcntls); i++)
        assert_true(is_allowed(SYS_fcntl, 1, fcntls[i]));
    assert_false(is_allowed(SYS_fcntl, 1, F_SETOWN));
    const uint64_t none[6] = {0};
    assert_int_equal(filtered(ARCH ^ 1, SYS_read, none), SECCOMP_RET_KILL_PROCESS);
    for (unsigned i = 0; i < shared->n; i++) // the address of the path of Python
        if (shared->calls[i].number == SYS_execve) {
            uint64_t path = (uint64_t)shared->calls[i].args[0];
            assert_true(is_allowed(SYS_execve, 0, path));
            assert_false(is_allowed(SYS_execve, 0, path + 1));
            assert_false(is_allowed(SYS_execve, 0, (uint32_t)path));
        }
    assert_false(is_allowed(SYS_execve, 0, 0));
}

static int open_shared(void **state)
{
    (void)state;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hostile_script_can_do_nothing),
        cmocka_unit_test(a_script_cannot_use_the_limits_of_its_parent),
        cmocka_unit_test(a_script_ends_with_the_process_that_started_it),
        cmocka_unit_test(a_limit_that_cannot_be_set_is_an_error),
        cmocka_unit_test(a_child_that_is_held_is_not_awaited),
        cmocka_unit_test(a_python_that_does_not_start_is_not_awaited),
        cmocka_unit_test(signals_do_not_end_the_wait_for_a_child),
        cmocka_unit_test(missing_layers_have_names),
        cmocka_unit_test(a_process_that_cannot_be_made_is_an_error),
        cmocka_unit_test(descriptors_that_cannot_be_opened_are_an_error),
        cmocka_unit_test(a_layer_that_is_refused_is_missing),
        cmocka_unit_test(a_step_that_fails_is_named),
        cmocka_unit_test(the_layers_are_what_they_should_be),
        cmocka_unit_test(the_filter_allows_some_calls_only),
    };
    return cmocka_run_group_tests(tests, open_shared, NULL);
}
