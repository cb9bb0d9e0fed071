/* fuzz_draft_model_round.c - Rounds of hostile verifiers, read by the draft-model proposer. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "lib/models/tiny.h"
#include "lib/rigs/rounds.h"
#include "proposer-svc/draftmodel/prop_draft_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The proposer reads its model from a file. With 4 layers, 1 MiB of KV is full before the sessions
 * are. */
static void write_model(int fd)
{
    const struct tiny t = {
        .arch = "llama", .type = KERNEL_Q8_0, .head_type = KERNEL_Q8_0, .n_layers = 4};
    size_t len;
    void *file = tiny_write(&t, &len);
    if (write(fd, file, len) != (ssize_t)len)
        abort();
    free(file);
}

static void start(void)
{
    char path[] = "/tmp/tandem-draft-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        abort();
    write_model(fd);
    prop_draft_model_settings = (struct prop_draft_model_settings){.model = path,
                                                                   .quantise = (char *)"no",
                                                                   .float_gemm = (char *)"own",
                                                                   .kv_type = (char *)"f32",
                                                                   .kv_mib = 1,
                                                                   .threads = 1,
                                                                   .sparse_k = 8};
    rounds_open(&prop_draft_model);
    close(fd);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool is_open;
    if (!is_open)
        start();
    is_open = true;
    rounds_read(data, n);
    return 0;
}
