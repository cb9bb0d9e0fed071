"""peer_child.py MODEL THREADS CONTEXT SEQUENCES [CPU]: llama.cpp as a child process of engine.py.

Reads and answers the lines "pass" that engine_tool.c describes. llama.cpp runs with flash attention and f16 K and V.
CPU names one of its builds ("haswell", "icelake", ...). Without CPU llama.cpp chooses the build.
"""
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from peer import Missing, Model, Peer, Rows

MAX_ROWS = 512


def token_at(i):
    return 300 + i * 37 % 600


def rows_of(n_seqs, context, n_rows, n_logits):
    """n_rows rows after the context of each sequence, with logits for the last n_logits of them."""
    places = [(s, context + i, n_rows - i <= n_logits) for s in range(n_seqs) for i in range(n_rows)]
    return Rows([token_at(at) for _, at, _ in places], [at for _, at, _ in places], [s for s, _, _ in places],
                [wanted for _, _, wanted in places])


def time_pass(model, rows, n_seqs, context):
    """Milliseconds of one pass. Its rows are then removed, so each pass finds the same context."""
    start = time.perf_counter()
    model.run(rows)
    took = time.perf_counter() - start
    for s in range(n_seqs):
        model.keep(s, context)
    return 1e3 * took


def feed(model, n_seqs, context):
    """Fills the contexts as engine_tool.c does: at most MAX_ROWS positions are computed, the others are copies."""
    n = min(context, MAX_ROWS)
    if n:
        model.run(Rows([token_at(i) for i in range(n)], range(n), [0] * n, [0] * (n - 1) + [1]))
    if n_seqs > 1 or n < context:
        model.repeat(n, context, n_seqs)


def main():
    path, threads, context, n_seqs = sys.argv[1], *map(int, sys.argv[2:5])
    model = Model(Peer(*sys.argv[5:6]), path, n_ctx=n_seqs * ((context + MAX_ROWS + 255) // 256 * 256), n_batch=2048,
                  n_ubatch=MAX_ROWS, n_seq_max=n_seqs, n_outputs=MAX_ROWS, n_outputs_per_seq=MAX_ROWS,
                  n_threads=threads, n_threads_batch=threads, flash_attn=1)
    feed(model, n_seqs, context)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        print("ready", re.search(r"libggml-cpu-(\w+)\.so", maps.read()).group(1), flush=True)
    for line in sys.stdin:
        n, n_rows, n_logits, reps = map(int, line.split()[1:])
        rows = rows_of(n, context, n_rows, n_logits)
        print(*("%.4f" % time_pass(model, rows, n, context) for _ in range(reps)), flush=True)


try:
    main()
except (Missing, RuntimeError) as e:
    sys.exit("peer_child: %s" % e)
