"""engine.py decode|verify|prefill|spec [OPTIONS]: the time of forward passes, beside llama.cpp or another build.

  decode   1, 8 and 16 sequences together, one row each
  verify   M rows of one sequence, logits for each row, M = 1 .. 64
  prefill  prompts of 128 and 512 tokens, logits for the last token
  spec     greedy text with drafts of 4, 5 and 8 tokens by a draft model, and without drafts;
           llama.cpp only without drafts

Both engines load the same file and hold the same contexts. They take turns at every size, so a
machine whose memory becomes slower slows down both. No engine starts before all threads of the
other one sleep. With --ik, a build of ik_llama.cpp runs once per turn, with and without -rtr 1. The output has the median, the range from the first to the last tenth, and the
speed of plain reads of the same weights.
"""
import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "lib"))
import llama_bench
import peer
import report
import synthetic

ROWS = {"decode": [1, 8, 16], "verify": [*range(1, 18), 24, 32, 64], "prefill": [128, 512],
        "spec": [4, 5, 8]}
# Passes of one size in a turn. If there are several, the first is not counted: its caches are cold.
REPS_A_TURN = {"decode": 5, "verify": 3, "prefill": 1}
STREAMS = [4, 8]  # streams per thread of the plain reads; the faster one is the limit
AT_REST_S = 10  # after an answer, all threads of an engine must sleep within this time
TEXT_TOKENS = 64  # of each text of spec


