"""speculation.py pairs|sweep|rules|texts [OPTIONS]: what speculation makes of the running services.

  pairs  a target and a draft that agree to a known degree (alpha), one sequence, k = 2, 4, 8: measured speed-up
         beside the theory (1 - a^(k+1)) / ((1 - a) (k c + t(k+1) / t(1))) for the measured a, c and t
  sweep  the controller (goodput) beside fixed k and beside no drafts: alpha x sequences x context. "of best" is relative
         to the k that the other half of the turns names, and rather too high; "of best column" to the k that was best in
         the same turns, and rather too low. At the end: means of all points, weighted by their errors
  rules  the lossless rules for unseeded requests of such a pair at a temperature: own-draw, rejection and block
  texts  the embedded pair on repetitive and on free prompts: none, ngram, suffix, draft and chain (ngram and draft);
         "again": suffix with what it said to the same prompt in the pool of past outputs

Proposer, verifiers and gateways are the real ones, on unix sockets. What is compared takes turns at every text,
and a text's speed is that from its first token to its last. pairs and sweep time it again, a few times at most, while
the machine's host takes more than 3 % of it for others.
"""
import argparse
import collections
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import report

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
START_S = 120
MOMENT_S = 0.1  # between two looks at one that starts
FIRST_WORD = 300  # of a synthetic vocabulary; bytes come before
WORDS = 30000
OWN_WORDS = 16  # of a prompt's end
MAX_STOLEN = 0.03  # of the machine's time, by its host, while a text is timed
TRIES = 3  # at most, for one of which no more was stolen
HARDLY = 0.01  # tokens drafted per step, and fewer: the passes are those of no drafts


# ---------------------------------------------------------------- services


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Services:
    """A proposer for each name, and a verifier with a gateway for each set of its settings."""

    def __init__(self, o, stack, target, proposers, verifiers):
        self.bin, self.stack = o.bin, stack
        self.folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.ports, self.processes = {}, {}
        targets = []
        for name, settings in proposers.items():
            self.start("proposer-svc", name, "--listen", self.path(name), *settings)
            targets += ["--proposers", name + "=" + self.path(name)]
        for name, settings in verifiers.items():
            self.start("verifier-svc", name, "--listen", self.path(name), "--model", target, "--proposer-budget-ms", "250",
                       "--threads", str(o.threads), *targets, *settings)
            self.ports[name] = free_port()
            self.start("gateway", name + "-gateway", "--listen", "127.0.0.1:%d" % self.ports[name], "--verifiers", self.path(name))
            self.wait_ready(name, len(proposers))  # it times passes, and nothing else may run meanwhile

    def path(self, name):
        return "unix:%s/%s.sock" % (self.folder, name)

    def start(self, program, name, *arguments):
        log = self.stack.enter_context(open(os.path.join(self.folder, name + ".log"), "wb"))
        # pylint: disable-next=consider-using-with
        process = subprocess.Popen([os.path.join(self.bin, program), *arguments], stderr=log)
        self.processes[name] = process
        self.stack.callback(self.stop, process)

    @staticmethod
    def stop(process):
        process.terminate()
        process.wait()

    def get(self, name, path):
        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (self.ports[name], path), timeout=5) as answer:
            return json.load(answer)

    def is_ready(self, name, n_proposers):
        with contextlib.suppress(OSError, KeyError, IndexError, urllib.error.HTTPError):
            health = self.get(name, "/health")
            connected = sum(p["connected"] for p in health["verifiers"][0]["proposers"])
            return health["status"] == "ok" and connected == n_proposers
        return False

    def dead(self):
        """Those that end within a moment, or have."""
        time.sleep(MOMENT_S)
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def wait_ready(self, name, n_proposers):
        until = time.monotonic() + START_S
        while not self.is_ready(name, n_proposers):
            dead = self.dead()
            if dead or time.monotonic() > until:
                for log in sorted(os.listdir(self.folder)):
                    if log.endswith(".log"):
                        with open(os.path.join(self.folder, log), encoding="utf-8", errors="replace") as f:
                            print(log, f.read()[-1000:], file=sys.stderr)
                raise SystemExit("%s died" % " and ".join(dead) if dead else "%s did not start within %d s" % (name, START_S))

    def generate(self, name, prompt, n_tokens, speculative, **more):
        body = {"model": "default", "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True,
                "speculative": speculative, **more}
        request = urllib.request.Request("http://127.0.0.1:%d/v1/completions" % self.ports[name],
                                         json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=900) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            raise SystemExit("%s: %s" % (e, e.read().decode(errors="replace"))) from e

    def figures(self, name):
        """Forward passes and answers of proposers so far: how many, and their seconds."""
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % self.ports[name], timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        sums = collections.Counter()
        for line in lines:
            if line.startswith(("tandem_engine_pass_seconds_", "tandem_proposer_round_trip_seconds_")):
                sums[line.split("{")[0].split(" ")[0]] += float(line.rsplit(" ", 1)[1])
        return sums


