"""tools/count.py, tests/lib/cases.py and run_ctest in tools/test.sh: numbers of passed, failed and skipped cases.

The suites here are small. A real ctest or a real log of ctest runs through the code that counts.
"""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CASES = os.path.join(ROOT, "tests", "lib", "cases.py")

CMOCKA = """[==========] Running 3 test(s).
[ RUN      ] a
[       OK ] a
[ RUN      ] b
[       OK ] b
[ RUN      ] c
[       OK ] c
[==========] 3 test(s) run.
[  PASSED  ] 3 test(s).
"""
FAILED = """[==========] Running 2 test(s).
[ RUN      ] a
[       OK ] a
[ RUN      ] b
[  FAILED  ] b
[==========] 2 test(s) run.
[  PASSED  ] 1 test(s).
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] b

 1 FAILED TEST(S)
"""
SKIPPED = """[ RUN      ] a
skipped: there is no tool
[  SKIPPED ] a
[ RUN      ] b
[       OK ] b
[==========] 2 test(s) run.
[  PASSED  ] 1 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] a
"""
TAP = """TAP version 13
# Subtest: one
ok 1 - one
    ok 1 - part
not ok 2 - two
ok 3 - three # SKIP no browser
1..3
# pass 2
# fail 1
# skipped 1
"""


def log(output, passed=True, command='"/bin/x"', ended=True):
    return (f'Start testing: Nov 23 19:49 UTC\n---\n1/1 Testing: test_x\n1/1 Test: test_x\nCommand: {command}\nOutput:\n---\n'
            f'{output}<end of output>\nTest time =   0.02 sec\n---\nTest {"Passed" if passed else "Failed"}.\n'
            '"test_x" end time: Nov 23 19:49 UTC\n---\n\n' + ("End testing: Nov 23 19:49 UTC\n" if ended else ""))


