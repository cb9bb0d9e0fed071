/* Templates render in helper processes; a hostile one does not affect other requests. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "gateway/serve/sandbox.h"
#include "gateway/serve/template.h"
#include "gateway/serve/template_turns.h"
#include "lib/lib.h"

#define TIMEOUT_MS 300
#define WAIT_US 600000000
#define TOO_LONG "longer than 0.3 s"
#define TRIES 100 // of a rendering that a busy machine may make longer than the time limit
#define ENDLESS "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

struct outcome {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    bool here;
    int err;
    unsigned retry_s;
    char *text; // with a NUL at the end
    size_t len;
};

static struct template *t;

/* The payers of a test have an entry each. */
uint64_t __wrap_rng_secret(void);

uint64_t __wrap_rng_secret(void)
{
    return 1;
}

static void keep(void *user, int err, unsigned retry_s, const char *text, size_t len)
{
    struct outcome *o = user;
    pthread_mutex_lock(&o->mu);
    o->err = err;
    o->retry_s = retry_s;
    o->text = memcpy(calloc(1, len + 1), text, len);
    o->len = len;
    o->here = true;
    pthread_cond_signal(&o->cv);
    pthread_mutex_unlock(&o->mu);
}

static void begin_as(const char *payer, struct outcome *o, const char *source, const char *vars)
{
    *o =
        (struct outcome){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, 0, NULL, 0};
    assert_int_equal(template_render(t, payer, source, strlen(source), vars, 0, keep, o), 0);
}

static void begin(struct outcome *o, const char *source, const char *vars)
{
    begin_as("payer", o, source, vars);
}

static bool is_here(struct outcome *o)
{
    pthread_mutex_lock(&o->mu);
    bool here = o->here;
    pthread_mutex_unlock(&o->mu);
    return here;
}

static void wait_for(struct outcome *o)
{
    pthread_mutex_lock(&o->mu);
    while (!o->here)
        pthread_cond_wait(&o->cv, &o->mu);
    pthread_mutex_unlock(&o->mu);
}

/* Renders again where that took too long, as another payer because of the pauses. */
static struct outcome render(const char *source, const char *vars)
{
    struct outcome o;
    for (unsigned i = 0; i < TRIES; i++) {
        char payer[16];
        snprintf(payer, sizeof(payer), "payer %u", i);
        begin_as(payer, &o, source, vars);
        wait_for(&o);
        if (!strstr(o.text, TOO_LONG))
            return o;
        free(o.text);
    }
    fail_msg("%s: took too long %d times", source, TRIES);
    return o;
}

static void renders_bytes(const char *source, const char *vars, const char *want, size_t len)
{
    struct outcome o = render(source, vars);
    assert_int_equal(o.err, 0);
    assert_int_equal(o.len, len);
    assert_memory_equal(o.text, want, len);
    free(o.text);
}

static void renders(const char *source, const char *vars, const char *want)
{
    renders_bytes(source, vars, want, strlen(want));
}

static void fails_with(struct outcome *o, const char *source, const char *part)
{
    if (o->err != -EINVAL || !strstr(o->text, part))
        fail_msg("%s: %d '%.200s', not '%s'", source, o->err, o->text, part);
    free(o->text);
}

/* An error -EINVAL whose text contains `part`. */
static void fails(const char *source, const char *part)
{
    struct outcome o = render(source, "{}");
    fails_with(&o, source, part);
}

/* An error -EINVAL whose text contains `part`, possibly because of the time limit. */
static void fails_in_time(const char *source, const char *part)
{
    struct outcome o;
    int64_t begun_us = clock_us();
    begin(&o, source, "{}");
    wait_for(&o);
    assert_true(clock_us() - begun_us < 20000000);
    fails_with(&o, source, part);
}

static void still_renders(void)
{
    renders("{{ 1 + 1 }}", "{}", "2");
}

