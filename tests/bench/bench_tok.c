/* bench_tok.c - the time to tokenize a mebibyte of text: prose, and one endless word. With patterns
 * compiled to machine code, and without, as in a unit with MemoryDenyWriteExecute=. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "lib/lib.h"
#include "lib/models/texts.h"

#ifndef PR_SET_MDWE // of Linux 6.3
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

#define N_BYTES (1 << 20)
#define N_TRIES 5

static char prose[N_BYTES], word[N_BYTES];

static const struct {
    const char *name, *path; // in the checkout, or else in ../shared
} vocabs[] = {
    {"embedded", SOURCE_DIR "/models/tales-11m-q8_0.gguf"},
    {"Llama 3", "data/vocab/vocab-llama-bpe.gguf"},
    {"Qwen 2", "data/vocab/vocab-qwen2.gguf"},
    {"Llama 2 (spm)", "data/vocab/ggml-vocab-llama-spm.gguf"},
};

/* The prose is the documentation, repeated. */
static void fill_texts(void)
{
    size_t len;
    AUTO(mem_free) char *page = lib_read(SOURCE_DIR "/docs/operating.md", &len);
    for (size_t i = 0; i < N_BYTES; i++)
        prose[i] = page[i % len];
    memset(word, 'a', N_BYTES);
}

/* The minimum CPU time of several tries. */
static double ms_of(const struct tok *t, const char *text, size_t *ret_n)
{
    double best = 1e9;
    for (int i = 0; i < N_TRIES; i++) {
        AUTO(mem_free) uint32_t *ids = NULL;
        clock_t from = clock();
        if (tok_encode(t, text, N_BYTES, false, false, &ids, ret_n) < 0)
            abort();
        double ms = (double)(clock() - from) * 1e3 / CLOCKS_PER_SEC;
        best = ms < best ? ms : best;
    }
    return best;
}

static void print_times(const char *how)
{
    printf("%-24s %12s %14s %14s\n", how, "prose, ms", "prose, tokens", "one word, ms");
    for (size_t i = 0; i < ARRAY_LEN(vocabs); i++) {
        const char *path = *vocabs[i].path == '/' ? vocabs[i].path : lib_shared(vocabs[i].path);
        if (!path)
            continue;
        AUTO(tok_free) struct tok *t = texts_vocabulary(path);
        size_t n, n_word;
        double prose_ms = ms_of(t, prose, &n);
        printf("%-24s %12.1f %14zu %14.1f\n", vocabs[i].name, prose_ms, n, ms_of(t, word, &n_word));
    }
}

/* Runs in a separate process, because this one keeps its memory for machine code. */
static void print_times_without_code(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) < 0)
            printf("skipped: this kernel has no PR_SET_MDWE\n");
        else
            print_times("1 MiB, no machine code");
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, &status, 0);
}

int main(void)
{
    fill_texts();
    print_times_without_code();
    print_times("1 MiB");
    return 0;
}
