"""Many concurrent clients on the real services: a thousand streams, hang-ups, full slots, junk beside good traffic.

Under any traffic each prompt gets the answer that it gets alone (temperature 0). Afterwards all resources are free.
"""
import asyncio
import collections
import contextlib
import json
import os
import random
import re
import resource
import sys
import threading
import time
import unittest
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
MODEL = os.path.join(ROOT, "models", "tales-1m-q8_0.gguf")
SANITIZED = bool(re.search("asan|tsan", BIN))
LIMIT_S = 300
N_STREAMS = 100 if SANITIZED else 1000
TOPICS = ["a dog named Max", "a red ball", "the old tree", "two friends", "a sad cat", "the rain"]
sys.path[:0] = [os.path.join(ROOT, "tests", "bench"), os.path.join(ROOT, "tests", "lib")]
import junk
import serve_traffic
import services


class Options:
    bin, threads = BIN, 2


class Traffic(unittest.TestCase):
    verifier = ["--max-sequences", "64"]

    @classmethod
    def setUpClass(cls):
        os.environ["TANDEM_REQUEST_TIMEOUT"] = "5"  # of the gateway: ends half-sent requests early
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.services = services.Services(Options, cls.stack, MODEL, {"ngram": []}, {"v": ["--policy", "fixed", "--k", "3", *cls.verifier]})
        cls.port = cls.services.ports["v"]
        cls.url = f"http://127.0.0.1:{cls.port}"

    def tearDown(self):
        """Waits until nothing runs or waits, every KV block is free, and only the request for metrics is active."""
        def settled():
            m = self.metrics()
            return not any(m[name] for name in ["num_requests_running", "num_requests_waiting", "num_requests_paused", "kv_cache_usage_ratio",
                                                "gateway_body_bytes"]) and m["gateway_requests_active"] == 1
        self.until("all requests have ended", settled)

    def until(self, what, holds):
        end = time.monotonic() + LIMIT_S
        while not holds():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)

    def metrics(self):
        with urllib.request.urlopen(self.url + "/metrics", timeout=LIMIT_S) as answer:
            text = answer.read().decode()
        sums = collections.Counter()
        for name, value in re.findall(r"^tandem_(\w+)(?:\{.*\})? (\S+)$", text, re.M):
            sums[name] += float(value)
        return sums

    @staticmethod
    def body(i, n_tokens, prompt=""):
        return {"prompt": prompt or f"Once upon a time there was {TOPICS[i % len(TOPICS)]}.", "max_tokens": n_tokens, "temperature": 0,
                "ignore_eos": True}

    def whole(self, body):
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)

    def alone(self, bodies):
        """The answer to each body, sent one after the other."""
        return {json.dumps(b): self.whole(b)["choices"][0]["text"] for b in {json.dumps(b): b for b in bodies}.values()}

    def streams(self, bodies, n_clients, hang_up=()):
        """[(body, sample, text)] of streams, n_clients at once."""
        found = []

        class Recorded(serve_traffic.Answer):
            def __init__(self, run, request, sample, hang_up_after):
                super().__init__(run, request, sample, hang_up_after)
                self.data = b""
                found.append((json.loads(request.partition(b"\r\n\r\n")[2]), sample, self))

            def read_events(self, data, now):
                self.data += data
                super().read_events(data, now)

        async def drive():
            run = serve_traffic.Run(serve_traffic.Server(self.url), LIMIT_S)
            await run.drive(run.closed(((b | {"stream": True}, h) for b, h in zip(bodies, [*hang_up, *[0] * len(bodies)])), n_clients, LIMIT_S))

        real, serve_traffic.Answer = serve_traffic.Answer, Recorded
        try:
            asyncio.run(drive())
        finally:
            serve_traffic.Answer = real
        return [({k: v for k, v in body.items() if k != "stream"}, sample, text_of(answer.data)) for body, sample, answer in found]

    def check(self, answers, alone):
        for body, sample, text in answers:
            self.assertEqual((sample.status, sample.why), ("ok", ""))
            self.assertEqual(text, alone[json.dumps(body)])


def text_of(data):
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    return "".join(c["text"] for e in events for c in e["choices"])


