"""serve.py [OPTIONS]: load on an OpenAI-compatible server, and how long its answers take.

The load is one of
  --concurrency N   N clients that each ask again when their answer has ended (closed loop)
  --rate R          R requests per second at random moments, whatever became of those before (open loop)
  --trace FILE      requests at the seconds that a file names: lines {"at": 0.5, "prompt": "...", "max_tokens": 100}
Several numbers (--rate 1,2,4) run one after the other, each with the same requests; --compare none runs each load
once as asked and once without speculation. Latencies count from the moment a request was due, so a server that falls
behind cannot hide it. With --json the figures of every request are written, with --html a report to look at.

Without --url the three services are started here; their settings can be given in the environment
(TANDEM_POLICY=fixed TANDEM_K=5 ./tandem bench serve ...; docs/configuration.md). Some ways to use it:

  ./tandem bench serve --concurrency 1,4,16 --compare none --html report.html
  ./tandem bench serve --rate 1,2,4 --seconds 30 --slo ttft=500,itl=100 --body '{"temperature": 0}'
  ./tandem bench serve --url http://10.0.0.5:8000/v1 --api-key KEY --prompts prompts.jsonl --concurrency 32 --requests 500
"""
import argparse
import asyncio
import contextlib
import datetime
import itertools
import json
import math
import os
import random
import resource
import shlex
import signal
import sys
import urllib.error
import urllib.request

import report
import serve_figures
import serve_traffic
import serve_report
import services

EMBEDDED, EMBEDDED_DRAFT = (os.path.join(services.ROOT, "models", f"tales-{size}-q8_0.gguf") for size in ["11m", "1m"])
STORIES = [f"Write a story about {who} and {what}." for who in ["a dog named Max", "two friends", "a sad cat", "a little girl"]
           for what in ["a red ball", "the old tree", "a big storm", "the lost key"]]
HANG_UP_TOKENS = 8  # who hangs up does so after 1 to so many


# ---------------------------------------------------------------- requests


def read_lines(path):
    """Objects of a file with one to a line; each says its prompt or messages, if it must."""
    found = []
    try:
        with open(path, encoding="utf-8") as f:
            for n, line in enumerate(f, 1):
                if line.strip():
                    found.append(json.loads(line))
                    if not isinstance(found[-1], dict):
                        raise ValueError("no object")
    except OSError as e:
        raise SystemExit(f"{path}: {e.strerror}") from e
    except ValueError as e:
        raise SystemExit(f"{path}, line {n}: {e}") from e
    if not found:
        raise SystemExit(f"{path} has no lines")
    return found


def read_prompts(path):
    lines = read_lines(path) if path else [{"messages": [{"role": "user", "content": s}]} for s in STORIES]
    for n, line in enumerate(lines, 1):
        if ("prompt" in line) == ("messages" in line):
            raise SystemExit(f"{path}, prompt {n}: give either \"prompt\" or \"messages\"")
    return lines


def read_trace(path):
    lines = read_lines(path)
    for n, line in enumerate(lines, 1):
        if not isinstance(line.get("at"), (int, float)) or line["at"] < 0:
            raise SystemExit(f"{path}, request {n}: \"at\" must be seconds from the start")
    return sorted(lines, key=lambda line: line["at"])


class Wishes:
    """The requests of one run, in order: (body, tokens after which the client hangs up or 0)."""

    def __init__(self, o, model, more):
        self.o, self.random = o, random.Random(f"{o.seed} hang up")
        self.base = {"model": model, "max_tokens": o.max_tokens, **o.body, "stream": True, "stream_options": {"include_usage": True}, **more}
        self.prompts = itertools.cycle(read_prompts(o.prompts))

    def of(self, line):
        if "prompt" not in line and "messages" not in line:
            line = {**next(self.prompts), **line}
        body = {**self.base, **{name: line[name] for name in ["prompt", "messages", "max_tokens"] if name in line}}
        goes = self.random.random() < self.o.hang_up
        return body, self.random.randint(1, HANG_UP_TOKENS) if goes else 0

    def endless(self):
        while True:
            yield self.of({})

    def poisson(self, rate, n, seconds):
        chance, at = random.Random(f"{self.o.seed} arrivals"), 0.0
        for _ in range(n) if n else itertools.count():
            at += chance.expovariate(rate)
            if at > seconds:
                return
            yield at, *self.of({})

    def trace(self, lines, n, seconds):
        for line in itertools.islice(lines, n):
            if line["at"] <= seconds:
                yield line["at"], *self.of(line)


def load_of(o, run, kind, value, wishes):
    seconds = o.seconds if o.seconds else math.inf
    if kind == "rate":
        return run.open(wishes.poisson(value, o.requests, seconds))
    if kind == "trace":
        return run.open(wishes.trace(value, o.requests, seconds))
    return run.closed(itertools.islice(wishes.endless(), o.requests), value, seconds)


