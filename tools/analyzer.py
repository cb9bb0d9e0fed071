"""analyzer.py LOG LIST: prints the findings of gcc's -fanalyzer in a build log that are not in the list of known ones.

A finding is "FILE FUNCTION: MESSAGE". Its line number is left out, because it changes with every edit.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FUNCTION = re.compile(r"^\S+: In function '(\w+)'")
WARNING = re.compile(r"^(\S+?):\d+:\d+: warning: (.*?)(?: \[CWE-\d+\])? \[-Wanalyzer-[\w-]+\]$")


def findings(log, folder=ROOT):
    """The findings, in order and without repetitions. folder: relative paths in the log start in build/PRESET below it."""
    found, function = {}, ""
    for line in log.replace("\u2018", "'").replace("\u2019", "'").splitlines():
        if at := FUNCTION.match(line):
            function = at[1]
        elif at := WARNING.match(line):
            path = os.path.relpath(os.path.normpath(os.path.join(folder, "build", "analyze", at[1])), folder)
            found[f"{path} {function}: {at[2]}"] = None
    return list(found)


def known(text):
    return {line for line in text.splitlines() if line and not line.startswith("#")}


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as f:
        found = findings(f.read())
    with open(sys.argv[2], encoding="utf-8") as f:
        allowed = known(f.read())
    print("\n".join(line for line in found if line not in allowed), end="")


if __name__ == "__main__":
    main()
