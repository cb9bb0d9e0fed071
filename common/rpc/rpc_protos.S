/* rpc_protos.S - the FileDescriptorSet of proto/, written by protoc-c, for rpc_reflection.c. */
#include "base/asm_notes.inc"

    .section .rodata
    .global rpc_protos
    .global rpc_protos_size
    .hidden rpc_protos
    .hidden rpc_protos_size
rpc_protos:
    .incbin "protos.bin"
end:
    .balign 8
rpc_protos_size:
    .quad end - rpc_protos
