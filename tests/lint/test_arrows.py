"""Which folder may include which, where foreign headers may appear, and that every header compiles alone.

The arrows of docs/architecture.md. Linking enforces most of them; this names the line that breaks one.
"""
import concurrent.futures
import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GENERATED = os.path.join(os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev")), "gen")

# Compiled only within a kernel tier, with its CPU's flags and behind what it defines.
TIER_TEXT = {f"common/kernel/kernel_{name}.h" for name in ["amx", "attn", "attn_int8", "avx2", "avx512", "body", "int8", "int8_unpack"]}
SERVICE = {"base", "file", "text", "kernel", "model", "rpc", "proto"}
MAY_INCLUDE = {  # folder: what it may include beside itself
    "common/base": set(),
    "common/file": {"base"},
    "common/text": {"base", "file"},
    "common/kernel": {"base"},
    "common/model": {"base", "file", "kernel"},
    "common/rpc": {"base", "proto"},
    "gateway": {"base", "rpc", "proto"},
    "proposer-svc": SERVICE,
    "verifier-svc": SERVICE,
}
ONE_DOOR = [  # what a foreign header is called, and the files that may include it
    (r"grpc/", r"common/rpc/"),
    (r"microhttpd\.h", r"gateway/http_request\.h"),
    (r"jansson\.h", r"gateway/"),
    (r"systemd/", r"common/base/(svc|journal)\.c"),
    (r"hwloc", r"common/base/cores\.c"),
    (r"pcre2\.h", r"common/text/"),
    (r"cblas\.h|openblas", r"common/kernel/kernel_blas\.c"),
    (r"(?:[a-z]*mmintrin|x86intrin|cpuid|arm_neon)\.h", r"common/kernel/kernel(_[a-z0-9]+)*\.[ch]"),
]


def sources():
    for folder in MAY_INCLUDE:
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            if name.endswith((".c", ".h")):
                yield folder, f"{folder}/{name}"


def includes(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            found = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
            if found:
                yield number, found.group(1), found.group(2)


def target(folder, name):
    """The part of the project an include belongs to, or None for a foreign one."""
    if name.endswith(".pb-c.h"):
        return "proto"
    first = name.split("/")[0]
    if "common/" + first in MAY_INCLUDE or first in MAY_INCLUDE:
        return first
    return folder.removeprefix("common/") if os.path.exists(os.path.join(ROOT, folder, name)) else None


def compile_flags():
    libraries = ["libsystemd", "libprotobuf-c", "libmicrohttpd", "jansson", "libpcre2-8", "hwloc"]
    flags = subprocess.run(["pkg-config", "--cflags", *libraries], check=True, capture_output=True, text=True)
    return flags.stdout.split() + ["-std=gnu17", "-D_GNU_SOURCE", '-DTANDEM_VERSION="0"', "-Icommon", "-I.",
                                   "-isystem", GENERATED, "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]


class Arrows(unittest.TestCase):
    def test_folders_include_what_the_design_allows(self):
        wrong = []
        for folder, path in sources():
            allowed = MAY_INCLUDE[folder] | {folder.removeprefix("common/")}
            for number, _, name in includes(path):
                to = target(folder, name)
                if to and to not in allowed:
                    wrong.append(f"{path}:{number}: {folder} may not include {name}")
        self.assertEqual(wrong, [])

    def test_foreign_headers_stay_behind_one_door(self):
        wrong = []
        for _, path in sources():
            for number, _, name in includes(path):
                for header, door in ONE_DOOR:
                    if re.match(header, name) and not name.endswith(".pb-c.h") and not re.match(door, path):
                        wrong.append(f"{path}:{number}: {name} belongs to {door}")
        self.assertEqual(wrong, [])

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
    unittest.main()