static void arguments_of_a_call_are_an_object_and_text(void **state)
{
    (void)state;
#define CALLED(arguments)                                                                          \
    "{\"messages\":[{\"content\":null,\"tool_calls\":[{\"function\":{\"arguments\":" arguments     \
    "}}]}]}"
    static const char text[] = CALLED("\"{\\\"a\\\":  0.1}\"");
#define ARGS "messages[0].tool_calls[0].function.arguments"
    renders("{{ '<' + " ARGS " + '>' }}", text, "<{\"a\":  0.1}>");
    renders("{{ " ARGS ".a }} {{ " ARGS " | tojson }} {{ " ARGS " is mapping }}", text,
            "0.1 {\"a\": 0.1} True");
    renders("{{ '<' + " ARGS " }}", CALLED("{\"a\":1}"), "<{\"a\": 1}");
    renders("[{{ messages[0].content }}]", text, "[]");
    renders("{{ messages[0]['content'] is none }}", text, "True");
    renders("{{ messages[0].content is not none }}", text, "False");
}

static void a_template_renders_its_variables(void **state)
{
    (void)state;
    static const char want[] = "<user>h\xC3\xA9 \0 <b>";
    renders_bytes("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"h\xC3\xA9 \\u0000 <b>\"}]}",
                  want, sizeof(want) - 1);
}

static void templates_have_the_expected_functions(void **state)
{
    (void)state;
    renders("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
            "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "{}", "013");
    renders("{{ {'a': '<\xC3\xA9>'} | tojson }}", "{}", "{\"a\": \"<\xC3\xA9>\"}");
    renders("{{ strftime_now('%Y-%m-%d') }}", "{}", "1970-01-01");
    renders("{% set l = [] %}{% set _ = l.append(1) %}{{ l }}", "{}", "[1]");
    renders("a\n    {% if true %}\nb\n    {% endif %}\nc", "{}", "a\nb\nc");
}

static void developer_becomes_system_for_templates_without_it(void **state)
{
    (void)state;
    static const char vars[] = "{\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}]}";
    renders("{{ messages[0].role }}", vars, "system");
    renders("{{ messages[0].role }}{# developer #}", vars, "developer");
}

/* A call has either content or reasoning in the template of gpt-oss. */
static void reasoning_is_the_thinking_of_gpt_oss(void **state)
{
    (void)state;
    static const char reader[] =
        "{% for m in messages %}{{ m.thinking }}|{{ m.content }};{% endfor %}";
    static const char vars[] =
        "{\"messages\":[{\"content\":\"a\",\"reasoning_content\":\"b\"},"
        "{\"content\":\"c\",\"reasoning_content\":\"d\",\"tool_calls\":[{\"function\":{}}]}]}";
    AUTO(mem_free) char *oss = NULL;
    assert_true(asprintf(&oss, "%s{# <|channel|> #}", reader) > 0);
    renders(oss, vars, "b|a;d|;");
    renders(oss,
            "{\"messages\":[{\"content\":\"a\",\"reasoning_content\":\"\",\"tool_calls\":[{"
            "\"function\":{}}]}]}",
            "|a;");
    renders(reader, vars, "|a;|c;");
}

static void an_error_raised_by_a_template_is_returned(void **state)
{
    (void)state;
    fails("{{ raise_exception('System role not supported') }}", "System role not supported");
    fails("{% if %}", "Expected an expression");
    fails("{{ nothing.at_all.here }}", "undefined");
    fails("{{ 1 / 0 }}", "ZeroDivisionError");
    still_renders();
}

/* Otherwise each such request would cost the start of a helper. */
static void text_that_cannot_be_written_ends_no_helper(void **state)
{
    (void)state;
    struct template *shared = t;
    assert_int_equal(template_new(1, 60000, WAIT_US, &t), 0);
    struct outcome before = render("{{ lipsum }}", "{}"); // has an address of the process
    renders("{{ '\\ud800' }}", "{}", "?");
    fails("{{ raise_exception('\\udfff') }}", "?");
    fails("{% set n = namespace(a=[]) %}{% for i in range(9999) %}{% set n.a = [n.a] %}"
          "{% endfor %}{{ raise_exception(n.a) }}",
          "TemplateError");
    renders("{{ lipsum }}", "{}", before.text);
    free(before.text);
    template_free(t);
    t = shared;
}

static void endless_loops_are_killed(void **state)
{
    (void)state;
    fails_in_time(ENDLESS, TOO_LONG);
    still_renders();
    fails_in_time("{{ 7 ** (9 ** 7) }}", TOO_LONG);
    still_renders();
    fails_in_time("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "");
    still_renders();
}

static void memory_is_limited(void **state)
{
    (void)state;
    fails("{{ 'x' * 10000000000 }}", "more memory than it may have");
    still_renders();
    fails_in_time("{{ 'x' * 100000000 }}", "");
    still_renders();
    fails_in_time("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "longer than");
    still_renders();
    fails_in_time("{{ '%0999999999d' % 1 }}", "");
    still_renders();
}

static void the_sandbox_holds(void **state)
{
    (void)state;
    static const char *const attempts[] = {
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['os'].system('true') }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self._TemplateReference__context.environment.globals }}",
        "{{ lipsum.__globals__['os'] }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ [].__reduce__() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ range(999999999) | list }}",
    };
    for (size_t i = 0; i < ARRAY_LEN(attempts); i++) {
        struct outcome o;
        begin(&o, attempts[i], "{}");
        wait_for(&o);
        if (o.err != -EINVAL && *o.text) // an error, or an empty text
            fail_msg("%s: %s", attempts[i], o.text);
        free(o.text);
    }
    still_renders();
}

