/* logged.c - standard error in a file in memory. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "lib/lib.h"
#include "lib/rigs/logged.h"

static int before = -1, memory = -1; // descriptors

void logged_begin(void)
{
    assert_int_equal(before, -1);
    before = dup(STDERR_FILENO);
    memory = memfd_create("logged", MFD_CLOEXEC);
    assert_true(before >= 0 && memory >= 0);
    dup2(memory, STDERR_FILENO);
}

const char *logged_end(void)
{
    static char text[LOGGED_MAX + 1];
    dup2(before, STDERR_FILENO);
    close(before);
    before = -1;
    ssize_t n = pread(memory, text, LOGGED_MAX, 0);
    close(memory);
    text[n > 0 ? n : 0] = 0;
    return text;
}

unsigned logged_count(const char *text, const char *part)
{
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        n++;
    return n;
}