class Text:
    """What one answer took."""

    def __init__(self, answer):
        t, s = answer["timings"], answer["metrics"]["speculative_decoding"]
        self.tokens, self.ms = t["predicted_n"], t["predicted_ms"]
        self.drafted, self.accepted, self.steps = s["num_draft_tokens"], s["num_accepted_draft_tokens"], s["num_steps"]
        self.histogram = s["acceptance_histogram"]
        self.said = [c["text"] for c in answer["choices"]]


def prompt_of(seed, n):
    words = random.Random(seed)
    return [words.randrange(FIRST_WORD, WORDS) for _ in range(n)]


def prompt_of_turn(turn, n):
    """They differ in their end only, so that a long one is computed once. One more: of a known prompt the last token is run."""
    own = min(n, OWN_WORDS)
    return prompt_of("all", n - own) + prompt_of(turn, own + 1)


def rate_of(texts):
    return 1e3 * sum(t.tokens for t in texts) / sum(t.ms for t in texts)


def alpha_of(texts, k):
    """Of the draft tokens that were reached, the share that was kept."""
    kept = sum(t.accepted for t in texts)
    stopped = sum(sum(t.histogram[:k]) for t in texts)
    return kept / max(1, kept + stopped)


def accepted_of(texts):
    return sum(t.accepted for t in texts) / max(1, sum(t.drafted for t in texts))


def must_agree(texts):
    if len({tuple(t.said) for t in texts}) > 1:
        raise SystemExit("the texts differ: speculation has changed an answer")


def mean_ms(texts, name):
    seconds, count = (sum(t.figures["tandem_%s_seconds_%s" % (name, of)] for t in texts) for of in ("sum", "count"))
    return 1e3 * seconds / max(1, count)


def times():
    """The machine's time so far, and what of it other guests had, in ticks (proc(5): cpu of /proc/stat)."""
    with open("/proc/stat", encoding="ascii") as f:
        ticks = [int(t) for t in f.readline().split()[1:9]]
    return sum(ticks), ticks[7]


def undisturbed(take):
    """What take() gives when the host steals little meanwhile; if it always steals, when it stole least."""
    got = []
    while len(got) < TRIES and (not got or got[-1][0] > MAX_STOLEN):
        before, result, after = times(), take(), times()
        got.append(((after[1] - before[1]) / max(1, after[0] - before[0]), result))
    return min(got, key=lambda g: g[0])[1]


# ---------------------------------------------------------------- pairs

EPS = {"1b": [0.018, 0.07, 0.2], "0.1b": [0.005, 0.02, 0.1], "tiny": [0.05]}


def synthetic(o, name, *how):
    path = os.path.join(o.models, "%s-q8_0-%s.gguf" % (o.shape, name))
    if not os.path.exists(path):
        os.makedirs(o.models, exist_ok=True)
        make = [os.path.join(o.bin, "tests", "make_model"), "--shape", o.shape, "--type", "q8_0", *how]
        subprocess.run([*make, "--out", path + ".part"], check=True)
        os.rename(path + ".part", path)
    return path


def pair(o, eps):
    return synthetic(o, "eps%g" % eps, "--faint-from", "1", "--eps", str(eps)), synthetic(o, "layers1", "--layers", "1")


def start_pair(o, eps, stack):
    """A verifier that is told how many tokens are drafted whatever they bring, and one that chooses."""
    target, draft = pair(o, eps)
    return Services(o, stack, target, {"draft": ["--proposer", "draft", "--draft.model", draft, "--draft.threads", str(o.threads)]},
                    {"goodput": [], "fixed": ["--policy", "fixed", "--k", str(max(o.k))]})


