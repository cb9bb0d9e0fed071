/* sandbox.c - starts Python in a process that may compute and nothing else. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "gateway/serve/sandbox.h"

#define NOBODY 65534
#define N_SIGNALS 64
#define MAX_CODE 512
#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "sandbox.c: add the number of this architecture, from linux/audit.h"
#endif

static const char python[] = "/usr/bin/python3";

/* ---- seccomp ---- */

/* Calls with any arguments. */
static const int plain_calls[] = {
    SYS_read,
    SYS_write,
    SYS_close,
    SYS_fstat,
    SYS_lseek,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_rt_sigaction,
    SYS_dup,
    SYS_rt_sigreturn,
    SYS_rt_sigprocmask,
    SYS_sigaltstack,
    SYS_pread64,
    SYS_readv,
    SYS_writev,
    SYS_readlinkat,
    SYS_getcwd,
    SYS_newfstatat,
    SYS_statx,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_getdents64,
    SYS_getrandom,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getpid,
    SYS_gettid,
    SYS_futex,
    SYS_uname,
    SYS_sysinfo,
    SYS_exit,
    SYS_exit_group,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_rseq,
    SYS_gettimeofday,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_set_tid_address,
    SYS_set_robust_list,
    SYS_restart_syscall,
#ifdef __x86_64__
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_time,
    SYS_arch_prctl,
#endif
};

/* Calls that are allowed if one argument has this value, or none of these bits. */
struct checked_call {
    int number, argument;
    bool is_mask;
    uint64_t value;
};

#define WRITES (O_ACCMODE | O_CREAT | O_TRUNC)
static const struct checked_call checked_calls[] = {
    {SYS_openat, 2, true, WRITES},
#ifdef __x86_64__
    {SYS_open, 1, true, WRITES},
#endif
    {SYS_prlimit64, 2, false, 0}, // reads limits
    {SYS_ioctl, 1, false, TCGETS},
    {SYS_ioctl, 1, false, FIOCLEX},
    {SYS_ioctl, 1, false, FIONCLEX},
    {SYS_fcntl, 1, false, F_GETFD},
    {SYS_fcntl, 1, false, F_SETFD},
    {SYS_fcntl, 1, false, F_GETFL},
    {SYS_fcntl, 1, false, F_DUPFD_CLOEXEC},
    /* For the start of Python. The filter compares the address of the path, never the text. A
     * hostile script could map this address, and then execute any file that landlock allows. */
    {SYS_execve, 0, false, (uintptr_t)python},
};

struct code {
    unsigned short n;
    struct sock_filter v[MAX_CODE];
};

static void add(struct code *c, struct sock_filter next)
{
    c->v[c->n++] = next;
}

#define ADD(c, ...) add(c, (struct sock_filter)__VA_ARGS__)

static void load(struct code *c, size_t offset)
{
    ADD(c, BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void end_with(struct code *c, uint32_t result)
{
    ADD(c, BPF_STMT(BPF_RET | BPF_K, result));
}

/* Skips so many instructions if the loaded word is `value`, or is not. */
static void compare(struct code *c, uint32_t value, uint8_t if_equal, uint8_t if_not)
{
    ADD(c, BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, if_equal, if_not));
}

static void add_checked(struct code *c, const struct checked_call *k)
{
    size_t at = offsetof(struct seccomp_data, args) + 8 * (size_t)k->argument; // little endian
    load(c, offsetof(struct seccomp_data, nr));
    compare(c, (uint32_t)k->number, 0, k->is_mask ? 3 : 5);
    load(c, at);
    if (k->is_mask) {
        ADD(c, BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (uint32_t)k->value, 1, 0));
    } else {
        compare(c, (uint32_t)k->value, 0, 3);
        load(c, at + 4);
        compare(c, (uint32_t)(k->value >> 32), 0, 1);
    }
    end_with(c, SECCOMP_RET_ALLOW);
}

/* All other calls fail with EPERM, so that Python raises an exception. */
static void make_filter(struct code *c)
{
    c->n = 0;
    load(c, offsetof(struct seccomp_data, arch));
    compare(c, ARCH, 1, 0);
    end_with(c, SECCOMP_RET_KILL_PROCESS);
    load(c, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < ARRAY_LEN(plain_calls); i++) {
        compare(c, (uint32_t)plain_calls[i], 0, 1);
        end_with(c, SECCOMP_RET_ALLOW);
    }
    for (size_t i = 0; i < ARRAY_LEN(checked_calls); i++)
        add_checked(c, &checked_calls[i]);
    end_with(c, SECCOMP_RET_ERRNO | EPERM);
}

/* ---- landlock ---- */

