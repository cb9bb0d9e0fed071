/* dequant_tool.c - dequantizes weights of a file, for comparison by a script.
 *
 *   dequant_tool TYPE N_IN < rows
 *
 * reads rows of N_IN weights. TYPE is the number of their type in GGUF files. Writes the weights as
 * float32 to standard output twice: from the layout of the file, and from the packed layout. */
#include "kernel/kernel.h"
#include "lib/lib.h"
#include "lib/models/quantise.h"
#include "lib/models/weights.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    uint32_t per, bytes, n_in = argc == 3 ? (uint32_t)atoi(argv[2]) : 0;
    enum kernel_type type = argc == 3 ? quantise_from_gguf((enum gguf_type)atoi(argv[1])) : 0;
    if (argc != 3 || kernel_type_block(type, &per, &bytes) < 0 || !n_in || n_in % per) {
        fprintf(stderr, "dequant_tool TYPE N_IN < rows\n");
        return 2;
    }
    size_t row_bytes = (size_t)n_in / per * bytes, room = 64 << 20, len;
    uint8_t *rows = weights_alloc(room);
    len = fread(rows, 1, room, stdin);
    uint32_t n_out = (uint32_t)(len / row_bytes);
    struct kernel_mat w = weights_pack(type, rows, n_out, n_in);
    float *to = weights_alloc(n_in * sizeof(float));
    for (uint32_t r = 0; r < 2 * n_out; r++) {
        if (r < n_out)
            kernel_dequant(type, rows + r * row_bytes, n_in, to);
        else
            kernel_dequant_packed(&w, r - n_out, to);
        fwrite(to, sizeof(float), n_in, stdout);
    }
    free(to);
    free((void *)w.data);
    free(rows);
    return 0;
}
