"""The kernels on CPUs that are not this one, under qemu-user: x86-64 without extensions, and arm64.

Part of the long suite (TANDEM_TEST_LONG=1); ./tandem installs what it needs. For x86-64 the programs of this
build run as they are. For arm64 common/kernel and its tests are compiled here, with the cmocka that ./tandem
unpacked into build/arm64. Both run without OpenBLAS. For arm64 it is not installed here. It
takes a qemu64 for an Opteron, and stops at the first instruction that a qemu64 does not have.
"""
import glob
import os
import subprocess
import tempfile
import unittest

LONG = os.environ.get("TANDEM_TEST_LONG")
BIN = os.path.join(os.environ.get("TANDEM_BIN", "build/release"), "tests")
PROGRAMS = sorted(os.path.basename(p)[:-2] for p in glob.glob("tests/kernel/test_*.c") if not p.endswith("_blas.c"))
ARM = "aarch64-linux-gnu"
ARM_CMOCKA = os.path.abspath("build/arm64/usr")
FLAGS = ["-std=gnu17", "-O2", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-missing-braces",
         "-Werror", "-D_GNU_SOURCE", '-DSOURCE_DIR="."', "-Icommon", "-I.", "-Itests", "-I" + ARM_CMOCKA + "/include"]
SHARED = ["common/base/%s.c" % f for f in ("clock", "err", "rng")] + [
    "tests/lib/%s.c" % f for f in ("lib", "models/weights", "rigs/guard", "rigs/kernel_tiers")]


def run(command):
    """Not in its long form: an emulated CPU takes hours for every float."""
    subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if k != "TANDEM_TEST_LONG"})


@unittest.skipUnless(LONG, "left out: part of the long suite")
class Cross(unittest.TestCase):
    def test_x86_64_without_extensions(self):
        for program in PROGRAMS:
            with self.subTest(program):
                run(["qemu-x86_64", "-cpu", "qemu64", os.path.join(BIN, program)])

    def test_arm64(self):
        libraries = os.path.join(ARM_CMOCKA, "lib", ARM)
        with tempfile.TemporaryDirectory() as folder:
            objects = []
            for source in sorted(s for s in glob.glob("common/kernel/*.c") if not s.endswith("_blas.c")) + SHARED:
                objects.append(os.path.join(folder, os.path.basename(source) + ".o"))
                run([ARM + "-gcc", *FLAGS, "-c", source, "-o", objects[-1]])
            for program in PROGRAMS:
                with self.subTest(program):
                    to = os.path.join(folder, program)
                    run([ARM + "-gcc", *FLAGS, "tests/kernel/%s.c" % program, *objects, "-L" + libraries, "-lcmocka",
                         "-lm", "-o", to])
                    run(["qemu-aarch64", "-L", "/usr/" + ARM, "-E", "LD_LIBRARY_PATH=" + libraries, to])


if __name__ == "__main__":
    unittest.main()
