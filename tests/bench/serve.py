"""serve.py [OPTIONS]: sends traffic to an OpenAI-compatible server and measures its answers.

The traffic is one of
  --concurrency N   N clients; each sends its next request when its answer is complete (closed loop)
  --rate R          R requests per second at random times, independent of the answers (open loop)
  --trace FILE      requests at the times in a file, one per line:
                    {"at": 0.5, "prompt": "...", "max_tokens": 100}

Several values (--rate 1,2,4) are run one after the other, each with the same requests. --compare
none runs each value twice: as requested and without speculation. A latency is measured from the
time when the request was due, so it contains the delay of a server that cannot keep up. --json
writes the figures of every request to a file. --html writes a report with plots.

Without --url, the three services are started on this machine. The environment can hold their
settings (docs/configuration.md): TANDEM_POLICY=fixed TANDEM_K=5 ./tandem bench serve.

Examples:
  ./tandem bench serve --concurrency 1,4,16 --compare none --html report.html
  ./tandem bench serve --rate 1,2,4 --seconds 30 --slo ttft=500,itl=100 --body '{"temperature": 0}'
  ./tandem bench serve --url http://10.0.0.5:8000/v1 --api-key KEY --prompts prompts.jsonl \\
      --concurrency 32 --requests 500
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
import serve_report
import serve_traffic
from services import ROOT, Services

EMBEDDED, EMBEDDED_DRAFT = (os.path.join(ROOT, "models", f"tales-{size}-q8_0.gguf") for size in ["11m", "1m"])
STORIES = [f"Write a story about {who} and {what}." for who in ["a dog named Max", "two friends", "a sad cat", "a little girl"]
           for what in ["a red ball", "the old tree", "a big storm", "the lost key"]]
PROPOSERS = ["none", "ngram", "suffix", "draft", "cascade"]
HANG_UP_TOKENS = 8  # a client that disconnects (--hang-up) does so after 1 to 8 tokens


# ---------------------------------------------------------------- requests


def read_lines(path):
    """The JSON objects of a file, one per line."""
    found = []
    try:
        with open(path, encoding="utf-8") as f:
            for n, line in enumerate(f, 1):
                if line.strip():
                    found.append(json.loads(line))
                    if not isinstance(found[-1], dict):
                        raise ValueError("not a JSON object")
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


class Requests:
    """The requests of one run, in order: (body, number of tokens after which the client disconnects, or 0)."""

    def __init__(self, o, model, more):
        self.o, self.random = o, random.Random(f"{o.seed} hang up")
        self.base = {"model": model, "max_tokens": o.max_tokens, **o.body, "stream": True, "stream_options": {"include_usage": True}, **more}
        self.prompts = itertools.cycle(read_prompts(o.prompts))

    def request(self, line):
        """The request of a line of a trace. A line without a prompt gets the next one of --prompts."""
        if "prompt" not in line and "messages" not in line:
            line = {**next(self.prompts), **line}
        body = {**self.base, **{name: line[name] for name in ["prompt", "messages", "max_tokens"] if name in line}}
        disconnects = self.random.random() < self.o.hang_up
        return body, self.random.randint(1, HANG_UP_TOKENS) if disconnects else 0

    def endless(self):
        while True:
            yield self.request({})

    def poisson(self, rate, n, seconds):
        gaps, at = random.Random(f"{self.o.seed} arrivals"), 0.0
        for _ in range(n) if n else itertools.count():
            at += gaps.expovariate(rate)
            if at > seconds:
                return
            yield at, *self.request({})

    def trace(self, lines, n, seconds):
        for line in itertools.islice(lines, n):
            if line["at"] <= seconds:
                yield line["at"], *self.request(line)


def traffic_of(o, run, kind, value, requests):
    """The coroutine that sends the requests of one run."""
    seconds = o.seconds if o.seconds else math.inf
    if kind == "rate":
        return run.open(requests.poisson(value, o.requests, seconds))
    if kind == "trace":
        return run.open(requests.trace(value, o.requests, seconds))
    return run.closed(itertools.islice(requests.endless(), o.requests), value, seconds)


# ---------------------------------------------------------------- the server


class LocalServices:
    """The three services, started on this machine, and what they use of it."""

    def __init__(self, o, stack):
        draft = ["--draft-model", o.draft_model] if o.proposer in ("draft", "cascade") else []
        proposers = {} if o.proposer == "none" else {o.proposer: ["--proposer", o.proposer, *draft]}
        print("starting the services", file=sys.stderr, flush=True)
        self.services = Services(o, stack, o.model, proposers, {"verifier": []})
        self.url = f"http://127.0.0.1:{self.services.ports['verifier']}"
        self.pids = {"proposer" if name == o.proposer else name.removeprefix("verifier-"): process.pid
                     for name, process in self.services.processes.items()}

    def used(self):
        """Service -> (seconds of CPU time so far, MiB of memory)."""
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


async def show_progress(run, what):
    """Updates a line every second. Without a terminal, prints a line every ten seconds."""
    place, before = sys.stderr.isatty(), 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(1 if place else 10)
            failed = sum(s.status not in ("ok", "hung up") for s in run.samples)
            rate = (run.tokens - before) / (1 if place else 10)
            before = run.tokens
            line = f"{what}: {run.now():.0f} s, running {run.running}, complete {len(run.samples)}, failed {failed}, {rate:.0f} tokens/s"
            print(f"\r\x1b[K{line}" if place else line, end="" if place else "\n", file=sys.stderr, flush=True)
    if place:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


async def drive(o, server, what, kind, value, requests):
    """One run. Ctrl-C ends the run; a second Ctrl-C ends the program."""
    run, loop = serve_traffic.Run(server, o.timeout), asyncio.get_running_loop()

    def stop():
        loop.remove_signal_handler(signal.SIGINT)
        run.stop()

    loop.add_signal_handler(signal.SIGINT, stop)
    progress = asyncio.create_task(show_progress(run, what))
    await run.drive(traffic_of(o, run, kind, value, requests))
    progress.cancel()
    await progress
    loop.remove_signal_handler(signal.SIGINT)
    return run


def variants(o):
    """[(name, additional fields of the body)]: the variants in which each traffic is run."""
    if not o.compare:
        return [("", {})]
    names = ("with speculation", "without") if o.compare == "none" else ("as asked", "proposer " + o.compare)
    return [(names[0], {}), (names[1], {"speculative": {**o.body.get("speculative", {}), "proposer": o.compare}})]


def traffics(o):
    """[(kind, value)]: the traffic of each run."""
    if o.trace:
        return [("trace", read_trace(o.trace))]
    return [("rate", r) for r in o.rate] or [("concurrency", n) for n in o.concurrency or [4]]


def name_of(kind, value):
    return os.path.basename(value) if kind == "trace" else f"{kind} {value:g}"


def run_all(o, server, model, local):
    runs, plan = [], [(traffic, variant) for traffic in traffics(o) for variant in variants(o)]
    for i, ((kind, value), (variant, more)) in enumerate(plan):
        shown = o.trace if kind == "trace" else value
        what = name_of(kind, shown) + (", " + variant if variant else "")
        if len(plan) > 1:  # no run may use the prefix cache of another run
            more = {"cache_salt": f"serve-{i}", **more}
        before = local.used() if local else {}
        run = asyncio.run(drive(o, server, what, kind, value, Requests(o, model, more)))
        r = {"kind": kind, "load": shown, "variant": variant, "name": what, **serve_figures.figures(run, o.slo)}
        print(what, *serve_figures.lines(r), sep="\n")
        if local:
            r["services"] = {name: {"cores": (cpu_s - before[name][0]) / max(run.wall_s, 1e-9), "mib": mib}
                             for name, (cpu_s, mib) in local.used().items()}
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
    """Name of a latency -> seconds, from NAME=NUMBER[ms|s],..."""
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


def proposer_name(text):
    if text == "chain":
        print("--proposer chain is now called cascade; please use the new name", file=sys.stderr)
        return "cascade"
    return text


def parser():
    p = argparse.ArgumentParser(prog="tandem bench serve", description=report.description(__doc__),
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    server = p.add_argument_group("server")
    server.add_argument("--url", help="a running server: http(s)://HOST:PORT, with or without /v1")
    server.add_argument("--api-key", help="sent as Bearer token (default with --url: OPENAI_API_KEY of the environment)")
    server.add_argument("--model", help="with --url: name of the model (default: the first one that the server lists); "
                        "without --url: GGUF file to serve (default: the embedded model)")
    server.add_argument("--proposer", type=proposer_name, default="ngram", choices=PROPOSERS,
                        help="without --url: the proposer that drafts (default: ngram)")
    server.add_argument("--draft-model", default=EMBEDDED_DRAFT, help="GGUF file for the proposers draft and cascade")
    server.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), 
                        help="threads of the verifier (default: all cores)")
    traffic = p.add_argument_group("traffic").add_mutually_exclusive_group()
    traffic.add_argument("--concurrency", type=numbers(int), default=[], metavar="N[,N...]", help="clients (default: 4)")
    traffic.add_argument("--rate", "--rates", type=numbers(float), default=[], metavar="R[,R...]",
                         help="requests per second, as a Poisson process")
    traffic.add_argument("--trace", metavar="FILE", help="JSON lines: at (seconds from the start); optionally prompt or messages "
                         "(default: taken from --prompts) and max_tokens")
    more = p.add_argument_group("requests")
    more.add_argument("--requests", type=int, metavar="N", help="requests per run, at most")
    more.add_argument("--seconds", type=float, metavar="S", 
                      help="time in which requests are started (default: 10 without --requests)")
    more.add_argument("--prompts", metavar="FILE", help="JSON lines, each {\"prompt\": ...} or {\"messages\": [...]}, optionally with "
                      "max_tokens; used in order, again and again (default: short chats)")
    more.add_argument("--max-tokens", type=int, default=128, metavar="N", help="tokens of an answer, at most (default: 128)")
    more.add_argument("--body", type=json_object, default={}, metavar="JSON", help="additional fields of every request, such as "
                      "'{\"temperature\": 0, \"ignore_eos\": true, \"speculative\": {\"n_max\": 4}}'")
    more.add_argument("--compare", metavar="PROPOSER", 
                      help="run each traffic a second time with this speculative.proposer; none: no drafts")
    more.add_argument("--hang-up", type=float, default=0, metavar="FRACTION",
                      help="fraction of the requests, 0 to 1, whose client disconnects before the end")
    more.add_argument("--timeout", type=float, default=600, metavar="S", 
                      help="time limit of an answer (default: 600)")
    more.add_argument("--seed", type=int, default=1, 
                      help="of the random arrival times and disconnections (default: 1)")
    out = p.add_argument_group("output")
    out.add_argument("--slo", type=limits, default={}, metavar="NAME=MS,...", help="latency limits for the goodput: ttft, itl (mean of "
                     "a request) and e2e, in ms or with the suffix s: ttft=200,itl=50,e2e=5s")
    report.add_option(out)
    out.add_argument("--html", metavar="FILE", help="write a report with plots to this file, which has no external parts")
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "release"), help=argparse.SUPPRESS)
    return p


def main(arguments):
    o = parser().parse_args(arguments)
    if not o.requests and not o.seconds and not o.trace:
        o.seconds = 10
    read_prompts(o.prompts)  # errors in the files are reported before anything starts
    traffics(o)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with contextlib.ExitStack() as at_end:
        local = None
        if not o.url:
            o.model = o.model or EMBEDDED
            local = LocalServices(o, at_end)
            server = serve_traffic.Server(local.url)
        else:
            server = serve_traffic.Server(o.url, o.api_key or os.environ.get("OPENAI_API_KEY"))
        model = first_model(server) if local or not o.model else o.model
        runs = run_all(o, server, model, local)
    figures = {"server": "services started by the benchmark" if local else server.base, "model": model, "seed": o.seed,
               "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
               "command": "./tandem bench serve " + shlex.join(without_key(arguments)), "runs": runs}
    report.write(o, figures)
    if o.html:
        serve_report.write(o.html, figures)
    return 0 if any(r["ok"] for r in runs) else 1


def without_key(arguments):
    """The arguments without the API key, for the report."""
    shown = []
    for a in arguments:
        hidden = a.startswith("--api-key=") or shown[-1:] == ["--api-key"]
        shown.append("--api-key=..." if a.startswith("--api-key=") else "..." if hidden else a)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