/* All rights of its second version (Linux 5.19). */
#define HANDLED (LANDLOCK_ACCESS_FS_REFER | HANDLED_FIRST)
#define HANDLED_FIRST (LANDLOCK_ACCESS_FS_REFER - 1) // first version (Linux 5.13)
#define READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define RUN (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE)

static const struct {
    const char *path;
    uint64_t access;
} allowed_paths[] = {
    {python, RUN},
    {"/lib64/ld-linux-x86-64.so.2", RUN},
    {"/usr/lib", READ},
    {"/lib/ld-linux-aarch64.so.1", RUN},
    {"/usr/lib64", READ},
    {"/usr/local/lib", READ},
    {"/lib", READ},
    {"/lib64", READ},
    {"/etc/ld.so.cache", LANDLOCK_ACCESS_FS_READ_FILE},
};

/* ---- in the child: only system calls, because other threads may have held any lock ---- */

/* What the child reports before it becomes Python. */
struct report {
    unsigned missing;
    int error;       // errno; 0: none
    char failed[16]; // the step
};

static bool limit(int what, rlim_t value)
{
    struct rlimit l = {value, value};
    return syscall(SYS_prlimit64, 0, what, &l, NULL) == 0;
}

static bool set_limits(void)
{
    return limit(RLIMIT_AS, 256u << 20) && limit(RLIMIT_NOFILE, 16) && limit(RLIMIT_FSIZE, 0) &&
           limit(RLIMIT_CORE, 0) && limit(RLIMIT_NPROC, 0);
}

static bool leave_root(void)
{
    if (syscall(SYS_geteuid) != 0)
        return true;
    return syscall(SYS_setgroups, 0, NULL) == 0 &&
           syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY) == 0 &&
           syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0;
}

static bool enter_namespaces(void)
{
    return syscall(SYS_unshare,
                   CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS | CLONE_NEWUTS) == 0;
}

static bool allow_path(int rules, const char *path, uint64_t access)
{
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC, 0);
    if (fd < 0)
        return errno == ENOENT; // this system has no such folder
    struct landlock_path_beneath_attr a = {.allowed_access = access, .parent_fd = (int)fd};
    bool ok = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &a, 0) == 0;
    syscall(SYS_close, fd);
    return ok;
}

static bool enter_landlock(void)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    struct landlock_ruleset_attr a = {.handled_access_fs = version > 1 ? HANDLED : HANDLED_FIRST};
    if (version < 1)
        return false;
    long rules = syscall(SYS_landlock_create_ruleset, &a, sizeof(a), 0);
    bool ok = rules >= 0;
    for (size_t i = 0; i < ARRAY_LEN(allowed_paths) && ok; i++)
        ok = allow_path((int)rules, allowed_paths[i].path, allowed_paths[i].access);
    ok = ok && syscall(SYS_landlock_restrict_self, rules, 0) == 0;
    if (rules >= 0)
        syscall(SYS_close, rules);
    return ok;
}

static bool enter_seccomp(const struct code *c)
{
    struct sock_fprog program = {.len = c->n, .filter = (struct sock_filter *)c->v};
    return syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/* A caught signal gets its default again from execve(), an ignored one does not. */
static void reset_signals(void)
{
    uint64_t none = 0, kernel_sigaction[8] = {0};
    for (int i = 1; i <= N_SIGNALS; i++)
        syscall(SYS_rt_sigaction, i, kernel_sigaction, NULL, sizeof(none));
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none));
}

/* helper_fd becomes 0 and 1, /dev/null 2, and pipe_fd 3, which execve() closes. */
static bool set_descriptors(int helper_fd, int null_fd, int pipe_fd)
{
    /* Above the range of the copies, so that none is overwritten before it was copied. */
    long helper = syscall(SYS_fcntl, helper_fd, F_DUPFD_CLOEXEC, 10);
    long null = syscall(SYS_fcntl, null_fd, F_DUPFD_CLOEXEC, 10);
    long report = syscall(SYS_fcntl, pipe_fd, F_DUPFD_CLOEXEC, 10);
    bool ok = syscall(SYS_dup3, report, 3, O_CLOEXEC) == 3 &&
              syscall(SYS_dup3, helper, 0, 0) == 0 && syscall(SYS_dup3, helper, 1, 0) == 1 &&
              syscall(SYS_dup3, null, 2, 0) == 2;
    return ok && syscall(SYS_close_range, 4, ~0u, 0) == 0;
}