static void a_looping_template_does_not_delay_others(void **state)
{
    (void)state;
    struct template *shared = t;
    struct outcome slow;
    assert_int_equal(template_new(2, 600000, WAIT_US, &t), 0);
    begin(&slow, ENDLESS, "{}");
    still_renders(); // by the other helper
    still_renders();
    assert_false(is_here(&slow));
    template_free(t);
    t = shared;
    assert_int_equal(slow.err, -ECANCELED);
    free(slow.text);
}

/* The state ('R', 'S' ...) of a child of this process; 0: it is not a child. */
static char child_state(const char *pid)
{
    char path[300], state = 0;
    int parent = 0;
    snprintf(path, sizeof(path), "/proc/%s/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    if (fscanf(f, "%*d (%*[^)]) %c %d", &state, &parent) != 2 || parent != getpid())
        state = 0;
    fclose(f);
    return state;
}

/* Finds the helpers, all of them or those in one state. Returns their number. */
static unsigned find_helpers(char state, pid_t *ret, unsigned max)
{
    unsigned n = 0;
    DIR *proc = opendir("/proc");
    assert_non_null(proc);
    for (struct dirent *e; (e = readdir(proc));) {
        char s = child_state(e->d_name);
        if (s && (!state || s == state) && n < max)
            ret[n++] = atoi(e->d_name);
    }
    closedir(proc);
    return n;
}

static void the_death_of_an_idle_helper_has_no_effect(void **state)
{
    (void)state;
    struct template *shared = t;
    assert_int_equal(template_new(1, TIMEOUT_MS, WAIT_US, &t), 0);
    still_renders();
    pid_t helpers[8];
    unsigned n = find_helpers(0, helpers, 8);
    assert_true(n >= 1);
    for (unsigned i = 0; i < n; i++) {
        siginfo_t end;
        assert_int_equal(kill(helpers[i], SIGKILL), 0);
        assert_int_equal(waitid(P_PID, (id_t)helpers[i], &end, WEXITED | WNOWAIT), 0);
    }
    still_renders();
    template_free(t);
    t = shared;
    still_renders();
}

/* A request that the own instance does not take; done is not called. */
static void refused(int want, const char *vars, const char *part)
{
    assert_int_equal(template_render(t, "payer", "x", 1, vars, 0, keep, NULL), want);
    if (!strstr(fail_text(), part))
        fail_msg("%s", fail_text());
}

