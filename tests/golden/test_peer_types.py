"""Weights of every type mean the same floats here and in ggml, bit for bit.

Part of the long suite (TANDEM_TEST_LONG=1); needs the npm package that tests/lib/peer.py installs. The
rows are quantised by ggml_quantize_chunk, or are random bytes with finite scales. They go through dequantize_row_*
and through ours, from the file's layout and from the packed one."""
import array
import os
import random
import struct
import subprocess
import unittest

from test_peer_logits import LONG, peer_or_skip
from peer import TYPES

TOOL = os.path.join(os.environ.get("TANDEM_BIN", "build/release"), "tests", "dequant_tool")
N_IN, N_OUT = 512, 40
# Where a block has its halfs; else at 0 and 2.
SCALES = {"Q6_K": (208,), **dict.fromkeys(("Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "IQ4_XS"), (0,))}


def gauss_rows(dice):
    floats = [dice.gauss(0, 1) * 10 ** dice.uniform(-3, 1) for _ in range(N_IN * N_OUT)]
    floats[:64] = [0.0] * 64  # blocks without a scale
    return floats


def random_bytes(dice, kind):
    """Any bits but scales that are inf or NaN."""
    _, block, size = TYPES[kind]
    out = bytearray()
    for _ in range(N_IN * N_OUT // block):
        b = bytearray(dice.getrandbits(8) for _ in range(size))
        for at in () if kind == "MXFP4" else SCALES.get(kind, (0, 2)):
            b[at + 1] &= 0xFB
        out += b
    return bytes(out)


def ours(kind, data):
    out = subprocess.run([TOOL, str(TYPES[kind][0]), str(N_IN)], input=data, check=True, stdout=subprocess.PIPE).stdout
    return out[: len(out) // 2], out[len(out) // 2 :]


@unittest.skipUnless(LONG, "left out: part of the long suite")
class PeerTypes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.peer = peer_or_skip()

    def same(self, kind, data):
        want = self.peer.dequantise(kind, data, N_IN * N_OUT).tobytes()
        for got in ours(kind, data):
            for at in range(0, len(want) if got != want else 0, 4):
                a, b = got[at : at + 4], want[at : at + 4]
                self.assertEqual(a, b, "%s: weight %d is %r, ggml says %r" % (
                    kind, at // 4, *struct.unpack("f", a), *struct.unpack("f", b)))

    def test_quantised_rows(self):
        for kind in TYPES:
            with self.subTest(kind):
                floats = array.array("f", gauss_rows(random.Random(kind)))
                self.same(kind, self.peer.quantise(kind, floats, N_IN))

    def test_any_bits(self):
        for kind, (_, block, _) in TYPES.items():
            if block > 1:
                with self.subTest(kind):
                    self.same(kind, random_bytes(random.Random(kind), kind))


if __name__ == "__main__":
    unittest.main()
