/* tok.h - text to token ids and back, as the model file defines it.
 *
 * Byte-level BPE (tokenizer.model = gpt2; the pre-tokenizer is tokenizer.pre) and
 * SentencePiece with byte fallback (llama). Merging is O(n log n).
 *
 * Threads: immutable after tok_new(). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "file/checkpoint.h"

struct tok;

#define TOK_MAX_TEXT (8u << 20)  // bytes of one text
#define TOK_MAX_VOCAB (1u << 20) // tokens
#define TOK_MAX_MERGES (4u << 20)
#define TOK_MAX_TOKEN 65536        // bytes of one token
#define TOK_MAX_BYTES (256u << 20) // bytes of all tokens
#define TOK_MAX_EOS 64

enum tok_kind { TOK_NORMAL = 1, TOK_UNKNOWN, TOK_CONTROL, TOK_USER, TOK_UNUSED, TOK_BYTE };

/* Copies what it needs: c may be closed afterwards. -EINVAL: the vocabulary is missing or damaged;
 * -ENOTSUP: the tokenizer model or pre-tokenizer is not supported. */
int tok_new(const struct checkpoint *c, struct tok **ret);
void tok_free(struct tok *t);
DEFINE_AUTO(struct tok, tok_free)

uint32_t tok_n_vocab(const struct tok *t);
uint32_t tok_n_used(const struct tok *t);  // up to the last one in the digest
uint32_t tok_longest(const struct tok *t); // bytes of the longest token, names of special ones too
enum tok_kind tok_kind_of(const struct tok *t, uint32_t id); // id < tok_n_vocab()
/* Digest of all tokens (id, bytes, kind) except unused and padding ones, of BOS, and of the
 * end-of-generation ids. Equal digests mean that drafts can be exchanged. The digest does not hold
 * which end token a file prefers, so a base model can draft for its chat-tuned sibling. */
uint64_t tok_digest(const struct tok *t);

/* The token's bytes, valid as long as t. Empty for unused tokens and ids past the vocabulary, and
 * without `special` for control and unknown tokens. */
struct span tok_bytes(const struct tok *t, uint32_t id, bool special);
/* The special token of this name; UINT32_MAX: none. */
uint32_t tok_named(const struct tok *t, const char *name, size_t len);
bool tok_is_eos(const struct tok *t, uint32_t id); // any end-of-generation token
uint32_t tok_bos(const struct tok *t);             // UINT32_MAX: none
uint32_t tok_eos(const struct tok *t);             // UINT32_MAX: none
bool tok_add_bos(const struct tok *t);             // the file wants BOS first
/* All end-of-generation ids, ascending; their number. */
uint32_t tok_eos_ids(const struct tok *t, const uint32_t **ret_ids);

/* parse_special: names of control and unknown tokens in the text become these tokens; those of
 * user-defined tokens always do. add_bos: puts BOS first if the file wants it and the text does not
 * begin with it. ret_ids is malloc'ed, never NULL.
 * Bytes that the vocabulary lacks are dropped, as in the tokenizers that models were trained with
 * (Falcon's has no vertical tab).
 * -EILSEQ: not UTF-8 (the sentence names the byte); -EMSGSIZE: more than TOK_MAX_TEXT bytes;
 * -EINVAL: a pre-tokenizer reached its limits; -ENOMEM. */
int tok_encode(const struct tok *t, const char *text, size_t len, bool parse_special, bool add_bos,
               uint32_t **ret_ids, size_t *ret_n);
/* malloc'ed bytes and a NUL; they may end inside a character. A leading space that tok_encode()
 * added is removed. -EINVAL: an id out of range; -ENOMEM. */
int tok_decode(const struct tok *t, const uint32_t *ids, size_t n, bool special, char **ret_text,
               size_t *ret_len);
