"""tools/coverage.py: what it reads from gcov, and what it prints of it. tests/lint/uncovered.txt: each line still exists."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from test_names import ROOT

sys.path.insert(0, os.path.join(ROOT, "tools"))
import coverage  # noqa: E402

PROGRAM = """#include <assert.h>
static int sign(int x)
{
    assert(x != 7);
    if (x < 0)
        return -1;
    return x > 0;
}
int main(int argc, char **argv)
{
    (void)argv;
    return sign(argc) + sign(argc) - 2;
}
"""


def counted(*lines):
    """Counts of lines given as (number, count, counts of the branches)."""
    counts = coverage.Counts()
    counts.add([{"line_number": n, "count": count, "branches": [{"count": b} for b in branches], "function_name": "f"}
                for n, count, *branches in lines])
    return counts


class Reading(unittest.TestCase):
    def run_program(self, folder):
        with open(os.path.join(folder, "a.c"), "w", encoding="utf-8") as f:
            f.write(PROGRAM)
        subprocess.run(["gcc", "--coverage", "-O0", "-c", "a.c", "-o", "a.c.o"], cwd=folder, check=True)
        subprocess.run(["gcc", "--coverage", "a.c.o", "-o", "a"], cwd=folder, check=True)
        subprocess.run([os.path.join(folder, "a")], check=True)
        [(path, lines)] = coverage.read_gcov(os.path.join(folder, "a.c.gcno"))
        counts = coverage.Counts()
        counts.add(lines)
        return path, counts

    def test_a_program_that_ran(self):
        with tempfile.TemporaryDirectory() as folder:
            path, counts = self.run_program(folder)
            self.assertEqual(os.path.realpath(os.path.join(ROOT, path)), os.path.realpath(os.path.join(folder, "a.c")))
        self.assertEqual((counts.lines[5], counts.lines[6], counts.lines[7]), (2, 0, 2))
        self.assertEqual(counts.n_branches(), (4, 2))
        counts.drop_asserts(PROGRAM.split("\n"))
        self.assertEqual(counts.n_branches(), (2, 1))
        self.assertEqual([found[:2] for found in counts.uncovered(PROGRAM.split("\n"))],
                         [(5, "1 of 2 branches not taken"), (6, "not run")])


class Counting(unittest.TestCase):
    def test_objects_that_share_a_file_are_added_up(self):
        counts = counted((1, 2, 2, 0), (2, 0))
        counts.add([{"line_number": 1, "count": 3, "branches": [{"count": 0}, {"count": 3}], "function_name": "f"},
                    {"line_number": 2, "count": 0, "function_name": "f"}])
        self.assertEqual((counts.n_lines(), counts.n_branches()), ((2, 1), (2, 2)))

    def test_folders_are_summed_and_one_without_counters_says_so(self):
        rows = list(coverage.table({"common/rpc/a.c": counted((1, 1, 1, 0)), "common/rpc/b.h": counted((1, 0), (2, 0), (3, 5)),
                                    "gateway/main.c": counted((1, 1))}))
        self.assertIn("common/rpc                50.0 % of     4    50.0 % of     2", rows)
        self.assertIn("gateway                  100.0 % of     1   none", rows)
        self.assertIn("common/kernel            not measured", rows)
        self.assertEqual(rows[-1], "all                       60.0 % of     5    50.0 % of     2")


class Reasons(unittest.TestCase):
    TEXT = """# a comment
No test reaches it.
    a.c sign return -1;

A test would take an hour.
    b.h wait sleep(1);
    b.h wait }
"""

    def test_a_reason_is_that_of_the_lines_below_it(self):
        self.assertEqual(coverage.read_reasons(self.TEXT), {
            ("a.c", "sign", "return -1;"): "No test reaches it.",
            ("b.h", "wait", "sleep(1);"): "A test would take an hour.",
            ("b.h", "wait", "}"): "A test would take an hour."})

    def test_lines_that_did_not_run_need_a_reason(self):
        counts, source = counted((1, 0), (2, 1, 1, 0), (3, 0)), ["    return -1;", "    if (x)", "  return 2;"]
        for number in counts.functions:
            counts.functions[number] = "sign"
        reasons = coverage.read_reasons(self.TEXT)
        self.assertEqual(list(coverage.without_reason("a.c", counts, source, reasons)), ["    a.c sign return 2;"])
        self.assertEqual(list(coverage.without_reason("b.c", counts, source, reasons)),
                         ["    b.c sign return -1;", "    b.c sign return 2;"])
        self.assertEqual(list(coverage.without_reason("a.c", counts, source, {("a.c", "sign", "*"): "It aborts."})), [])

    def test_each_listed_line_exists_in_an_edge(self):
        with open(coverage.REASONS, encoding="utf-8") as f:
            reasons = coverage.read_reasons(f.read())
        self.assertTrue(reasons)
        for (path, function, code), reason in reasons.items():
            self.assertIn(os.path.dirname(path), coverage.EDGES)
            self.assertTrue(reason.endswith("."), reason)
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                text = f.read()
            body = re.search(rf"^[a-z][^;={{}}]*\b{re.escape(function)}\([^;]*?\)\n{{(.*?)^}}", text, re.M | re.S)
            self.assertTrue(body, f"{path} has no function {function}")
            self.assertIn(code, ["*"] + [line.strip() for line in (body.group(1) + "}").split("\n")], f"{path} {function}")


if __name__ == "__main__":
    unittest.main()