/* An instance with one helper, which renders an endless loop for "mallory". */
static struct template *busy(struct outcome *loop, unsigned timeout_ms)
{
    struct template *shared = t;
    pid_t helpers[8];
    assert_int_equal(template_new(1, timeout_ms, WAIT_US, &t), 0);
    still_renders();
    while (find_helpers('R', helpers, 8))
        poll(NULL, 0, 5);
    begin_as("mallory", loop, ENDLESS, "{}");
    while (!find_helpers('R', helpers, 8)) // until it no longer waits
        poll(NULL, 0, 5);
    return shared;
}

/* A newcomer displaces the last one. */
static void renderings_that_wait_are_limited(void **state)
{
    (void)state;
    enum { MOST = TEMPLATE_MAX_WAITING };
    static struct outcome o[MOST + 2];
    struct template *shared = busy(&o[0], 60000);
    unsigned n = 1;
    for (; n <= MOST; n++)
        begin(&o[n], "x", "{}");
    refused(-EDQUOT, "{}", "1024 of your chats already wait for their templates");
    begin_as("neighbour", &o[n++], "x", "{}");
    assert_true(is_here(&o[MOST]));
    template_stop(t);
    for (unsigned i = 0; i < n; i++) {
        wait_for(&o[i]);
        assert_int_equal(o[i].err, i == MOST ? -EDQUOT : -ECANCELED);
        if (i == MOST)
            assert_non_null(strstr(o[i].text, "1024 of your chats already wait"));
        free(o[i].text);
    }
    refused(-EPIPE, "{}", "");
    template_free(t);
    t = shared;
}

/* It fails twice, then others need no helper; during a pause of 1 s at least. */
static void a_template_that_failed_repeatedly_is_refused(void **state)
{
    (void)state;
    enum { N = 20 };
    struct outcome o[N];
    struct template *shared = busy(&o[0], TIMEOUT_MS);
    unsigned n_refused = 0;
    for (unsigned i = 1; i < N; i++)
        begin_as("mallory", &o[i], ENDLESS, "{}");
    for (unsigned i = 0; i < N; i++) {
        wait_for(&o[i]);
        n_refused += o[i].err == -EBUSY;
        assert_int_equal(o[i].retry_s > 0, o[i].err == -EBUSY);
        assert_int_equal(strstr(o[i].text, "times in a row; it is tried again in") != NULL,
                         o[i].err == -EBUSY);
        free(o[i].text);
    }
    assert_in_range(n_refused, 1, N - 2);
    template_free(t);
    t = shared;
}

/* Renders as this payer, and waits. */
static void render_as(const char *payer, const char *source, const char *want)
{
    struct outcome o;
    begin_as(payer, &o, source, "{}");
    wait_for(&o);
    assert_int_equal(o.err, 0);
    assert_string_equal(o.text, want);
    free(o.text);
}

/* Loops until a rendering takes so long that its payer is slow on a busy machine, too. */
static void make_slow(const char *payer)
{
    int64_t took_us = 0;
    for (unsigned n = 1000; took_us < 10 * TEMPLATE_TURNS_SLOW_US; n *= 2) {
        char source[100];
        snprintf(
            source, sizeof(source),
            "{%% for a in range(%u) %%}{%% for b in range(1000) %%}{%% endfor %%}{%% endfor %%}",
            n);
        int64_t begun_us = clock_us();
        render_as(payer, source, "");
        took_us = clock_us() - begun_us;
    }
}

/* Waits until n helpers work. false: they never do. */
static bool helpers_work(unsigned n)
{
    pid_t helpers[8];
    int64_t until_us = clock_us() + 20000000;
    while (find_helpers('R', helpers, 8) != n && clock_us() < until_us)
        poll(NULL, 0, 5);
    return find_helpers('R', helpers, 8) == n;
}

