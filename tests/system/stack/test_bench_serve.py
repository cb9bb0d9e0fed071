"""The traffic generator. Its figures must agree with those of the real services. Scripted servers misbehave."""
import contextlib
import html.parser
import io
import json
import os
import re
import socket
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
MODEL = os.path.join(ROOT, "models", "tales-1m-q8_0.gguf")
MAX_RUNS = 20  # on a busy machine all drafts of a run may be late: it is then repeated
sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import serve
import serve_figures
import serve_traffic
import services


def run(folder, *arguments):
    """(status, its standard output, its --json file)"""
    path, text = os.path.join(folder, "figures.json"), io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(io.StringIO()):
        code = serve.main([*arguments, "--bin", BIN, "--json", path])
    with open(path, encoding="utf-8") as f:
        return code, text.getvalue(), json.load(f)


class Options:
    bin, threads = BIN, 1


class Figures(unittest.TestCase):
    """The figures of requests with known times."""

    @staticmethod
    def sample(status, ttft, gap, tokens):
        s = serve_traffic.Sample(planned=1.0)
        s.status = status
        s.came(1, 1.0 + ttft)
        for i in range(1, tokens):
            s.came(1, 1.0 + ttft + gap * i)
        s.tokens, s.end = tokens, s.last
        return s

    def figures(self, *samples, **limits):
        r = serve_traffic.Run(None, 1)
        r.samples, r.wall_s = list(samples), 2.0
        return serve_figures.figures(r, limits)

    def test_percentiles_lie_between_neighbours(self):
        percentile = serve_figures.percentile
        self.assertIsNone(percentile([], 50))
        self.assertEqual([percentile([7.0], p) for p in (0, 50, 100)], [7.0] * 3)
        tens = [float(i) for i in range(0, 101, 10)]
        self.assertEqual([percentile(tens, p) for p in (0, 5, 50, 90, 99, 100)], [0, 5, 50, 90, 99, 100])
        self.assertEqual(serve_figures.percentiles([3, 1, 2], [50, 75]), {"50": 2, "75": 2.5})  # in any order
        d = serve_figures.distribution([0.003, 0.001])
        self.assertEqual([round(d[k], 6) for k in ("mean", "p50", "p90", "max")], [2, 2, 2.8, 3])

    def test_latencies_count_answers_and_report_the_requests_left_out(self):
        r = self.figures(self.sample("ok", 0.1, 0.01, 11), self.sample("429", 9, 9, 1), self.sample("hung up", 9, 9, 3))
        self.assertEqual((r["requests"], r["ok"], r["errors"], r["hung_up"]), (3, 1, {"429": 1}, 1))
        self.assertAlmostEqual(r["latency_ms"]["ttft"]["p99"], 100, places=2)
        self.assertAlmostEqual(r["latency_ms"]["itl"]["p50"], 10, places=2)
        self.assertAlmostEqual(r["latency_ms"]["e2e"]["p50"], 200, places=2)
        self.assertIn("latencies leave out 2 requests that failed or hung up", "\n".join(serve_figures.lines(r)))
        self.assertNotIn("leave out", "\n".join(serve_figures.lines(self.figures(self.sample("ok", 0.1, 0.01, 2)))))

    def test_goodput_counts_answers_within_all_limits(self):
        samples = [self.sample("ok", 0.1, 0.01, 11), self.sample("ok", 0.3, 0.01, 11), self.sample("ok", 0.1, 0.05, 11),
                   self.sample("503", 0.1, 0.01, 11), self.sample("hung up", 0.1, 0.01, 11)]
        for limits, within in [({"ttft": 0.2}, 2), ({"itl": 0.02}, 2), ({"ttft": 0.2, "itl": 0.02}, 1), ({"e2e": 10}, 3)]:
            g = self.figures(*samples, **limits)["goodput"]
            self.assertEqual((g["requests_per_s"], g["share"]), (within / 2.0, within / 4), limits)

    def test_an_event_with_several_fields_counts_once(self):
        count = lambda *deltas: len(serve_traffic.TEXT.findall(b"".join(event(choices=[{"delta": d}]) for d in deltas)))
        self.assertEqual(count({"content": "a"}, {"content": ""}, {"reasoning": "b", "reasoning_content": "b"}), 2)
        self.assertEqual(count({"reasoning_content": "a", "content": "b"}, {"content": '"content": "x"'}), 2)


