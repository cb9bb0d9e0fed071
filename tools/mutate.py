"""./tandem mutate: how many faults do the tests see?

It puts one small fault at a time into a copy of the sources. Then it builds and runs what tests it. The unit
test of its file comes first, then those of its folder, all other unit tests, and system tests, until one fails. A fault is seen when the build or a test fails, or a test runs into its time limit. It prints each fault that no test
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
# Limit of one program. The slowest one that runs here takes 40 s on two cores.
TEST_LIMIT_S = 120
# System tests that run for each job, since they mostly wait.
WAITING = 3
# System tests that run the code of a folder, most useful first: folders, or single programs.
SYSTEM = {
    "gateway": ["gateway", "stack"],
    "verifier-svc": ["verifier", "test_proposer", "stack"],
    "proposer-svc": ["test_proposer", "test_speculate", "test_verifier_proposers", "test_roles", "test_tls"],
    "common/rpc": ["test_verifier", "test_verify", "test_verifier_life", "test_proposer", "gateway", "stack"],
    "common": ["verifier"],
}
# These measure, need the whole machine, or take more than 30 s.
SLOW = {"test_soak", "test_bench", "test_bench_serve", "test_up", "test_traffic", "test_systemd", "test_page",
        "test_cert_reload", "test_far_lossless", "test_far_proposer", "test_lossless", "test_resume",
        "test_same_bits"}
SERVICES = ["gateway", "verifier-svc", "proposer-svc"]
TOOLS = ["make_model", "call_tool"]  # programs that system tests run

Fault = namedtuple("Fault", "file line kind old new")

SWAPS = {
    "operator": [(r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "),
                 (r" != ", " == "), (r" && ", " || "), (r" \|\| ", " && "), (r" \+ ", " - "), (r" - ", " + "),
                 (r" \+= ", " -= "), (r" -= ", " += "), (r"\+\+", "--"), (r" & ", " | ")],
    "constant": [(r"\btrue\b", "false"), (r"\bfalse\b", "true")],
}
# A zeroed mutex is a valid one, and its end frees nothing.
CALL = re.compile(r"^\s+(?!return\b|if\b|for\b|while\b|switch\b|log_|assert|pthread_mutex_init|pthread_\w+_destroy)[a-z]\w*\([^;{}]*\);$")
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
    for m in re.finditer(r"(?<![\w.])(?<!calloc\()(\d+)(?![\w.\]])", code):  # more memory changes nothing
        n = int(m.group(1))
        yield "constant", raw[:m.start()] + str(n + 1 if n < 10 else 2 * n) + raw[m.end():]
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


def test_sources():
    """program -> its source below tests, of all unit and system tests and fuzzers."""
    return {os.path.splitext(n)[0]: os.path.join(base, n)
            for kind in ("unit", "system", "fuzz")
            for base, _, names in sorted(os.walk(os.path.join(ROOT, "tests", kind)))
            for n in sorted(names) if re.match(r"(test|fuzz)_\w+\.(c|py)$", n)}


def includes(source, folder):
    """Whether a C program includes a header of a folder."""
    with open(source, encoding="utf-8") as f:
        return '#include "%s/' % folder.removeprefix("common/") in f.read()


def programs_of(folder):
    """The test programs of a folder as (unit tests and fuzzers, system tests)."""
    parts = folder.split("/")
    above = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    room = "_".join(parts[1:] if parts[0] == "common" else parts).replace("-svc", "")
    wanted = next((SYSTEM[a] for a in above if a in SYSTEM), [])
    sources = {p: s for p, s in test_sources().items() if p not in SLOW}
    folders = {p: os.path.relpath(os.path.dirname(s), os.path.join(ROOT, "tests")) for p, s in sources.items()}
    unit = [p for p in sources if (folders[p] + "_").startswith("unit/%s_" % room)]
    unit += [p for p in sources if folders[p] == "fuzz" and any(includes(sources[p], a) for a in above)]
    system = [p for w in wanted for p in sources
              if folders[p] == "system/" + w or p == w]
    return unit, list(dict.fromkeys(system))


def remove_others(names):
    """Removes files of the copied tree that the checkout no longer has."""
    kept = {os.path.join(TREE, name) for name in names}
    for folder, folders, files in os.walk(TREE):
        if folder == TREE and "build" in folders:
            folders.remove("build")
        for path in [os.path.join(folder, name) for name in files]:
            if path not in kept:
                os.remove(path)


def copy_tree():
    """Files whose content is unchanged keep their time, so that ninja builds only what changed."""
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in out.split("\0") if name and os.path.exists(os.path.join(ROOT, name))]
    remove_others(names)
    for name in names:
        source, to = os.path.join(ROOT, name), os.path.join(TREE, name)
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
    """The test programs of a folder. A fault meets the unit tests of its folder first, then all others."""

    def __init__(self, folder, jobs, unit_only=False):
        self.jobs = str(jobs)
        self.sources = test_sources()
        self.unit, self.system = programs_of(folder)
        if unit_only:
            self.system = []
        self.n_seen = Counter() # (file, program) -> faults of this file that this program saw

    def stages(self, file):
        """Lists of programs in the order in which they run. Programs that saw faults of this file come first."""
        room = programs_of(os.path.dirname(file))[0] if file else []
        named = "test_" + os.path.splitext(os.path.basename(file))[0]
        own = [p for p in self.unit if p in room and (p == named or self.n_seen[file, p])]
        near = [p for p in self.unit if p in room and p not in own]
        far = [p for p in self.unit if p not in room]
        system = sorted(self.system, key=lambda p: (-self.n_seen[file, p], self.system.index(p)))
        n = WAITING * int(self.jobs)
        return [s for s in (own, near, far, *(system[i:i + n] for i in range(0, len(system), n))) if s]

    def build(self, programs):
        """False if a program does not build."""
        targets = [p for p in programs if self.sources[p].endswith(".c")]
        if any(p in self.system for p in programs):
            targets += SERVICES + TOOLS
        return not run(["ninja", "-C", "build/asan", "-j", self.jobs, *targets], BUILD_LIMIT_S)

    def test(self, file, programs):
        """The name of a program that fails, or None. The others end when one has failed."""
        jobs = 2 * int(self.jobs) * (WAITING if programs[0] in self.system else 1)  # a test takes two places
        status = run(["ctest", "--test-dir", "build/asan", "-j", str(jobs), "--stop-on-failure",
                      "-R", "^(%s)$" % "|".join(programs)], TEST_LIMIT_S * len(programs))
        if not status:
            return None
        with open(os.path.join(WORK, "last.log"), encoding="utf-8", errors="replace") as f:
            failed = re.findall(r"^\s+\d+ - (\w+) \(", f.read(), flags=re.M)
        for name in failed:
            self.n_seen[file, name] += 1
        return failed[0] if failed else "ctest"

    def sees(self, file):
        """What fails first: "the compiler", a program, or None."""
        for programs in self.stages(file):
            if not self.build(programs):
                return "the compiler"
            seen = self.test(file, programs)
            if seen:
                return seen
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
        return suite.sees(fault.file)
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
    p.add_argument("--only", type=lambda text: [int(n) for n in text.split(",")], metavar="N,N",
                   help="only these numbers of the faults that the seed draws")
    p.add_argument("--list", action="store_true", help="print the faults and try none")
    p.add_argument("--unit", action="store_true", help="no system tests: only unit tests and corpora of fuzzers")
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
    drawn = list(enumerate(random.Random(seed).sample(faults, min(o.faults, len(faults))), 1))
    return [(n, f) for n, f in drawn if not o.only or n in o.only]


def main():
    o = parse_arguments()
    seed = o.seed if o.seed is not None else int(time.time())
    faults = choose(o, seed)
    if o.list:
        print("\n\n".join("%3d %s" % (n, describe(f)) for n, f in faults))
        return 0
    copy_tree()
    suite = Suite(o.folder, o.jobs, o.unit)
    print("%d faults in %s, seed %d; %d test programs" % (
        len(faults), o.folder, seed, len(suite.unit) + len(suite.system)), flush=True)
    # Without debug information a build takes half the time. lld links several times as fast as ld.
    options = ["-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 -g0", "-DTANDEM_TEST_TIMEOUT_S=%d" % TEST_LIMIT_S,
               "-DCMAKE_C_FLAGS=-include %s" % os.path.join(TREE, "tools", "mutate.h")]
    if shutil.which("ld.lld"):
        options.append("-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld")
    failed = "cmake" if run(["cmake", "--preset", "asan", *options], BUILD_LIMIT_S) else suite.sees("")
    if failed:
        print("without a fault: %s fails (see %s)" % (failed, os.path.join(WORK, "last.log")))
        return 1
    n_tried = n_seen = 0
    for number, fault in faults:
        seen = try_fault(suite, fault)
        if seen == "the compiler":
            continue # nobody can commit it
        n_tried += 1
        n_seen += seen is not None
        print("%3d %s" % (number, "seen by " + seen if seen else "NOT SEEN " + describe(fault)), flush=True)
    print("%d of %d faults seen (%.0f %%), seed %d" % (n_seen, n_tried, 100 * n_seen / max(1, n_tried), seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
