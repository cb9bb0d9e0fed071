/* secret.c - files of keys and certificates. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "base/log.h"
#include "base/secret.h"

static int read_all(int fd, struct secret *s)
{
    ssize_t n;
    while ((n = read(fd, s->text + s->len, SECRET_MAX + 1 - s->len)) > 0)
        s->len += (size_t)n;
    s->text[s->len < SECRET_MAX ? s->len : SECRET_MAX] = 0;
    return n < 0 ? -errno : s->len > SECRET_MAX ? -EFBIG : 0;
}

int secret_read(const char *what, const char *path, bool private, struct secret *ret)
{
    struct stat st = {0};
    AUTO(secret_done) struct secret s = {malloc(SECRET_MAX + 1), 0};
    if (!s.text)
        return fail(-ENOMEM, "no memory for %s", what);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not block
    int rc = fd < 0 || fstat(fd, &st) < 0 ? -errno : read_all(fd, &s);
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        return fail(rc, "cannot read %s from %s: %s", what, path, strerror(-rc));
    if (private && st.st_mode & S_IROTH)
        log_warn("everybody on this machine may read %s: chmod o= %s", what, path);
    *ret = s;
    s = (struct secret){0};
    return 0;
}

void secret_done(struct secret *s)
{
    if (s->text)
        explicit_bzero(s->text, s->len);
    free(s->text);
    *s = (struct secret){0};
}
