"""Checks which room includes which, where foreign headers appear, and that every header compiles alone.

A room is a folder of C files. ROOMS is the only table of the arrows between rooms: an arrow from a room to the rooms that it may
include. Linking also enforces most arrows between libraries; this test names the line that breaks one.

docs/architecture.md repeats ROOMS as a diagram and a table; `/usr/bin/python3 tests/lint/test_arrows.py --write` rewrites both.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "architecture.md")
GENERATED = os.path.join(os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev")), "gen")
TOP = ["common", "gateway", "proposer-svc", "verifier-svc"]

# Included only by a kernel tier: they need its compiler flags and its definitions.
TIER_TEXT = {f"common/kernel/kernel_{name}.h" for name in ["amx", "attn", "attn_int8", "avx2", "avx512", "body", "delta", "int8", "int8_unpack"]}
ROOMS = {  # room: the rooms that it may include besides itself; common/X is written X
    "common/base": "",
    "common/file": "base",
    "common/text": "base file",
    "common/kernel": "base",
    "common/kv": "base kernel",
    "common/model": "base file kernel kv",
    "common/rpc": "base proto",
    "common/db": "base",
    "gateway/openai": "base",
    "gateway/http": "base rpc gateway/openai",
    "gateway/upstream": "base rpc proto gateway/openai",
    "gateway/keys": "base db gateway/http gateway/openai gateway/upstream",
    "gateway/serve": "base proto gateway/http gateway/keys gateway/openai gateway/upstream",
    "gateway": "base rpc gateway/http gateway/keys gateway/openai gateway/serve gateway/upstream",
    "proposer-svc/props": "base model",
    "proposer-svc/draftmodel": "base text model proposer-svc/props",
    "proposer-svc": "base kernel rpc proto proposer-svc/draftmodel proposer-svc/props",
    "verifier-svc/accept": "model",
    "verifier-svc/control": "base model",
    "verifier-svc/drafts": "base kernel model rpc proto",
    "verifier-svc/kvdisk": "base db kv model",
    "verifier-svc/settings": "base kernel model rpc verifier-svc/control verifier-svc/drafts verifier-svc/kvdisk",
    "verifier-svc/engine": "base file text kv model proto verifier-svc/accept verifier-svc/control verifier-svc/drafts verifier-svc/kvdisk verifier-svc/settings",
    "verifier-svc/edge": "base rpc proto verifier-svc/engine verifier-svc/settings",
    "verifier-svc": "base rpc verifier-svc/edge verifier-svc/engine verifier-svc/settings",
}
# Decisions that take the time and the measurements as arguments: pattern of the files, headers that they may not include.
PURE = [
    (r"verifier-svc/(accept|control)/|verifier-svc/engine/(sched|flows)\.", r"base/(clock|log|metrics|pool|queue|svc|process)\.h|(kv|model)/(forward|kv|runner)\.h"),
]
MAX_SOURCES = 25  # .c files of a room
ONE_DOOR = [  # (pattern of a foreign header's name, pattern of the files that may include it)
    (r"grpc/", r"common/rpc/"),
    (r"microhttpd\.h", r"gateway/http/http_request\.h"),
    (r"gnutls/", r"gateway/http/http_tls\.c"),
    (r"sqlite3\.h", r"common/db/db\.h"),
    (r"jansson\.h", r"gateway/"),
    (r"systemd/", r"common/base/(svc|journal)\.c"),
    (r"hwloc", r"common/base/cores\.c"),
    (r"pcre2\.h", r"common/text/"),
    (r"cblas\.h|openblas", r"common/kernel/kernel_blas\.c"),
    (r"(?:[a-z]*mmintrin|x86intrin|cpuid|arm_neon)\.h", r"common/kernel/kernel(_[a-z0-9]+)*\.[ch]"),
]


def folders():
    """Every folder in TOP, or below one of them, that contains C files."""
    for top in TOP:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            if any(n.endswith((".c", ".h")) for n in names):
                yield os.path.relpath(folder, ROOT)


def sources():
    for folder in sorted(folders()):
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            if name.endswith((".c", ".h")):
                yield folder, f"{folder}/{name}"


def short(room):
    return room.removeprefix("common/")


def includes(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            found = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
            if found:
                yield number, found.group(1), found.group(2)


def identifiers(path):
    """The words of a file's code with the numbers of their lines; not those of comments and texts."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        text = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', lambda m: "\n" * m.group().count("\n"), f.read(), flags=re.DOTALL)
    for number, line in enumerate(text.split("\n"), 1):
        for name in re.findall(r"[A-Za-z_]\w*", line):
            yield number, name


def target(folder, name):
    """The room of an included header; None for a foreign header."""
    if name.endswith(".pb-c.h"):
        return "proto"
    room = os.path.dirname(name)
    if "common/" + room in ROOMS or room in ROOMS:
        return room
    if not os.path.exists(os.path.join(ROOT, folder, name)):
        return None
    return short(os.path.dirname(os.path.normpath(os.path.join(folder, name))))


