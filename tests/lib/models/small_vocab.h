/* small_vocab.h - vocabularies of a few hundred tokens, written as GGUF files in memory. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "file/gguf_write.h"
#include "text/tok.h"

enum small_vocab { SMALL_BPE, SMALL_SPM };

/* Of SMALL_BPE: ids 0-255 are the bytes; then what its merges make, in their order; then the
 * special ones. */
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

/* Of SMALL_SPM: <unk>, <s>, </s>, the 256 bytes, then pieces. */
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

/* All tokenizer keys; add_bos is not among them. */
void small_vocab_keys(struct gguf_write *w, enum small_vocab which);
/* The same with pre-tokenizer `pre` (byte-level ones; NULL: gpt-2), and nothing else in the file.
 */
struct tok *small_vocab_tok(enum small_vocab which, const char *pre);
/* Finishes a writer into memory, without tensors; free it. */
void *small_vocab_finish(struct gguf_write *w, size_t *ret_len);