def read_text(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


class Engine:
    """A child process that runs passes on request: engine_tool or peer_child.py. engine_tool.c describes the lines."""

    def __init__(self, name, command):
        self.name = name
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.line().split()[1:]

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("%s ended with status %d" % (self.name, self.process.wait()))
        return line

    def ask(self, question):
        """Sends one line and returns the numbers of the answer, when the child's threads sleep again."""
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        times = [float(ms) for ms in self.line().split()]
        self.come_to_rest()
        return times

    def come_to_rest(self):
        """Waits until all threads sleep. Threads that spin would take time from the other engine."""
        tasks, until = "/proc/%d/task" % self.process.pid, time.monotonic() + AT_REST_S
        while any(self.runs("%s/%s/stat" % (tasks, t)) for t in os.listdir(tasks)):
            if time.monotonic() > until:
                raise SystemExit("%s has threads that never sleep" % self.name)
            time.sleep(0.001)

    @staticmethod
    def runs(path):
        try:
            return read_text(path).rpartition(")")[2].split()[0] == "R"
        except OSError:  # the thread has ended
            return False

    def cpu_s(self):
        fields = read_text("/proc/%d/stat" % self.process.pid).rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def all_cpu_s():
    busy = [int(x) for x in read_text("/proc/stat").split("\n", 1)[0].split()[1:9]]
    return (sum(busy) - busy[3] - busy[4]) / os.sysconf("SC_CLK_TCK")


class OtherProcesses:
    """Measures the cores that other processes use from now on."""

    def __init__(self, engines):
        self.engines = engines
        self.start, self.start_cpu = time.monotonic(), self.cpu_s()

    def cpu_s(self):
        own = sum(os.times()[:4])  # with children that have ended
        return all_cpu_s() - sum(e.cpu_s() for e in self.engines) - own

    def cores(self):
        return max(0, self.cpu_s() - self.start_cpu) / (time.monotonic() - self.start)


# ---------------------------------------------------------------- measuring


def question(bench, n, reps):
    if bench == "decode":
        return "pass %d 1 1 %d" % (n, reps)
    return "pass 1 %d %d %d" % (n, n if bench == "verify" else 1, reps)


def measure(engines, o, benches=()):
    """(engine name -> rows -> milliseconds of each turn, streams -> milliseconds of plain reads). The first turn warms
    up and is not counted."""
    passes = {e.name: {n: [] for n in o.rows} for e in [*engines, *benches]}
    reads = {s: [] for s in STREAMS}
    reps = REPS_A_TURN[o.bench]
    for turn in range(o.reps + 1):
        start = time.monotonic()
        for s in STREAMS:
            reads[s] += engines[0].ask("read %d 3" % s)
        for n in o.rows:
            for e in engines[:: 1 if turn % 2 else -1]:
                times = e.ask(question(o.bench, n, reps))
                if turn:
                    passes[e.name][n].append(times[1:] or times)
        for b in benches:
            for n, times in b.turn(o).items():
                passes[b.name][n] += [times] if turn else []
        if turn == 0:
            print("%d turns of %.1f s each" % (o.reps, time.monotonic() - start), file=sys.stderr, flush=True)
    return passes, reads


def spread(times):
    """Median, first tenth, last tenth."""
    v = sorted(round(t, 4) for t in times)
    return statistics.median(v), v[len(v) // 10], v[-1 - len(v) // 10]


# ---------------------------------------------------------------- results


def paired(ours, theirs):
    """The ratio of two engines' times, turn by turn: geometric mean, and its relative standard error. Arguments:
    milliseconds of each turn."""
    logs = [math.log(statistics.median(a) / statistics.median(b)) for a, b in zip(ours, theirs)]
    error = statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    return math.exp(statistics.mean(logs)), error


def side(name, cpu, turns):
    turns = {n: t for n, t in turns.items() if t}  # llama-bench has not all sizes
    spreads = {n: spread(ms for turn in t for ms in turn) for n, t in turns.items()}
    t_ms = {n: s[0] for n, s in spreads.items()}
    return {"name": name, "cpu": cpu, "t_ms": t_ms, "spread_ms": {n: s[1:] for n, s in spreads.items()},
            "of_one_row": {n: t / t_ms[1] for n, t in t_ms.items()} if 1 in t_ms else {}}


def what(o):
    return {"bench": o.bench, "model": os.path.basename(o.path), "threads": o.threads, "context": o.context,
            "turns": o.reps, "float_gemm": o.float_gemm, "kv_type": o.kv_type}


def results_of_benches(ours, benches, passes):
    """name -> its figures, and the paired ratio of our time to its time."""
    out = {}
    for b in benches:
        out[b.name] = {**side(b.name, "", passes[b.name]), "title": b.name + " " + b.commit}
        out[b.name]["of_paired"] = {n: paired(ours[n], passes[b.name][n]) for n in out[b.name]["t_ms"]}
    return out


def results(o, engines, passes, reads, benches=()):
    sides = [side(e.name, e.about[0], passes[e.name]) for e in engines]
    n_bytes = int(engines[0].about[1])
    limit, streams = max((n_bytes / statistics.median(t) / 1e6, s) for s, t in reads.items())
    out = {**what(o), **sides[0], "weights_bytes": n_bytes, "read_limit_gb_per_s": limit, "read_limit_streams": streams}
    if 1 in o.rows:
        out["read_gb_per_s"] = int(engines[0].about[2]) / out["t_ms"][1] / 1e6
    if len(sides) == 2:
        theirs = {**sides[1], "title": o.against or "llama.cpp " + peer.VERSION}
        out["peer"] = theirs
        out["of_peer"] = {n: out["t_ms"][n] / t for n, t in theirs["t_ms"].items()}
        out["of_peer_paired"] = {n: paired(passes[engines[0].name][n], passes[engines[1].name][n]) for n in o.rows}
    out["benches"] = results_of_benches(passes[engines[0].name], benches, passes)
    return out


def best_peer(r, n):
    """(name, milliseconds, paired ratio of our time to its time) of the fastest peer at this size; None: no peer."""
    peers = [(p["title"], p["t_ms"][n], p["of_paired"][n]) for p in r["benches"].values() if n in p["t_ms"]]
    if "peer" in r:
        peers.append((r["peer"]["title"], r["peer"]["t_ms"][n], r["of_peer_paired"][n]))
    return min(peers, key=lambda p: p[1], default=None)


def cells(s, n, tokens):
    """The columns of one engine: milliseconds, their range, t(M)/t(1), tokens/s."""
    low, high = s["spread_ms"][n]
    grown = "x%.2f" % s["of_one_row"][n] if s["of_one_row"] else ""
    return "%9.2f %18s %6s %8.1f" % (s["t_ms"][n], "%.2f .. %.2f" % (low, high), grown, 1e3 * tokens / s["t_ms"][n])


def table(o, r):
    head = "%9s %18s %6s %8s" % ("ms", "tenth .. tenth", "t/t(1)", "tokens/s")
    theirs = r.get("peer")
    yield "%s of %s: %d threads, context %d, %d turns" % (o.bench, r["model"], o.threads, o.context, o.reps)
    ours = "tandem, " + r["cpu"] + (", floats by OpenBLAS" if o.float_gemm == "blas" else "") + ", K and V of " + o.kv_type
    yield "%5s | %-44s" % ("", ours) + (" | %s, %s" % (theirs["title"], theirs["cpu"]) if theirs else "")
    yield "%5s | %s" % ("seqs" if o.bench == "decode" else "rows", head) + (
        " | %s | %6s %14s" % (head, "ours/", "paired") if theirs else "") + "".join(
            " | %14s %14s" % (b["title"], "paired") for b in r["benches"].values())
    for n in o.rows:
        line = "%5d | %s" % (n, cells(r, n, n))
        if theirs:
            line += " | %s | %6.2f %14s" % (cells(theirs, n, n), r["of_peer"][n], "%.3f +- %.3f" % r["of_peer_paired"][n])
        for b in r["benches"].values():
            line += " | %14.2f %14s" % (b["t_ms"][n], "%.3f +- %.3f" % b["of_paired"][n]) if n in b["t_ms"] else " | %29s" % ""
        yield line
    read = "plain reads of the same %.0f MiB: %.1f GB/s (%d streams per thread)" % (
        r["weights_bytes"] / 2**20, r["read_limit_gb_per_s"], r["read_limit_streams"])
    if "read_gb_per_s" in r:
        read += "; one row: %.1f GB/s, %.0f %%" % (r["read_gb_per_s"], 100 * r["read_gb_per_s"] / r["read_limit_gb_per_s"])
    yield read


# ---------------------------------------------------------------- speculation


def text_prompt(turn):
    """A text of some tokens, another one in each turn."""
    return "".join(chr(ord("a") + (turn * 7 + i * 5) % 26) for i in range(16))


def measure_texts(engines, o):
    """(draft length -> engine_tool's answers, milliseconds of llama.cpp's steps without drafts, draft length ->
    (tokens/s, accepted part) of ik's texts). Length 0: no drafts. Every turn has another text."""
    texts, steps, theirs = {k: [] for k in [0, *o.rows]}, [], {k: [] for k in o.rows if o.ik}
    for turn in range(o.reps + 1):
        for k, answers in texts.items():
            answer = engines[0].ask("spec %d %d %d" % (k, TEXT_TOKENS, 300 + turn))
            times = [ms for e in engines[1:] for ms in e.ask(question("decode", 1, REPS_A_TURN["decode"]))]
            if turn:
                answers.append(answer)
                steps += [times[1:]] if times else []
        for k, answers in theirs.items():
            answer = llama_bench.speculative(o.ik, o, k, TEXT_TOKENS, text_prompt(turn))
            answers += [answer] if turn else []
    return texts, steps, theirs


def figures_of_texts(answers, plain):
    """The figures of one draft length, all turns together. plain: the figures without drafts, or None if these are
    the ones without drafts."""
    ms, draft_ms, target_ms, tokens, rounds, drafted, accepted, full = map(sum, zip(*answers))
    rates = [1e3 * a[3] / a[0] for a in answers]
    out = {"tokens_per_s": 1e3 * tokens / ms, "spread_tokens_per_s": spread(rates)[1:], "target_ms": target_ms / rounds}
    if plain:
        rejected = rounds - full  # each other round rejects one token
        out.update(speed_up=out["tokens_per_s"] / plain["tokens_per_s"], alpha=accepted / max(1, accepted + rejected),
                   tau=tokens / rounds, c=draft_ms / drafted / plain["target_ms"],
                   of_one_row=out["target_ms"] / plain["target_ms"])
    return out


def results_of_texts(o, engines, texts, steps, theirs):
    plain = figures_of_texts(texts[0], None)
    out = {**what(o), "draft": os.path.basename(o.draft), "cpu": engines[0].about[0], "text_tokens": TEXT_TOKENS,
           "plain": plain, "k": {k: figures_of_texts(texts[k], plain) for k in o.rows}}
    if steps:
        out["peer"] = {"cpu": engines[1].about[0], **side("llama.cpp", engines[1].about[0], {1: steps})}
    out["ik"] = {k: {"tokens_per_s": statistics.harmonic_mean([a[0] for a in answers]), "accepted": statistics.mean(a[1] for a in answers)}
                 for k, answers in theirs.items()}
    for k, r in out["k"].items() if theirs else ():
        r["of_best_ik"] = r["tokens_per_s"] / max(t["tokens_per_s"] for t in out["ik"].values())
    return out


def table_of_texts(o, r):
    yield "spec of %s, draft %s: %d threads, context %d, %d texts of %d tokens" % (
        r["model"], r["draft"], o.threads, o.context, o.reps, TEXT_TOKENS)
    yield "%5s | %8s %18s %8s | %5s %5s %5s %9s | %s" % (
        "draft", "tokens/s", "tenth .. tenth", "of plain", "alpha", "tau", "c", "t/t(1)",
        "ik, tokens/s  accepted  ours/best of ik" if r["ik"] else "")
    for k, t in {0: r["plain"], **r["k"]}.items():
        line = "%5d | %8.1f %18s" % (k, t["tokens_per_s"], "%.1f .. %.1f" % t["spread_tokens_per_s"])
        if k:
            line += " %8.2f | %5.2f %5.2f %5.2f %9.2f |" % (t["speed_up"], t["alpha"], t["tau"], t["c"], t["of_one_row"])
            if k in r["ik"]:
                line += " %12.1f %9.2f %17.2f" % (r["ik"][k]["tokens_per_s"], r["ik"][k]["accepted"], t["of_best_ik"])
        yield line
    if "peer" in r:
        ms = r["peer"]["t_ms"][1]
        yield "llama.cpp %s, %s, plain: %.2f ms, %.1f tokens/s" % (peer.VERSION, r["peer"]["cpu"], ms, 1e3 / ms)


# ---------------------------------------------------------------- models and options


def model_file(o, name="", *options):
    """The synthetic model of --shape, --type and --vocab. options: more options of make_model."""
    if not o.vocab:
        return synthetic.model_file(o, o.type, name, "--type", o.type, *options)
    return synthetic.model_file(o, f"{o.vocab}-{o.type}", name, "--type", o.type, "--vocab", str(o.vocab), "--tied", *options)


def find_models(o):
    """Sets o.path and, for spec, o.draft. The synthetic draft model is the target's first layer; the other layers of
    the target add little to it."""
    if o.bench != "spec":
        o.path = o.model or model_file(o)
        return
    o.path = o.model or model_file(o, "eps%g" % o.eps, "--faint-from", "1", "--eps", str(o.eps))
    o.draft = o.draft or model_file(o, "layers1", "--layers", "1")


def options(arguments):
    p = argparse.ArgumentParser(prog="tandem bench", description=report.description(__doc__),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bench", choices=ROWS, help="the benchmark")
    p.add_argument("--shape", default="1b", help="size of the synthetic model: 0.1b, 1b (default), 3b, moe-a, hybrid, oss, or tiny for tests")
    p.add_argument("--type", default="q8_0", help="type of the weights: q8_0 (default), q4_0, q4_k_m, f16, bf16, ...")
    p.add_argument("--vocab", type=int, 
                   help="vocabulary size, with a tied head (Llama 3: 128256); default: 32000 and a separate head")
    p.add_argument("--model", help="a GGUF file instead of a synthetic model")
    p.add_argument("--draft", help="spec: the GGUF file of the draft model for --model")
    p.add_argument("--eps", type=float, default=0.018,
                   help="spec: scale of the synthetic target's layers that the draft model lacks (0.018: alpha 0.9; 0.07: 0.7)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), 
                   help="threads of each engine (default: all cores)")
    p.add_argument("--context", type=int, help="tokens of context before the rows (default: 256; prefill: 0)")
    p.add_argument("--rows", 
                   help="sizes to measure, such as 1,8,16; spec: draft lengths (default for decode after more than 1024 "
                   "tokens: 1)")
    p.add_argument("--reps", type=int, default=7, help="turns (default: 7)")
    p.add_argument("--peer", default="best", 
                   help="no: measure without llama.cpp; or one of its builds: haswell, icelake, ... (default: best)")
    p.add_argument("--ik", metavar="DIR", help="also measure ik_llama.cpp: the folder of its llama-bench and llama-server")
    p.add_argument("--against", metavar="BUILD", help="decode, verify, prefill: measure beside another build of Tandem "
                   "instead of llama.cpp, such as ../old/build/release")
    p.add_argument("--kv-type", default="f16", choices=["int8", "f16", "f32"],
                   help="Tandem's type of K and V; llama.cpp always uses f16 (default: f16)")
    p.add_argument("--float-gemm", default="own", choices=["own", "blas"],
                   help="Tandem's kernels for F32, F16 and BF16 weights: its own or OpenBLAS (default: own)")
    report.add_option(p)
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "release"), help=argparse.SUPPRESS)
    p.add_argument("--models", default=os.path.join(ROOT, "build", "bench"),
                   help="folder for synthetic models (default: build/bench)")
    o = p.parse_args(arguments)
    if o.context is None:
        o.context = 0 if o.bench == "prefill" else 256
    usual = [1] if o.bench == "decode" and o.context > 1024 else ROWS[o.bench]  # 16 such contexts need gigabytes
    o.rows = [int(n) for n in o.rows.split(",")] if o.rows else usual
    if o.against and o.bench == "spec":
        p.error("--against is for decode, verify and prefill")
    if o.against:
        o.peer = "no"
    program = "llama-server" if o.bench == "spec" else "llama-bench"
    if o.ik and not os.path.exists(os.path.join(o.ik, program)):
        p.error("--ik: there is no %s in %s" % (program, o.ik))
    if o.ik and o.bench == "decode" and 1 not in o.rows:
        p.error("--ik: llama-bench decodes one sequence only; --rows lacks 1")
    if o.bench == "spec" and bool(o.model) != bool(o.draft):
        p.error("spec needs either both --model and --draft or neither")
    most = 64 if o.bench in ("decode", "spec") else 512
    if o.reps < 1 or o.threads < 1 or o.context < 0 or min(o.rows) < 1 or max(o.rows) > most:
        p.error("--reps, --threads, --context or --rows is out of range (rows: 1 .. 512, decode and spec 1 .. 64)")
    return o


def start_engines(o, stack):
    n_seqs = max(o.rows) if o.bench == "decode" else 1
    common = [o.path, str(o.threads), str(o.context), str(n_seqs)]
    drafting = [o.draft] if o.bench == "spec" else []
    arguments = [o.float_gemm, o.kv_type, *common, *drafting]
    commands = {"tandem": [os.path.join(o.bin, "tests", "engine_tool"), *arguments]}
    if o.against:
        commands["the other build"] = [os.path.join(o.against, "tests", "engine_tool"), *arguments]
    if o.peer != "no":
        cpu = [] if o.peer == "best" else [o.peer]
        commands["llama.cpp"] = [sys.executable, os.path.join(HERE, "peer_child.py"), *common, *cpu]
    engines = []
    for name, command in commands.items():
        print("loading %s into %s" % (os.path.basename(o.path), name), file=sys.stderr, flush=True)
        engines.append(Engine(name, command))
        stack.callback(engines[-1].close)
    return engines


def run(o):
    """The figures of one benchmark."""
    if o.peer != "no":
        try:
            peer.install()
        except peer.Missing as e:
            raise SystemExit("%s; use --peer no to measure without it" % e) from e
    find_models(o)
    with contextlib.ExitStack() as stack:
        engines, benches = start_engines(o, stack), llama_bench.benches(o.ik)
        others = OtherProcesses(engines)
        try:
            if o.bench == "spec":
                r = results_of_texts(o, engines, *measure_texts(engines, o))
            else:
                r = results(o, engines, *measure(engines, o, benches), benches)
        except llama_bench.Failed as e:
            raise SystemExit(str(e)) from e
        r["others_cores"] = others.cores()
    return r


def main(arguments):
    o = options(arguments)
    r = run(o)
    print("\n".join((table_of_texts if o.bench == "spec" else table)(o, r)))
    print("other processes used %.2f cores during the measurement" % r["others_cores"])
    report.write(o, r)


if __name__ == "__main__":
    main(sys.argv[1:])
