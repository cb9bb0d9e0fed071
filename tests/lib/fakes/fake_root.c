/* fake_root.c - a folder that replaces the root of a machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "lib/lib.h"
#include "lib/fakes/fake_root.h"

const char *fake_root_new(void)
{
    static char root[32];
    strcpy(root, "/tmp/tandem-root-XXXXXX");
    assert_non_null(mkdtemp(root));
    return root;
}

void fake_root_put(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

void fake_root_remove(const char *root)
{
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
}
