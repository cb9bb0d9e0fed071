"""count.py LOG: prints "PASSED FAILED", the number of test cases in a ctest log (LastTest.log).

Adds up the counts that the test programs print: cmocka, Python unittest and node --test (TAP). A program that prints
no count is one case. A program that failed without naming a failed case (a crash, a time-out) is one failure.
"""
import re
import sys


def cases(output):
    """(passed, failed): the counts that one test program printed."""
    passed = sum(map(int, re.findall(r"\[  PASSED  \] (\d+) test", output)))
    failed = sum(map(int, re.findall(r"\[  FAILED  \] (\d+) test", output)))
    passed += sum(map(int, re.findall(r"^# pass (\d+)$", output, re.M)))
    failed += sum(map(int, re.findall(r"^# fail (\d+)$", output, re.M)))
    for ran, end in re.findall(r"^Ran (\d+) tests? in .*?\n\n(OK|FAILED)", output, re.M):
        bad = sum(map(int, re.findall(r"(?:failures|errors)=(\d+)", output[output.rindex(end):])))
        skipped = sum(map(int, re.findall(r"skipped=(\d+)", output[output.rindex(end):])))
        passed += int(ran) - bad - skipped
        failed += bad
    return passed, failed


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as f:
        blocks = re.split(r"^(?=\d+/\d+ Testing: )", f.read(), flags=re.M)[1:]
    total_passed = total_failed = 0
    for block in blocks:
        ok = re.search(r"^Test Passed\.$", block, re.M) is not None
        passed, failed = cases(block)
        if ok and passed + failed == 0 and "skipped" not in block:
            passed = 1
        if not ok and failed == 0:
            failed = 1
        total_passed += passed
        total_failed += failed
    print(total_passed, total_failed)


main()
