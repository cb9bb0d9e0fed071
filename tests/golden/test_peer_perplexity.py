"""Perplexity of models in every weight type: ours and llama.cpp's are as near to that of exact arithmetic.

Part of the long suite (TANDEM_TEST_LONG=1). ggml_quantize_chunk puts the matrices of a model into a type; both
engines run that file. The reference is llama.cpp on the same weights dequantised to F32. So only the arithmetic
differs: activations of 8 or 16 bits, K and V of 16. Models: the embedded target on held-out text, and one layer
at the widths of Llama-3.2-1B with random weights on text drawn from it.

The difference of a token's negative log likelihood from the reference has a mean, which moves the perplexity, and
a deviation. Both are printed for both engines. Our mean may exceed llama.cpp's only by the statistical error of so
few tokens. The deviations must be about the same.
"""
import array
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from gguf_file import File
from peer import ROOT, TYPES, Model, Rows
from test_peer_logits import LONG, TOOL, peer_or_skip

MAKE_MODEL = os.path.join(os.path.dirname(TOOL), "make_model")
SHARED = os.path.join(os.path.dirname(ROOT), "shared", "models")
N_DOCUMENTS, MAX_TOKENS = 16, 512  # of each
N_DRAWN, VOCAB = 384, 4096
NAMES = {number: name for name, (number, _, _) in TYPES.items()}


def losses(logits, tokens):
    """-log p of each token but the first."""
    for row, token in zip(logits, tokens[1:]):
        yield math.log(math.fsum(map(math.exp, row))) - row[token]


def ours(path, documents):
    for tokens in documents:
        out = subprocess.run([TOOL, path] + [str(t) for t in tokens], check=True, stdout=subprocess.PIPE).stdout
        floats = array.array("f", out)
        yield from losses((floats[at : at + VOCAB] for at in range(0, len(floats), VOCAB)), tokens)


def open_peer(peer, path):
    return Model(peer, path, n_ctx=MAX_TOKENS, n_batch=MAX_TOKENS, n_ubatch=MAX_TOKENS, n_seq_max=1,
                 n_outputs=MAX_TOKENS, n_outputs_per_seq=MAX_TOKENS, n_threads=1, n_threads_batch=1, flash_attn=0)


def theirs(peer, path, documents):
    model = open_peer(peer, path)
    for tokens in documents:
        n = len(tokens)
        model.run(Rows(tokens, range(n), [0] * n, [1] * n))
        yield from losses((model.logits(i, VOCAB) for i in range(n)), tokens)
        model.keep(0, 0)
    model.close()


def drawn_text(peer, path):
    model, dice, tokens = open_peer(peer, path), random.Random(1), [300]
    while len(tokens) < N_DRAWN:
        model.run(Rows(tokens[-1:], [len(tokens) - 1], [0], [1]))
        tokens += dice.choices(range(VOCAB), list(map(math.exp, model.logits(0, VOCAB))))
    model.close()
    return tokens


def off(losses_of, reference):
    """Mean and deviation of the differences."""
    each = [a - b for a, b in zip(losses_of, reference)]
    return statistics.fmean(each), statistics.stdev(each)


@unittest.skipUnless(LONG, "left out: part of the long suite")
class PeerPerplexity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.peer = peer_or_skip()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.packed, cls.plain = (os.path.join(folder.name, name) for name in ("packed.gguf", "plain.gguf"))
        cls.wide = os.path.join(folder.name, "wide.gguf")

    def write_both(self, source, kind):
        """The matrices in a type, and as what they then mean."""
        packed, plain = [], []
        for t in source.tensors:
            _, block, size = TYPES[NAMES[t.kind]]
            floats = self.peer.dequantise(NAMES[t.kind], source.data(t, t.n // block * size), t.n)
            of = kind if len(t.shape) == 2 else "F32"
            data = self.peer.quantise(of, floats, t.n_in)
            packed.append((TYPES[of][0], data))
            plain.append((TYPES["F32"][0], self.peer.dequantise(of, data, t.n).tobytes()))
        source.write(self.packed, packed)
        source.write(self.plain, plain)

    def check(self, name, source, documents):
        print("%-14s %-6s %10s | %21s | %21s" % (name, "", "reference", "ours - it", "llama.cpp's - it"))
        for kind in TYPES:
            with self.subTest(kind):
                self.write_both(source, kind)
                reference = list(theirs(self.peer, self.plain, documents))
                got = off(ours(self.packed, documents), reference)
                peer = off(theirs(self.peer, self.packed, documents), reference)
                perplexity = math.exp(statistics.fmean(reference))
                moved = [perplexity * math.expm1(mean) for mean, _ in (got, peer)]
                print("%-14s %-6s %10.4f | %+9.4f (dev %.4f) | %+9.4f (dev %.4f)" % (
                    name, kind, perplexity, moved[0], got[1], moved[1], peer[1]), flush=True)
                noise = math.hypot(got[1], peer[1]) / math.sqrt(len(reference))
                self.assertLess(abs(got[0]), abs(peer[0]) + 3 * noise)
                self.assertLess(got[1], 1.5 * peer[1] + 5e-3)  # the reference is llama.cpp's F32 itself

    def test_embedded_target(self):
        path = os.path.join(SHARED, "heldout.jsonl")
        if not os.path.exists(path):
            self.skipTest("no held-out text")
        model = open_peer(self.peer, os.path.join(SHARED, "tales-11m-f16.gguf"))
        with open(path, encoding="utf-8") as f:
            turns = [json.loads(line) for line in f][:N_DOCUMENTS]
        documents = [model.tokens("<|begin|>" + "".join("<|%s|>%s<|end|>" % tuple(turn) for turn in d))[:MAX_TOKENS]
                     for d in turns]
        model.close()
        self.check("embedded", File(os.path.join(SHARED, "tales-11m-f16.gguf")), documents)

    def test_real_widths(self):
        subprocess.run([MAKE_MODEL, "--shape", "1b", "--layers", "1", "--type", "f32", "--vocab", str(VOCAB),
                        "--out", self.wide], check=True, stderr=subprocess.DEVNULL)
        self.check("widths of 1b", File(self.wide), [drawn_text(self.peer, self.wide)])


if __name__ == "__main__":
    unittest.main()
