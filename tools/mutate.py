"""./tandem mutate: how many faults do the tests see?

It puts one small fault at a time into a copy of the sources, builds the programs that test its folder, and runs them.
A fault is seen when the build or a test fails, or a test runs into its time limit. It prints each fault that no test
saw, and the score. tests/lint/mutants.txt lists faults that change nothing, with the reason; they do not count.

Faults are lines with one changed operator, constant or condition, or without one call, free or return.
"""
import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, namedtuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = os.path.join(ROOT, "build", "mutate")
TREE = os.path.join(WORK, "tree")
KNOWN = os.path.join("tests", "lint", "mutants.txt")
BUILD_LIMIT_S = 600
TEST_LIMIT_S = 120  # of one program; the slowest one takes 40 s on two cores
# System tests that start the services of a folder. Their unit tests are found by the folder's name.
SYSTEM = {
    "gateway": ["gateway", "stack"],
    "verifier-svc": ["verifier", "gateway", "stack"],
    "proposer-svc": ["proposer", "verifier"],
    "common/rpc": ["proposer", "verifier", "gateway"],
    "common": ["verifier"],
}
# These measure, wait for minutes, or need the whole machine.
SLOW = {"test_soak", "test_bench", "test_bench_serve", "test_up", "test_traffic", "test_systemd", "test_page"}

Fault = namedtuple("Fault", "file line kind old new")

