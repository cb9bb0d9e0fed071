/* usage_file.h - the file in which the counts of API keys survive a restart: an SQLite database.
 *
 * Several processes may use the file: the old and the new gateway during a reload, or several
 * gateways of a host. Each adds its own changes and reads the sum.
 *
 * The file holds the name of each key, its counts, and a hash of its digest. Neither a key nor its
 * digest can be computed from it. Rows that were not written for 31 days are removed.
 *
 * Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "gateway/keys/key_budget.h"
#include "gateway/keys/key_file.h"

struct usage_file;

/* One key. */
struct usage_file_entry {
    unsigned char digest[KEY_FILE_DIGEST];
    char name[KEY_FILE_MAX_NAME + 1];
    struct key_budget_counts before; // as this process knows them
    struct key_budget_change change; // the part of them that is not in the file yet
    struct key_budget_counts after;  // filled by usage_file_sync()
};

/* Opens the file, or creates it with mode 0600. A damaged file is renamed to PATH.damaged, with a
 * warning, and replaced by an empty one. now_us: microseconds since 1970.
 * -EEXIST: the file is a database of another program; it is not changed.
 * -EACCES, -ENOENT, -EROFS, -ENOSPC, -EIO, -ENOMEM ...; with a sentence. */
int usage_file_open(const char *path, int64_t now_us, struct usage_file **ret);
void usage_file_free(struct usage_file *f);
DEFINE_AUTO(struct usage_file, usage_file_free)

/* Adds the changes of n keys to the file in one transaction, and sets `after` of each.
 * A file that was removed or replaced is opened or created again, with a warning and all counts.
 * -EBADMSG: the file was damaged and is replaced; the next call writes all counts. -EBUSY: another
 * process writes; -ENOSPC, -EIO ...: nothing was written. With a sentence. */
int usage_file_sync(struct usage_file *f, struct usage_file_entry *entries, unsigned n,
                    int64_t now_us);
