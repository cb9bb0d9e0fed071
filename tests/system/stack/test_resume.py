"""No answer is lost while a verifier lives: a verifier is killed, stopped, cut off or drained in the middle of an answer.

Another verifier, or the same one after a restart, continues. The client must get the bytes of the undisturbed answer,
apart from ids, times and metrics.
"""
import collections
import ctypes
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
MODEL = os.path.join(ROOT, "models", "tales-1m-q8_0.gguf")
SANITIZED = bool(re.search("asan|tsan", BIN))
LONG = bool(os.environ.get("TANDEM_TEST_LONG"))
LIMIT_S = 60 * (5 if SANITIZED else 1)
N_TOKENS = 24
LONG_TOKENS = 1000  # takes longer than the gateway needs to see a drain: it asks every 500 ms
TRIES = 20
NAME = "tales"
VOLATILE = {"id", "created", "created_at", "metrics", "timings", "item_id", "call_id", "cached_tokens", "request_id"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]
SAMPLED = {"temperature": 1.2, "max_tokens": N_TOKENS, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
SEEDED = {**SAMPLED, "seed": 7}
STORY = {"messages": [{"role": "user", "content": "Tell me a story about a dog named Max."}]}
ANSWERS = {
    "seeded": ("completions", {**SEEDED, "prompt": "Once upon a time"}),
    "unseeded": ("completions", {**SAMPLED, "prompt": "Once upon a time"}),
    "echo, n": ("completions", {**SEEDED, "prompt": "Once upon a time", "n": 2, "echo": True}),
    "penalties": ("completions", {**SEEDED, "prompt": "The cat", "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3,
                                  "min_tokens": 12}),
    "logprobs": ("chat/completions", {**SEEDED, **STORY, "logprobs": True, "top_logprobs": 3}),
    "tools": ("chat/completions", {**SEEDED, **STORY, "tools": TOOLS, "n": 2}),
    "responses": ("responses", {"input": "Tell me a story.", "temperature": 1.2, "seed": 7, "max_output_tokens": N_TOKENS, "stream": True}),
    "prompts": ("completions", {**SEEDED, "prompt": ["Once upon a time", "The cat", "A dog"], "n": 2}),
    "whole": ("completions", {**SEEDED, "prompt": "Once upon a time", "stream": False, "stream_options": None, "max_tokens": 600}),
}


class Relay:
    """Between the gateway and a verifier: can be cut, or stop passing bytes."""

    def __init__(self, path, target):
        self.target, self.pairs, self.stalled = target, [], threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self.target)
            except OSError:
                if self.listener.fileno() < 0:
                    return
                near.close()
                continue
            self.pairs.append((near, far))
            for pair in [(near, far), (far, near)]:
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source, to):
        try:
            while data := source.recv(65536):
                while self.stalled.is_set():
                    time.sleep(0.01)
                to.sendall(data)
        except OSError:
            pass
        self.end(source, to)

    @staticmethod
    def end(*sockets):
        for s in sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        for pair in self.pairs:
            self.end(*pair)
        self.pairs.clear()

    def stop(self):
        self.end(self.listener)
        self.listener.close()
        self.cut()


PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17  # linux/ptrace.h
WAIT_ALL = 0x40000000  # __WALL of linux/wait.h


def trace(request, thread):
    if ctypes.CDLL(None, use_errno=True).ptrace(ctypes.c_long(request), thread, None, None):
        raise OSError(ctypes.get_errno(), "ptrace")


