/* replay.c - runs a fuzzer's corpus as a plain test: every file of the folder, once. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        exit(1);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(n + !n); // exact size: ASan detects a read past the end
    if (!data || fread(data, 1, n, f) != n)
        exit(1);
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
    free(data);
}

int main(int argc, char **argv)
{
    DIR *d = argc > 1 ? opendir(argv[1]) : NULL;
    if (!d) {
        fprintf(stderr, "replay: no corpus %s\n", argc > 1 ? argv[1] : "");
        return 1;
    }
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", argv[1], e->d_name);
        replay(path);
        n++;
    }
    closedir(d);
    printf("%u inputs replayed\n", n);
    return n ? 0 : 1;
}
