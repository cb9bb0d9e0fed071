"""A soak test: the services under mixed traffic, while one of two proposers is stopped, killed and restarted.

Part of the long suite (TANDEM_TEST_LONG=1). TANDEM_SOAK_S: its duration, 600 seconds by default. A repeated request
must get the same answer. At the end the services must be in the state after the warm-up. Memory has not grown, no
descriptor and no thread was added, every KV block is free, and nothing runs. The metrics must agree with the counts of the clients.
"""
import collections
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))
from junk import send_junk

BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
MODEL = os.path.join(ROOT, "models", "tales-1m-q8_0.gguf")
SOAK_S = float(os.environ.get("TANDEM_SOAK_S", 600))
LIMIT_S = 60
GROWTH_KIB = 6 << 10  # allowed without a leak; losing 1 KiB per request would be several times as much

TOPICS = ["a dog named Max", "a red ball", "the old tree", "two friends", "a sad cat", "the rain"]
TOOLS = [{"type": "function", "function": {"name": "tell", "parameters": {
    "$defs": {"any": {"enum": list(range(2000))}}, "properties": {f"p{i}": {"anyOf": [{"$ref": "#/$defs/any"}] * 4} for i in range(200)}}}}]
ENDPOINT = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
BAD = [("POST", "/v1/completions", b"{", 400), ("POST", "/v1/completions", b'{"prompt":"a","temperature":-1}', 400),
       ("POST", "/v1/chat/completions", b'{"messages":7}', 400), ("POST", "/v1/nothing", b"{}", 404),
       ("POST", "/v1/completions", b'{"prompt":"a","model":"other"}', 404), ("DELETE", "/health", b"", 405),
       ("POST", "/v1/completions", b'{"prompt":"%s"}' % (b"word " * 3000), 400)]


class Service:
    """One service as a child, its log in a file."""

    def __init__(self, folder, name, *args):
        self.name = name
        self.log = open(os.path.join(folder, f"{time.monotonic_ns()}.log"), "w", encoding="utf-8")
        self.process = subprocess.Popen([os.path.join(BIN, name), *args], stderr=self.log, stdin=subprocess.DEVNULL)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, number):
        self.signal(signal.SIGCONT)
        self.signal(number)
        code = self.process.wait(LIMIT_S)
        self.log.close()
        return code

    def log_text(self):
        with open(self.log.name, encoding="utf-8") as f:
            return f.read()

    def size(self):
        """KiB resident, open descriptors, and threads. Those of gRPC core have other names, and it keeps more of them after much traffic."""
        proc = f"/proc/{self.process.pid}"
        with open(f"{proc}/status", encoding="ascii") as f:
            rss = int(re.search(r"^VmRSS:\s+(\d+)", f.read(), re.M).group(1))
        with open(f"{proc}/comm", encoding="ascii") as f:
            name = f.read()
        names = []
        for task in os.listdir(f"{proc}/task"):
            with contextlib.suppress(FileNotFoundError), open(f"{proc}/task/{task}/comm", encoding="ascii") as f:
                names.append(f.read())
        return rss, len(os.listdir(f"{proc}/fd")), names.count(name)


