/* small_vocab.h - vocabularies of a few hundred tokens, written as GGUF files in memory. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "file/gguf_write.h"
#include "text/tok.h"

enum small_vocab { SMALL_BPE, SMALL_SPM };

/* SMALL_BPE: ids 0-255 are the bytes. Then follow the results of the merges, in order, and the
 * special tokens. */
enum small_bpe_id {
    SMALL_AB = 256,
    SMALL_ABC,
    SMALL_SPACE_A,
    SMALL_BC,
    SMALL_LL,
    SMALL_HE,
    SMALL_HELL,
    SMALL_HELLO,
    SMALL_E_ACUTE, // U+00E9, both bytes
    SMALL_BEGIN,   // "<|begin|>", control, BOS
    SMALL_END,     // "<|end|>", control, EOS
    SMALL_TOOL,    // "<tool>", user-defined
    SMALL_TOOL_X,  // "<tool>x", user-defined
    SMALL_PAD,     // "[PAD269]", unused
    SMALL_N,
};

/* SMALL_SPM: <unk>, <s>, </s>, the 256 bytes, then pieces. */
enum small_spm_id {
    SMALL_SPM_BYTES = 3,
    SMALL_SPM_SPACE = 259,
    SMALL_SPM_A,
    SMALL_SPM_B,
    SMALL_SPM_C,
    SMALL_SPM_SPACE_A,
    SMALL_SPM_BC,
    SMALL_SPM_AB,
    SMALL_SPM_SPACE_AB,
    SMALL_SPM_USER,
    SMALL_SPM_N,
};

/* Writes all tokenizer keys except add_bos. */
void small_vocab_keys(struct gguf_write *w, enum small_vocab which);
/* A tokenizer from a file with only these keys. pre: the pre-tokenizer of a byte-level vocabulary
 * (NULL: gpt-2). */
struct tok *small_vocab_tok(enum small_vocab which, const char *pre);
/* Finishes a file without tensors. Returns its bytes; free them. */
void *small_vocab_finish(struct gguf_write *w, size_t *ret_len);
