/* cert.c - certificates and keys from files that may change. */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "base/cert.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metrics.h"

#define DAY_S 86400
#define N_FILES 3

/* What tells a changed file from an unchanged one. All 0: the file does not exist. */
struct stamp {
    uint64_t device, inode, size, changed_s, changed_ns;
};

/* A file of certificates and the end of its validity. */
struct validity {
    const char *path; // NULL: there is no such file
    struct metric *end;
    int64_t end_s;    // seconds since 1970
    int64_t warned_s; // time of the last warning; 0: none
};

struct cert_files {
    struct cert_paths p;
    struct stamp seen[N_FILES], read[N_FILES]; // at the last look; before the last reading
    int64_t next_us;                           // of the next look
    struct validity cert, ca;
    struct metric *failures;

    pthread_mutex_t mu; // guards now
    struct cert_text *now;
};

/* ---- content ---- */

void cert_text_unref(struct cert_text *t)
{
    if (!t || atomic_fetch_sub(&t->n_refs, 1) != 1)
        return;
    secret_done(&t->cert);
    secret_done(&t->key);
    secret_done(&t->ca);
    free(t);
}

/* NULL: the PEM text holds no further certificate. */
static X509 *next_certificate(BIO *in)
{
    return in ? PEM_read_bio_X509(in, NULL, NULL, (void *)(uintptr_t) "") : NULL;
}

/* The earliest end of validity of all certificates in the text, seconds since 1970. */
static int read_end(const struct secret *s, int64_t *ret_s)
{
    BIO *in = BIO_new_mem_buf(s->text, (int)s->len);
    unsigned n = 0;
    bool sound = true;
    X509 *x;
    while (sound && (x = next_certificate(in))) {
        struct tm tm = {0};
        sound = ASN1_TIME_to_tm(X509_get0_notAfter(x), &tm) == 1;
        int64_t end_s = timegm(&tm);
        *ret_s = n++ == 0 || end_s < *ret_s ? end_s : *ret_s;
        X509_free(x);
    }
    sound &= ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE; // else a damaged block
    ERR_clear_error();
    BIO_free(in);
    return n && sound ? 0 : -EINVAL;
}

static EVP_PKEY *read_private_key(const struct secret *s)
{
    BIO *in = BIO_new_mem_buf(s->text, (int)s->len);
    EVP_PKEY *k = in ? PEM_read_bio_PrivateKey(in, NULL, NULL, (void *)(uintptr_t) "") : NULL;
    BIO_free(in);
    return k;
}

/* Without this check gRPC core would silently create channels on which every call fails. */
static int check_pair(const struct cert_paths *p, const struct cert_text *t)
{
    BIO *in = BIO_new_mem_buf(t->cert.text, (int)t->cert.len);
    X509 *own = next_certificate(in);
    EVP_PKEY *key = read_private_key(&t->key);
    int rc = 0;
    if (!key)
        rc =
            fail(-EINVAL, "%s_key: %s holds no key (PEM, without a password)", p->settings, p->key);
    else if (!own || X509_check_private_key(own, key) != 1)
        rc = fail(-EINVAL, "%s_key: %s is not the key of %s", p->settings, p->key, p->cert);
    X509_free(own);
    BIO_free(in);
    EVP_PKEY_free(key);
    ERR_clear_error();
    return rc;
}

/* One file of the set. kind: "cert", "key" or "ca". */
static int read_file(const struct cert_paths *p, const char *kind, const char *path,
                     struct secret *ret)
{
    char name[64];
    if (!path)
        return 0;
    snprintf(name, sizeof(name), "%s_%s", p->settings, kind);
    return secret_read(name, path, strcmp(kind, "key") == 0, ret);
}

static int check_ends(const struct cert_paths *p, const struct cert_text *t, int64_t *ret_cert_s,
                      int64_t *ret_ca_s)
{
    if (read_end(&t->cert, ret_cert_s) < 0)
        return fail(-EINVAL, "%s_cert: %s holds no certificate (PEM), or a damaged one",
                    p->settings, p->cert);
    if (p->ca && read_end(&t->ca, ret_ca_s) < 0)
        return fail(-EINVAL, "%s_ca: %s holds no certificate (PEM), or a damaged one", p->settings,
                    p->ca);
    return 0;
}

/* ---- files ---- */

static void look(const struct cert_files *f, struct stamp ret[N_FILES])
{
    const char *const paths[N_FILES] = {f->p.cert, f->p.key, f->p.ca};
    for (int i = 0; i < N_FILES; i++) {
        struct stat st;
        ret[i] = (struct stamp){0};
        if (paths[i] && stat(paths[i], &st) == 0)
            ret[i] = (struct stamp){st.st_dev, st.st_ino, (uint64_t)st.st_size,
                                    (uint64_t)st.st_ctim.tv_sec, (uint64_t)st.st_ctim.tv_nsec};
    }
}

static bool same_secret(const struct secret *a, const struct secret *b)
{
    return a->len == b->len && memcmp(a->text ? a->text : "", b->text ? b->text : "", a->len) == 0;
}

static bool same_text(const struct cert_text *a, const struct cert_text *b)
{
    return same_secret(&a->cert, &b->cert) && same_secret(&a->key, &b->key) &&
           same_secret(&a->ca, &b->ca);
}

static void set_end(struct validity *v, int64_t end_s)
{
    v->end_s = end_s;
    v->warned_s = 0;
    if (v->path)
        metrics_set(v->end, (double)end_s);
}

