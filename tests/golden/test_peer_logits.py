"""Logits of small random models of every architecture and weight type against llama.cpp's.

Part of the long suite (TANDEM_TEST_LONG=1). Installs the npm package @node-llama-cpp/linux-x64 3.22.1
into build/peer and calls its libraries by ctypes: ggml_quantize_chunk makes the weights, dequantize_row_*
says what they mean, libllama computes the logits. The parameter structures are the library's own defaults,
changed at the offsets of that version.

Three distances, each the root mean square of the difference, relative to that of the logits:
  peer    llama.cpp on the same file. Both quantise activations, each in its own way.
  exact   llama.cpp on the dequantized weights in F32: what is left are our activations of 8 bits.
  wrong   the negative control: exact, but of a model with another rotation. It must be large.
"""
import array
import ctypes as C
import math
import os
import random
import struct
import subprocess
import tempfile
import unittest

LONG = os.environ.get("TANDEM_TEST_LONG")
TOOL = os.path.join(os.environ.get("TANDEM_BIN", "build/dev"), "tests", "logits_tool")
PEER = os.path.abspath("build/peer")
PACKAGE = "@node-llama-cpp/linux-x64"
VERSION = "3.22.1"

EMBD, FF, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 512, 2, 8, 2, 32, 96
TYPES = {  # number in files, weights in a block, bytes of a block
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210), "BF16": (30, 1, 2),
}
ARCHS = ("llama", "qwen2", "qwen3")
TOKENS = [random.Random(i).randrange(VOCAB) for i in range(48)]


class Blob(C.Structure):  # larger than any parameter structure: by-value arguments lie on the stack
    _fields_ = [("b", C.c_ubyte * 512)]


class Batch(C.Structure):
    _fields_ = [("n_tokens", C.c_int32), ("token", C.c_void_p), ("embd", C.c_void_p), ("pos", C.c_void_p),
                ("n_seq_id", C.c_void_p), ("seq_id", C.c_void_p), ("logits", C.c_void_p)]


# int32 fields of llama_context_params in this version: offset, value
CONTEXT = {"n_ctx": (0, 256), "n_batch": (4, 256), "n_ubatch": (8, 256), "n_seq_max": (12, 1), "n_outputs": (20, 256),
           "n_outputs_per_seq": (24, 256), "n_threads": (28, 1), "n_threads_batch": (32, 1), "flash_attn": (52, 0)}