class Client:
    """The requests of one thread; a failed one raises."""

    def __init__(self, soak, seed):
        self.soak, self.random = soak, random.Random(seed)

    def connect(self, receive_bytes=0):
        connection = http.client.HTTPConnection("127.0.0.1", self.soak.port, timeout=LIMIT_S)
        connection.sock = socket.socket()
        if receive_bytes:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.sock.settimeout(LIMIT_S)
        connection.sock.connect(("127.0.0.1", self.soak.port))
        return connection

    def send(self, connection, kind, body):
        connection.request("POST", ENDPOINT[kind], json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def random_request(self, **more):
        """One of some hundred requests. Each request has exactly one right answer."""
        kind, topic, seed = self.random.choice(["chat", "text"]), self.random.choice(TOPICS), self.random.randrange(8)
        if kind == "chat" and seed == 3:
            more["tools"] = TOOLS
        body = {"temperature": seed % 4 * 0.4, "seed": seed, "max_tokens": 20 + 20 * seed, "ignore_eos": True, **more}
        if kind == "chat":
            body["messages"] = [{"role": "user", "content": f"Tell me a story about {topic}."}]
        else:
            body["prompt"] = f"Once upon a time there was {topic}. " * (1 + seed)
        return kind, body

    def check_answer(self, kind, body, text):
        self.soak.same(json.dumps([kind, {**body, "stream": 0}]), text)

    def whole(self):
        kind, body = self.random_request()
        connection = self.connect()
        answer = self.send(connection, kind, body)
        data = json.load(answer)
        assert answer.status == 200, data
        connection.close()
        choice = data["choices"][0]
        assert data["usage"]["completion_tokens"] == body["max_tokens"], data["usage"]
        self.check_answer(kind, body, choice["message"]["content"] if kind == "chat" else choice["text"])

    def stream(self, receive_bytes=0, **more):
        kind, body = self.random_request(stream=True, **more)
        connection = self.connect(receive_bytes)
        answer = self.send(connection, kind, body)
        assert answer.status == 200, answer.read()
        texts, last = collections.defaultdict(str), ""
        for line in answer:
            if receive_bytes:
                time.sleep(0.002)  # a slow reader
            if line.startswith(b"data: "):
                last = line[6:].strip().decode()
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(last)
            assert "error" not in event, event
            for choice in event["choices"]:
                text = choice["delta"].get("content") if kind == "chat" else choice["text"]
                texts[choice["index"]] += text or ""
        connection.close()
        assert last == "[DONE]", last
        self.check_answer(kind, body, json.dumps(texts, sort_keys=True) if "n" in body else texts[0])

    def slow(self):
        self.stream(receive_bytes=4096, n=8)

    def cancel(self):
        kind, body = self.random_request(stream=True)
        body["max_tokens"] = 600
        connection = self.connect()
        answer = self.send(connection, kind, body)
        for _ in range(self.random.randrange(1, 20)):
            answer.readline()
        connection.close()
        answer.close()

    def bad(self):
        method, path, body, status = self.random.choice(BAD)
        connection = self.connect()
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        message = json.load(answer)["error"]["message"]
        assert answer.status == status and message, (path, answer.status, message)
        connection.close()

    def look(self):
        connection = self.connect()
        for path in ["/health", "/metrics", "/v1/models", "/v1/spec_decode/metrics"]:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.read() and answer.status == 200, path
        connection.close()

    def junk(self):
        send_junk(self.soak.port, self.random, LIMIT_S)

    KINDS = [whole, whole, whole, stream, stream, stream, slow, cancel, cancel, bad, junk, junk, look]

    def run(self, until):
        while time.monotonic() < until and not self.soak.failures:
            kind = self.random.choice(self.KINDS)
            try:
                kind(self)
                self.soak.count(kind.__name__)
            except Exception as e:  # any exception is a failure
                self.soak.failures.append(f"{kind.__name__}: {e!r}")


class Soak(unittest.TestCase):
    N_CLIENTS = 12

    def setUp(self):
        if not os.environ.get("TANDEM_TEST_LONG"):
            self.skipTest("left out: part of the long suite")
        if re.search("asan|tsan", BIN):
            self.skipTest("left out: sanitizers change the memory use")
        self.folder = tempfile.mkdtemp(prefix="tandem-soak-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.lock, self.answers, self.counts, self.failures = threading.Lock(), {}, collections.Counter(), []
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.steady, self.shaky = self.proposer("steady"), self.proposer("shaky")
        self.verifier = self.service("verifier-svc", "--listen", self.path("verifier"), "--model", MODEL, "--kv-mib", "1",
                                     "--proposers", self.path("steady"), "--proposers", self.path("shaky"))
        self.gateway = self.service("gateway", "--listen", f"127.0.0.1:{self.port}", "--verifiers", self.path("verifier"),
                                    "--tool-format", "qwen-coder", "--request-timeout", "5", "--idle-timeout", "10")  # half-sent requests of junk() are closed early

    def path(self, name):
        return f"unix:{self.folder}/{name}.sock"

    def service(self, *args):
        service = Service(self.folder, *args)
        self.addCleanup(lambda: service.process.poll() is None and service.end(signal.SIGKILL))
        return service

    def proposer(self, name):
        return self.service("proposer-svc", "--listen", self.path(name), "--name", name)

    def same(self, request, text):
        with self.lock:
            first = self.answers.setdefault(request, text)
        assert text == first, f"another answer to {request}: {text!r}, not {first!r}"

    def count(self, kind):
        with self.lock:
            self.counts[kind] += 1

    def disturb(self, until):
        """Stops, kills and terminates the shaky proposer, one after the other."""
        chance, over = random.Random(1), threading.Event()
        while time.monotonic() < until and not self.failures:
            how = chance.choice([signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
            over.wait(chance.uniform(0.2, 1))
            self.count(how.name)
            if how == signal.SIGSTOP:
                self.shaky.signal(how)
                over.wait(chance.uniform(0.1, 2))
                self.shaky.signal(signal.SIGCONT)
            else:
                if how == signal.SIGTERM:
                    self.until("the proposer is ready", lambda: "serving proposer" in self.shaky.log_text())
                code = self.shaky.end(how)
                assert code == (-how if how == signal.SIGKILL else 0), f"{how.name}: {code}, {self.shaky.log_text()}"
                over.wait(chance.uniform(0, 1))
                self.shaky = self.proposer("shaky")

    def disturb_and_report(self, until):
        try:
            self.disturb(until)
        except Exception as e:
            self.failures.append(f"disturbing: {e!r}")

    def run_traffic(self, seconds, seed):
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=Client(self, seed + i).run, args=[until]) for i in range(self.N_CLIENTS)]
        threads.append(threading.Thread(target=self.disturb_and_report, args=[until]))
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(self.failures, [], self.verifier.log_text()[-4000:] + self.gateway.log_text()[-4000:])

    def metrics(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request("GET", "/metrics")
        sums = collections.Counter()
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", connection.getresponse().read().decode(), re.M):
            sums[name.removeprefix("tandem_")] += float(value)
        connection.close()
        return sums

    def until(self, what, holds):
        end = time.monotonic() + LIMIT_S
        while not (found := holds()):
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.1)
        return found

    def wait_idle(self, before=None):
        """Waits until nothing runs and both proposers are connected. Returns the sizes of the services.

        before: also waits until they have no more descriptors and threads than these sizes."""
        def quiet():
            m = self.metrics()
            return all(m[name] == 0 for name in ["num_requests_running", "num_requests_waiting", "num_requests_paused",
                                                 "kv_cache_usage_ratio"]) and m["proposer_up"] == 2
        self.until("everything ends, every KV block is free, both proposers are used", quiet)
        services = {"gateway": self.gateway, "verifier": self.verifier, "proposer": self.steady}
        sizes = lambda: {name: s.size() for name, s in services.items()}
        if before:
            for i, what in [(1, "descriptor is left open"), (2, "thread is left")]:
                self.until(f"no {what}: {before} before, {sizes()} now",
                           lambda: all(size[i] <= before[name][i] for name, size in sizes().items()))
        return sizes()

    def check_metrics(self):
        m, n = self.metrics(), self.counts
        self.assertEqual(m["gateway_requests_active"], 1)  # the request for the metrics
        ended = m["gateway_requests_total"] - m["gateway_requests_failed_total"] - m["gateway_requests_cancelled_total"]
        self.assertGreaterEqual(ended, n["whole"] + n["stream"] + n["slow"])
        self.assertLessEqual(ended, n["whole"] + n["stream"] + n["slow"] + n["cancel"])
        self.assertLessEqual(m["gateway_requests_failed_total"], n["bad"] + n["junk"])
        self.assertGreater(m["request_success_total"], ended)  # a slow request has eight choices
        self.assertGreater(m["num_preemptions_total"], 0)
        drafted, accepted = m["spec_decode_num_draft_tokens_total"], m["spec_decode_num_accepted_tokens_total"]
        self.assertTrue(0 < accepted < drafted, (accepted, drafted))
        self.assertEqual(accepted, m["spec_decode_num_accepted_tokens_per_pos_total"])
        self.assertGreater(m["generation_tokens_total"], accepted)

    def test_services_return_to_the_state_before_the_traffic(self):
        self.until("the model is loaded", self.is_healthy)
        self.wait_idle()
        self.run_traffic(max(5, SOAK_S / 5), 1)
        before = self.wait_idle()
        self.run_traffic(max(5, SOAK_S * 4 / 5), 1000)
        after = self.wait_idle(before)
        print(f"KiB, descriptors, threads: {before} before, {after} after {dict(self.counts)}, {len(self.answers)} answers")
        for name, (kib, _, _) in after.items():
            self.assertLess(kib, before[name][0] + GROWTH_KIB, name)
        self.check_metrics()
        for service in [self.gateway, self.verifier, self.steady, self.shaky]:
            self.assertEqual(service.end(signal.SIGTERM), 0, service.name)
            self.assertNotRegex(service.log_text(), re.compile(r"^\S+ \S+ \w+ error: ", re.M))

    def is_healthy(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


if __name__ == "__main__":
    unittest.main()