# ---------------------------------------------------------------- the server


class Stack:
    """The services, started here; and what they have used."""

    def __init__(self, o, stack):
        draft = ["--draft-model", o.draft_model] if o.proposer in ("draft", "chain") else []
        proposers = {} if o.proposer == "none" else {o.proposer: ["--proposer", o.proposer, *draft]}
        print("starting the services", file=sys.stderr, flush=True)
        self.services = services.Services(o, stack, o.model, proposers, {"verifier": []})
        self.url = f"http://127.0.0.1:{self.services.ports['verifier']}"
        self.pids = {"proposer" if name == o.proposer else name.removeprefix("verifier-"): process.pid
                     for name, process in self.services.processes.items()}

    def used(self):
        """By service: seconds of CPU time so far, and MiB of memory."""
        found = {}
        for name, pid in self.pids.items():
            with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                times = f.read().rpartition(")")[2].split()[11:13]
            with open(f"/proc/{pid}/statm", encoding="ascii") as f:
                pages = int(f.read().split()[1])
            found[name] = (sum(map(int, times)) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20))
        return found


def first_model(server):
    request = urllib.request.Request(server.base + "/v1/models", headers=server.headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["data"][0]["id"]
    except urllib.error.HTTPError as e:
        raise SystemExit(f"{server.base}/v1/models: {e.code} {e.reason}; name the model with --model") from e
    except OSError as e:
        raise SystemExit(f"{server.base} cannot be reached: {getattr(e, 'reason', e)}") from e
    except (ValueError, KeyError, IndexError) as e:
        raise SystemExit(f"{server.base}/v1/models lists no model; name it with --model") from e


# ---------------------------------------------------------------- one run after the other


async def tell(run, what):
    """A line a second in place; without a terminal every ten seconds."""
    place, before = sys.stderr.isatty(), 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(1 if place else 10)
            failed = sum(s.status not in ("ok", "hung up") for s in run.samples)
            rate = (run.tokens - before) / (1 if place else 10)
            before = run.tokens
            line = f"{what}: {run.now():.0f} s, running {run.running}, ended {len(run.samples)}, failed {failed}, {rate:.0f} tokens/s"
            print(f"\r\x1b[K{line}" if place else line, end="" if place else "\n", file=sys.stderr, flush=True)
    if place:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


async def drive(o, server, what, kind, value, wishes):
    run, loop = serve_traffic.Run(server, o.timeout), asyncio.get_running_loop()

    def stop():
        loop.remove_signal_handler(signal.SIGINT)  # once more ends the program
        run.stop()

    loop.add_signal_handler(signal.SIGINT, stop)
    teller = asyncio.create_task(tell(run, what))
    await run.drive(load_of(o, run, kind, value, wishes))
    teller.cancel()
    await teller
    loop.remove_signal_handler(signal.SIGINT)
    return run


def variants(o):
    """(name, what is added to the body)"""
    if not o.compare:
        return [("", {})]
    names = ("with speculation", "without") if o.compare == "none" else ("as asked", "proposer " + o.compare)
    return [(names[0], {}), (names[1], {"speculative": {**o.body.get("speculative", {}), "proposer": o.compare}})]


def loads(o):
    if o.trace:
        return [("trace", read_trace(o.trace))]
    return [("rate", r) for r in o.rate] or [("concurrency", n) for n in o.concurrency or [4]]


def name_of(kind, value):
    return os.path.basename(value) if kind == "trace" else f"{kind} {value:g}"


def run_all(o, server, model, stack):
    runs, plan = [], [(load, variant) for load in loads(o) for variant in variants(o)]
    for i, ((kind, value), (variant, more)) in enumerate(plan):
        shown = o.trace if kind == "trace" else value
        what = name_of(kind, shown) + (", " + variant if variant else "")
        if len(plan) > 1:  # what one run has made the server keep shall not help the next
            more = {"cache_salt": f"serve-{i}", **more}
        before = stack.used() if stack else {}
        run = asyncio.run(drive(o, server, what, kind, value, Wishes(o, model, more)))
        r = {"kind": kind, "load": shown, "variant": variant, "name": what, **serve_figures.figures(run, o.slo)}
        print(what, *serve_figures.lines(r), sep="\n")
        if stack:
            r["services"] = {name: {"cores": (cpu_s - before[name][0]) / max(run.wall_s, 1e-9), "mib": mib}
                             for name, (cpu_s, mib) in stack.used().items()}
            print("  services: " + ", ".join(f"{name} {s['cores']:.2f} cores, {s['mib']:.0f} MiB" for name, s in r["services"].items()))
        sys.stdout.flush()
        runs.append({**r, "each": serve_figures.each(run)})
        if run.stopped.is_set():
            break
    return runs


# ---------------------------------------------------------------- options


def numbers(kind):
    def read(text):
        found = [kind(v) for v in text.split(",")]
        if not all(v > 0 for v in found):
            raise argparse.ArgumentTypeError("must be above 0")
        return found
    return read


def limits(text):
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in serve_figures.LATENCIES:
            raise argparse.ArgumentTypeError(f"\"{name}\" is not one of {', '.join(serve_figures.LATENCIES)}")
        found[name] = float(value.removesuffix("ms")) / 1e3 if not value.endswith("s") or value.endswith("ms") else float(value[:-1])
    return found


def json_object(text):
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError
    return found


def parser():
    p = argparse.ArgumentParser(prog="tandem bench serve", description=__doc__.partition("\n")[2].strip(),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    server = p.add_argument_group("the server")
    server.add_argument("--url", help="of a running one, http(s)://HOST:PORT, with or without /v1")
    server.add_argument("--api-key", help="sent as Bearer token (default: OPENAI_API_KEY of the environment, if --url is given)")
    server.add_argument("--model", help="with --url: its name (default: the first the server lists); else the GGUF file to serve "
                        "(default: the embedded one)")
    server.add_argument("--proposer", default="ngram", choices=["none", "ngram", "suffix", "draft", "chain"],
                        help="of the services that are started here (default: ngram)")
    server.add_argument("--draft-model", default=EMBEDDED_DRAFT, help="GGUF file for the proposers draft and chain")
    server.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the verifier (default: all cores)")
    load = p.add_argument_group("the load").add_mutually_exclusive_group()
    load.add_argument("--concurrency", type=numbers(int), default=[], metavar="N[,N...]", help="clients (default: 4)")
    load.add_argument("--rate", "--rates", type=numbers(float), default=[], metavar="R[,R...]", help="requests per second, Poisson")
    load.add_argument("--trace", metavar="FILE", help="JSON lines: at (seconds), and if they shall not come from --prompts, prompt or "
                      "messages, and max_tokens")
    more = p.add_argument_group("the requests")
    more.add_argument("--requests", type=int, metavar="N", help="per run, at most")
    more.add_argument("--seconds", type=float, metavar="S", help="in which requests begin (default: 10, if --requests does not say)")
    more.add_argument("--prompts", metavar="FILE", help="JSON lines, each {\"prompt\": ...} or {\"messages\": [...]}, also with max_tokens; "
                      "taken in turn (default: chats of a few words)")
    more.add_argument("--max-tokens", type=int, default=128, metavar="N", help="of an answer (default: 128)")
    more.add_argument("--body", type=json_object, default={}, metavar="JSON", help="more fields of every request, such as "
                      "'{\"temperature\": 0, \"ignore_eos\": true, \"speculative\": {\"n_max\": 4}}'")
    more.add_argument("--compare", metavar="PROPOSER", help="run each load again with speculative.proposer set to this; none: no drafts")
    more.add_argument("--hang-up", type=float, default=0, metavar="SHARE", help="share of the clients, 0 to 1, that leave in the middle")
    more.add_argument("--timeout", type=float, default=600, metavar="S", help="for a whole answer (default: 600)")
    more.add_argument("--seed", type=int, default=1, help="of the moments and of who hangs up (default: 1)")
    out = p.add_argument_group("what comes out")
    out.add_argument("--slo", type=limits, default={}, metavar="NAME=MS,...", help="limits for the goodput: ttft, itl (the mean of a "
                     "request), e2e, in ms, or with s: ttft=200,itl=50,e2e=5s")
    report.add_option(out)
    out.add_argument("--html", metavar="FILE", help="write a report with plots to this file; it needs nothing else to be shown")
    p.add_argument("--bin", default=os.path.join(services.ROOT, "build", "release"), help=argparse.SUPPRESS)
    return p


def main(arguments):
    o = parser().parse_args(arguments)
    if not o.requests and not o.seconds and not o.trace:
        o.seconds = 10
    read_prompts(o.prompts)  # what is wrong with the files is said before anything starts
    loads(o)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with contextlib.ExitStack() as at_end:
        stack = None
        if not o.url:
            o.model = o.model or EMBEDDED
            stack = Stack(o, at_end)
            server = serve_traffic.Server(stack.url)
        else:
            server = serve_traffic.Server(o.url, o.api_key or os.environ.get("OPENAI_API_KEY"))
        model = first_model(server) if stack or not o.model else o.model
        runs = run_all(o, server, model, stack)
    figures = {"server": "services started for this" if stack else server.base, "model": model, "seed": o.seed,
               "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
               "command": "./tandem bench serve " + shlex.join(without_key(arguments)), "runs": runs}
    report.write(o, figures)
    if o.html:
        serve_report.write(o.html, figures)
    return 0 if any(r["ok"] for r in runs) else 1


def without_key(arguments):
    """The command as it may be shown."""
    shown = []
    for a in arguments:
        hidden = a.startswith("--api-key=") or shown[-1:] == ["--api-key"]
        shown.append("--api-key=..." if a.startswith("--api-key=") else "..." if hidden else a)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
