/* speculation.c - names of proposers and policies, defaults, checks. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "verifier-svc/control/policy.h"
#include "verifier-svc/settings/speculation.h"

#define NAME_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."

static bool is_printable(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return false;
    }
    return true;
}

/* Length of the name before '='; len: there is no name. A '=' after ':' or '/' is part of an
 * address. */
static size_t name_len(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[n] != '=' && text[n] != ':' && text[n] != '/')
        n++;
    return n < len && text[n] == '=' ? n : len;
}

bool speculation_is_name(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!text[i] || !strchr(NAME_LETTERS, text[i]))
            return false;
    }
    return len > 0 && len < DRAFTS_NAME_MAX;
}

static int read_target(const char *text, size_t len, struct drafts_target *ret)
{
    char quoted[128];
    size_t n = name_len(text, len), at = n < len ? n + 1 : 0;
    log_quote(text, len, quoted, sizeof(quoted));
    if (at && !speculation_is_name(text, n))
        return fail(-EINVAL, "proposers: %s: a name is 1 to %d letters, digits, '-', '_' or '.'",
                    quoted, DRAFTS_NAME_MAX - 1);
    if (at && at == len)
        return fail(-EINVAL, "proposers: %s has no target after the name", quoted);
    if (at == len || len - at >= DRAFTS_TARGET_MAX || !is_printable(text + at, len - at))
        return fail(-EINVAL, "proposers: %s: a target is 1 to %d bytes without control characters",
                    quoted, DRAFTS_TARGET_MAX - 1);
    *ret = (struct drafts_target){0};
    memcpy(ret->name, text, at ? n : 0);
    memcpy(ret->target, text + at, len - at);
    return 0;
}

int speculation_add_target(struct speculation *s, const char *text, size_t len)
{
    struct drafts_target target;
    if (len == 4 && memcmp(text, "none", 4) == 0)
        return 0;
    if (s->n_targets == DRAFT_MAX_PROPOSERS)
        return fail(-EINVAL, "proposers: more than %d targets", DRAFT_MAX_PROPOSERS);
    int err = read_target(text, len, &target);
    if (!err)
        s->targets[s->n_targets++] = target;
    return err;
}

int speculation_allow(struct speculation *s, const char *const *patterns, unsigned n)
{
    s->n_allowed = 0;
    if (n == 1 && strcmp(patterns[0], "none") == 0)
        return 0;
    for (unsigned i = 0; i < (n ? n : s->n_targets); i++) {
        const char *from = n ? patterns[i] : s->targets[i].target;
        if (strlen(from) >= DRAFTS_TARGET_MAX || s->n_allowed == SPECULATION_ALLOWED_MAX)
            return fail(-EINVAL,
                        "proposer_targets_allowed: at most %d targets of at most %d bytes are "
                        "possible",
                        SPECULATION_ALLOWED_MAX, DRAFTS_TARGET_MAX - 1);
        strcpy(s->allowed[s->n_allowed++], from);
    }
    return 0;
}

/* '*' matches neither '/' nor '.' nor ':', so no other host, port or folder. */
static bool matches(const char *pattern, const char *text)
{
    while (*pattern && *pattern != '*') {
        if (*pattern++ != *text++)
            return false;
    }
    if (!*pattern)
        return !*text;
    for (;; text++) {
        if (matches(pattern + 1, text))
            return true;
        if (!*text || *text == '.' || !strchr(NAME_LETTERS, *text))
            return false;
    }
}

static bool is_allowed(const struct speculation *s, const char *target)
{
    for (unsigned i = 0; i < s->n_allowed; i++) {
        if (matches(s->allowed[i], target))
            return true;
    }
    return false;
}

int speculation_check_allowed(const struct speculation *s, const struct speculation_change *c)
{
    char quoted[128];
    if (!(c->has & SPECULATION_TARGETS) || c->has & SPECULATION_ALLOWED)
        return 0;
    for (unsigned i = 0; i < c->to.n_targets; i++) {
        const char *target = c->to.targets[i].target;
        if (!is_allowed(s, target))
            return fail(-EACCES, "the target %s is not in proposer_targets_allowed",
                        log_quote(target, strlen(target), quoted, sizeof(quoted)));
    }
    return 0;
}

int speculation_set_policy(struct speculation *s, const char *text, size_t len)
{
    char quoted[64];
    const struct policy_ops *ops;
    for (enum control_policy p = 0; (ops = control_policy_ops(p)); p++) {
        if (strlen(ops->name) == len && memcmp(ops->name, text, len) == 0) {
            s->policy = p;
            return 0;
        }
    }
    return fail(-EINVAL, "policy must be goodput, fixed or ema, not %s",
                log_quote(text, len, quoted, sizeof(quoted)));
}

const char *speculation_policy(const struct speculation *s)
{
    return control_policy_ops(s->policy)->name;
}

int speculation_check_default(const struct speculation *s, struct drafts *d)
{
    char name[DRAFTS_NAME_MAX];
    for (unsigned i = 0; i < s->n_targets && *s->proposer; i++) {
        drafts_name_of(d, &s->targets[i], name);
        if (!*name || speculation_is_default(s, name))
            return 0;
    }
    return *s->proposer ? fail(-EINVAL, "the default proposer is %s, but no proposer has this name",
                               s->proposer)
                        : 0;
}

/* True: the configuration gives a target the name of the default proposer, so it is no alias. */
static bool has_target_of_default(const struct speculation *s)
{
    for (unsigned i = 0; i < s->n_targets; i++) {
        if (strcmp(s->targets[i].name, s->proposer) == 0)
            return true;
    }
    return false;
}

bool speculation_is_default(const struct speculation *s, const char *name)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (has_target_of_default(s))
        return strcmp(name, s->proposer) == 0;
    return drafts_is_called("default_proposer", &warned, name, s->proposer);
}

struct control_options speculation_control(const struct speculation *s)
{
    const struct policy_ops *ops = control_policy_ops(s->policy);
    int32_t batch = s->disable_batch_size;
    return (struct control_options){
        .policy = s->policy,
        .k = s->k ? s->k : ops->k,
        .disable_batch_size = batch >= 0 ? (uint32_t)batch : ops->disable_batch_size,
    };
}

struct speculation speculation_after(const struct speculation *s,
                                     const struct speculation_change *c)
{
    struct speculation r = *s;
    if (c->has & SPECULATION_ON)
        r.on = c->to.on;
    if (c->has & SPECULATION_PROPOSER)
        memcpy(r.proposer, c->to.proposer, sizeof(r.proposer));
    if (c->has & SPECULATION_TARGETS) {
        r.n_targets = c->to.n_targets;
        memcpy(r.targets, c->to.targets, sizeof(r.targets));
    }
    if (c->has & SPECULATION_ALLOWED) {
        r.n_allowed = c->to.n_allowed;
        memcpy(r.allowed, c->to.allowed, sizeof(r.allowed));
    }
    if (c->has & SPECULATION_POLICY)
        r.policy = c->to.policy;
    if (c->has & SPECULATION_K)
        r.k = c->to.k;
    if (c->has & SPECULATION_BATCH)
        r.disable_batch_size = c->to.disable_batch_size;
    return r;
}