static const char *enter_layers(unsigned *missing)
{
    if (!leave_root())
        return "setresuid";
    if (!enter_namespaces())
        *missing |= SANDBOX_NAMESPACES;
    if (!set_limits())
        return "prlimit";
    if (syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0)
        return "prctl";
    if (!enter_landlock())
        *missing |= SANDBOX_LANDLOCK;
    return NULL;
}

/* The filter comes last, and allows the writing of a report. */
static void become_python(const char *script, int fd, int null_fd, int pipe_fd,
                          const struct code *c)
{
    const char *argv[] = {python, "-I", "-c", script, NULL}, *envp[] = {NULL};
    struct report report = {0};
    reset_signals();
    syscall(SYS_setpgid, 0, 0); // Ctrl-C in a terminal goes to the gateway only
    const char *failed = set_descriptors(fd, null_fd, pipe_fd) ? NULL : "dup3";
    failed = failed ? failed : enter_layers(&report.missing);
    if (!failed) {
        if (!enter_seccomp(c))
            report.missing |= SANDBOX_SECCOMP;
        syscall(SYS_write, 3, &report, sizeof(report));
        syscall(SYS_execve, python, argv, envp);
        failed = python;
    }
    report.error = errno;
    for (size_t i = 0; failed[i] && i + 1 < sizeof(report.failed); i++)
        report.failed[i] = failed[i];
    syscall(SYS_write, 3, &report, sizeof(report));
    syscall(SYS_exit_group, 127);
}

/* ---- in the parent ---- */

/* Waits until the child has written or closed the pipe. -ETIMEDOUT; -ECANCELED. */
static int await_report(int fd, const struct sandbox_patience *patience)
{
    struct pollfd p[] = {{fd, POLLIN, 0}, {patience->stop_fd, POLLIN, 0}};
    for (;;) {
        int64_t left_us = patience->until_us - clock_us();
        int n = left_us > 0 ? poll(p, ARRAY_LEN(p), (int)(left_us / 1000) + 1) : 0;
        if (n == 0)
            return -ETIMEDOUT;
        if (n > 0)
            return p[1].revents ? -ECANCELED : 0;
    }
}

/* The last report counts: the first is followed by another one only if execve() has failed. The
 * kernel may hold the child for long: a system with many namespaces is slow to make one. */
static void read_report(int fd, const struct sandbox_patience *patience, struct report *ret)
{
    struct report next;
    int rc;
    *ret = (struct report){.error = EIO, .failed = "child"};
    while ((rc = await_report(fd, patience)) == 0 &&
           read(fd, &next, sizeof(next)) == (ssize_t)sizeof(next))
        *ret = next;
    if (rc < 0 && !ret->error)
        snprintf(ret->failed, sizeof(ret->failed), "execve"); // it has reported that it is ready
    if (rc < 0)
        ret->error = -rc;
}

static int start_with(const char *script, int fd, int null_fd, const int report_pipe[2],
                      const struct sandbox_patience *patience, pid_t *ret_pid,
                      unsigned *ret_missing)
{
    struct code code;
    struct report report;
    make_filter(&code);
    pid_t pid = _Fork(); // without the handlers of libraries
    if (pid == 0)
        become_python(script, fd, null_fd, report_pipe[1], &code);
    int e = errno;
    close(report_pipe[1]);
    if (pid < 0)
        return fail(-EIO, "template: cannot start a process: %s", strerror(e));
    read_report(report_pipe[0], patience, &report);
    if (report.error) {
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        return fail(report.error == ECANCELED ? -ECANCELED : -EIO,
                    "template: cannot start the sandbox of a helper: %s: %s", report.failed,
                    strerror(report.error));
    }
    *ret_pid = pid;
    *ret_missing = report.missing;
    return 0;
}

int sandbox_start(const char *script, int fd, const struct sandbox_patience *patience,
                  pid_t *ret_pid, unsigned *ret_missing)
{
    int report_pipe[2], null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0 || pipe2(report_pipe, O_CLOEXEC) < 0) {
        int e = errno;
        if (null_fd >= 0)
            close(null_fd);
        return fail(-EIO, "template: no descriptors for a helper: %s", strerror(e));
    }
    int rc = start_with(script, fd, null_fd, report_pipe, patience, ret_pid, ret_missing);
    close(report_pipe[0]);
    close(null_fd);
    return rc;
}

void sandbox_text(unsigned layers, char ret_text[40])
{
    snprintf(ret_text, 40, "%s%s%s", layers & SANDBOX_NAMESPACES ? "namespaces " : "",
             layers & SANDBOX_LANDLOCK ? "landlock " : "",
             layers & SANDBOX_SECCOMP ? "seccomp" : "");
    size_t n = strlen(ret_text);
    if (n && ret_text[n - 1] == ' ')
        ret_text[n - 1] = 0;
}