def wish(k):
    """The verifier that is asked, and for how many tokens."""
    return {"goodput": ("goodput", {}), "off": ("goodput", {"n_max": 0})}.get(k, ("fixed", {"n_max": k}))


def text_of(o, s, name, prompts, speculative):
    """What an answer takes behind a known prompt."""
    return undisturbed(lambda: Text(s.generate(name, prompts, o.tokens, speculative)))


def text_with_figures(o, s, name, prompts, speculative):
    """And the figures of its passes, whether the prompt is known or not."""
    s.generate(name, prompts, 1, speculative)
    start = s.figures(name)
    s.generate(name, prompts, 1, speculative)  # what has to be run of a known prompt
    of_prompt = s.figures(name)
    of_prompt.subtract(start)

    def take():
        before = s.figures(name)
        text = Text(s.generate(name, prompts, o.tokens, speculative))
        text.figures = s.figures(name)
        text.figures.subtract(before)
        return text

    text = undisturbed(take)
    text.figures.subtract(of_prompt)
    return text


def take_turns(o, s, ks, context, n_sequences, ask):
    """k -> texts of o.reps turns after one to warm up; each sequence has a prompt of its own."""
    texts = {k: [] for k in ks}
    for turn in range(o.reps + 1):
        prompts, said = [prompt_of_turn(turn * n_sequences + i, context) for i in range(n_sequences)], []
        for name in s.ports:
            s.generate(name, prompts, 1, {})  # known from now on
        for k in random.sample(ks, len(ks)):
            name, speculative = wish(k)
            said.append(ask(o, s, name, prompts, speculative))
            if turn:
                texts[k].append(said[-1])
        must_agree(said)
    return texts


def measure_pair(o, s):
    ks = [0, *o.k]
    texts = take_turns(o, s, [*ks, "goodput"], o.context, 1, text_with_figures)
    plain, t1 = rate_of(texts[0]), mean_ms(texts[0], "engine_pass")
    out = {"plain_tokens_per_s": plain, "k": {}}
    for k in o.k:
        a, tk = alpha_of(texts[k], k), mean_ms(texts[k], "engine_pass")
        c = mean_ms(texts[k], "proposer_round_trip") / k / t1
        theory = sum(a ** i for i in range(k + 1)) / (k * c + tk / t1)
        speed_up = rate_of(texts[k]) / plain
        out["k"][k] = {"speed_up": speed_up, "theory": theory, "of_theory": speed_up / theory, "alpha": a, "c": c,
                       "accepted": accepted_of(texts[k]),
                       "t": tk / t1, "tau": sum(t.tokens for t in texts[k]) / sum(t.steps for t in texts[k])}
    best = max(rate_of(texts[k]) for k in ks)
    out["goodput"] = {"speed_up": rate_of(texts["goodput"]) / plain, "of_best_measured": rate_of(texts["goodput"]) / best,
                      "k": drafted_of(texts["goodput"]), "accepted": accepted_of(texts["goodput"])}
    return out


def pairs(o):
    print("%s and its first layer, Q8_0, %d threads each, context %d, %d texts of %d tokens; drafts by another process" % (
        o.shape, o.threads, o.context, o.reps, o.tokens))
    print("%6s %4s | %9s %7s %9s | %5s %5s %5s %9s" % ("eps", "k", "of plain", "theory", "of theory", "alpha", "tau", "c", "t(k+1)"))
    out = {}
    for eps in o.eps or EPS[o.shape]:
        with contextlib.ExitStack() as stack:
            out[eps] = r = measure_pair(o, start_pair(o, eps, stack))
        for k, t in r["k"].items():
            print("%6g %4d | %9.2f %7.2f %9.2f | %5.2f %5.2f %5.2f %9.2f" % (
                eps, k, t["speed_up"], t["theory"], t["of_theory"], t["alpha"], t["tau"], t["c"], t["t"]))
        g = r["goodput"]
        print("%6g %4.1f | %9.2f   the controller: %.2f of the best measured; plain %.1f tokens/s" % (
            eps, g["k"], g["speed_up"], g["of_best_measured"], r["plain_tokens_per_s"]), flush=True)
    return out


# ---------------------------------------------------------------- sweep


