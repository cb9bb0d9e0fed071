/* weights_file.h - the packed weights of a model in a file that later starts map instead of packing
 * them again. Services of one machine that map the same file have the weights in memory once.
 *
 * A file is named by its key: the model file (checkpoint_identity()), and the shapes, types and
 * layout of the packed weights. It has a header of WEIGHTS_FILE_HEADER bytes, then the weights as
 * they are in memory. The header has checksums of itself and of the weights. So a file that a crash
 * left incomplete is found and written again.
 *
 * The folder is trusted: a process that can write there can change the model. A mapped file must
 * not be cut short; deleting it is harmless.
 *
 * Threads: the one that loads the model. The weights themselves: any. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/pool.h"

#define WEIGHTS_FILE_HEADER 4096 // bytes

struct weights_file;

struct weights_file_key {
    uint64_t source; // checkpoint_identity()
    uint64_t plan;   // digest of shapes, types and layout
    size_t bytes;    // of the weights
};

/* Maps the file of this key, after comparing its checksum on all threads of the pool; ret_digest is
 * that of weights_file_finish(). -ENOENT: there is none, or it is damaged. Other errors: the folder
 * or the file. */
int weights_file_open(const char *folder, const struct weights_file_key *key, struct pool *pool,
                      uint64_t *ret_digest, struct weights_file **ret);
/* A new file with writable weights. -EBUSY: another process is writing it. -ENOSPC ... */
int weights_file_new(const char *folder, const struct weights_file_key *key,
                     struct weights_file **ret);
/* The weights of a new file are complete and become read-only. digest: of the model. After an error
 * the weights stay usable, and no file is left. */
int weights_file_finish(struct weights_file *f, struct pool *pool, uint64_t digest);
void *weights_file_data(const struct weights_file *f);
/* Unmaps the weights; deletes a new file that was not finished. */
void weights_file_free(struct weights_file *f);
DEFINE_AUTO(struct weights_file, weights_file_free)

/* Bytes of the key's file that are in memory now, because another service maps it or because it was
 * read not long ago. 0: there is no such file. */
size_t weights_file_resident(const char *folder, const struct weights_file_key *key);
