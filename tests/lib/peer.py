"""llama.cpp through ctypes, for comparisons: its quantisers, its logits, its speed.

Installs the npm package @node-llama-cpp/linux-x64 3.22.1 into build/peer. The parameter structures are the
library's own defaults, changed at the offsets of that version.
"""
import array
import ctypes as C
import os
import struct
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = "@node-llama-cpp/linux-x64"
VERSION = "3.22.1"
PREFIX = os.path.join(ROOT, "build", "peer")
LIBRARIES = os.path.join(PREFIX, "node_modules", PACKAGE, "bins", "linux-x64")

TYPES = {  # number in files, weights in a block, bytes of a block
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "BF16": (30, 1, 2), "MXFP4": (39, 32, 17),
}
# int32 fields of llama_context_params in this version, and their offsets
CONTEXT = {"n_ctx": 0, "n_batch": 4, "n_ubatch": 8, "n_seq_max": 12, "n_outputs": 20, "n_outputs_per_seq": 24,
           "n_threads": 28, "n_threads_batch": 32, "flash_attn": 52, "type_k": 104, "type_v": 108}


class Missing(Exception):
    """The package is not available."""


def install():
    if os.path.isdir(LIBRARIES):
        return
    npm = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--prefix", PREFIX,
           "%s@%s" % (PACKAGE, VERSION)]
    try:
        subprocess.run(npm, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as e:
        raise Missing("npm cannot install %s: %s" % (PACKAGE, e)) from e


class Blob(C.Structure):  # larger than any parameter structure, which are passed by value on the stack
    _fields_ = [("b", C.c_ubyte * 512)]


class Batch(C.Structure):
    _fields_ = [("n_tokens", C.c_int32), ("token", C.c_void_p), ("embd", C.c_void_p), ("pos", C.c_void_p),
                ("n_seq_id", C.c_void_p), ("seq_id", C.c_void_p), ("logits", C.c_void_p)]


class Rows:
    """A batch: for each row its token, position and sequence, and whether its logits are needed."""

    def __init__(self, tokens, positions, sequences, wanted):
        n = len(tokens)
        self.kept = [(C.c_int32 * n)(*tokens), (C.c_int32 * n)(*positions), (C.c_int32 * n)(*[1] * n),
                     (C.c_int32 * n)(*sequences), (C.c_int8 * n)(*wanted)]
        at = [C.addressof(part) for part in self.kept]
        self.sequences = (C.c_void_p * n)(*[at[3] + 4 * i for i in range(n)])
        self.batch = Batch(n, at[0], None, at[1], at[2], C.addressof(self.sequences), at[4])


class Peer:
    """The libraries, loaded once. cpu: a build of llama.cpp such as "haswell"; None: llama.cpp chooses."""

    def __init__(self, cpu=None):
        install()
        self.base = C.CDLL(os.path.join(LIBRARIES, "libggml-base.so"), mode=C.RTLD_GLOBAL)
        self.silent = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)(lambda level, text, data: None)
        self.base.ggml_log_set(self.silent, None)
        ggml = C.CDLL(os.path.join(LIBRARIES, "libggml.v0.5.0.so"), mode=C.RTLD_GLOBAL)
        if cpu:
            ggml.ggml_backend_load.restype = C.c_void_p
            if not ggml.ggml_backend_load(os.path.join(LIBRARIES, "libggml-cpu-%s.so" % cpu).encode()):
                raise Missing("llama.cpp has no build for %s that runs here" % cpu)
        else:
            ggml.ggml_backend_load_all_from_path(LIBRARIES.encode())
        self.llama = lib = C.CDLL(os.path.join(LIBRARIES, "libllama.v0.5.0.so"), mode=C.RTLD_GLOBAL)
        pointer = C.c_void_p
        for name, result, arguments in [
            ("llama_model_default_params", Blob, []), ("llama_context_default_params", Blob, []),
            ("llama_model_load_from_file", pointer, [C.c_char_p, Blob]),
            ("llama_init_from_model", pointer, [pointer, Blob]), ("llama_decode", C.c_int32, [pointer, Batch]),
            ("llama_get_logits_ith", C.POINTER(C.c_float), [pointer, C.c_int32]), ("llama_free", None, [pointer]),
            ("llama_model_free", None, [pointer]), ("llama_log_set", None, [pointer, pointer]),
            ("llama_get_memory", pointer, [pointer]),
            ("llama_memory_seq_rm", C.c_bool, [pointer, C.c_int32, C.c_int32, C.c_int32]),
            ("llama_state_seq_get_size", C.c_size_t, [pointer, C.c_int32]),
            ("llama_state_seq_get_data", C.c_size_t, [pointer, pointer, C.c_size_t, C.c_int32]),
            ("llama_state_seq_set_data", C.c_size_t, [pointer, C.c_char_p, C.c_size_t, C.c_int32]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_tokenize", C.c_int32, [pointer, C.c_char_p, C.c_int32, pointer, C.c_int32, C.c_bool, C.c_bool]),
        ]:
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self.base.ggml_quantize_chunk.restype = C.c_size_t
        self.base.ggml_quantize_chunk.argtypes = [C.c_int, pointer, pointer, C.c_int64, C.c_int64, C.c_int64, pointer]
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


def longer_state(state, n_from, n_to):
    """Repeats the n_from positions of a sequence's state up to n_to positions.

    Layout in this version: 8 bytes, streams, positions, 12 bytes per position, 4 bytes, layers. Then K and V of each
    layer follow (type, bytes of a row, rows). Last is a number for each other stream."""
    n_streams, n_cells = struct.unpack_from("<II", state, 8)
    at = 16 + 12 * n_cells
    (n_layers,) = struct.unpack_from("<I", state, at + 4)
    out = [state[:12], struct.pack("<I", n_to), *(struct.pack("<iII", i, 1, 0) for i in range(n_to)), state[at : at + 8]]
    at += 8
    for _ in range(2 * n_layers):
        (row,) = struct.unpack_from("<Q", state, at + 4)
        rows = state[at + 12 : at + 12 + row * n_from]
        out += [state[at : at + 12], (rows * (n_to // n_from + 1))[: row * n_to]]
        at += 12 + row * n_from
    if n_cells != n_from or at + 4 * (n_streams - 1) != len(state):
        raise RuntimeError("llama.cpp's state is not laid out as expected")
    return b"".join(out) + state[at:]


class Model:
    """A loaded file and one context. parameters: names and values as in CONTEXT."""

    def __init__(self, peer, path, **parameters):
        self.peer = peer  # its log function is called as long as the model lives
        self.lib = peer.llama
        self.model = self.lib.llama_model_load_from_file(path.encode(), self.lib.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp does not load " + path)
        blob = self.lib.llama_context_default_params()
        for name, value in parameters.items():
            struct.pack_into("<i", blob.b, CONTEXT[name], value)
        self.context = self.lib.llama_init_from_model(self.model, blob)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context for " + path)
        self.memory = self.lib.llama_get_memory(self.context)

    def run(self, rows):
        if self.lib.llama_decode(self.context, rows.batch):
            raise RuntimeError("llama_decode failed")

    def tokens(self, text):
        """Parses special tokens in the text."""
        data = text.encode()
        to = (C.c_int32 * len(data))()
        n = self.lib.llama_tokenize(self.lib.llama_model_get_vocab(self.model), data, len(data), to, len(data), 0, 1)
        return to[0:n]

    def logits(self, row, n_vocab):
        return self.lib.llama_get_logits_ith(self.context, row)[0:n_vocab]

    def keep(self, sequence, n_positions):
        """Keeps the first n_positions of a sequence and drops the rest."""
        self.lib.llama_memory_seq_rm(self.memory, sequence, n_positions, -1)

    def repeat(self, n_from, n_to, n_sequences):
        """Fills n_to positions of each sequence with repeated K and V of the n_from positions of sequence 0."""
        state = C.create_string_buffer(self.lib.llama_state_seq_get_size(self.context, 0))
        self.lib.llama_state_seq_get_data(self.context, state, len(state), 0)
        longer = longer_state(state.raw, n_from, n_to)
        for s in range(n_sequences):
            if self.lib.llama_state_seq_set_data(self.context, longer, len(longer), s) != len(longer):
                raise RuntimeError("llama.cpp does not take %d positions of sequence %d" % (n_to, s))

    def close(self):
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)