/* Whether both helpers render for this payer, until the end of the instance. */
static bool gets_both_helpers(const char *payer)
{
    struct outcome o[2];
    for (unsigned i = 0; i < 2; i++)
        begin_as(payer, &o[i], ENDLESS, "{}");
    bool both = helpers_work(2);
    template_stop(t);
    for (unsigned i = 0; i < 2; i++) {
        wait_for(&o[i]);
        free(o[i].text);
    }
    return both;
}

static void slow_payers_do_not_delay_quick_ones(void **state)
{
    (void)state;
    struct template *shared = t;
    struct outcome o[6];
    assert_int_equal(template_new(2, 20000, WAIT_US, &t), 0);
    render_as("quick", "x", "x");
    make_slow("slow");
    make_slow("slow too");
    for (unsigned i = 0; i < 6; i++)
        begin_as(i % 2 ? "slow" : "slow too", &o[i], ENDLESS, "{}");
    for (unsigned i = 0; i < 20; i++)
        render_as("quick", "x", "x");
    for (unsigned i = 0; i < 6; i++)
        assert_false(is_here(&o[i])); // none has ended before
    template_free(t);
    t = shared;
    for (unsigned i = 0; i < 6; i++)
        free(o[i].text);
}

static void an_only_payer_gets_all_helpers(void **state)
{
    (void)state;
    struct template *shared = t;
    assert_int_equal(template_new(2, 60000, WAIT_US, &t), 0);
    make_slow("slow");
    bool both = gets_both_helpers("slow");
    template_free(t);
    t = shared;
    assert_true(both);
}

static void a_request_that_waits_can_be_cancelled(void **state)
{
    (void)state;
    struct outcome o[4];
    struct template *shared = busy(&o[0], 60000);
    for (unsigned i = 1; i < 4; i++)
        begin(&o[i], "x", "{}");
    template_cancel(t, &o[2]);
    template_cancel(t, &o[2]); // no longer waits
    template_cancel(t, &o[0]); // is rendered
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(is_here(&o[i]), i == 2);
    assert_int_equal(o[2].err, -ECANCELED);
    template_free(t);
    t = shared;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(o[i].err, -ECANCELED);
        assert_string_equal(o[i].text,
                            i == 2 ? "the request was cancelled" : "the server is shutting down");
        free(o[i].text);
    }
}

static void a_request_over_the_limit_is_refused(void **state)
{
    (void)state;
    AUTO(mem_free) char *vars = malloc(TEMPLATE_MAX_REQUEST + 1);
    memset(vars, ' ', TEMPLATE_MAX_REQUEST);
    vars[TEMPLATE_MAX_REQUEST] = 0;
    refused(-EMSGSIZE, vars, "");
}

static void stopping_ends_renderings_immediately(void **state)
{
    (void)state;
    struct template *shared = t;
    pid_t busy[8];
    assert_int_equal(template_new(1, 60000, WAIT_US, &t), 0);
    still_renders();
    while (find_helpers('R', busy, 8))
        poll(NULL, 0, 5);
    struct outcome o[3];
    for (unsigned i = 0; i < 3; i++)
        begin(&o[i], ENDLESS, "{}");
    while (!find_helpers('R', busy, 8)) // until a helper renders the first
        poll(NULL, 0, 5);
    template_free(t);
    t = shared;
    for (unsigned i = 0; i < 3; i++) {
        assert_true(o[i].here);
        assert_int_equal(o[i].err, -ECANCELED);
        free(o[i].text);
    }
}

/* ---- a helper whose script is hostile ---- */

static const char *hostile;      // the script of new helpers; NULL: the product's
static bool holds_start;         // a start only ends when it is no longer awaited
static atomic_bool delays_start; // a start takes longer than a rendering that makes its payer slow

int __real_sandbox_start(const char *script, int fd, const struct sandbox_patience *patience,
                         pid_t *ret_pid, unsigned *ret_missing);
int __wrap_sandbox_start(const char *script, int fd, const struct sandbox_patience *patience,
                         pid_t *ret_pid, unsigned *ret_missing);

