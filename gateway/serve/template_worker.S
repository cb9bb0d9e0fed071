/* template_worker.S - the script that renders chat templates, inside the program. */
#include "base/asm_notes.inc"

    .section .rodata
    .global template_worker_source
    .global template_worker_size
    .hidden template_worker_source
    .hidden template_worker_size
template_worker_source:
    .incbin "gateway/serve/template_worker.py"
template_worker_end:
    .balign 8
template_worker_size:
    .quad template_worker_end - template_worker_source