def count(text):
    """The lines that count.py prints for this log."""
    with tempfile.NamedTemporaryFile("w", suffix=".log") as f:
        f.write(text)
        f.flush()
        run = subprocess.run(["/usr/bin/python3", os.path.join(ROOT, "tools", "count.py"), f.name], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


class Logs(unittest.TestCase):
    def check(self, text, *lines):
        self.assertEqual(count(text), list(lines))

    def test_cases_are_counted_one_by_one(self):
        self.check(log(CMOCKA), "3 0 0")
        self.check(log(FAILED, False), "1 1 0", "failed: test_x b")
        self.check(log(TAP, False), "2 1 1", "failed: test_x two", "skipped: test_x three: no browser")

    def test_a_program_without_cases_is_one(self):
        self.check(log("replayed 7 inputs\n"), "1 0 0")
        self.check(log("", False), "0 1 0", "failed: test_x")

    def test_a_skipped_case_has_its_reason(self):
        self.check(log(SKIPPED), "1 0 1", "skipped: test_x a: there is no tool")
        self.check(log(SKIPPED.replace("no tool\n", "no a\nskipped: there is no b\n")), "1 0 1",
                   "skipped: test_x a: there is no a (and 1 more)")
        self.check(log(SKIPPED.replace("skipped: there is no tool\n", "")), "1 0 1", "skipped: test_x a: no reason given")

    def test_what_a_passed_case_left_undone_is_skipped(self):
        part = CMOCKA.replace("[       OK ] b", "skipped: no AMX\nskipped: no AVX\n[       OK ] b")
        self.check(log(part), "3 0 2", "skipped: test_x: no AMX", "skipped: test_x: no AVX")
        self.check(log("skipped: there is no node\n"), "0 0 1", "skipped: test_x: there is no node")

    def test_what_another_build_or_suite_runs_is_not_counted(self):
        self.check(log(SKIPPED.replace("skipped: ", "left out: ")), "1 0 0")
        self.check(log(TAP.replace("SKIP no", "SKIP left out: no").replace("not ok", "ok")), "3 0 0")

    def test_a_crash_fails_the_case_it_ends_in(self):
        crashed = CMOCKA.split("[       OK ] c")[0]
        self.check(log(crashed, False), "2 1 0", "failed: test_x c: the program ended in it")
        self.check(log(crashed, True), "2 1 0", "failed: test_x c: the program ended in it")
        both = FAILED.split("[======")[1].replace("[=====", "") + "[ RUN      ] c\n"
        self.check(log(both, False), "1 2 0", "failed: test_x b", "failed: test_x c: the program ended in it")

    def test_a_failure_behind_the_last_case_is_one(self):
        self.check(log(CMOCKA, False), "3 1 0", "failed: test_x: its status after its last case")

    def test_a_node_program_that_ends_early_fails(self):
        early = TAP.split("not ok")[0]
        self.check(log(early), "2 1 0", "failed: test_x: it ended before its last case")

    def test_a_program_that_is_not_built_fails(self):
        self.check("Unable to find executable: /no\n" + log("", True, '""'), "0 1 0", "failed: test_x: it could not be started")

    def test_an_incomplete_log_fails(self):
        self.check(log(CMOCKA, ended=False), "3 1 0", "failed: ctest: its log is incomplete")
        self.check("", "0 1 0", "failed: ctest: its log is incomplete")

    def test_text_of_a_program_is_not_ctests(self):
        self.check(log("Test Passed.\n", False), "0 1 0", "failed: test_x")


class Scripts(unittest.TestCase):
    """Programs of unittest, run by tests/lib/cases.py."""

    def check(self, body, *lines, code=0):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
            f.write(f"import os\nimport unittest\n{body}\nunittest.main()\n")
            f.flush()
            run = subprocess.run([sys.executable, CASES, f.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(run.returncode, code, run.stdout)
        self.assertEqual(count(log(run.stdout, code == 0)), list(lines))

    def test_cases(self):
        self.check("class A(unittest.TestCase):\n"
                   "    def test_a(self): pass\n"
                   "    def test_b(self): self.fail()\n"
                   "    def test_c(self): self.skipTest('no tool')\n"
                   "    def test_d(self): self.skipTest('left out: part of the long suite')\n"
                   "    def test_e(self): raise ValueError\n",
                   "1 2 1", "failed: test_x A.test_b", "failed: test_x A.test_e", "skipped: test_x A.test_c: no tool", code=1)

    def test_set_up_of_a_class_skips(self):
        self.check("class A(unittest.TestCase):\n"
                   "    @classmethod\n"
                   "    def setUpClass(cls): raise unittest.SkipTest('no peer')\n"
                   "    def test_a(self): pass\n"
                   "    def test_b(self): pass\n",
                   "0 0 1", "skipped: test_x setUpClass (__main__.A): no peer")

    def test_set_up_of_a_module_skips(self):
        self.check("def setUpModule(): raise unittest.SkipTest('no peer')\n"
                   "class A(unittest.TestCase):\n"
                   "    def test_a(self): pass\n",
                   "0 0 1", "skipped: test_x setUpModule (__main__): no peer")

    def test_set_up_of_a_class_fails(self):
        self.check("class A(unittest.TestCase):\n"
                   "    @classmethod\n"
                   "    def setUpClass(cls): raise ValueError\n"
                   "    def test_a(self): pass\n",
                   "0 1 0", "failed: test_x setUpClass (__main__.A)", code=1)

    def test_parts_of_a_case_are_one_case(self):
        self.check("class A(unittest.TestCase):\n"
                   "    def test_a(self):\n"
                   "        for i in range(4):\n"
                   "            with self.subTest(i): self.assertFalse(i % 2)\n"
                   "    def test_b(self):\n"
                   "        for i in range(4):\n"
                   "            with self.subTest(i): self.skipTest('no tool')\n",
                   "0 1 1", "failed: test_x A.test_a", "skipped: test_x A.test_b: no tool", code=1)

    def test_cases_of_programs_that_a_script_runs_are_not_its_own(self):
        self.check("class A(unittest.TestCase):\n"
                   "    def test_a(self): os.system(\"printf 'skipped: no AMX\\\\n[ RUN      ] a\\\\n'\")\n",
                   "1 0 0")

    def test_a_script_that_ends_in_a_case_fails(self):
        for status in (0, 3):
            self.check("class A(unittest.TestCase):\n"
                       "    def test_a(self): pass\n"
                       f"    def test_b(self): os._exit({status})\n"
                       "    def test_c(self): pass\n",
                       "1 1 0", "failed: test_x A.test_b: the program ended in it", code=status)

    def test_a_script_without_cases_is_not_passed(self):
        self.check("", "0 1 0", "failed: test_x: it has no case")


class Ctest(unittest.TestCase):
    """run_ctest and show_results, with a real ctest. Its tests are shell commands."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.build = os.path.join(self.folder.name, "build", "dev")
        os.makedirs(self.build)
        os.makedirs(os.path.join(self.folder.name, "build", "log"))
        os.symlink(os.path.join(ROOT, "tools"), os.path.join(self.folder.name, "tools"))

    def add(self, name, script, **properties):
        command = os.path.join(self.build, name)
        with open(command, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n" + script)
        os.chmod(command, 0o755)
        properties = " ".join(f"{k} {v}" for k, v in {"LABELS": "unit", **properties}.items())
        with open(os.path.join(self.build, "CTestTestfile.cmake"), "a", encoding="utf-8") as f:
            f.write(f'add_test({name} "{command}")\nset_tests_properties({name} PROPERTIES {properties})\n')

    def run_ctest(self, before="", **environment):
        """(status, output): a run of the suite, as ./tandem test does it."""
        script = f"set -euo pipefail; . tools/common.sh; . tools/test.sh; {before}\nrun_ctest dev unit; show_results"
        environment = {k: v for k, v in {**os.environ, **environment}.items() if k != "TANDEM_NO_SKIP" or k in environment}
        run = subprocess.run(["bash", "-c", script], cwd=self.folder.name, env=environment,
                             capture_output=True, text=True)
        return run.returncode, run.stdout

    def lines(self, n, *arguments, **environment):
        status, output = self.run_ctest(*arguments, **environment)
        return status, output.splitlines()[-n:]

    def test_sums_and_reasons_close_the_run(self):
        self.add("test_a", "cat <<'X'\n" + CMOCKA + "X\n")
        self.add("test_b", "cat <<'X'\n" + SKIPPED + "X\n")
        self.assertEqual(self.lines(2), (0, ["4 passed, 0 failed, 1 skipped", "skipped: dev test_b a: there is no tool"]))

    def test_skips_can_be_failures(self):
        self.add("test_b", "cat <<'X'\n" + SKIPPED + "X\n")
        self.assertEqual(self.lines(2, TANDEM_NO_SKIP="1"),
                         (1, ["1 passed, 1 failed, 0 skipped", "skipped, a failure with TANDEM_NO_SKIP=1: dev test_b a: there is no tool"]))

    def test_a_program_that_runs_too_long_fails_in_its_case(self):
        self.add("test_a", "echo '[ RUN      ] a'; echo '[       OK ] a'; echo '[ RUN      ] b'; exec sleep 20", TIMEOUT=1)
        status, output = self.run_ctest()
        self.assertEqual((status, output.splitlines()[-1]), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertIn("failed: test_a b: the program ended in it", output)

    def test_a_status_of_skipped_is_no_pass(self):
        self.add("test_a", "echo 'skipped: there is no tool'; exit 77", SKIP_RETURN_CODE=77)
        self.assertEqual(self.lines(2), (0, ["0 passed, 0 failed, 1 skipped", "skipped: dev test_a: there is no tool"]))

    def test_a_failure_that_only_ctest_saw_counts(self):
        self.add("test_a", "cat <<'X'\n" + CMOCKA + "X\n")
        ctest = "ctest() { command ctest \"$@\"; return 8; }"
        self.assertEqual(self.lines(1, ctest), (1, ["3 passed, 1 failed, 0 skipped"]))

    def test_the_log_of_an_earlier_run_is_not_counted(self):
        self.add("test_a", "cat <<'X'\n" + CMOCKA + "X\n")
        self.assertEqual(self.lines(1), (0, ["3 passed, 0 failed, 0 skipped"]))
        for status in (0, 8):
            self.assertEqual(self.lines(1, f"ctest() {{ return {status}; }}"), (1, ["0 passed, 1 failed, 0 skipped"]))

    def test_no_tests_are_a_failure(self):
        self.add("test_a", "exit 0", LABELS="other")
        self.assertEqual(self.lines(1), (1, ["0 passed, 1 failed, 0 skipped"]))


if __name__ == "__main__":
    unittest.main()