/* The content of the files, if it fits together. The caller has a reference. */
static int read_text(const struct cert_paths *p, int64_t *ret_cert_s, int64_t *ret_ca_s,
                     struct cert_text **ret)
{
    AUTO(cert_text_unref) struct cert_text *t = calloc(1, sizeof(*t));
    if (!t)
        return fail(-ENOMEM, "no memory for the files of %s_cert", p->settings);
    atomic_init(&t->n_refs, 1);
    int rc = read_file(p, "cert", p->cert, &t->cert);
    rc = rc < 0 ? rc : read_file(p, "ca", p->ca, &t->ca);
    rc = rc < 0 ? rc : read_file(p, "key", p->key, &t->key);
    rc = rc < 0 ? rc : check_ends(p, t, ret_cert_s, ret_ca_s);
    rc = rc < 0 ? rc : check_pair(p, t);
    rc = rc < 0 || !p->check ? rc : p->check(t);
    if (rc == 0)
        *ret = TAKE(t);
    return rc;
}

/* Whether an error is one of the machine, and not of the files. */
static bool may_pass(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -EIO;
}

/* Puts the content of the files into use. 1: it is new; 0: it is in use already. */
static int load(struct cert_files *f)
{
    int64_t cert_s = 0, ca_s = 0;
    AUTO(cert_text_unref) struct cert_text *t = NULL;
    look(f, f->seen); // before reading: a change from now on is found by the next look
    int rc = read_text(&f->p, &cert_s, &ca_s, &t);
    if (!may_pass(rc)) // else the next look reads again
        memcpy(f->read, f->seen, sizeof(f->read));
    if (rc < 0 || (f->now && same_text(f->now, t)))
        return rc;
    set_end(&f->cert, cert_s);
    set_end(&f->ca, ca_s);
    t->version = f->now ? f->now->version + 1 : 1;
    pthread_mutex_lock(&f->mu);
    struct cert_text *old = f->now;
    f->now = TAKE(t);
    pthread_mutex_unlock(&f->mu);
    cert_text_unref(old);
    return 1;
}

static struct validity validity_of(const char *path)
{
    char label[512];
    struct validity v = {.path = path};
    if (path)
        v.end = metrics_gauge("tandem_certificate_expiry_timestamp_seconds",
                              "End of validity of the certificates in a file, seconds since 1970.",
                              metrics_label(label, sizeof(label), "file", path, strlen(path)));
    return v;
}

int cert_files_new(const struct cert_paths *p, struct cert_files **ret)
{
    struct cert_files *f = calloc(1, sizeof(*f));
    if (!f)
        return fail(-ENOMEM, "no memory for the files of %s_cert", p->settings);
    f->p = *p;
    pthread_mutex_init(&f->mu, NULL);
    f->cert = validity_of(p->cert);
    f->ca = validity_of(p->ca);
    f->failures = metrics_counter("tandem_certificate_reload_failures_total",
                                  "Changes of certificate files that were not used.", NULL);
    int rc = load(f);
    if (rc < 0)
        cert_files_free(f);
    else
        *ret = f;
    return rc < 0 ? rc : 0;
}

void cert_files_free(struct cert_files *f)
{
    if (!f)
        return;
    cert_text_unref(f->now);
    pthread_mutex_destroy(&f->mu);
    free(f);
}

struct cert_text *cert_files_text(struct cert_files *f)
{
    pthread_mutex_lock(&f->mu);
    struct cert_text *t = f->now;
    atomic_fetch_add(&t->n_refs, 1);
    pthread_mutex_unlock(&f->mu);
    return t;
}

uint64_t cert_files_version(struct cert_files *f)
{
    pthread_mutex_lock(&f->mu);
    uint64_t version = f->now->version;
    pthread_mutex_unlock(&f->mu);
    return version;
}

/* ---- changes and validity ---- */

static int load_again(struct cert_files *f)
{
    int rc = load(f);
    if (rc < 0) {
        metrics_add(f->failures, 1);
        log_error("certificates not reloaded, the old ones stay in use: %s", fail_text());
    } else if (rc > 0) {
        log_info("certificates reloaded file=%s", f->p.cert);
    }
    return rc;
}

void cert_files_reload(struct cert_files *f)
{
    if (f && load_again(f) == 0)
        log_info("certificates unchanged file=%s", f->p.cert);
}

static void warn_end(struct validity *v, int64_t wall_s)
{
    bool quiet = v->warned_s && wall_s < v->warned_s + DAY_S && wall_s >= v->warned_s;
    if (!v->path || quiet || wall_s < v->end_s - CERT_FILES_WARN_S)
        return;
    if (wall_s >= v->end_s)
        log_warn("certificate has expired, other services reject it file=%s", v->path);
    else
        log_warn("certificate expires soon file=%s days=%lld", v->path,
                 (long long)((v->end_s - wall_s) / DAY_S));
    v->warned_s = wall_s;
}

void cert_files_poll(struct cert_files *f, int64_t now_us, int64_t wall_s)
{
    struct stamp now[N_FILES];
    if (!f || now_us < f->next_us)
        return;
    f->next_us = now_us + CERT_FILES_POLL_US;
    look(f, now);
    bool rests = memcmp(now, f->seen, sizeof(now)) == 0;
    memcpy(f->seen, now, sizeof(now));
    if (rests && memcmp(now, f->read, sizeof(now)) != 0)
        load_again(f);
    warn_end(&f->cert, wall_s);
    warn_end(&f->ca, wall_s);
}