class ManyStreams(Traffic):
    verifier = ["--max-sequences", "1000", "--max-batch-rows", "2048", "--queue-length", "1000"]

    def test_a_thousand_concurrent_streams(self):
        bodies = [self.body(i, 24) for i in range(N_STREAMS)]
        alone, before = self.alone(bodies[:len(TOPICS)]), self.metrics()
        answers = self.streams(bodies, N_STREAMS)
        self.assertEqual(len(answers), N_STREAMS)
        self.check(answers, alone)
        self.assertLess(max(s.begun for _, s, _ in answers), min(s.end for _, s, _ in answers))  # all streams overlapped
        after = self.metrics()
        self.assertEqual(after["gateway_requests_total"] - before["gateway_requests_total"], N_STREAMS)
        self.assertEqual(after["gateway_requests_failed_total"], before["gateway_requests_failed_total"])


class FullSlots(Traffic):
    verifier = ["--max-sequences", "8", "--queue-length", "128"]

    def test_twenty_with_a_shared_prefix_then_a_hundred_queued(self):
        prefix = "Once upon a time there was a little girl who lived near the old tree with her friends. " * 4
        bodies = [self.body(i, 30, prefix + f"One day she saw {TOPICS[i % len(TOPICS)]}, and {i} birds.") for i in range(20)]
        whole, failures = {}, []

        def ask(body):
            try:
                whole[json.dumps(body)] = self.whole(body)
            except Exception as e:  # pylint: disable=broad-except
                failures.append(repr(e))

        threads = [threading.Thread(target=ask, args=[b]) for b in bodies[::2]]
        for t in threads:
            t.start()
        answers = self.streams(bodies[1::2], 10)
        for t in threads:
            t.join()
        self.assertEqual(failures, [])
        alone = self.alone(bodies)
        self.check(answers, alone)
        self.assertEqual({k: v["choices"][0]["text"] for k, v in whole.items()}, {json.dumps(b): alone[json.dumps(b)] for b in bodies[::2]})
        cached = [v["usage"]["prompt_tokens_details"]["cached_tokens"] for v in whole.values()] + [s.cached for _, s, _ in answers]
        self.assertGreater(self.metrics()["prefix_cache_hits_total"], 0)
        self.assertTrue(all(n % 16 == 0 for n in cached), cached)

        hundred, waited = [self.body(i, 40) for i in range(100)], []
        look = threading.Thread(target=lambda: self.until("some requests wait", lambda: waited.append(self.metrics()["num_requests_waiting"]) or waited[-1] > 0))
        look.start()
        answers = self.streams(hundred, 100)
        look.join()
        self.assertGreater(waited[-1], 0)
        self.check(answers, self.alone(hundred[:len(TOPICS)]))

    def test_requests_beyond_the_queue_are_refused_with_429(self):
        answers = self.streams([self.body(i, 60) for i in range(200)], 200)
        statuses = collections.Counter(s.status for _, s, _ in answers)
        self.assertEqual(set(statuses) - {"ok", "429"}, set())
        self.assertGreaterEqual(statuses["ok"], 128)
        self.check([a for a in answers if a[1].ok], self.alone([self.body(i, 60) for i in range(len(TOPICS))]))


class Trouble(Traffic):
    def test_clients_that_hang_up_do_not_harm_those_that_stay(self):
        chance = random.Random(1)
        n = 60 if SANITIZED else 300
        hang_up = [chance.choice([0, chance.randrange(1, 30)]) for _ in range(n)]
        bodies = [self.body(i, 40) for i in range(n)]
        answers = self.streams(bodies, 40, hang_up)
        statuses = collections.Counter(s.status for _, s, _ in answers)
        self.assertEqual(statuses, {"ok": hang_up.count(0), "hung up": n - hang_up.count(0)})
        self.check([a for a in answers if a[1].ok], self.alone(bodies[:len(TOPICS)]))

    def test_junk_beside_good_requests_does_not_harm_them(self):
        over, failures, sent = threading.Event(), [], collections.Counter()

        def trouble(seed):
            chance = random.Random(seed)
            while not over.is_set():
                try:
                    junk.send_junk(self.port, chance)
                    sent["junk"] += 1
                except Exception as e:  # pylint: disable=broad-except
                    failures.append(repr(e))
                    return

        threads = [threading.Thread(target=trouble, args=[seed]) for seed in range(4)]
        for t in threads:
            t.start()
        bodies = [self.body(i, 40) for i in range(40 if SANITIZED else 200)]
        answers = self.streams(bodies, 8)
        self.until("enough junk", lambda: sent["junk"] >= 100 or failures)
        over.set()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])
        self.check(answers, self.alone(bodies[:len(TOPICS)]))


if __name__ == "__main__":
    unittest.main()
