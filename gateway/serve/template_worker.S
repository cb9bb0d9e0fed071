/* template_worker.S - the script that renders chat templates, inside the program. */
#include "base/asm_notes.inc"

    .section .rodata
    .global template_worker_source
    .hidden template_worker_source
template_worker_source:
    .incbin "gateway/serve/template_worker.py"
    .byte 0