class Verifier:
    def __init__(self, folder, i, *options):
        self.path, self.log, self.options = os.path.join(folder, f"v{i}.sock"), os.path.join(folder, f"v{i}.log"), options
        self.target = f"unix:{self.path}"
        self.start()

    def start(self):
        # The slowest kernels: so a token takes milliseconds, and an answer can be hit in its middle. Sanitizers are slow enough with
        # the fastest ones.
        slow = {} if SANITIZED else {"TANDEM_CPU": "c"}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([os.path.join(BIN, "verifier-svc"), "--model", MODEL, "--listen", self.target, "--threads", "1",
                                             "--max-sequences", "64", *self.options], stdout=log, stderr=log, env={**os.environ, **slow})

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def drain(self):
        self.signal(signal.SIGTERM)

    def engine(self):
        """The thread that has computed most."""
        def ticks(thread):
            with open(f"/proc/{self.process.pid}/task/{thread}/stat", encoding="ascii") as f:
                return sum(map(int, f.read().rpartition(")")[2].split()[11:13]))
        return int(max(os.listdir(f"/proc/{self.process.pid}/task"), key=ticks))

    def hang(self):
        """The engine stops where it is; the other threads run on."""
        self.hung = self.engine()
        trace(PTRACE_SEIZE, self.hung)
        trace(PTRACE_INTERRUPT, self.hung)
        os.waitpid(self.hung, WAIT_ALL)

    def proceed(self):
        trace(PTRACE_DETACH, self.hung)

    def end(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


class Stack(unittest.TestCase):
    n_verifiers, options = 2, []

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tandem-resume-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.verifiers = []
        for i in range(self.n_verifiers):
            self.add_verifier(i)
        self.targets = [v.target for v in self.verifiers]
        self.prepare()
        self.port, self.log = 0, os.path.join(self.folder, "gateway.log")
        with open(self.log, "wb") as log:
            gateway = subprocess.Popen([os.path.join(BIN, "gateway"), "--listen", "127.0.0.1:0", "--verifiers", ",".join(self.targets),
                                        "--stall-timeout", "1", "--resume-wait", str(LIMIT_S), *self.options], stdout=log, stderr=log)
        self.addCleanup(self.stop_gateway, gateway)
        self.until("the gateway listens", self.find_port)
        self.until_ready()

    def find_port(self):
        found = re.search(r"listening on 127\.0\.0\.1:(\d+),", self.gateway_log())
        self.port = int(found[1]) if found else 0
        return found

    def add_verifier(self, i, *options):
        self.verifiers.append(Verifier(self.folder, i, *options))
        self.addCleanup(self.verifiers[-1].end)

    def prepare(self):
        pass

    def stop_gateway(self, gateway):
        gateway.terminate()
        self.assertEqual(gateway.wait(LIMIT_S), 0, self.gateway_log())

    def gateway_log(self):
        with open(self.log, encoding="utf-8") as f:
            return f.read()

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=LIMIT_S) as answer:
            return answer.read().decode()

    def until(self, what, holds):
        end = time.monotonic() + LIMIT_S
        while not holds():
            self.assertLess(time.monotonic(), end, f"{what}: {self.gateway_log()[-3000:]}")
            time.sleep(0.02)

    def states(self):
        try:
            return [v["state"] for v in json.loads(self.get("/health"))["verifiers"]]
        except OSError:
            return []  # the gateway starts

    def until_states(self, *states):
        self.until(f"the verifiers are {states}", lambda: self.states() == list(states))

    def until_ready(self):
        self.until_states(*["ready"] * self.n_verifiers)

    def resumed(self):
        return sum(float(n) for n in re.findall(r"^tandem_gateway_resumed_total(?:\{.*\})? (\S+)$", self.get("/metrics"), re.M))

    def ask(self, answer, hurt=None, at=0, seed=None):
        """The events of an answer. hurt is called when event `at` has arrived."""
        endpoint, body = answer
        body = body if seed is None else {**body, "seed": seed}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        c.request("POST", f"/v1/{endpoint}", json.dumps(body))
        if hurt and not body["stream"]:
            time.sleep(0.01 * (at + 1))
            hurt()
        reply, events = c.getresponse(), []
        self.assertEqual(reply.status, 200)
        if not body["stream"]:
            events = [json.load(reply)]
            c.close()
            return events
        for line in reply:
            if not line.startswith(b"data: "):
                continue
            if hurt and len(events) >= at:
                hurt()
                hurt = None
            events.append(line[6:].decode().strip())
        c.close()
        return [json.loads(e) if e != "[DONE]" else e for e in events]

    def until_hit(self, answer, hurt, mend, was_hit):
        """An answer that was hit in its middle. On a busy machine it may be complete before: then once more."""
        for _ in range(TRIES):
            events = self.ask(answer, hurt, 3)
            mend()
            self.until_ready()
            if was_hit(events):
                return events
        self.fail("each answer was complete before it was hit")
        return []

    def same(self, got, want):
        self.assertEqual(comparable(got), comparable(want), self.gateway_log()[-3000:])