class OnTandem(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.folder = cls.stack.enter_context(tempfile.TemporaryDirectory())
        cls.services = services.Services(Options, cls.stack, MODEL, {"ngram": []}, {"v": ["--policy", "fixed", "--k", "4"]})
        cls.url = f"http://127.0.0.1:{cls.services.ports['v']}"

    def metrics(self):
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as answer:
            text = answer.read().decode()
        sums = {}
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.M):
            sums[name.removeprefix("tandem_")] = sums.get(name.removeprefix("tandem_"), 0) + float(value)
        return sums

    def write(self, name, *lines):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)
        return path

    def test_figures_equal_those_of_the_server(self):
        for _ in range(MAX_RUNS):
            before = self.metrics()
            code, text, figures = run(self.folder, "--url", self.url, "--concurrency", "4", "--requests", "12", "--max-tokens", "60",
                                      "--body", '{"temperature": 0, "ignore_eos": true}')
            after, r = self.metrics(), figures["runs"][0]
            if r["accepted_tokens"]:
                break
        grew = lambda name: after[name] - before.get(name, 0)
        self.assertEqual((code, r["ok"], r["requests"], r["errors"]), (0, 12, 12, {}))
        self.assertEqual(r["tokens"], 12 * 60)
        self.assertEqual(grew("generation_tokens_total"), r["tokens"])
        self.assertEqual(grew("prompt_tokens_total"), r["prompt_tokens"])
        self.assertEqual(grew("prefix_cache_hits_total"), r["cached_tokens"])
        self.assertEqual(grew("spec_decode_num_draft_tokens_total"), r["drafted_tokens"])
        self.assertEqual(grew("spec_decode_num_accepted_tokens_total"), r["accepted_tokens"])
        self.assertGreater(r["accepted_tokens"], 0)
        self.assertEqual(grew("gateway_requests_total"), 12)
        # The time in the gateway is part of the time at its client.
        self.assertLessEqual(grew("gateway_e2e_request_latency_seconds_sum") * 1e3, 12 * r["latency_ms"]["e2e"]["mean"])
        self.assertLessEqual(grew("gateway_time_to_first_token_seconds_sum") * 1e3, 12 * r["latency_ms"]["ttft"]["mean"])
        self.assertIn("12 of 12 requests answered", text)
        for s in r["each"]:
            self.assertEqual(s["tokens"], 60)
            self.assertTrue(0 < s["ttft_ms"] <= s["e2e_ms"], s)
            self.assertLess(s["ttft_ms"] + 59 * s["itl_ms"], s["e2e_ms"] + 0.1)  # the last token precedes the end
        last_ms, e2e_ms = sum(s["ttft_ms"] + 59 * s["itl_ms"] for s in r["each"]), sum(s["e2e_ms"] for s in r["each"])
        self.assertGreater(last_ms, e2e_ms / 2)

    def test_a_trace_is_replayed_at_its_times(self):
        trace = self.write("trace.jsonl", {"at": 0.3, "prompt": "Once", "max_tokens": 3}, {"at": 0, "max_tokens": 2},
                           {"at": 0.1, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4})
        prompts = self.write("prompts.jsonl", {"prompt": [7, 8, 9], "max_tokens": 50})
        _, _, figures = run(self.folder, "--url", self.url, "--trace", trace, "--prompts", prompts, "--body", '{"ignore_eos": true}')
        r = figures["runs"][0]
        self.assertEqual([(s["planned_s"], s["tokens"], s["status"]) for s in r["each"]],
                         [(0, 2, "ok"), (0.1, 4, "ok"), (0.3, 3, "ok")])
        self.assertEqual(r["each"][0]["prompt_tokens"], 3)
        self.assertGreaterEqual(r["seconds"], 0.3)

    def test_random_arrivals_are_the_same_for_the_same_seed(self):
        def moments(seed):
            _, _, figures = run(self.folder, "--url", self.url, "--rate", "50", "--requests", "10", "--max-tokens", "1", "--seed", seed)
            return [s["planned_s"] for s in figures["runs"][0]["each"]]
        first = moments("1")
        self.assertEqual(len(set(first)), 10)
        self.assertEqual(moments("1"), first)
        self.assertNotEqual(moments("2"), first)

    def test_hang_ups_are_counted_and_their_requests_cancelled(self):
        before = self.metrics()["gateway_requests_cancelled_total"]
        code, _, figures = run(self.folder, "--url", self.url, "--concurrency", "8", "--requests", "40", "--max-tokens", "400",
                               "--hang-up", "0.5", "--body", '{"ignore_eos": true}')
        r = figures["runs"][0]
        self.assertEqual((code, r["errors"]), (0, {}))
        self.assertEqual(r["ok"] + r["hung_up"], 40)
        self.assertTrue(5 < r["hung_up"] < 35, r["hung_up"])
        self.assertTrue(all(s["tokens"] == 400 for s in r["each"] if s["status"] == "ok"))
        end = time.monotonic() + 60
        while self.metrics()["gateway_requests_cancelled_total"] - before < r["hung_up"] / 4:  # some requests end before the hang-up is seen
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_a_comparison_at_several_concurrencies_makes_a_report(self):
        path = os.path.join(self.folder, "report.html")
        for _ in range(MAX_RUNS):
            _, text, figures = run(self.folder, "--url", self.url, "--concurrency", "1,2", "--requests", "4", "--max-tokens", "30", "--compare",
                                   "none", "--slo", "ttft=0.0001ms,itl=10s", "--html", path, "--api-key", "<secret>")
            if all(r["drafted_tokens"] for r in figures["runs"] if r["variant"] == "with speculation"):
                break
        self.assertEqual([(r["load"], r["variant"]) for r in figures["runs"]],
                         [(n, v) for n in (1, 2) for v in ("with speculation", "without")])
        self.assertEqual([r["drafted_tokens"] > 0 for r in figures["runs"]], [True, False] * 2)
        self.assertEqual([r["goodput"]["share"] for r in figures["runs"]], [0] * 4)  # no server answers that fast
        self.assertIn("goodput (ttft 0.0001 ms, itl 10000 ms): 0 requests/s, 0 %", text)
        with open(path, encoding="utf-8") as f:
            page = f.read()
        self.assertNotIn("secret", page + json.dumps(figures))
        check_page(self, page)
        for words in ["By traffic", "Distributions", "Timeline", "with speculation", "prefers-color-scheme: dark"]:
            self.assertIn(words, page)