int __wrap_sandbox_start(const char *script, int fd, const struct sandbox_patience *patience,
                         pid_t *ret_pid, unsigned *ret_missing)
{
    struct pollfd stop = {patience->stop_fd, POLLIN, 0};
    if (delays_start)
        poll(NULL, 0, 2 * TEMPLATE_TURNS_SLOW_US / 1000);
    if (holds_start)
        return fail(poll(&stop, 1, 60000) == 1 ? -ECANCELED : -EIO, "held");
    return __real_sandbox_start(hostile ? hostile : script, fd, patience, ret_pid, ret_missing);
}

/* The outcome of a request to a helper that starts well, and then runs `code` for each request. */
static struct outcome ask_hostile(const char *code, unsigned timeout_ms)
{
    static char script[2000];
    struct template *shared = t;
    struct outcome o;
    snprintf(script, sizeof(script),
             "import os, sys\n"
             "def say(data):\n"
             "    while data:\n"
             "        data = data[os.write(1, data):]\n"
             "say(b'ready\\n')\n"
             "for line in sys.stdin.buffer:\n"
             "    %s\n",
             code);
    hostile = script;
    assert_int_equal(template_new(1, timeout_ms, WAIT_US, &t), 0);
    begin(&o, "x", "{}");
    wait_for(&o);
    template_free(t);
    hostile = NULL;
    t = shared;
    return o;
}

static void a_reply_that_is_none_ends_its_request_only(void **state)
{
    (void)state;
    static const char *const replies[] = {
        "say(b'\\n')",
        "say(b'junk\\n')",
        "say(bytes(999) + b'\\n')",
        "say(b'{}\\n')",
        "say(b'{\"text\":1}\\n')",
        "say(b'{\"text\":\"\\\\ud800\"}\\n')",
        "say(b'{\"text\":\"a\"}\\n{\"text\":\"b\"}\\n')",
        "say(b'{\"text\":[' + b'[],' * 99999 + b'[]]}\\n')",
        "say(b'{\"text\":\"a'); sys.exit()",
        "sys.exit()",
        "os.close(0); os.close(1)",
    };
    for (size_t i = 0; i < ARRAY_LEN(replies); i++) {
        struct outcome o = ask_hostile(replies[i], 60000);
        fails_with(&o, replies[i], "the helper process of the chat template failed");
    }
    still_renders();
}

static void a_reply_that_does_not_end_is_not_awaited(void **state)
{
    (void)state;
    static const char *const replies[] = {"pass", "say(b'{\"text\":')"};
    for (size_t i = 0; i < ARRAY_LEN(replies); i++) {
        struct outcome o = ask_hostile(replies[i], 50);
        fails_with(&o, replies[i], "took longer than 0.1 s");
    }
    struct outcome o = ask_hostile("while True: say(bytes(1 << 20))", 60000);
    fails_with(&o, "endless", "too large: at most 100 MiB");
}

static void a_reply_may_come_in_pieces(void **state)
{
    (void)state;
    struct outcome o = ask_hostile("[say(bytes([c])) for c in b'{\"text\":\"a b\"}\\n']", 60000);
    assert_int_equal(o.err, 0);
    assert_string_equal(o.text, "a b");
    free(o.text);
}

static void a_helper_that_does_not_start_is_an_error(void **state)
{
    (void)state;
    struct template *shared = t;
    struct outcome o;
    hostile = "";
    assert_int_equal(template_new(1, TIMEOUT_MS, WAIT_US, &t), 0);
    begin(&o, "x", "{}");
    wait_for(&o);
    template_free(t);
    hostile = NULL;
    t = shared;
    assert_int_equal(o.err, -EIO);
    assert_non_null(strstr(o.text, "the helper does not start"));
    free(o.text);
}