class Peer:
    """The libraries, loaded once."""

    def __init__(self):
        folder = os.path.join(PEER, "node_modules", PACKAGE, "bins", "linux-x64")
        if not os.path.isdir(folder):
            npm = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix", PEER,
                   "%s@%s" % (PACKAGE, VERSION)]
            if subprocess.run(npm, check=False).returncode:
                raise unittest.SkipTest("npm cannot install " + PACKAGE)
        self.base = C.CDLL(os.path.join(folder, "libggml-base.so"), mode=C.RTLD_GLOBAL)
        ggml = C.CDLL(os.path.join(folder, "libggml.v0.5.0.so"), mode=C.RTLD_GLOBAL)
        ggml.ggml_backend_load_all_from_path(folder.encode())
        self.llama = lib = C.CDLL(os.path.join(folder, "libllama.v0.5.0.so"), mode=C.RTLD_GLOBAL)
        pointer = C.c_void_p
        for name, result, arguments in [
            ("llama_model_default_params", Blob, []), ("llama_context_default_params", Blob, []),
            ("llama_model_load_from_file", pointer, [C.c_char_p, Blob]),
            ("llama_init_from_model", pointer, [pointer, Blob]), ("llama_decode", C.c_int32, [pointer, Batch]),
            ("llama_get_logits_ith", C.POINTER(C.c_float), [pointer, C.c_int32]), ("llama_free", None, [pointer]),
            ("llama_model_free", None, [pointer]), ("llama_log_set", None, [pointer, pointer]),
        ]:
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self.base.ggml_quantize_chunk.restype = C.c_size_t
        self.base.ggml_quantize_chunk.argtypes = [C.c_int, pointer, pointer, C.c_int64, C.c_int64, C.c_int64, pointer]
        self.silent = C.CFUNCTYPE(None, C.c_int, C.c_char_p, pointer)(lambda level, text, data: None)
        lib.llama_log_set(self.silent, None)
        lib.llama_backend_init()

    def quantise(self, kind, floats, n_in):
        number, block, size = TYPES[kind]
        n = len(floats)
        source = (C.c_float * n).from_buffer(floats)
        if kind == "F32":
            return bytes(source)
        to = C.create_string_buffer(n // block * size)
        if kind == "BF16":
            self.base.ggml_fp32_to_bf16_row_ref(source, to, C.c_int64(n))
        else:
            self.base.ggml_quantize_chunk(number, source, to, 0, n // n_in, n_in, None)
        return to.raw

    def dequantise(self, kind, data, n):
        to = array.array("f", bytes(4 * n))
        out = (C.c_float * n).from_buffer(to)
        name = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}.get(kind)
        name = name or "dequantize_row_" + kind.lower().replace("_k", "_K")
        if kind == "F32":
            return array.array("f", data)
        getattr(self.base, name)(C.c_char_p(data), out, C.c_int64(n))
        return to

    def logits(self, path, tokens):
        lib = self.llama
        model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        if not model:
            raise RuntimeError("llama.cpp does not load " + path)
        parameters = lib.llama_context_default_params()
        for offset, value in CONTEXT.values():
            struct.pack_into("<i", parameters.b, offset, value)
        context = lib.llama_init_from_model(model, parameters)
        n = len(tokens)
        ids, positions, ones = (C.c_int32 * n)(*tokens), (C.c_int32 * n)(*range(n)), (C.c_int32 * n)(*[1] * n)
        zero, wanted = C.c_int32(0), (C.c_int8 * n)(*[1] * n)
        sequences = (C.c_void_p * n)(*[C.addressof(zero)] * n)
        batch = Batch(n, C.addressof(ids), None, C.addressof(positions), C.addressof(ones), C.addressof(sequences),
                      C.addressof(wanted))
        if lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        out = array.array("f")
        for i in range(n):
            out.extend(lib.llama_get_logits_ith(context, i)[0:VOCAB])
        lib.llama_free(context)
        lib.llama_model_free(model)
        return out


# ---------------------------------------------------------------- files


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def key(name, kind, value):
    body = text(value) if kind == 8 else struct.pack({4: "<I", 6: "<f"}[kind], value)
    return text(name) + struct.pack("<I", kind) + body


def tensors(arch):
    """(name, n_in, n_out or 0, mean, deviation)"""
    n_q, n_kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield "token_embd.weight", EMBD, VOCAB, 0, 1
    yield "output_norm.weight", EMBD, 0, 1, 0.2
    yield "output.weight", EMBD, VOCAB, 0, 4 * EMBD**-0.5
    for layer in range(LAYERS):
        at = "blk.%d." % layer
        yield at + "attn_norm.weight", EMBD, 0, 1, 0.2
        yield at + "attn_q.weight", EMBD, n_q, 0, 1.5 * EMBD**-0.5
        yield at + "attn_k.weight", EMBD, n_kv, 0, 1.5 * EMBD**-0.5
        yield at + "attn_v.weight", EMBD, n_kv, 0, EMBD**-0.5
        yield at + "attn_output.weight", n_q, EMBD, 0, 0.7 * n_q**-0.5
        yield at + "ffn_norm.weight", EMBD, 0, 1, 0.2
        yield at + "ffn_gate.weight", EMBD, FF, 0, EMBD**-0.5
        yield at + "ffn_up.weight", EMBD, FF, 0, EMBD**-0.5
        yield at + "ffn_down.weight", FF, EMBD, 0, FF**-0.5
        if arch == "qwen2":
            for which, n in (("q", n_q), ("k", n_kv), ("v", n_kv)):
                yield at + "attn_%s.bias" % which, n, 0, 0, 0.5
        if arch == "qwen3":
            yield at + "attn_q_norm.weight", HEAD_DIM, 0, 1.2, 0.2
            yield at + "attn_k_norm.weight", HEAD_DIM, 0, 1.2, 0.2


def random_weights(arch):
    dice = random.Random(arch)
    return {name: array.array("f", [dice.gauss(mean, deviation) for _ in range(n_in * max(n_out, 1))])
            for name, n_in, n_out, mean, deviation in tensors(arch)}


def keys(arch, rope_base, scaling):
    numbers = [("block_count", LAYERS), ("context_length", 256), ("embedding_length", EMBD), ("vocab_size", VOCAB),
               ("feed_forward_length", FF), ("attention.head_count", HEADS), ("attention.head_count_kv", KV_HEADS),
               ("attention.key_length", HEAD_DIM), ("attention.value_length", HEAD_DIM),
               ("rope.dimension_count", HEAD_DIM)]
    out = [key("general.architecture", 8, arch), key("tokenizer.ggml.model", 8, "no_vocab"),
           key(arch + ".rope.freq_base", 6, rope_base), key(arch + ".attention.layer_norm_rms_epsilon", 6, 1e-5)]
    out += [key("%s.%s" % (arch, name), 4, value) for name, value in numbers]
    if scaling:
        out += [key(arch + ".rope.scaling.type", 8, scaling), key(arch + ".rope.scaling.factor", 6, 4.0),
                key(arch + ".rope.scaling.original_context_length", 4, 64)]
    return out


def write_model(path, arch, data, rope_base=5000.0, scaling=None, factors=None):
    """data: name -> (type, bytes)"""
    infos, blobs, offset = b"", [], 0
    listed = [(name, n_in, n_out) for name, n_in, n_out, _, _ in tensors(arch)]
    if factors:
        listed.append(("rope_freqs.weight", HEAD_DIM // 2, 0))
        data = dict(data, **{"rope_freqs.weight": ("F32", struct.pack("<%df" % len(factors), *factors))})
    for name, n_in, n_out in listed:
        kind, raw = data[name]
        shape = [n_in, n_out] if n_out else [n_in]
        infos += text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, TYPES[kind][0], offset)
        raw += bytes(-len(raw) % 32)
        blobs.append(raw)
        offset += len(raw)
    meta = keys(arch, rope_base, scaling)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(meta)) + b"".join(meta) + infos
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + b"".join(blobs))


