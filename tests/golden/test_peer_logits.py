"""Logits of small random models of every architecture and weight type against llama.cpp's.

Other types than F32 are part of the long suite (TANDEM_TEST_LONG=1). Of the libraries that tests/lib/peer.py installs, ggml_quantize_chunk
makes the weights, dequantize_row_* says what they mean, libllama computes the logits.

Three distances, each the root mean square of the difference, relative to that of the logits:
  peer    llama.cpp on the same file. Both quantise activations, each in its own way.
  exact   llama.cpp on the dequantized weights in F32: what is left are our activations of 8 bits.
  wrong   the negative control: exact, but of a model with another rotation. It must be large.
"""
import array
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from peer import TYPES, Missing, Model, Peer, Rows

LONG = os.environ.get("TANDEM_TEST_LONG")
TOOL = os.path.join(os.environ.get("TANDEM_BIN", "build/release"), "tests", "logits_tool")

EMBD, FF, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 512, 2, 8, 2, 32, 96
EXPERTS, USED, EXPERT_FF, SHARED_FF, WINDOW = 8, 3, 512, 768, 16
K_HEADS, V_HEADS, DELTA, TAPS = 2, 4, 32, 4  # of a gated delta net
ARCHS = ("gpt-oss", "llama", "mixtral", "qwen2", "qwen2moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe",
         "qwen3next", "qwen3vl", "qwen3vlmoe")
WITH_SHARED = ("qwen2moe", "qwen35moe", "qwen3next")
WITH_DELTA = ("qwen35", "qwen35moe", "qwen3next")
TOKENS = [random.Random(i).randrange(VOCAB) for i in range(48)]


# ---------------------------------------------------------------- files


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def key(name, kind, value):
    body = text(value) if kind == 8 else struct.pack({4: "<I", 6: "<f"}[kind], value)
    return text(name) + struct.pack("<I", kind) + body


def name_of(arch):
    """In the file: Mixtral is a Llama with experts."""
    return "llama" if arch == "mixtral" else arch


def has_experts(arch):
    return arch in ("mixtral", "gpt-oss", "qwen3next") or arch.endswith("moe")


def feed_forward(arch, at):
    """Beside experts it is the shared one."""
    if arch in WITH_SHARED or not has_experts(arch):
        kind, ff = ("_shexp", SHARED_FF) if has_experts(arch) else ("", FF)
        yield at + "ffn_gate%s.weight" % kind, EMBD, ff, 0, EMBD**-0.5
        yield at + "ffn_up%s.weight" % kind, EMBD, ff, 0, EMBD**-0.5
        yield at + "ffn_down%s.weight" % kind, ff, EMBD, 0, ff**-0.5
    if has_experts(arch):
        yield at + "ffn_gate_inp.weight", EMBD, EXPERTS, 0, 2 * EMBD**-0.5
        yield at + "ffn_gate_exps.weight", EMBD, (EXPERT_FF, EXPERTS), 0, EMBD**-0.5
        yield at + "ffn_up_exps.weight", EMBD, (EXPERT_FF, EXPERTS), 0, EMBD**-0.5
        yield at + "ffn_down_exps.weight", EXPERT_FF, (EMBD, EXPERTS), 0, 2 * EXPERT_FF**-0.5
    if arch == "gpt-oss":
        yield at + "ffn_gate_inp.bias", EXPERTS, 0, 0, 1
        yield at + "ffn_gate_exps.bias", EXPERT_FF, EXPERTS, 0, 0.5
        yield at + "ffn_up_exps.bias", EXPERT_FF, EXPERTS, 0, 0.5
        yield at + "ffn_down_exps.bias", EMBD, EXPERTS, 0, 0.5
    if arch in WITH_SHARED:
        yield at + "ffn_gate_inp_shexp.weight", EMBD, 0, 0, EMBD**-0.5


