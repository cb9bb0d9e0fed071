/* cert.h - a certificate, its private key and its authority, from PEM files that may change.
 *
 * The newest content that is complete and fits together is in use. A change takes effect when the
 * files have rested for one poll. So a certificate and its key may be replaced one after the other.
 * Content with a fault is logged once and leaves the old content in use.
 *
 * Each file has a metric with the end of its validity. A file that ends soon is logged once a day.
 *
 * Threads: main. cert_files_text(), cert_files_version() and cert_text_unref(): any. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/secret.h"

#define CERT_FILES_POLL_US 1000000                  // between two looks at the files
#define CERT_FILES_WARN_S ((int64_t)14 * 24 * 3600) // before the end of validity

/* Content of the files that fits together; never changes. */
struct cert_text {
    atomic_uint n_refs;
    uint64_t version;            // 1 for the first content, then rising
    struct secret cert, key, ca; // ca.text: NULL without an authority
};
void cert_text_unref(struct cert_text *t); // NULL is fine
DEFINE_AUTO(struct cert_text, cert_text_unref)

struct cert_paths {
    const char *settings; // "rpc_tls": texts name rpc_tls_cert, rpc_tls_key and rpc_tls_ca
    const char *cert, *key;
    const char *ca; // NULL: none
    /* A further check of new content, for a library that reads it. NULL: none. */
    int (*check)(const struct cert_text *t);
};

struct cert_files;

/* Reads the files. The strings of p must outlive the object. -EINVAL: a file holds no certificate
 * or key, or the key is that of another certificate; other errors: a file cannot be read. */
int cert_files_new(const struct cert_paths *p, struct cert_files **ret);
void cert_files_free(struct cert_files *f); // NULL is fine
DEFINE_AUTO(struct cert_files, cert_files_free)

/* The content in use. The caller has a reference. */
struct cert_text *cert_files_text(struct cert_files *f);
uint64_t cert_files_version(struct cert_files *f);

/* Looks for changes, at most once per CERT_FILES_POLL_US, and logs certificates that end soon.
 * now_us: clock_us(). wall_s: seconds since 1970. A NULL f is fine. */
void cert_files_poll(struct cert_files *f, int64_t now_us, int64_t wall_s);
/* Reads the files now, changed or not, and logs the result. A NULL f is fine. */
void cert_files_reload(struct cert_files *f);