def check_page(test, page):
    """Checks that the page is well-formed and makes a browser request nothing."""
    class Reader(html.parser.HTMLParser):
        opened, seen = [], []

        def handle_starttag(self, tag, attrs):
            self.seen += [(tag, name) for name, _ in attrs]
            if tag not in ("meta", "br"):
                self.opened.append(tag)

        def handle_endtag(self, tag):
            test.assertEqual(self.opened.pop(), tag)

        def handle_startendtag(self, tag, attrs):
            self.seen += [(tag, name) for name, _ in attrs]

    reader = Reader()
    reader.feed(page)
    test.assertEqual(reader.opened, [])
    test.assertFalse([s for s in reader.seen if s[0] in ("script", "link", "img", "iframe") or s[1] in ("src", "href")])
    test.assertNotRegex(page, r"@import|url\(")
    test.assertIn("default-src 'none'", page)
    for svg in re.findall(r"<svg.*?</svg>", page, re.S):
        xml.etree.ElementTree.fromstring(svg)


# ---------------------------------------------------------------- other servers

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
BODY = b'{"data": [{"id": "m"}]}'
MODELS = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def answer_of(*words, done=b"data: [DONE]\n\n"):
    """A stream as other servers send it: not chunked, it ends with the connection."""
    return HEAD + b"\r\n" + b"".join(event(choices=[{"delta": {"content": w}}]) for w in words) + done


def chunked(data, size):
    pieces = [data[i:i + size] for i in range(0, len(data), size)]
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