def drafted_of(texts):
    """Tokens drafted per step of a sequence."""
    return sum(t.drafted for t in texts) / sum(t.steps for t in texts)


def relative(rates, others):
    """The speed of turns relative to that of others, turn by turn, and its standard error (a ratio estimator's: Cochran,
    Sampling Techniques, 2.11): a wait of the machine that both met counts for both."""
    n, took = len(rates), sum(1 / r for r in rates)
    ratio = sum(1 / r for r in others) / took
    return ratio, (sum((1 / other - ratio / r) ** 2 for r, other in zip(rates, others)) * n / (n - 1)) ** 0.5 / took


def compare(turns):
    """The controller (goodput) relative to the best k and to none; turns: k -> tokens/s of each, all of as many tokens.
    None is what the controller's own verifier makes without drafts (off): that of the other, which is told its k, lies at
    other places in memory, and `processes` says how much that makes. of_best lets every other turn name the best k for
    those between: of ks that are alike it takes the worse one at times, and so is rather too high. of_best_column takes
    the k that was best in these same turns, by luck too: rather too low."""
    ours, told = turns["goodput"], {k: turns[k] for k in turns if k not in ("goodput", "off")}
    processes = relative(turns["off"], told[0]) if "off" in turns else (1, 0)
    told[0] = turns.get("off", told[0])

    def best(of):
        return min(told, key=lambda k: sum(1 / r for r in told[k][of]))
    even, odd, whole = slice(0, None, 2), slice(1, None, 2), slice(None)
    halves = ((even, odd), (odd, even))
    return {"best": best(whole),
            "of_best": relative([r for here, _ in halves for r in ours[here]],
                                [r for here, there in halves for r in told[best(there)][here]]),
            "of_best_column": relative(ours, told[best(whole)]), "of_none": relative(ours, told[0]), "processes": processes}


def measure_point(o, s, eps, context, n):
    texts = take_turns(o, s, [0, *o.k, "goodput", "off"], context, n, text_of)
    turns = {k: [rate_of([x]) for x in t] for k, t in texts.items()}
    return {"eps": eps, "sequences": n, "context": context, "alpha": alpha_of(texts[o.k[-1]], o.k[-1]),
            "tokens_per_s": {k: rate_of(t) for k, t in texts.items()}, "drafted": drafted_of(texts["goodput"]),
            **compare(turns), "turns": turns}


def measure_points(o):
    for eps in o.eps or EPS[o.shape]:
        with contextlib.ExitStack() as stack:
            s = start_pair(o, eps, stack)
            for context in o.contexts:
                for n in o.sequences:
                    yield measure_point(o, s, eps, context, n)


def read_points(paths):
    """Those of --json, compared anew: older ones lack a figure."""
    points = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            points += json.load(f, object_hook=lambda o: {int(k) if k.isdigit() else k: v for k, v in o.items()})
    for r in points:
        r.update(compare(r["turns"]))
    return sorted(points, key=lambda r: (r["eps"], r["context"], r["sequences"]))


def mean_of(name, figures):
    """Weighted by their errors; they scatter as these say where chi-square is about n - 1."""
    weights = [max(error, 1e-9) ** -2 for _, error in figures]
    if weights:
        mean = sum(w * ratio for w, (ratio, _) in zip(weights, figures)) / sum(weights)
        chi_square = sum(w * (ratio - mean) ** 2 for w, (ratio, _) in zip(weights, figures))
        print("%-31s %.3f +- %.3f, chi-square %.1f, n = %d" % (name, mean, sum(weights) ** -0.5, chi_square, len(figures)))


def sum_up(points):
    mean_of("of best", [r["of_best"] for r in points])
    mean_of("of best column", [r["of_best_column"] for r in points])
    mean_of("of none, more than %g drafted" % HARDLY, [r["of_none"] for r in points if r["drafted"] > HARDLY])
    mean_of("of none, at most %g drafted" % HARDLY, [r["of_none"] for r in points if r["drafted"] <= HARDLY])
    mean_of("off, of k=0 elsewhere", [r["processes"] for r in points if r["processes"][1]])


