"""coverage.py BUILD: prints the lines and branches of each folder that ran, from the counters in the folder BUILD.

The folders are those of tests/lint/test_arrows.py. A branch is one outcome of one condition. For each file with
lines or branches that did not run, BUILD/uncovered/FILE.txt lists them.

The edges are the folders whose code meets other programs. Their lines that did not run are printed, unless
tests/lint/uncovered.txt gives the reason.
"""
import collections
import concurrent.futures
import glob
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "lint"))
from test_arrows import ROOMS  # noqa: E402

EDGES = [room for room in ROOMS if room.startswith("gateway")] + ["common/rpc", "proposer-svc", "verifier-svc/edge"]
REASONS = os.path.join(ROOT, "tests", "lint", "uncovered.txt")


class Counts:
    """The counts of one file. Its functions may be compiled into several objects, as those of a header are."""

    def __init__(self):
        self.lines = collections.Counter()  # by line number
        self.functions = {}  # by line number
        self.branches = collections.defaultdict(list)  # by line number and function: one count for each outcome

    def add(self, lines):
        for line in lines:
            number = line["line_number"]
            self.lines[number] += line["count"]
            self.functions[number] = line.get("function_name")
            counts = [branch["count"] for branch in line.get("branches", [])]
            sums = self.branches[number, line.get("function_name")]
            sums += [0] * (len(counts) - len(sums))
            for i, count in enumerate(counts):
                sums[i] += count

    def drop_asserts(self, source):
        """No test reaches the other outcome of an assert()."""
        for number, function in list(self.branches):
            if re.match(r"\s*assert\(", source[number - 1]):
                del self.branches[number, function]

    def n_lines(self):
        return len(self.lines), sum(count > 0 for count in self.lines.values())

    def n_branches(self):
        outcomes = [count for counts in self.branches.values() for count in counts]
        return len(outcomes), sum(count > 0 for count in outcomes)

    def uncovered(self, source):
        """(line number, reason, text) of the lines that did not run, and of those with outcomes that did not occur."""
        for number in sorted(self.lines):
            text = source[number - 1].rstrip()
            counts = [c for (n, _), outcomes in self.branches.items() if n == number for c in outcomes]
            if self.lines[number] == 0:
                yield number, "not run", text
            elif 0 in counts:
                yield number, f"{counts.count(0)} of {len(counts)} branches not taken", text


def read_gcov(notes):
    """(path relative to ROOT, lines) of each file of the tree in one object."""
    run = subprocess.run(["gcov", "--branch-probabilities", "--json-format", "--stdout", notes], capture_output=True, text=True, check=True,
                         cwd=os.path.dirname(notes))
    for text in run.stdout.splitlines():
        data = json.loads(text)
        for file in data["files"]:
            path = os.path.join(data["current_working_directory"], file["file"])
            yield os.path.relpath(path, ROOT), file["lines"]


def read_counts(build):
    """Counts by path. Objects of programs that did not run count, too: with zeros."""
    files = collections.defaultdict(Counts)
    notes = glob.glob(os.path.join(glob.escape(os.path.abspath(build)), "**", "*.gcno"), recursive=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for read in pool.map(lambda path: list(read_gcov(path)), notes):
            for path, lines in read:
                if os.path.dirname(path) in ROOMS:
                    files[path].add(lines)
    return files


def percent(n, n_run):
    return f"{100 * n_run / n:5.1f} % of {n:5}" if n else "none"


def table(files):
    """One line for each folder, then one for all."""
    rows = []
    for folder in ROOMS:
        inside = [counts for path, counts in files.items() if os.path.dirname(path) == folder]
        rows.append((folder, inside))
    rows.append(("all", list(files.values())))
    yield f"{'folder':24} {'lines':18} branches"
    for name, inside in rows:
        lines, branches = ([sum(column) for column in zip(*[f(c) for c in inside])] for f in (Counts.n_lines, Counts.n_branches))
        yield f"{name:24} {percent(*lines):18} {percent(*branches)}" if inside else f"{name:24} not measured"


def read_reasons(text):
    """(path, function, code) of each line that has a reason, with the reason. The code "*" stands for all lines."""
    reasons, reason = {}, ""
    for line in text.split("\n"):
        if line.startswith("    "):
            path, function, code = line.strip().split(None, 2)
            reasons[path, function, code] = reason
        elif line and not line.startswith("#"):
            reason = line
    return reasons


def without_reason(path, counts, source, reasons):
    """The lines of a file that did not run and have no reason, as they stand in uncovered.txt."""
    for number, why, text in counts.uncovered(source):
        place, code = (path, counts.functions[number]), text.strip()
        if why == "not run" and not {(*place, code), (*place, "*")} & reasons.keys():
            yield "    " + " ".join(map(str, (*place, code)))


def print_edges(lines):
    if lines:
        print(f"{len(lines)} lines of the edges did not run, and tests/lint/uncovered.txt gives no reason:")
        print("\n".join(sorted(lines)))
    else:
        print("each line of the edges ran, or tests/lint/uncovered.txt gives the reason")


def write_uncovered(folder, path, found):
    if not found:
        return
    to = os.path.join(folder, path + ".txt")
    os.makedirs(os.path.dirname(to), exist_ok=True)
    with open(to, "w", encoding="utf-8") as f:
        for number, reason, text in found:
            f.write(f"{path}:{number}: {reason}: {text.strip()}\n")


def main():
    build = sys.argv[1]
    files = read_counts(build)
    folder = os.path.join(build, "uncovered")
    shutil.rmtree(folder, ignore_errors=True)
    with open(REASONS, encoding="utf-8") as f:
        reasons = read_reasons(f.read())
    edges = []
    for path, counts in files.items():
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            source = f.read().split("\n")
        counts.drop_asserts(source)
        write_uncovered(folder, path, list(counts.uncovered(source)))
        if os.path.dirname(path) in EDGES:
            edges += without_reason(path, counts, source, reasons)
    print("\n".join(table(files)))
    print_edges(edges)


if __name__ == "__main__":
    main()
