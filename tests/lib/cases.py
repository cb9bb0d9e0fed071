"""cases.py SCRIPT [ARGUMENT...]: runs the unittest cases of a script, and reports each case in a line for tools/count.py.

The summary of unittest is no count of cases. It counts a skipped or failed set-up of a class, and each failed part
of a case. Here a case has exactly one result, which is printed when it is known:

    [case] begun NAME
    [case] passed NAME
    [case] failed NAME
    [case] skipped NAME: REASON
    [case] end

The last line is printed when all cases have run.
"""
import os
import runpy
import sys
import unittest


def say(*words):
    print("[case]", *words, flush=True)


def name(case):
    case = getattr(case, "test_case", case)  # of a part of a case
    return case.id().removeprefix("__main__.")


class Result(unittest.TextTestResult):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.bad, self.skips, self.running = {}, {}, None

    def startTest(self, test):
        super().startTest(test)
        self.running = name(test)
        say("begun", self.running)

    def stopTest(self, test):
        super().stopTest(test)
        self.report(self.running)
        self.running = None

    def report(self, case):
        """A case with a failed and a skipped part has failed."""
        if case in self.bad:
            say("failed", case)
        elif case in self.skips:
            say(f"skipped {case}:", " ".join(self.skips[case].split()))
        else:
            say("passed", case)

    def note(self, found, test, value):
        found[name(test)] = value
        if name(test) != self.running:  # set-up or end of a class or module
            self.report(name(test))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(self.bad, test, True)

    def addError(self, test, err):
        super().addError(test, err)
        self.note(self.bad, test, True)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.note(self.bad, test, True)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(self.bad, test, True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(self.skips, test, reason)

    def stopTestRun(self):
        super().stopTestRun()
        say("end")


def main():
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    unittest.TextTestRunner.resultclass = Result
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