def sweep(o):
    if o.points:
        points = read_points(o.points)
        ks = sorted({k for r in points for k in r["tokens_per_s"] if k not in ("goodput", "off")})
    else:
        points, ks = measure_points(o), [0, *o.k]
        print("%s and its first layer, Q8_0, %d threads each, %d texts of %d tokens: tokens/s of all sequences" % (o.shape, o.threads, o.reps, o.tokens))
    print("%6s %5s %8s %6s | %s | %10s %7s | %4s %14s %14s %14s %14s" % (
        "eps", "seqs", "context", "alpha", " ".join("%7s" % ("k=%d" % k) for k in ks), "controller", "drafted", "best", "of best", "of best column", "of none", "off of k=0"))
    out = []
    for r in points:
        out.append(r)
        rates = r["tokens_per_s"]
        print("%6g %5d %8d %6.2f | %s | %10.1f %7.2f | k=%-2d %s" % (
            r["eps"], r["sequences"], r["context"], r["alpha"], " ".join("%7.1f" % rates[k] if k in rates else " " * 7 for k in ks),
            rates["goodput"], r["drafted"], r["best"],
            " ".join("%.3f +- %.3f" % r[of] for of in ("of_best", "of_best_column", "of_none", "processes"))), flush=True)
    sum_up(out)
    return out


# ---------------------------------------------------------------- rules


def rules(o):
    """Answers are random, so rules are compared by all of them together."""
    temperature = o.temperature or 1
    print("%s and its first layer, Q8_0, %d threads each, temperature %g, unseeded, %d answers of %d tokens in turns" % (
        o.shape, o.threads, temperature, o.reps, o.tokens))
    print("%6s %4s %-10s | %9s %9s | %8s %5s" % ("eps", "k", "rule", "tokens/s", "of plain", "accepted", "tau"))
    out = []
    for eps in o.eps or EPS[o.shape]:
        got = {(0, "no draft"): [], **{(k, rule): [] for k in o.k for rule in ("own-draw", "rejection", "block")}}
        with contextlib.ExitStack() as stack:
            s = start_pair(o, eps, stack)
            for turn in range(o.reps + 1):
                for (k, rule), answers in random.sample(sorted(got.items()), len(got)):
                    name, speculative = wish(k)
                    speculative = {**speculative, "rule": rule} if k else speculative
                    text = Text(s.generate(name, prompt_of(turn, o.context), o.tokens, speculative, temperature=temperature))
                    answers += [text] if turn else []
        plain = rate_of(got[0, "no draft"])
        for (k, rule), answers in got.items():
            r = {"eps": eps, "k": k, "rule": rule, "tokens_per_s": rate_of(answers),
                 "accepted": accepted_of(answers),
                 "tau": sum(t.tokens for t in answers) / sum(t.steps for t in answers)}
            out.append(r)
            print("%6g %4d %-10s | %9.1f %9.2f | %8.2f %5.2f" % (eps, k, rule, r["tokens_per_s"], r["tokens_per_s"] / plain, r["accepted"], r["tau"]), flush=True)
    return out


# ---------------------------------------------------------------- texts

REPETITIVE = [
    "The cat sat on the mat. The cat sat on the mat. The cat sat on the mat. The cat",
    "Tom had a red ball. Tom had a blue ball. Tom had a green ball. Sam had a red ball. Sam had a blue",
    "1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4,",
]
FREE = [
    "Once upon a time, there was a little girl named Lily. She loved to play outside. One day, Lily",
    "One day, a big bear went into the forest to find some honey. He looked under a big tree and",
    "The old man said to the boy: \"If you find the key, you will find the door.\" So the boy",
]