static void stopping_does_not_await_the_start_of_a_helper(void **state)
{
    (void)state;
    struct template *shared = t;
    struct outcome o;
    holds_start = true;
    assert_int_equal(template_new(1, TIMEOUT_MS, WAIT_US, &t), 0);
    begin(&o, "x", "{}");
    template_free(t);
    holds_start = false;
    t = shared;
    assert_true(o.here);
    assert_int_equal(o.err, -ECANCELED);
    assert_string_equal(o.text, "the server is shutting down");
    free(o.text);
}

/* The helpers die, and the next rendering starts them. */
static void the_start_of_a_helper_makes_no_payer_slow(void **state)
{
    (void)state;
    struct template *shared = t;
    pid_t helpers[8];
    assert_int_equal(template_new(2, 60000, WAIT_US, &t), 0);
    render_as("other", "x", "x");
    delays_start = true;
    unsigned n = find_helpers(0, helpers, 8);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(kill(helpers[i], SIGKILL), 0);
    render_as("quick", "x", "x");
    bool both = gets_both_helpers("quick");
    delays_start = false;
    template_free(t);
    t = shared;
    assert_true(both);
    still_renders();
}

/* The helper waits in the first rendering, as if other programs used all CPUs. */
static void a_busy_machine_makes_no_payer_slow(void **state)
{
    (void)state;
    struct template *shared = t;
    hostile = "import sys, _thread\n"
              "lock = _thread.allocate_lock()\n"
              "lock.acquire()\n"
              "sys.stdout.write('ready\\n'); sys.stdout.flush()\n"
              "for line in sys.stdin:\n"
              "    if 'wait' in line: lock.acquire(timeout=0.2)\n"
              "    while 'range' in line: pass\n"
              "    sys.stdout.write('{\"text\":\"x\"}\\n'); sys.stdout.flush()\n";
    assert_int_equal(template_new(2, 60000, WAIT_US, &t), 0);
    render_as("other", "x", "x");
    render_as("quick", "wait", "x");
    bool both = gets_both_helpers("quick");
    template_free(t);
    hostile = NULL;
    t = shared;
    assert_true(both);
}

static int start(void **state)
{
    (void)state;
    return template_new(2, TIMEOUT_MS, WAIT_US, &t);
}

static int stop(void **state)
{
    (void)state;
    template_free(t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_of_a_call_are_an_object_and_text),
        cmocka_unit_test(a_template_renders_its_variables),
        cmocka_unit_test(templates_have_the_expected_functions),
        cmocka_unit_test(developer_becomes_system_for_templates_without_it),
        cmocka_unit_test(reasoning_is_the_thinking_of_gpt_oss),
        cmocka_unit_test(an_error_raised_by_a_template_is_returned),
        cmocka_unit_test(text_that_cannot_be_written_ends_no_helper),
        cmocka_unit_test(endless_loops_are_killed),
        cmocka_unit_test(memory_is_limited),
        cmocka_unit_test(the_sandbox_holds),
        cmocka_unit_test(a_looping_template_does_not_delay_others),
        cmocka_unit_test(the_death_of_an_idle_helper_has_no_effect),
        cmocka_unit_test(renderings_that_wait_are_limited),
        cmocka_unit_test(a_template_that_failed_repeatedly_is_refused),
        cmocka_unit_test(slow_payers_do_not_delay_quick_ones),
        cmocka_unit_test(an_only_payer_gets_all_helpers),
        cmocka_unit_test(a_request_that_waits_can_be_cancelled),
        cmocka_unit_test(a_request_over_the_limit_is_refused),
        cmocka_unit_test(stopping_ends_renderings_immediately),
        cmocka_unit_test(a_reply_that_is_none_ends_its_request_only),
        cmocka_unit_test(a_reply_that_does_not_end_is_not_awaited),
        cmocka_unit_test(a_reply_may_come_in_pieces),
        cmocka_unit_test(a_helper_that_does_not_start_is_an_error),
        cmocka_unit_test(stopping_does_not_await_the_start_of_a_helper),
        cmocka_unit_test(the_start_of_a_helper_makes_no_payer_slow),
        cmocka_unit_test(a_busy_machine_makes_no_payer_slow),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
