"""The file is the prefix: kv_take() and struct kv_seq are declared in kv.h. A public name is declared in one header only."""
import collections
import glob
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVICES = ("common", "gateway", "proposer-svc", "verifier-svc")
FOLDERS = (*SERVICES, "tests")  # test libraries are linked with all others

# Further prefixes for functions of a header, besides its name (kv.h: kv_) and the plural (session.h: sessions_).
FAMILIES = [  # file, prefix, why
    (r"err", "fail", "fail() is very frequent, and its name says what it does"),
    (r"openai_\w+", "openai_", "several files implement the OpenAI API"),
]

# The same for structs, unions, enums and typedefs.
TYPE_FAMILIES = [
    (r"pass_plan", "pass_", "rows and sequences of a pass; the plan lists them"),
    (r"tool_parser", "tool_", "calls and formats of tools, which other files use without the parser"),
    (r"routes", "gateway", "what all endpoints use: the gateway itself"),
]

# Headers whose types other rooms cannot name.
PRIVATE = [
    (r".*_impl\.h", "shared by the files of one module"),
    (r"common/kernel/kernel_\w+\.h", "parts of kernel_<isa>.c, included by kernel sources only"),
]

# Macros that declare functions on a line by themselves.
DECLARING = re.compile(r"\b(?:DEFINE_AUTO|_Static_assert|static_assert)\b\s*\(")

ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")


def bare(text):
    """C without comments, preprocessor lines and literals."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', lambda m: " " + "\n" * m.group().count("\n"), text,
                  flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m.group().count("\n"), text, flags=re.M)


def statements(text):
    """(line, text) of each statement outside all braces: declarations, and heads of functions and structs."""
    depth, parens, start, head = 0, 0, 0, []
    for m in re.finditer(r"[{}();]|\n", text):
        c = m.group()
        if c == "(":
            parens += 1
        elif c == ")":
            parens -= 1
        elif c == "{":
            if depth == 0:
                head.append((start, text[start:m.start()]))
            depth += 1
        elif c == "}":
            depth -= 1
            start = m.end()
        elif c == ";" and depth == 0 and parens == 0:
            head.append((start, text[start:m.start()]))
            start = m.end()
    for at, statement in head:
        yield text.count("\n", 0, at + len(statement) - len(statement.lstrip())) + 1, " ".join(statement.split())


def functions(text):
    """(line, name) of each function that other files may call: neither static nor inline."""
    for line, statement in statements(bare(text)):
        statement = ATTRIBUTE.sub("", statement)
        while True:  # a macro without a semicolon is part of the next statement
            m = DECLARING.match(statement)
            if not m:
                break
            statement = statement[statement.find(")") + 1:].strip()
        m = re.match(r"(?!typedef\b)([\w\s*]*?[\s*])(\w+) ?\(", statement)
        if m and not re.search(r"\b(static|inline|INLINE)\b", m.group(1)) and "=" not in statement.split("(")[0]:
            yield line, m.group(2)


def tags(text):
    """(line, "struct name") of each struct, union or enum that is defined."""
    text = bare(text)
    for m in re.finditer(r"\b(struct|union|enum)\s+(\w+)\s*\{", text):
        yield text.count("\n", 0, m.start()) + 1, f"{m.group(1)} {m.group(2)}"


def types(text):
    """(line, name) of each type that is defined: struct, union, enum, typedef."""
    for line, tag in tags(text):
        yield line, tag.split()[1]
    for line, statement in statements(bare(text)):
        statement = ATTRIBUTE.sub("", statement)
        m = re.match(r"typedef\b.*?(?:\(\*\s*(\w+)\)|(\w+))\s*(?:\[[^\]]*\]\s*)*(?:\([^*].*\))?$", statement)
        if m:
            yield line, m.group(1) or m.group(2)


def type_prefixes(path):
    """Those of the functions; also the singular: event_batch is in events.h."""
    stem = os.path.splitext(os.path.basename(path))[0]
    yield from prefixes(path)
    if stem.endswith("s"):
        yield stem[:-1]
    for file, prefix, _ in TYPE_FAMILIES:
        if re.fullmatch(file, stem):
            yield prefix


def is_private(path):
    return any(re.fullmatch(pattern, path) for pattern, _ in PRIVATE)


def prefixes(path):
    """What the names of a header may begin with.

    kv_index.h beside kv.h is a part of kv: kv_ serves, too. What engine_impl.h shares between files may also begin with the
    name of the file that has it: round_run() is in round.c.
    """
    folder, stem = os.path.split(os.path.splitext(path)[0])
    yield from (stem, stem + "s")
    parts = stem.split("_")
    for n in range(1, len(parts)):
        owner = "_".join(parts[:n])
        if stem.endswith("_impl") and n + 1 == len(parts) or os.path.exists(os.path.join(ROOT, folder, owner + ".h")):
            yield from (owner, owner + "s")
    if stem.endswith("_impl"):
        for source in sorted(glob.glob("*.c", root_dir=os.path.join(ROOT, folder))):
            yield source.removesuffix(".c")
    for file, prefix, _ in FAMILIES:
        if re.fullmatch(file, stem):
            yield prefix


def begins(name, prefix):
    return name == prefix or name.startswith(prefix.rstrip("_") + "_")


def headers(folders):
    for folder in folders:
        for path in sorted(glob.glob(f"{folder}/**/*.h", root_dir=ROOT, recursive=True)):
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                yield path, f.read()


def misnamed():
    return [f"{path}:{line}: {name}() does not begin with {os.path.splitext(os.path.basename(path))[0]}_"
            for path, text in headers(SERVICES) for line, name in functions(text)
            if not any(begins(name, p) for p in prefixes(path))]


def misnamed_types():
    return [f"{path}:{line}: type {name} does not begin with {os.path.splitext(os.path.basename(path))[0]}_"
            for path, text in headers(SERVICES) if not is_private(path) for line, name in types(text)
            if not any(begins(name, p) for p in type_prefixes(path))]


def repeated():
    places = collections.defaultdict(dict)
    for path, text in headers(FOLDERS):
        for line, name in [*functions(text), *tags(text)]:
            places[name].setdefault(path, line)
    return [f"{name}: " + ", ".join(f"{path}:{line}" for path, line in where.items())
            for name, where in sorted(places.items()) if len(where) > 1]


class TheLint(unittest.TestCase):
    """That it reads headers as they are written."""

    TEXT = """/* int kv_comment(void); */