def delta_net(arch, at):
    channels, values = (2 * K_HEADS + V_HEADS) * DELTA, V_HEADS * DELTA
    yield at + "attn_qkv.weight", EMBD, channels, 0, 1.5 * EMBD**-0.5
    yield at + "attn_gate.weight", EMBD, values, 0, EMBD**-0.5
    yield at + "ssm_conv1d.weight", TAPS, channels, 0.1, 0.5
    yield at + "ssm_dt.bias", V_HEADS, 0, -1, 1
    yield at + "ssm_a", V_HEADS, 0, -0.5, 0.15
    if arch == "qwen3next":
        yield at + "ssm_ba.weight", EMBD, 2 * V_HEADS, 0, EMBD**-0.5
    else:
        yield at + "ssm_beta.weight", EMBD, V_HEADS, 0, EMBD**-0.5
        yield at + "ssm_alpha.weight", EMBD, V_HEADS, 0, EMBD**-0.5
    yield at + "ssm_norm.weight", DELTA, 0, 1, 0.2
    yield at + "ssm_out.weight", values, EMBD, 0, values**-0.5


def attention(arch, at):
    n_q, n_kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield at + "attn_q.weight", EMBD, n_q * (2 if arch in WITH_DELTA else 1), 0, 1.5 * EMBD**-0.5
    yield at + "attn_k.weight", EMBD, n_kv, 0, 1.5 * EMBD**-0.5
    yield at + "attn_v.weight", EMBD, n_kv, 0, EMBD**-0.5
    yield at + "attn_output.weight", n_q, EMBD, 0, 0.7 * n_q**-0.5
    if arch.startswith("qwen2") or arch == "gpt-oss":
        for which, n in (("q", n_q), ("k", n_kv), ("v", n_kv)):
            yield at + "attn_%s.bias" % which, n, 0, 0, 0.5
    if arch == "gpt-oss":
        yield at + "attn_output.bias", EMBD, 0, 0, 0.5
        yield at + "attn_sinks.weight", HEADS, 0, 0, 2
    if arch.startswith("qwen3"):
        yield at + "attn_q_norm.weight", HEAD_DIM, 0, 1.2, 0.2
        yield at + "attn_k_norm.weight", HEAD_DIM, 0, 1.2, 0.2


def tensors(arch):
    """(name, n_in, n_out or 0 or (n_out, experts), mean, deviation)"""
    yield "token_embd.weight", EMBD, VOCAB, 0, 1
    yield "output_norm.weight", EMBD, 0, 1, 0.2
    yield "output.weight", EMBD, VOCAB, 0, 4 * EMBD**-0.5
    for layer in range(LAYERS):
        at = "blk.%d." % layer
        yield at + "attn_norm.weight", EMBD, 0, 1, 0.2
        yield from delta_net(arch, at) if arch in WITH_DELTA and layer % 2 == 0 else attention(arch, at)
        is_post = arch == "gpt-oss" or arch in WITH_DELTA
        yield at + ("post_attention_norm" if is_post else "ffn_norm") + ".weight", EMBD, 0, 1, 0.2
        yield from feed_forward(arch, at)


def numbers_key(name, values):
    return text(name) + struct.pack("<IIQ%di" % len(values), 9, 5, len(values), *values)


def n_rows(n_out):
    return n_out[0] * n_out[1] if isinstance(n_out, tuple) else max(n_out, 1)


def random_weights(arch):
    dice = random.Random(arch)
    return {name: array.array("f", [dice.gauss(mean, deviation) for _ in range(n_in * n_rows(n_out))])
            for name, n_in, n_out, mean, deviation in tensors(arch)}