SWAPS = {
    "operator": [(r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "),
                 (r" != ", " == "), (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "),
                 (r" \+= ", " -= "), (r" -= ", " += "), (r"\+\+", "--"), (r" & ", " | ")],
    "constant": [(r"\btrue\b", "false"), (r"\bfalse\b", "true")],
}
CALL = re.compile(r"^\s+(?!return\b|if\b|for\b|while\b|switch\b|log_|assert)[a-z]\w*\([^;{}]*\);$")
RETURN = re.compile(r"^\s+return (fail\(|refuse|-E[A-Z]+;)")
REFUSAL = re.compile(r"\b(fail|refuse\w*|deny\w*)\(|-E[A-Z]{3,}|\b[45]\d\d\b|_STATUS_")


def code_lines(text):
    """The lines of a C file, with comments and the contents of strings replaced by blanks."""
    def blank(m):
        s = m.group(0)
        return re.sub(r"[^\n]", " ", s) if s[0] == "/" else s[0] + "\x01" * (len(s) - 2) + s[-1]
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, text,
                  flags=re.S).split("\n")


def faults_of_line(raw, code):
    """Yields (kind, changed line). code: raw without comments and strings, at the same columns."""
    code = code.rstrip()
    if not code.strip() or code.lstrip().startswith("#") or not code.startswith("    "):
        return
    if re.search(r"\blog_\w+\(|\bassert\(|\bstatic_assert\b|^\s+(static )?const ", code):
        return
    for kind, swaps in SWAPS.items():
        for pattern, new in swaps:
            for m in re.finditer(pattern, code):
                yield kind, raw[:m.start()] + new + raw[m.end():]
    for m in re.finditer(r"(?<![\w.])(\d+)(?![\w.\]])", code):
        yield "constant", raw[:m.start()] + str(int(m.group(1)) + 1) + raw[m.end():]
    m = re.match(r"^(\s+(?:else )?(?:if|while) \()(.*)(\)(?: \{)?)$", code)
    if m and code.count("(") == code.count(")"):
        yield "condition", "%s!(%s)%s" % (raw[:m.end(1)], raw[m.end(1):m.end(2)], raw[m.end(2):])
    if CALL.match(code):
        yield "call", re.match(r"\s*", raw).group(0) + "{}"
    if RETURN.match(code) and code.endswith(";"):
        yield "return", re.match(r"\s*", raw).group(0) + "{}"


def draw_all(folder):
    """Every fault of the .c files below a folder, in a fixed order."""
    names = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    faults = []
    for name in sorted(n for n in names.stdout.split() if n.endswith(".c")):
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            text = f.read()
        for i, (raw, code) in enumerate(zip(text.split("\n"), code_lines(text))):
            faults += [Fault(name, i, kind, raw, new) for kind, new in faults_of_line(raw, code)]
    return faults


def known_reasons():
    """Faults that change nothing: (file, old line, new line) -> reason, without indentation."""
    reasons = {}
    try:
        with open(os.path.join(ROOT, KNOWN), encoding="utf-8") as f:
            blocks = f.read().split("\n\n")
    except FileNotFoundError:
        return reasons
    for block in blocks:
        lines = [line for line in block.strip().split("\n") if not line.startswith("#")]
        if len(lines) == 4:
            reasons[(lines[0], lines[1][2:].strip(), lines[2][2:].strip())] = lines[3]
    return reasons


def programs_of(folder):
    """The test programs of a folder, quick ones first: its unit tests, fuzz corpora, system tests."""
    parts = folder.split("/")
    room = "_".join(parts[1:] if parts[0] == "common" else parts).replace("-svc", "")
    top = next((k for k in (folder, *("/".join(parts[:n]) for n in range(len(parts), 0, -1))) if k in SYSTEM), None)
    found = []
    for kind, wanted in (("unit", lambda d: d == room or d.startswith(room + "_")),
                         ("system", lambda d: d in SYSTEM.get(top, []))):
        base = os.path.join(ROOT, "tests", kind)
        for d in sorted(os.listdir(base)):
            if os.path.isdir(os.path.join(base, d)) and wanted(d):
                found += [os.path.splitext(n)[0] for n in sorted(os.listdir(os.path.join(base, d)))
                          if re.match(r"test_\w+\.(c|py)$", n)]
    fuzzers = [os.path.splitext(n)[0] for n in sorted(os.listdir(os.path.join(ROOT, "tests", "fuzz")))
               if re.match(r"fuzz_\w+\.c$", n)]
    n_unit = sum(1 for n in found if os.path.exists(unit_source(n)))
    return [n for n in found[:n_unit] + fuzzers + found[n_unit:] if n not in SLOW]


def unit_source(program):
    for d in os.listdir(os.path.join(ROOT, "tests", "unit")):
        path = os.path.join(ROOT, "tests", "unit", d, program + ".c")
        if os.path.exists(path):
            return path
    return ""


def copy_tree():
    """Files whose content is unchanged keep their time, so that ninja builds only what changed."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        source, to = os.path.join(ROOT, name), os.path.join(TREE, name)
        if not os.path.exists(source):
            continue
        with open(source, "rb") as f:
            content = f.read()
        if os.path.exists(to):
            with open(to, "rb") as f:
                if f.read() == content:
                    continue
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(source, to)
    shared = os.path.join(WORK, "shared") # tests look for it beside the checkout
    if not os.path.lexists(shared):
        os.symlink(os.path.join(os.path.dirname(ROOT), "shared"), shared)


def run(args, limit_s):
    """The status of a command in the copied tree; its process group ends with it."""
    with open(os.path.join(WORK, "last.log"), "wb") as log:
        p = subprocess.Popen(args, cwd=TREE, stdout=log, stderr=log, start_new_session=True)
        try:
            return p.wait(limit_s)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            try:
                os.killpg(p.pid, 9)
            except ProcessLookupError:
                pass
            p.wait()


class Suite:
    """Test programs in the order in which they are most likely to see a fault."""

    def __init__(self, folder, jobs):
        self.jobs = str(jobs)
        self.programs = programs_of(folder)
        self.n_seen = Counter() # (file, program) -> faults that this program saw
        self.compiled = [p for p in self.programs if not os.path.exists(self.script(p))]

    @staticmethod
    def script(program):
        for base, _, names in os.walk(os.path.join(ROOT, "tests", "system")):
            if program + ".py" in names:
                return os.path.join(base, program + ".py")
        return ""

    def build(self):
        services = ["gateway", "verifier-svc", "proposer-svc", "make_model"] # test_memory runs make_model
        return run(["ninja", "-C", "build/dev", "-j", self.jobs, *services, *self.compiled], BUILD_LIMIT_S)

    def test(self, file):
        """The name of the first program that fails, or None. Programs that saw faults of this file come first."""
        order = sorted(self.programs, key=lambda p: (-self.n_seen[file, p], self.programs.index(p)))
        n = int(self.jobs)
        for i in range(0, len(order), 4 * n):
            batch = order[i:i + 4 * n]
            status = run(["ctest", "--test-dir", "build/dev", "-j", self.jobs, "--timeout", str(TEST_LIMIT_S),
                          "-R", "^(%s)$" % "|".join(batch)], TEST_LIMIT_S * len(batch))
            if status:
                with open(os.path.join(WORK, "last.log"), encoding="utf-8", errors="replace") as f:
                    failed = re.findall(r"^\s+\d+ - (\w+) \(", f.read(), flags=re.M)
                for name in failed:
                    self.n_seen[file, name] += 1
                return failed[0] if failed else "ctest"
        return None


def try_fault(suite, fault):
    """What saw the fault: "the compiler", a program, or None."""
    path = os.path.join(TREE, fault.file)
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    lines[fault.line] = fault.new
    try:
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
        return "the compiler" if suite.build() else suite.test(fault.file)
    finally:
        lines[fault.line] = fault.old
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines))


def describe(fault):
    return "%s:%d (%s)\n- %s\n+ %s" % (fault.file, fault.line + 1, fault.kind, fault.old.strip(), fault.new.strip())


def parse_arguments():
    p = argparse.ArgumentParser(prog="./tandem mutate", description=__doc__.split("\n\n")[1])
    p.add_argument("folder", help="a folder of sources, such as gateway/serve or common/rpc")
    p.add_argument("--faults", type=int, default=50, metavar="N", help="faults to try (default: 50)")
    p.add_argument("--seed", type=int, help="draws the same faults again (default: the time)")
    p.add_argument("--refusals", action="store_true", help="only lines that refuse something")
    p.add_argument("--list", action="store_true", help="print the faults and try none")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    o = p.parse_args()
    o.folder = o.folder.rstrip("/")
    if not os.path.isdir(os.path.join(ROOT, o.folder)):
        p.error("there is no folder %s" % o.folder)
    return o


def choose(o, seed):
    faults = [f for f in draw_all(o.folder) if not o.refusals or REFUSAL.search(f.old)]
    reasons = known_reasons()
    faults = [f for f in faults if (f.file, f.old.strip(), f.new.strip()) not in reasons]
    return random.Random(seed).sample(faults, min(o.faults, len(faults)))


def main():
    o = parse_arguments()
    seed = o.seed if o.seed is not None else int(time.time())
    faults = choose(o, seed)
    if o.list:
        print("\n\n".join(map(describe, faults)))
        return 0
    copy_tree()
    suite = Suite(o.folder, o.jobs)
    print("%d faults in %s, seed %d; %d test programs" % (len(faults), o.folder, seed, len(suite.programs)), flush=True)
    if run(["cmake", "--preset", "dev"], BUILD_LIMIT_S) or suite.build() or suite.test(""):
        print("the tests fail without a fault (see %s)" % os.path.join(WORK, "last.log"))
        return 1
    n_tried = n_seen = 0
    for fault in faults:
        seen = try_fault(suite, fault)
        if seen == "the compiler":
            continue # nobody can commit it
        n_tried += 1
        n_seen += seen is not None
        print("%3d %s" % (n_tried, "seen by " + seen if seen else "NOT SEEN " + describe(fault)), flush=True)
    print("%d of %d faults seen (%.0f %%), seed %d" % (n_seen, n_tried, 100 * n_seen / max(1, n_tried), seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
