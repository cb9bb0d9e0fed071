"""services.py: starts and stops proposers, verifiers and gateways for the benchmarks and for tests."""
import collections
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
START_S = 120  # a service that is not ready after this time is a failure
POLL_S = 0.1  # between two looks at a service that is starting


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Services:
    """Running services: one proposer for each entry of `proposers`, and a verifier with a gateway for each entry of
    `verifiers`.

    o: options with `bin` (the folder of the programs) and `threads` (of each verifier). stack: an ExitStack that
    stops the services. target: the model file. proposers, verifiers: name -> command-line options. Every verifier
    uses all proposers. `ports` holds the HTTP port of each verifier's gateway.
    """

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
            self.start("gateway", name + "-gateway", "--listen", "127.0.0.1:%d" % self.ports[name],
                       "--verifiers", self.path(name))
            self.wait_ready(name, len(proposers))  # a verifier times its passes, so the next one must not run yet

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
        """Waits POLL_S seconds; returns the names of the processes that have ended."""
        time.sleep(POLL_S)
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def wait_ready(self, name, n_proposers):
        until = time.monotonic() + START_S
        while not self.is_ready(name, n_proposers):
            dead = self.dead()
            if dead or time.monotonic() > until:
                self.show_logs()
                raise SystemExit("%s died" % " and ".join(dead) if dead else
                                 "%s did not start within %d s" % (name, START_S))

    def show_logs(self):
        """Prints the end of each service's log on stderr."""
        for log in sorted(os.listdir(self.folder)):
            if log.endswith(".log"):
                with open(os.path.join(self.folder, log), encoding="utf-8", errors="replace") as f:
                    print(log, f.read()[-1000:], file=sys.stderr)

    def generate(self, name, prompt, n_tokens, speculative, **more):
        """The JSON answer of the verifier `name`: n_tokens tokens, greedy unless `more` says otherwise.

        speculative: the request's field of this name. more: other fields of the request."""
        body = {"model": "default", "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True,
                "speculative": speculative, **more}
        request = urllib.request.Request("http://127.0.0.1:%d/v1/completions" % self.ports[name],
                                         json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=900) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            raise SystemExit("%s: %s" % (e, e.read().decode(errors="replace"))) from e

    def metrics(self, name):
        """The lines of the gateway's /metrics, which include the verifier's."""
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % self.ports[name], timeout=5) as answer:
            return answer.read().decode().splitlines()

    def pass_metrics(self, name):
        """Totals so far of forward passes and of proposer round trips: their counts and their seconds, by series."""
        sums = collections.Counter()
        for line in self.metrics(name):
            if line.startswith(("tandem_engine_pass_seconds_", "tandem_proposer_round_trip_seconds_")):
                sums[line.split("{")[0].split(" ")[0]] += float(line.rsplit(" ", 1)[1])
        return sums