#define KV_MACRO(x) \\
    kv_macro(x)
struct kv;
struct kv_seq { int (*fn)(void *); };
enum kv_kind { KV_A };
struct kv *kv_new(int (*fn)(int), void *arg,
                  uint32_t n);
DEFINE_AUTO(struct kv, kv_free)
__attribute__((format(printf, 2, 3))) void kv_log(struct kv *kv, const char *f, ...);
static inline int kv_inline(void)
{
    return other(1);
}
extern const char *const kv_names[];
typedef void (*kv_fn)(int);
const char *
kv_name(void) __attribute__((cold));
"""

    def test_functions_are_found(self):
        self.assertEqual(list(functions(self.TEXT)), [(7, "kv_new"), (9, "kv_log"), (17, "kv_name")])

    def test_tags_are_found(self):
        self.assertEqual(list(tags(self.TEXT)), [(5, "struct kv_seq"), (6, "enum kv_kind")])

    def test_types_are_found(self):
        self.assertEqual(list(types(self.TEXT)), [(5, "kv_seq"), (6, "kv_kind"), (16, "kv_fn")])
        self.assertEqual([name for _, name in types("typedef float kv_sums[4 * 2] __attribute__((aligned(64)));"
                                                    "typedef void kv_job(struct a *s, const struct b *j);"
                                                    "typedef int (*kv_get)(void *, void (*)(int)); typedef struct a kv_a;")],
                         ["kv_sums", "kv_job", "kv_get", "kv_a"])

    def test_types_may_begin_with_the_singular(self):
        self.assertIn("event", type_prefixes("nowhere/events.h"))
        self.assertIn("tool_", type_prefixes("gateway/openai/tool_parser.h"))
        self.assertTrue(is_private("verifier-svc/engine/engine_impl.h"))
        self.assertFalse(is_private("common/kernel/kernel.h"))

    def test_prefixes_are_of_the_file_and_its_family(self):
        self.assertEqual(list(prefixes("nowhere/kv_index.h")), ["kv_index", "kv_indexs"])  # no kv.h beside it
        self.assertIn("rpc", prefixes("common/rpc/rpc_client.h"))
        self.assertEqual(list(prefixes("nowhere/engine_impl.h")), ["engine_impl", "engine_impls", "engine", "engines"])
        self.assertIn("openai_", prefixes("nowhere/openai_chat.h"))
        self.assertTrue(begins("kv", "kv") and begins("kv_take", "kv") and begins("openai_x", "openai_"))
        self.assertFalse(begins("kvtake", "kv"))

    def test_headers_are_there(self):
        self.assertGreater(len(list(headers(SERVICES))), 100)


class Names(unittest.TestCase):
    maxDiff = None

    def test_the_file_is_the_prefix(self):
        found = misnamed()
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_types_begin_with_the_file(self):
        found = misnamed_types()
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_exceptions_are_needed(self):
        stems = {os.path.splitext(os.path.basename(path))[0] for path, _ in headers(SERVICES)}
        for file, *_ in FAMILIES + TYPE_FAMILIES:
            self.assertTrue(any(re.fullmatch(file, stem) for stem in stems), file)

    def test_a_public_name_stands_in_one_header(self):
        found = repeated()
        self.assertFalse(found, "\n" + "\n".join(found))


if __name__ == "__main__":
    if "--report" in sys.argv:
        print("\n".join([*misnamed(), *misnamed_types(), *repeated()]))
    else:
        unittest.main()