class Scripted:
    """A server that sends each connection its next answer; a list is sent piece by piece."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve)

    def serve(self):
        for answer in self.answers:
            connection, _ = self.socket.accept()
            with connection:
                connection.settimeout(30)
                self.requests.append(self.read(connection))
                for piece in answer if isinstance(answer, list) else [answer]:
                    connection.sendall(piece)
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    while connection.recv(1000):
                        pass

    @staticmethod
    def read(connection):
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
        length = re.search(rb"Content-Length: (\d+)", data)
        while length and len(data.partition(b"\r\n\r\n")[2]) < int(length[1]):
            data += connection.recv(65536)
        return data

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join(30)
        self.socket.close()


class OnScriptedServers(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def ask(self, *answers, n=1):
        with Scripted(*answers) as server:
            code, text, figures = run(self.folder, "--url", server.url, "--model", "m", "--concurrency", "1", "--requests", str(n))
        return code, text, figures["runs"][0]

    def test_each_kind_of_failure_has_a_name(self):
        error = b'{"error": {"message": "the queue is full"}}'
        head = b"HTTP/1.1 429 Too Many Requests\r\n"
        ways = {
            "429": head + b"Content-Length: %d\r\n\r\n" % len(error) + error,
            "503": b"HTTP/1.1 503 Busy\r\n\r\nno JSON at all",
            "cut": answer_of("a", "b", done=b""),
            "error event": HEAD + b"\r\n" + event(error={"message": "the verifier is gone"}) + b"data: [DONE]\n\n",
            "malformed": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            "empty": HEAD + b"\r\ndata: [DONE]\n\n",
        }
        code, text, r = self.ask(*ways.values(), answer_of("fine"), n=len(ways) + 1)
        self.assertEqual([s["status"] for s in r["each"]], [*ways, "ok"])
        self.assertEqual((code, r["errors"]), (0, {name: 1 for name in ways}))
        self.assertEqual(r["each"][0]["why"], "the queue is full")
        self.assertEqual(r["each"][3]["why"], "the verifier is gone")
        self.assertIn("1 x 429", text)

    def test_a_given_key_is_sent(self):
        with Scripted(MODELS, answer_of("x")) as server:
            run(self.folder, "--url", server.url + "/v1", "--api-key", "k1", "--requests", "1", "--concurrency", "1")
        self.assertTrue(all(b"Authorization: Bearer k1\r\n" in request for request in server.requests), server.requests)
        self.assertEqual([request.split()[1] for request in server.requests], [b"/v1/models", b"/v1/chat/completions"])

    def test_no_listener_is_a_failure_of_the_run(self):
        with socket.create_server(("127.0.0.1", 0)) as s:
            url = f"http://127.0.0.1:{s.getsockname()[1]}"
        code, _, figures = run(self.folder, "--url", url, "--model", "m", "--concurrency", "2", "--requests", "2")
        self.assertEqual((code, figures["runs"][0]["errors"]), (1, {"connect": 2}))
        with self.assertRaisesRegex(SystemExit, "cannot be reached: .*refused"):
            serve.main(["--url", url, "--requests", "1"])

    def test_a_server_that_lists_no_models_needs_a_name(self):
        for answer in [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]:
            with Scripted(answer) as server, self.assertRaisesRegex(SystemExit, "with --model"):
                serve.main(["--url", server.url, "--requests", "1"])

    def test_an_answer_may_arrive_in_any_pieces(self):
        usage = event(choices=[], usage={"completion_tokens": 3, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
                      timings={"draft_n": 5, "draft_n_accepted": 2})
        body = event(choices=[{"delta": {"role": "assistant", "content": ""}}]) + b": a comment\n\n" + b"".join(
            event(choices=[{"delta": {"content": w}}]) for w in ['a"content":"', "\\", "[DONE]"]) + usage + b"data: [DONE]\n\n"
        whole = chunked(body, 7)
        _, _, r = self.ask(chunked(body, 1000), whole, [whole[i:i + 1] for i in range(len(whole))], n=3)
        for s in r["each"]:
            self.assertEqual([s[k] for k in ["status", "tokens", "prompt_tokens", "cached_tokens", "drafted", "accepted"]], ["ok", 3, 9, 4, 5, 2])

    def test_time_lost_before_a_request_is_sent_counts(self):
        """The loop is delayed. Requests that were due meanwhile are late, and the figures show it."""
        real = serve.serve_traffic.Server.request

        def delayed(server, body):
            time.sleep(0.2)
            return real(server, body)

        with open(os.path.join(self.folder, "trace.jsonl"), "w", encoding="utf-8") as f:
            f.write('{"at": 0}\n{"at": 0.01}\n')
        serve.serve_traffic.Server.request = delayed
        try:
            with Scripted(answer_of("a"), answer_of("a")) as server:
                _, _, figures = run(self.folder, "--url", server.url, "--model", "m", "--trace", f.name)
        finally:
            serve.serve_traffic.Server.request = real
        r = figures["runs"][0]
        self.assertGreaterEqual(r["each"][1]["ttft_ms"], 190)
        self.assertGreaterEqual(r["lag_ms"], 190)

    def test_bad_options_and_files_are_named(self):
        def refusal(*arguments):
            stderr = io.StringIO()
            with self.assertRaises(SystemExit) as e, contextlib.redirect_stderr(stderr):
                serve.main(["--url", "http://127.0.0.1:9", *arguments])
            return stderr.getvalue() + str(e.exception)

        path = os.path.join(self.folder, "x.jsonl")
        self.assertIn("No such file", refusal("--prompts", path))
        for text, why in [("{", "line 1"), ('{"a": 1}', 'either "prompt" or "messages"'), ("", "has no lines"), ("7", "not a JSON object")]:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text + "\n")
            self.assertIn(why, refusal("--prompts", path))
        self.assertIn("must be seconds", refusal("--trace", self.trace(path)))
        self.assertIn("must be above 0", refusal("--rate", "1,0"))
        self.assertIn("not one of ttft, itl, e2e", refusal("--slo", "speed=1"))
        self.assertIn("must be http://", refusal("--url", "ftp://x"))
        self.assertIn("invalid json_object", refusal("--body", "[1]"))

    @staticmethod
    def trace(path):
        with open(path, "w", encoding="utf-8") as f:
            f.write('{"at": "soon"}\n')
        return path


if __name__ == "__main__":
    unittest.main()