def keys(arch, used, rope_base, scaling, window):
    numbers = [("block_count", LAYERS), ("context_length", 256), ("embedding_length", EMBD), ("vocab_size", VOCAB),
               ("feed_forward_length", FF), ("attention.head_count", HEADS), ("attention.head_count_kv", KV_HEADS),
               ("attention.key_length", HEAD_DIM), ("attention.value_length", HEAD_DIM),
               ("rope.dimension_count", HEAD_DIM)]
    if has_experts(arch):
        numbers += [("expert_count", EXPERTS), ("expert_used_count", used)]
        numbers += [] if arch == "mixtral" else [("expert_feed_forward_length", EXPERT_FF)]
        numbers += [("expert_shared_feed_forward_length", SHARED_FF)] if arch in WITH_SHARED else []
    if arch == "mixtral":
        numbers = [(name, EXPERT_FF if name == "feed_forward_length" else value) for name, value in numbers]
    numbers += [("attention.sliding_window", window)] if arch == "gpt-oss" else []
    if arch in WITH_DELTA:
        numbers = [(name, HEAD_DIM // 2 if name == "rope.dimension_count" else value) for name, value in numbers]
        numbers += [("full_attention_interval", 2), ("ssm.conv_kernel", TAPS), ("ssm.state_size", DELTA),
                    ("ssm.group_count", K_HEADS), ("ssm.time_step_rank", V_HEADS), ("ssm.inner_size", V_HEADS * DELTA)]
    has_sections = arch.startswith("qwen3vl") or arch in WITH_DELTA
    arch = name_of(arch)
    out = [] if not has_sections else [numbers_key(arch + ".rope.dimension_sections", [6, 5, 5, 0])]
    out += [key("general.architecture", 8, arch), key("tokenizer.ggml.model", 8, "no_vocab"),
           key(arch + ".rope.freq_base", 6, rope_base), key(arch + ".attention.layer_norm_rms_epsilon", 6, 1e-5)]
    out += [key("%s.%s" % (arch, name), 4, value) for name, value in numbers]
    if scaling:
        out += [key(arch + ".rope.scaling.type", 8, scaling), key(arch + ".rope.scaling.factor", 6, 4.0),
                key(arch + ".rope.scaling.original_context_length", 4, 64)]
    return out


def write_model(path, arch, data, used=USED, rope_base=5000.0, scaling=None, factors=None, window=WINDOW):
    """data: name -> (type, bytes)"""
    infos, blobs, offset = b"", [], 0
    listed = [(name, n_in, n_out) for name, n_in, n_out, _, _ in tensors(arch)]
    if factors:
        listed.append(("rope_freqs.weight", HEAD_DIM // 2, 0))
        data = dict(data, **{"rope_freqs.weight": ("F32", struct.pack("<%df" % len(factors), *factors))})
    for name, n_in, n_out in listed:
        kind, raw = data[name]
        shape = [n_in] + (list(n_out) if isinstance(n_out, tuple) else [n_out] if n_out else [])
        infos += text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, TYPES[kind][0], offset)
        raw += bytes(-len(raw) % 32)
        blobs.append(raw)
        offset += len(raw)
    meta = keys(arch, used, rope_base, scaling, window)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(meta)) + b"".join(meta) + infos
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + b"".join(blobs))


def distance(got, want):
    off = math.fsum((a - b) ** 2 for a, b in zip(got, want))
    return math.sqrt(off / math.fsum(b * b for b in want))


def ours(path):
    out = subprocess.run([TOOL, path, "f32"] + [str(t) for t in TOKENS], check=True, stdout=subprocess.PIPE).stdout
    return array.array("f", out)


def peer_or_skip():
    try:
        return Peer()
    except Missing as e:
        raise unittest.SkipTest(str(e)) from e


def theirs(peer, path):
    n = len(TOKENS)
    model = Model(peer, path, n_ctx=256, n_batch=256, n_ubatch=256, n_seq_max=1, n_outputs=256, n_outputs_per_seq=256,
                  n_threads=1, n_threads_batch=1, flash_attn=0, type_k=0, type_v=0)
    model.run(Rows(TOKENS, range(n), [0] * n, [1] * n))
    out = array.array("f")
    for i in range(n):
        out.extend(model.logits(i, VOCAB))
    model.close()
    return out


class PeerLogits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.peer = peer_or_skip()
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "model.gguf")
        cls.weights = {arch: random_weights(arch) for arch in ARCHS}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def files_of(self, arch, kind):
        """The weights in a type, and what they mean in F32; norms and biases are F32 in both."""
        packed, plain = {}, {}
        for name, n_in, n_out, _, _ in tensors(arch):
            floats = self.weights[arch][name]
            of = kind if n_out and "gate_inp" not in name and "bias" not in name else "F32"
            packed[name] = of, self.peer.quantise(of, floats, n_in)
            plain[name] = "F32", self.peer.dequantise(of, packed[name][1], len(floats)).tobytes()
        return packed, plain

    def both(self, arch, data, **options):
        write_model(self.path, arch, data, **options)
        return ours(self.path), theirs(self.peer, self.path)

    def check(self, arch, kind, peer_limit, exact_limit):
        packed, plain = self.files_of(arch, kind)
        used = USED if kind == "F32" else EXPERTS  # rounded rows may choose other experts
        got, peer = self.both(arch, packed, used=used)
        write_model(self.path, arch, plain, used)
        exact = theirs(self.peer, self.path)
        write_model(self.path, arch, plain, used, rope_base=500.0)
        wrong = theirs(self.peer, self.path)
        off = distance(got, peer), distance(got, exact), distance(got, wrong)
        print("%s %s: peer %.2g exact %.2g wrong %.2g" % (arch, kind, *off))
        self.assertLess(off[0], peer_limit)
        self.assertLess(off[1], exact_limit)
        self.assertGreater(off[2], 5 * exact_limit)

    def check_options(self, arch, **options):
        packed, _ = self.files_of(arch, "F32")
        got, peer = self.both(arch, packed, **options)
        off = distance(got, peer)
        print("%s %s: %.2g" % (arch, options, off))
        self.assertLess(off, 2e-3)

    def check_mistake(self, arch, edit=None, **options):
        """Ours, and llama.cpp's of a model with a mistake."""
        packed, _ = self.files_of(arch, "F32")
        write_model(self.path, arch, packed)
        got = ours(self.path)
        for name in packed:
            if edit and edit[0] in name:
                values = array.array("f", packed[name][1])
                packed[name] = "F32", array.array("f", map(edit[1], values)).tobytes()
        write_model(self.path, arch, packed, **options)
        off = distance(got, theirs(self.peer, self.path))
        print("%s with a mistake: %.2g" % (arch, off))
        self.assertGreater(off, 100 * LIMITS["F32"][0])

    def test_mistakes_of_gpt_oss_are_seen(self):
        self.check_mistake("gpt-oss", window=WINDOW + 1)
        self.check_mistake("gpt-oss", window=WINDOW - 1)
        self.check_mistake("gpt-oss", edit=("attn_sinks", lambda x: -100.0))
        self.check_mistake("gpt-oss", edit=("gate_inp.bias", lambda x: 0.0))
        self.check_mistake("gpt-oss", edit=("attn_output.bias", lambda x: 0.0))
        self.check_mistake("gpt-oss", edit=("down_exps.bias", lambda x: 0.0))

    def test_mistakes_of_qwen35_are_seen(self):
        self.check_mistake("qwen35", edit=("ssm_dt.bias", lambda x: 0.0))
        self.check_mistake("qwen35", edit=("ssm_norm", lambda x: 1.0))
        self.check_mistake("qwen35", edit=("ssm_beta", lambda x: 0.0))
        self.check_mistake("qwen35", edit=("ssm_conv1d", lambda x: x + 0.1))
        self.check_mistake("qwen35", edit=("attn_gate", lambda x: 0.9 * x))

    def test_rope_scaling(self):
        self.check_options("llama", scaling="linear")
        self.check_options("qwen2", scaling="linear")
        self.check_options("qwen2", scaling="yarn")
        self.check_options("llama", factors=[1 + i / 2 for i in range(HEAD_DIM // 2)])


# K and V are F32. Floats differ by f16 rounding of activations (llama.cpp, F16); 8-bit activations by about 1 % each side.
LIMITS = {"F32": (1e-5, 1e-5), "F16": (5e-3, 2e-3), "BF16": (2e-2, 2e-2)}
for _arch in ARCHS:
    for _kind in TYPES if LONG else ["F32"]:
        setattr(PeerLogits, "test_%s_%s" % (_arch, _kind),
                lambda self, a=_arch, k=_kind: self.check(a, k, *LIMITS.get(k, (4e-2, 3e-2))))

if __name__ == "__main__":
    unittest.main()
