"""count.py LOG: counts the test cases in a log of ctest (LastTest.log).

Prints "PASSED FAILED SKIPPED", then a line for each failed and each skipped case, with its reason.

Cases are counted one by one, from the lines of cmocka, of node's TAP, and of tests/lib/cases.py for unittest. So the
cases of a program count that has crashed or run too long, too. The rules:

- A program that prints no case is one case.
- A program that ends within a case has failed in it. A program that failed otherwise, with no failed case, is one failure.
- A line "skipped: REASON" gives the reason of a case that cmocka skips. In a case that passed, or outside of cases, it
  counts as one more skip: a part that was not tested.
- "left out: REASON" is no skip. Another build or the long suite runs that case.
"""
import re
import sys

BEGINNING = r"^(?=\d+/\d+ Testing: )"
LEFT_OUT = "left out: "


class Program:
    """The cases of one test program, from its block in the log."""

    def __init__(self, block):
        self.name = re.match(r"\S+ Testing: (.*)", block).group(1)
        self.passed, self.failed, self.skipped, self.n_left_out = 0, [], [], 0
        self.running, self.notes = None, []
        head, _, rest = block.partition("\nOutput:\n")
        output, _, end = rest.rpartition("\n<end of output>")
        for line in output.split("\n"):
            self.read(line)
        if self.running is not None:
            self.fail(f" {self.running}: the program ended in it")
        self.take_notes()
        self.judge(output, re.search(r"^Test Passed\.$", end, re.M) is not None, re.search(r'^Command: ""$', head, re.M))

    def fail(self, text):
        self.failed.append(self.name + text)

    def skip(self, case, reason):
        if reason.startswith(LEFT_OUT):
            self.n_left_out += 1
        else:
            self.skipped.append(f"{self.name}{case}: {reason or 'no reason given'}")

    def take_notes(self):
        for note in self.notes:
            self.skip("", note)
        self.notes = []

    def end(self, result, case):
        if result == "passed":
            self.passed += 1
        elif result == "failed":
            self.fail(f" {case}")
        else:
            first, more = next(iter(self.notes), ""), len(self.notes) - 1
            self.skip(f" {case}", f"{first} (and {more} more)" if more > 0 else first)
            self.notes = []
        self.running = None

    def read(self, line):
        """Children write into the same log, so their text may stand before a line of cmocka or unittest."""
        if note := re.match(r"(?:skipped: |(?=left out: ))(.*)", line):
            self.notes.append(note[1])
        elif case := re.search(r"\[ RUN      \] (.+)", line):
            self.take_notes()
            self.running = case[1]
        elif case := re.search(r"\[ +(OK|FAILED|SKIPPED) +\] (.+)", line):
            if self.running is not None:  # not in the list at the end
                self.end({"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[case[1]], case[2])
        elif case := re.match(r"\s*(not )?ok \d+ - (.*?)(?: # SKIP ?(.*))?$", line):
            if case[3] is not None:
                self.skip(f" {case[2]}", case[3])
            else:
                self.end("failed" if case[1] else "passed", case[2])

    def judge(self, output, ok, missing):
        """Failures that no case tells."""
        n_found = self.passed + len(self.failed) + len(self.skipped) + self.n_left_out
        if missing:
            self.fail(": it could not be started")
        elif "TAP version" in output and not re.search(r"^1\.\.\d+$", output, re.M) and not self.failed:
            self.fail(": it ended before its last case")
        elif not ok and not self.failed:
            self.fail(": its status after its last case" if n_found else "")
        elif ok and n_found == 0:
            self.passed = 1


class Script(Program):
    """A script that tests/lib/cases.py ran. What the programs that it runs print is not counted."""

    def read(self, line):
        case = re.search(r"\[case\] (begun|passed|failed|skipped|end)(?: (.*))?", line)
        if not case:
            return
        if case[1] == "begun":
            self.running = case[2]
        elif case[1] == "skipped":
            named, _, reason = case[2].partition(": ")
            self.notes = [reason]
            self.end("skipped", named)
        elif case[1] != "end":
            self.end(case[1], case[2])

    def judge(self, output, ok, missing):
        if ok and self.passed + len(self.failed) + len(self.skipped) + self.n_left_out == 0:
            self.fail(": it has no case")
        super().judge(output, ok, missing)


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as f:
        text = f.read()
    blocks = re.split(BEGINNING, text, flags=re.M)[1:]
    programs = [(Script if "[case] " in block else Program)(block) for block in blocks]
    failed = [line for p in programs for line in p.failed]
    skipped = [line for p in programs for line in p.skipped]
    if not re.search(r"^End testing: ", text, re.M):
        failed.append("ctest: its log is incomplete")
    print(sum(p.passed for p in programs), len(failed), len(skipped))
    for kind, lines in (("failed", failed), ("skipped", skipped)):
        for line in lines:
            print(f"{kind}: {line}")


main()
