"""A variable that its scope frees (AUTO() in base/mem.h, the cleanup attribute) has an initialiser in its declaration.

Without one, a return before the first assignment frees what the stack happens to hold.
`/usr/bin/python3 tests/lint/test_auto.py --report` lists the findings.
"""
import glob
import os
import re
import sys
import unittest

from test_names import FOLDERS, ROOT, bare

ATTRIBUTES = r"\bAUTO\s*\(|\b_*cleanup_*\s*\("
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n]*\\\n)*[^\n]*)", re.M)


def statement(text, at):
    """The statement around text[at]: from the last ; or brace before it to the next ; outside all brackets."""
    start = max(text.rfind(c, 0, at) for c in ";{}") + 1
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] in "([{") - (text[end] in ")]}")
        if text[end] == ";" and depth == 0:
            return start, text[start:end]
    return start, text[start:]


def declarators(declaration):
    """The parts between commas outside all brackets, each without the text in brackets. The first begins with the type."""
    parts, depth = [""], 0
    for c in declaration:
        depth -= c in ")]}"
        if depth == 0 and c == ",":
            parts.append("")
        elif depth == 0:
            parts[-1] += c
        depth += c in "([{"
    return parts


def in_code(code, first, pattern):
    """(line, name) of each variable that a match of pattern declares without an initialiser. first: the line of the code's begin."""
    seen = set()
    for m in re.finditer(pattern, code):
        start, declaration = statement(code, m.start())
        if start in seen:
            continue
        seen.add(start)
        for part in declarators(declaration):
            if "=" not in part:
                part = re.sub(r"__attribute__|\[\]|\(\)", " ", part)
                yield first + code.count("\n", 0, m.start()), re.findall(r"\w+", part)[-1]


def uninitialised(text):
    """(line, name) of each variable with the attribute and without an initialiser.

    A macro may contain statements, which are judged. A macro without one stands for the attribute: the file's uses are judged.
    """
    pattern = ATTRIBUTES
    for m in MACRO.finditer(text):
        name, body = m.groups()
        if ";" in body:
            yield from in_code(bare(body.replace("\\\n", " \n")), text.count("\n", 0, m.start()) + 1, ATTRIBUTES)
        elif name != "AUTO" and re.search(ATTRIBUTES, body):
            pattern += rf"|\b{name}\b"
    yield from in_code(bare(text), 1, pattern)


def findings():
    for folder in FOLDERS:
        for path in sorted(glob.glob(f"{folder}/**/*.[ch]", root_dir=ROOT, recursive=True)):
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                for line, name in uninitialised(f.read()):
                    yield f"{path}:{line}: {name} is freed by its scope; give it an initialiser, such as NULL or {{0}}"


class TheLint(unittest.TestCase):
    """That it reads declarations as they are written."""

    def names(self, text):
        return [name for _, name in uninitialised(text)]

    def test_a_declaration_without_initialiser_is_found(self):
        for text in ["AUTO(buf_done) struct buf b;", "    AUTO(kv_free)\n    struct kv *\n        b;", "f(); AUTO(mem_free) char *b, *c = NULL;",
                     "AUTO(mem_free) char *c = f(1, (2)), *b;", "struct buf b __attribute__((cleanup(buf_done_auto)));",
                     "__attribute__((cleanup(f))) int b;", "__attribute__((unused, __cleanup__(f))) int b;", "AUTO(buf_done) struct buf b[2];",
                     "if (x) {AUTO(mem_free) char *b; f(b == 1);}", "AUTO(mem_free) char *c = x == y ? (f(), g) : h, *b;",
                     "#define MINE struct mine __attribute__((cleanup(f)))\nMINE c = {1, 2}, b;",
                     "#define MINE \\\n    AUTO(f) struct mine\nMINE b;", "AUTO(f) struct buf b; // = {0}",
                     "#define HAS(x) \\\n    do { \\\n        AUTO(f) char *b; \\\n        g(b, x); \\\n    } while (0)"]:
            self.assertEqual(self.names(text), ["b"], text)

    def test_initialised_variables_pass(self):
        for text in ["AUTO(buf_done) struct buf b = {0};", "AUTO(kv_free)\nstruct kv *b\n    = kv_new(1,\n 2);", "AUTO(mem_free) char *b = NULL, *c = f(a, b);",
                     "AUTO(f) struct pair b = {.x = {1, 2}, .y = 3}, c = b;", "int b __attribute__((cleanup(f))) = open(p, 1);",
                     "DEFINE_AUTO(struct kv, kv_free)\nint b;", "/* AUTO(kv_free) struct kv *b; */ int c;", 'puts("AUTO(f) int b;");',
                     "#define AUTO(free_fn) __attribute__((cleanup(free_fn##_auto), unused))\nint b;", "AUTO(f) struct a *b = g((struct h){1, 2});",
                     "#define MINE struct mine __attribute__((cleanup(f)))\nMINE b = f(), c = g(1, 2);", "int cleanup_all; my_cleanup(b);",
                     "#define HAS(x) \\\n    do { \\\n        AUTO(f) char *b = h(); \\\n        g(b, x); \\\n    } while (0)\nvoid f(void) {HAS(1);}"]:
            self.assertEqual(self.names(text), [], text)

    def test_the_line_is_that_of_the_attribute(self):
        text = "int f(void)\n{\n    /* A comment\n     * on two lines. */\n    AUTO(f) int a = 1;\n    AUTO(f)\n    int b;\n}\n"
        self.assertEqual(list(uninitialised(text)), [(6, "b")])


class Auto(unittest.TestCase):
    maxDiff = None

    def test_variables_that_are_freed_have_an_initialiser(self):
        found = list(findings())
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_sources_are_read(self):
        with open(os.path.join(ROOT, "common/base/mem.h"), encoding="utf-8") as f:
            self.assertIn("#define AUTO(", f.read())
        self.assertGreater(len(glob.glob("**/*.c", root_dir=os.path.join(ROOT, "gateway"), recursive=True)), 20)


if __name__ == "__main__":
    if "--report" in sys.argv:
        print("\n".join(findings()))
    else:
        unittest.main()