def distance(got, want):
    off = math.fsum((a - b) ** 2 for a, b in zip(got, want))
    return math.sqrt(off / math.fsum(b * b for b in want))


def ours(path):
    out = subprocess.run([TOOL, path] + [str(t) for t in TOKENS], check=True, stdout=subprocess.PIPE).stdout
    return array.array("f", out)


@unittest.skipUnless(LONG, "part of the long suite")
class PeerLogits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.peer = Peer()
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
            of = kind if n_out else "F32"
            packed[name] = of, self.peer.quantise(of, floats, n_in)
            plain[name] = "F32", self.peer.dequantise(of, packed[name][1], len(floats)).tobytes()
        return packed, plain

    def both(self, arch, data, **options):
        write_model(self.path, arch, data, **options)
        return ours(self.path), self.peer.logits(self.path, TOKENS)

    def check(self, arch, kind, peer_limit, exact_limit):
        packed, plain = self.files_of(arch, kind)
        got, peer = self.both(arch, packed)
        write_model(self.path, arch, plain)
        exact = self.peer.logits(self.path, TOKENS)
        write_model(self.path, arch, plain, rope_base=500.0)
        wrong = self.peer.logits(self.path, TOKENS)
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

    def test_rope_scaling(self):
        self.check_options("llama", scaling="linear")
        self.check_options("qwen2", scaling="linear")
        self.check_options("qwen2", scaling="yarn")
        self.check_options("llama", factors=[1 + i / 2 for i in range(HEAD_DIM // 2)])


# Floats differ by f16 rounding of K, V and (llama.cpp, F16) activations; 8-bit activations by about 1 % each side.
LIMITS = {"F32": (2e-3, 2e-3), "F16": (5e-3, 2e-3), "BF16": (2e-2, 2e-2)}
for _arch in ARCHS:
    for _kind in TYPES:
        setattr(PeerLogits, "test_%s_%s" % (_arch, _kind),
                lambda self, a=_arch, k=_kind: self.check(a, k, *LIMITS.get(k, (4e-2, 3e-2))))

if __name__ == "__main__":
    unittest.main()
