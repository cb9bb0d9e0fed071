"""The services are built with the protections of compiler and linker that this file lists."""
import json
import os
import platform
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.abspath(os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev")))
SERVICES = ["proposer-svc", "verifier-svc", "gateway"]
FLAGS = ["-fPIE", "-fstack-protector-strong", "-fstack-clash-protection", "-D_FORTIFY_SOURCE=2"]
MARKS = {"x86_64": ["IBT", "SHSTK"], "aarch64": ["BTI"]}.get(platform.machine(), [])


def readelf(option, *paths):
    done = subprocess.run(["readelf", option, "-W", *paths], check=True, capture_output=True, text=True,
                          env={**os.environ, "LC_ALL": "C"})
    return done.stdout


def compile_commands():
    """The compiler's command and the object of each source file of the services."""
    with open(os.path.join(BIN, "compile_commands.json"), encoding="utf-8") as f:
        commands = [entry["command"] for entry in json.load(f)]
    objects = [re.search(r" -o (\S+)", command)[1] for command in commands]
    return [(c, os.path.join(BIN, o)) for c, o in zip(commands, objects) if not o.startswith("tests/")]


class Hardening(unittest.TestCase):
    def each_service_has(self, option, *patterns):
        """Each pattern matches a line of readelf's output for each service."""
        for name in SERVICES:
            text = readelf(option, os.path.join(BIN, name))
            self.assertEqual([p for p in patterns if not re.search(p, text, re.M)], [], name)

    def test_programs_load_at_random_addresses(self):
        self.each_service_has("-hd", r"Type: +DYN", r"\(FLAGS_1\).*\bPIE\b")

    def test_addresses_of_functions_are_read_only_after_the_start(self):
        self.each_service_has("-ld", r"^ +GNU_RELRO ", r"\(FLAGS_1\).*\bNOW\b")

    def test_no_memory_is_writable_and_executable(self):
        self.each_service_has("-l", r"^ +GNU_STACK .* RW +0x", r"\A(?!(?s:.*) RWE )")

    def test_stack_and_sizes_are_checked(self):
        self.each_service_has("--dyn-syms", r" __stack_chk_fail@", r" __(?!stack)\w+_chk@")

    def test_every_source_is_compiled_with_the_flags(self):
        commands = [command for command, _ in compile_commands() if re.search(r"\.c$", command)]
        self.assertGreater(len(commands), 100)
        for command in commands:
            self.assertEqual([f for f in FLAGS if f not in command.split()], [], command)

    def test_every_object_allows_checked_jumps(self):
        """The start files of Debian 12 lack these marks, so the linker cannot mark the programs themselves."""
        for _, path in compile_commands():
            text = readelf("-n", path)
            for mark in MARKS:
                self.assertRegex(text, rf"feature: .*\b{mark}\b", path)


if __name__ == "__main__":
    unittest.main()