def compile_flags():
    libraries = ["libsystemd", "libprotobuf-c", "libmicrohttpd", "gnutls", "jansson", "libpcre2-8", "hwloc"]
    flags = subprocess.run(["pkg-config", "--cflags", *libraries], check=True, capture_output=True, text=True)
    return flags.stdout.split() + ["-std=gnu17", "-D_GNU_SOURCE", '-DTANDEM_VERSION="0"', "-Icommon", "-I.",
                                   "-isystem", GENERATED, "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]


# ---- the diagram and the table in docs/architecture.md ----

def arrows():
    """ROOMS with short names, as sets; proto includes nothing."""
    return {"proto": set(), **{short(room): set(allowed.split()) for room, allowed in ROOMS.items()}}


def reachable(room, graph):
    found, open_rooms = set(), [room]
    while open_rooms:
        for to in graph[open_rooms.pop()] - found:
            found.add(to)
            open_rooms.append(to)
    return found


def circles():
    """Rooms that reach themselves."""
    graph = arrows()
    return [room for room in graph if room in reachable(room, graph)]


def levels():
    """Rooms by depth: level 0 includes nothing, level n+1 includes level n. ROOMS must have no circle."""
    graph = arrows()
    depth = {}

    def depth_of(room):
        if room not in depth:
            depth[room] = 1 + max((depth_of(to) for to in graph[room]), default=-1)
        return depth[room]

    rows = [[] for _ in range(1 + max(depth_of(room) for room in graph))]
    for room in graph:
        rows[depth[room]].append(room)
    return rows


def drawing():
    """The text between the marks in docs/architecture.md."""
    rows = levels()
    lines = ["Each level includes only rooms of lower levels.", "", "```"]
    lines += [f"{level:2}  {'   '.join(rooms)}" for level, rooms in reversed(list(enumerate(rows)))]
    lines += ["```", "", "| room | may include |", "| --- | --- |"]
    for room, allowed in ROOMS.items():
        lines.append(f"| `{short(room)}` | {' '.join(f'`{to}`' for to in allowed.split()) or 'none'} |")
    return "\n".join(lines)


DRAWN = re.compile(r"(<!-- rooms -->\n)(.*?)(<!-- /rooms -->)", re.S)


def write():
    with open(PAGE, encoding="utf-8") as f:
        text = f.read()
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(DRAWN.sub(lambda m: f"{m.group(1)}{drawing()}\n{m.group(3)}", text))


# ---- the tests ----

class Arrows(unittest.TestCase):
    maxDiff = None

    def test_every_room_is_declared(self):
        self.assertEqual(sorted(folders()), sorted(ROOMS))

    def test_folders_of_unit_tests_mirror_the_rooms(self):
        mirrored = {short(room).replace("-svc", "").replace("/", "_") for room in ROOMS}
        self.assertEqual(set(os.listdir(os.path.join(ROOT, "tests", "unit"))) - mirrored, set())

    def test_no_room_is_crowded(self):
        counts = {}
        for folder, path in sources():
            counts[folder] = counts.get(folder, 0) + path.endswith(".c")
        self.assertEqual({f: n for f, n in counts.items() if n > MAX_SOURCES}, {})

    def test_rooms_include_what_the_design_allows(self):
        wrong = []
        for folder, path in sources():
            allowed = {*ROOMS.get(folder, "").split(), short(folder)}
            for number, _, name in includes(path):
                to = target(folder, name)
                if to and to not in allowed:
                    wrong.append(f"{path}:{number}: {folder} may not include {name}")
        self.assertEqual(wrong, [])

    def test_no_room_includes_itself_through_others(self):
        self.assertEqual(circles(), [])

    def test_the_architecture_page_shows_the_table(self):
        with open(PAGE, encoding="utf-8") as f:
            drawn = DRAWN.search(f.read())
        self.assertIsNotNone(drawn, "docs/architecture.md has no marks <!-- rooms --> and <!-- /rooms -->")
        self.assertEqual(drawn.group(2), drawing() + "\n", "run: /usr/bin/python3 tests/lint/test_arrows.py --write")

    def test_decisions_are_pure(self):
        wrong = []
        for _, path in sources():
            for number, _, name in includes(path):
                for files, headers in PURE:
                    if re.match(files, path) and re.match(headers, name):
                        wrong.append(f"{path}:{number}: a pure decision may not include {name}")
        self.assertEqual(wrong, [])

    def test_an_include_relative_to_its_file_has_the_same_room(self):
        self.assertEqual(target("verifier-svc/accept", "../drafts/drafts.h"), "verifier-svc/drafts")
        self.assertEqual(target("verifier-svc", "engine/engine.h"), "verifier-svc/engine")

    def test_foreign_headers_have_one_door(self):
        wrong = []
        for _, path in sources():
            for number, _, name in includes(path):
                for header, door in ONE_DOOR:
                    if re.match(header, name) and not name.endswith(".pb-c.h") and not re.match(door, path):
                        wrong.append(f"{path}:{number}: only {door} may include {name}")
        self.assertEqual(wrong, [])

    def test_one_room_knows_the_formats_of_model_files(self):
        wrong = []
        for folder, path in sources():
            if folder != "common/file":
                wrong += [f"{path}:{number}: {name}" for number, name in identifiers(path) if name.lower().startswith("gguf")]
                wrong += [f"{path}:{number}: {name}" for number, _, name in includes(path) if "gguf" in name]
        self.assertEqual(wrong, [], "use file/checkpoint.h")

    def test_every_header_compiles_alone(self):
        flags = compile_flags()

        def broken(path):
            text = f'#include "{path.removeprefix("common/")}"\n'
            run = subprocess.run(["gcc", "-xc", "-", *flags], input=text, cwd=ROOT, capture_output=True, text=True)
            return "\n".join(run.stderr.splitlines()[:4])

        headers = [path for _, path in sources() if path.endswith(".h") and path not in TIER_TEXT]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            errors = [e for e in pool.map(broken, headers) if e]
        self.assertEqual(errors, [])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        unittest.main()
