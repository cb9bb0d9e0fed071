/* folder.c - see folder.h. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "lib/lib.h"
#include "lib/rigs/folder.h"

void folder_make(char path[FOLDER_PATH])
{
    snprintf(path, FOLDER_PATH, "/tmp/tandem-test-%d-XXXXXX", (int)getpid());
    assert_non_null(mkdtemp(path));
}

unsigned folder_files(const char *folder, char path[FOLDER_PATH + 256])
{
    unsigned n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (*e->d_name != '.') {
            snprintf(path, FOLDER_PATH + 256, "%s/%s", folder, e->d_name);
            n++;
        }
    closedir(d);
    return n;
}

void folder_remove(const char *folder)
{
    char path[FOLDER_PATH + 256];
    while (folder_files(folder, path))
        assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}