def texts(o):
    models = os.path.join(ROOT, "models")
    draft = ["--draft.model", os.path.join(models, "tales-1m-q8_0.gguf"), "--draft.threads", str(o.threads)]
    proposers = {name: ["--proposer", name, *(draft if name in ("draft", "chain") else [])] for name in ("ngram", "suffix", "draft", "chain")}
    proposers["again"] = proposers["suffix"]  # in a process of its own: how good it is, is learnt by name
    out = {}
    with contextlib.ExitStack() as stack:
        s = Services(o, stack, os.path.join(models, "tales-11m-q8_0.gguf"), proposers,
                     {"goodput": [], "fixed": ["--policy", "fixed", "--k", "5"]})
        print("the embedded pair, %d threads each, temperature %g, %d turns, answers of %d tokens: tokens/s, of plain" % (
            o.threads, o.temperature, o.reps, o.tokens))
        print("%-11s %-8s %-8s | %9s %9s | %5s %5s" % ("prompts", "proposer", "policy", "tokens/s", "of plain", "alpha", "tau"))
        for kind, prompts in {"repetitive": REPETITIVE, "free": FREE}.items():
            for row in measure_texts(o, s, prompts, ["none", *proposers]):
                out.setdefault(kind, []).append(row)
                print("%-11s %-8s %-8s | %9.1f %9.2f | %5.2f %5.2f" % (
                    kind, row["proposer"], row["policy"], row["tokens_per_s"], row["of_plain"], row["alpha"], row["tau"]), flush=True)
        for name, process in s.processes.items():
            out.setdefault("peak_mib", {})[name] = peak_mib(process)
        print("peak memory, MiB: " + ", ".join("%s %.0f" % (name, mib) for name, mib in out["peak_mib"].items()))
    return out


def peak_mib(process):
    with open("/proc/%d/status" % process.pid, encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:")) / 1024


def measure_texts(o, s, prompts, names):
    """Answers differ from turn to turn in nothing but the seed, and share nothing but with "again"."""
    got = {(name, policy): [] for name in names for policy in s.ports}
    for turn in range(o.reps + 1):
        for i, prompt in enumerate(prompts):
            said = []
            for (name, policy), answers in random.sample(sorted(got.items()), len(got)):
                own = {} if name == "again" else {"cache_salt": "%s %s %d %d" % (name, policy, turn, i)}
                text = Text(s.generate(policy, prompt, o.tokens, {"proposer": name},
                                       temperature=o.temperature, seed=turn, **own))
                said.append(text)
                if turn:
                    answers.append(text)
            must_agree(said)
    plain = rate_of([t for policy in s.ports for t in got["none", policy]])
    for (name, policy), answers in got.items():
        if name == "none" and policy != "fixed":
            continue
        yield {"proposer": name, "policy": policy if name != "none" else "", "tokens_per_s": rate_of(answers), "of_plain": rate_of(answers) / plain,
               "alpha": alpha_of(answers, 5), "tau": sum(t.tokens for t in answers) / sum(t.steps for t in answers)}


# ---------------------------------------------------------------- options


def numbers(text):
    return [int(n) for n in text.split(",")]


def main(arguments):
    p = argparse.ArgumentParser(prog="tandem bench speculation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = {"pairs": pairs, "sweep": sweep, "rules": rules, "texts": texts}
    p.add_argument("what", choices=kinds)
    p.add_argument("--shape", default="1b", choices=EPS, help="of the synthetic pair (default: 1b)")
    p.add_argument("--eps", type=float, action="append", help="how much the target's layers add that the draft has not; may be given again")
    p.add_argument("--k", type=numbers, default=[2, 4, 8], help="pairs, sweep, rules: draft lengths (default: 2,4,8)")
    p.add_argument("--context", type=int, default=256, help="pairs, rules: tokens of the prompt (default: 256)")
    p.add_argument("--contexts", type=numbers, default=[256, 4096, 16000], help="sweep (default: 256,4096,16000)")
    p.add_argument("--sequences", type=numbers, default=[1, 4, 16], help="sweep (default: 1,4,16)")
    p.add_argument("--points", nargs="+", metavar="FILE", help="sweep: measure nothing; table and means of what --json wrote to these")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of target and draft each (default: all cores)")
    p.add_argument("--tokens", type=int, default=64, help="of an answer (default: 64)")
    p.add_argument("--reps", type=int, default=5, help="turns after one to warm up (default: 5)")
    p.add_argument("--temperature", type=float, default=0, help="texts (default: 0), rules (default: 1)")
    report.add_option(p)
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "release"), help=argparse.SUPPRESS)
    p.add_argument("--models", default=os.path.join(ROOT, "build", "bench"), help="folder for synthetic models (default: build/bench)")
    o = p.parse_args(arguments)
    if o.points and o.what != "sweep":
        p.error("--points are those of sweep")
    if o.what == "sweep" and o.reps < 2:
        p.error("sweep takes at least 2 --reps: some turns name the best k for the others")
    r = kinds[o.what](o)
    report.write(o, r)


if __name__ == "__main__":
    main(sys.argv[1:])