def stable(it):
    if isinstance(it, dict):
        return {k: stable(v) for k, v in it.items() if k not in VOLATILE}
    return [stable(v) for v in it] if isinstance(it, list) else it


def comparable(events):
    """Events of different choices may come in another order."""
    by_choice = collections.defaultdict(list)
    for e in events:
        choices = e.get("choices") if isinstance(e, dict) else None
        by_choice[choices[0]["index"] if choices else -1].append(stable(e))
    return {k: json.dumps(v) for k, v in by_choice.items()}


def metrics_of(events):
    for e in events:
        if isinstance(e, dict):
            found = e.get("metrics") or e.get("response", {}).get("metrics")
            if found:
                return found
    return {}


class Disturbed(Stack):
    def disturbed(self, answer, hurt, mend, at):
        """One disturbed answer, compared with the undisturbed one of the same seed."""
        before = self.resumed()
        got = self.ask(answer, hurt, at)
        mend()
        self.until_ready()
        seed = metrics_of(got).get("seed", 7)
        self.same(got, self.ask(answer, seed=seed))
        return self.resumed() - before

    def everywhere(self, answer, hurt, mend, positions):
        """All answers must be right. An answer may be complete before it is disturbed, on a busy machine or at one of the last positions:
        then again. At least half of the positions must be hit."""
        tries = 3 if LONG else TRIES
        hit = [at for at in positions if any(self.disturbed(answer, hurt, mend, at) for _ in range(tries))]
        self.assertGreaterEqual(len(hit), (len(positions) + 1) // 2, f"only these positions were hit: {hit}")

    def positions(self, few):
        return range(N_TOKENS) if LONG else few[:1] if SANITIZED else few

    def answers(self, *few):
        return ANSWERS if LONG else few


class Resume(Disturbed):
    def test_a_killed_verifier_costs_no_byte(self):
        first = self.verifiers[0]
        for name in ANSWERS:
            with self.subTest(answer=name):
                self.everywhere(ANSWERS[name], first.kill, first.start, self.positions([3, 11] if name in ("seeded", "echo, n") else [5]))

    def test_a_stop_string_may_lie_across_the_border(self):
        first = self.verifiers[0]
        text = "".join(e["choices"][0]["text"] for e in self.ask(ANSWERS["seeded"]) if e != "[DONE]" and e["choices"])
        endpoint, body = ANSWERS["seeded"]
        stop = (endpoint, {**body, "stop": [text[len(text) // 2:][:7], "no such text"]})
        self.everywhere(stop, first.kill, first.start, self.positions([6, 2]))

    def test_a_stopped_verifier_is_left(self):
        first = self.verifiers[0]
        for name in self.answers("seeded", "echo, n"):
            self.everywhere(ANSWERS[name], lambda: first.signal(signal.SIGSTOP), lambda: first.signal(signal.SIGCONT), self.positions([2]))

    def test_a_verifier_whose_engine_hangs_is_left(self):
        first = self.verifiers[0]
        self.everywhere(ANSWERS["seeded"], first.hang, first.proceed, self.positions([2]))
        self.assertIn("its engine has not finished a pass for", self.gateway_log())

    def test_a_drain_hands_its_answers_over(self):
        first = self.verifiers[0]
        long = ("completions", {**ANSWERS["echo, n"][1], "max_tokens": LONG_TOKENS})

        def mend():
            self.assertEqual(first.process.wait(LIMIT_S), 0)
            first.start()
        self.everywhere(long, first.drain, mend, self.positions([4]))

    def test_a_lossy_rule_is_resumed_and_says_so(self):
        first = self.verifiers[0]
        body = {**ANSWERS["seeded"][1], "speculative": {"rule": "typical"}, "max_tokens": 200}
        events = self.until_hit(("completions", body), first.kill, first.start, lambda e: "resumed" in metrics_of(e))
        self.assertEqual(sum(len(e["choices"]) for e in events if e != "[DONE]"), 200 + 1)
        self.assertEqual(metrics_of(events).get("resumed"), {"count": 1, "same_bits": False})


class Blas(Disturbed):
    """Passes of OpenBLAS: their bits depend on the rows of a pass."""

    def add_verifier(self, i, *options):
        super().add_verifier(i, "--float-gemm", "blas", *options)

    def test_an_answer_is_resumed_and_does_not_promise_its_bits(self):
        first = self.verifiers[0]
        body = {**ANSWERS["seeded"][1], "max_tokens": 200}
        events = self.until_hit(("completions", body), first.kill, first.start, lambda e: "resumed" in metrics_of(e))
        self.assertEqual(metrics_of(events).get("resumed"), {"count": 1, "same_bits": False})


class Cut(Disturbed):
    """A relay is between the gateway and the first verifier."""

    def prepare(self):
        path = os.path.join(self.folder, "relay.sock")
        self.relay = Relay(path, self.verifiers[0].path)
        self.addCleanup(self.relay.stop)
        self.targets[0] = f"unix:{path}"

    def test_a_cut_link_costs_no_byte(self):
        for name in self.answers("seeded", "prompts"):
            self.everywhere(ANSWERS[name], self.relay.cut, lambda: None, self.positions([2]))

    def test_a_link_that_passes_nothing_is_left(self):
        self.everywhere(ANSWERS["seeded"], self.relay.stalled.set, self.relay.stalled.clear, self.positions([2]))


class Alone(Stack):
    n_verifiers = 1

    def test_the_same_verifier_continues_when_it_is_back(self):
        long = ("completions", {**ANSWERS["seeded"][1], "max_tokens": 400})
        got = self.until_hit(long, self.verifiers[0].restart, lambda: None, lambda e: "resumed" in metrics_of(e))
        self.assertEqual(metrics_of(got).get("resumed"), {"count": 1, "same_bits": True})
        self.same(got, self.ask(long))
        self.assertIn("answer resumed on the same verifier", self.gateway_log())
        self.assertNotIn("answer resumed on another verifier", self.gateway_log())


class Queued(Stack):
    """The verifier runs one sequence at a time, so the second prompt of a request waits in its queue."""
    n_verifiers = 1

    def add_verifier(self, i, *options):
        super().add_verifier(i, "--max-sequences", "1", *options)

    def test_the_prompts_in_the_queue_wait_for_the_verifier_too(self):
        long = ("completions", {**ANSWERS["seeded"][1], "prompt": ["Once upon a time", "The cat"], "max_tokens": 200})
        want = self.ask(long)
        self.until_hit(long, self.verifiers[0].restart, lambda: None, lambda e: self.same(e, want) or "resumed" in metrics_of(e))


class Limits(Disturbed):
    """The second verifier has the same model and other limits. The first one serves all undisturbed answers."""
    limits = []

    def add_verifier(self, i, *options):
        super().add_verifier(i, *self.limits[i], *options)

    def must_end_as_begun(self, answer):
        self.everywhere(answer, self.verifiers[0].restart, lambda: None, self.positions([3]))


TO_THE_END = ("chat/completions", {**STORY, "temperature": 1.2, "seed": 7, "ignore_eos": True, "stream": True,
                                   "stream_options": {"include_usage": True}})


class ShorterContext(Limits):
    limits = [("--context", "192"), ("--context", "96")]

    def test_a_shorter_context_does_not_cut_the_answer(self):
        self.must_end_as_begun(TO_THE_END)


class LongerContext(Limits):
    limits = [("--context", "96"), ("--context", "192")]

    def test_a_longer_context_does_not_extend_the_answer(self):
        self.must_end_as_begun(TO_THE_END)


class FewerSequences(Limits):
    limits = [(), ("--max-sequences", "1")]

    def test_more_choices_than_the_second_verifier_runs_are_continued_by_the_first(self):
        self.must_end_as_begun(ANSWERS["echo, n"])


class OneName(Stack):
    """A verifier with the name of a running one, but with another model, stands by."""
    n_verifiers = 1

    def setUp(self):
        super().setUp()
        self.owner = self.verifiers[0]

    def prepare(self):
        self.targets.append(f"unix:{self.folder}/v1.sock")

    def add_verifier(self, i, *options):
        super().add_verifier(i, *(options or ("--name", NAME)))

    def until_ready(self):
        if len(self.verifiers) == 1:
            self.until_states("ready", "down")
            self.add_verifier(1, "--model", os.path.join(ROOT, "models", "tales-11m-q8_0.gguf"), "--name", NAME)
        self.until_states("ready", "refused")


class Newcomer(OneName):
    def stop_for_a_while(self):
        self.owner.signal(signal.SIGSTOP)
        timer = threading.Timer(6, self.owner.signal, [signal.SIGCONT])
        timer.start()
        self.addCleanup(timer.join)

    def survives(self, hurt, was_hit):
        """Each answer is right, also if it was complete before it was hit."""
        long = ("completions", {**ANSWERS["seeded"][1], "max_tokens": 400})
        want = self.ask(long)
        self.until_hit(long, hurt, lambda: None, lambda events: self.same(events, want) or was_hit())
        self.assertNotIn(f"verifier ready target={self.verifiers[1].target}", self.gateway_log())

    def test_the_owner_of_the_name_is_killed_and_restarted(self):
        self.survives(self.owner.restart, self.resumed)

    def test_the_owner_of_the_name_is_stopped_for_a_while(self):
        self.survives(self.stop_for_a_while, lambda: f"verifier down target={self.owner.target}" in self.gateway_log())


class DeadOwner(OneName):
    options = ["--resume-wait", "0.5"]

    def test_the_name_of_a_dead_owner_passes_on(self):
        self.owner.kill()
        self.until_states("down", "ready")
        self.assertEqual(len(self.ask(ANSWERS["whole"])), 1)


class Nobody(Stack):
    n_verifiers, options = 1, ["--resume-wait", "0.5"]

    def test_without_a_verifier_in_time_the_answer_ends_with_an_error(self):
        long = ("completions", {**ANSWERS["seeded"][1], "max_tokens": 400})
        only = self.verifiers[0]
        events = self.until_hit(long, only.kill, only.start, lambda e: "error" in e[-2])
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(events[-2]["error"]["message"], "the verifier stopped before the answer was complete")


class Rolling(Stack):
    n_verifiers = 3

    def restart(self, v):
        time.sleep(0.3)
        began = time.monotonic()
        v.drain()
        self.assertEqual(v.process.wait(LIMIT_S), 0)
        self.assertLess(time.monotonic() - began, LIMIT_S / 2)  # drain_timeout is 120 s
        v.start()
        self.until_ready()

    def test_a_rolling_restart_under_64_streams_costs_nothing(self):
        n_streams, n_kinds = 16 if SANITIZED else 64, 8
        answers = [("completions", {**SEEDED, "prompt": f"Story {i}: once upon a time", "seed": i, "max_tokens": LONG_TOKENS}) for i in range(n_kinds)]
        want = [self.ask(a) for a in answers]
        for events in want:
            self.assertEqual(sum(len(e["choices"]) for e in events if e != "[DONE]"), LONG_TOKENS + 1)
        ended, got, errors = threading.Event(), [], []

        def client(i):
            try:
                while not ended.is_set():
                    got.append((i, self.ask(answers[i])))
            except Exception as e:  # reported below
                errors.append(repr(e))
        threads = [threading.Thread(target=client, args=(i % n_kinds,), daemon=True) for i in range(n_streams)]
        for t in threads:
            t.start()
        for _ in range(TRIES):
            for v in self.verifiers:
                self.restart(v)
            if self.resumed():
                break
        ended.set()
        end = time.monotonic() + 3 * LIMIT_S
        for t in threads:
            t.join(max(0, end - time.monotonic()))
        self.assertEqual([t.name for t in threads if t.is_alive()], [], "clients that hang")
        self.assertEqual(errors, [])
        self.assertGreaterEqual(len(got), n_streams)
        for i, events in got:
            self.same(events, want[i])
        self.assertGreater(self.resumed(), 0)


if __name__ == "__main__":
    unittest.main()
