"""The operator's view of the running services: a line per request in every log, metrics, the dashboard."""
import collections
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
MODEL = os.path.join(ROOT, "models", "tales-1m-q8_0.gguf")
LIMIT_S = 60 * (5 if re.search("asan|tsan", BIN) else 1)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import services


class Options:
    bin, threads = BIN, 1


class Observe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.services = services.Services(Options, cls.stack, MODEL, {"ngram": []}, {"v": ["--policy", "fixed", "--k", "4"]})
        cls.url = f"http://127.0.0.1:{cls.services.ports['v']}"

    def fetch(self, path, body=None, url="", **headers):
        """(status, text)"""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request((url or self.url) + path, data,
                                         {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read().decode()

    def lines(self, service, request_id, n=1):
        """Waits for n lines with this id in a service's log. Returns them as dicts."""
        path, end = os.path.join(self.services.folder, service + ".log"), time.monotonic() + LIMIT_S
        while True:
            with open(path, encoding="utf-8") as f:
                found = [line for line in f if f" id={request_id} " in line]
            if len(found) >= n:
                return [dict(re.findall(r'(\w+)=("[^"]*"|\S*)', line)) | {"line": line} for line in found]
            self.assertLess(time.monotonic(), end, f"no {request_id} in {path}")
            time.sleep(0.02)


class Logs(Observe):
    def test_each_request_has_one_line_with_its_figures_in_each_log(self):
        for i in range(20):  # on a busy machine all drafts of a request may be late
            status, text = self.fetch("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "ignore_eos": True},
                                      X_Request_Id=f"whole-{i}", traceparent=PARENT)
            answer = json.loads(text)
            drafts = answer["metrics"]["speculative_decoding"]
            if drafts["num_draft_tokens"]:
                break
        [gateway], [verifier] = self.lines("v-gateway", f"whole-{i}"), self.lines("v", f"whole-{i}")
        self.assertEqual(status, 200)
        self.assertEqual([gateway[k] for k in ["trace", "endpoint", "model", "status", "out", "proposer", "rule"]],
                         [TRACE, "completions", '"tales-1m-q8_0"', "200", "40", "ngram", "own-draw"])
        self.assertEqual([int(gateway[k]) for k in ["prompt", "drafted", "accepted"]],
                         [answer["usage"]["prompt_tokens"], drafts["num_draft_tokens"], drafts["num_accepted_draft_tokens"]])
        self.assertEqual([drafts["proposer"], drafts["rule"]], ["ngram", "own-draw"])
        self.assertEqual(drafts["num_spec_steps"], sum(drafts["acceptance_histogram"]))
        self.assertAlmostEqual(drafts["mean_acceptance_length"], 1 + drafts["num_accepted_draft_tokens"] / drafts["num_spec_steps"], 4)
        self.assertTrue(0 < float(gateway["first_ms"]) <= float(gateway["ms"]))
        self.assertEqual([verifier[k] for k in ["trace", "out", "drafted", "accepted", "end"]],
                         [TRACE, "40", gateway["drafted"], gateway["accepted"], "length"])
        self.assertEqual([(line["trace"], line["prompt"]) for line in self.lines("ngram", f"whole-{i}")], [(TRACE, verifier["prompt"])])

    def test_an_invalid_traceparent_is_in_no_log(self):
        self.fetch("/v1/completions", {"prompt": "Once", "max_tokens": 1}, X_Request_Id="odd-1", traceparent=PARENT.upper())
        for service in ["v-gateway", "v"]:
            self.assertNotIn("trace", self.lines(service, "odd-1")[0])

    def test_refusals_are_logged_with_their_ids_where_they_happen(self):
        self.fetch("/v1/chat/completions", {"messages": 7}, X_Request_Id="bad-1", traceparent=PARENT)
        [line] = self.lines("v-gateway", "bad-1")
        self.assertEqual([line[k] for k in ["trace", "endpoint", "status"]], [TRACE, "chat_completions", "400"])
        status, _ = self.fetch("/v1/completions", {"prompt": "Once", "stop_token_ids": [10 ** 6]}, X_Request_Id="bad-2", traceparent=PARENT)
        self.assertEqual(status, 400)
        [gateway], [verifier] = self.lines("v-gateway", "bad-2"), self.lines("v", "bad-2")
        self.assertEqual([gateway["status"], verifier["trace"], verifier["code"]], ["400", TRACE, "INVALID_ARGUMENT:"])

    def test_refusals_quote_the_request_in_the_answer_but_not_in_the_log(self):
        for i, (path, body) in enumerate([
                ("/v1/completions", b'{"prompt": "Once", secretword'),
                ("/v1/completions", b'{"secretword": 1, "secretword": 2}'),
                ("/v1/completions", {"prompt": "Once", "logit_bias": {"secretword's": 1}}),
                ("/v1/completions", {"prompt": "Once", "response_format": {"type": "secretword"}}),
                ("/v1/chat/completions", {"messages": [{"role": "secretword", "content": "Once"}]}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "secretword"}]}]}),
                ("/v1/responses", {"input": [{"type": "secretword"}]})]):
            with self.subTest(body=body):
                status, text = self.fetch(path, body, X_Request_Id=f"quote-{i}")
                self.assertEqual(status, 400)
                self.assertIn("secretword", text)
                [line] = self.lines("v-gateway", f"quote-{i}")
                self.assertEqual(line["status"], "400")
        for name in ["v-gateway", "v"]:
            with open(os.path.join(self.services.folder, f"{name}.log"), encoding="utf-8") as f:
                self.assertNotIn("secretword", f.read())

    def test_a_line_names_the_owner_of_the_key_but_not_the_key(self):
        path, port = os.path.join(self.services.folder, "keys"), services.free_port()
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
            f.write("alice sk-alice-0123456789\n")
        self.services.start("gateway", "keyed", "--listen", f"127.0.0.1:{port}", "--verifiers", self.services.path("v"), "--api-keys", path)
        url, body, end = f"http://127.0.0.1:{port}", {"prompt": "Once", "max_tokens": 1}, time.monotonic() + LIMIT_S
        while True:
            with contextlib.suppress(OSError):
                if self.fetch("/health", url=url)[0] == 200:
                    break
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        self.assertEqual(self.fetch("/v1/completions", body, url, X_Request_Id="a-1", Authorization="Bearer sk-alice-0123456789")[0], 200)
        self.assertEqual(self.fetch("/v1/completions", body, url, X_Request_Id="a-2", Authorization="Bearer sk-wrong-0123456789")[0], 401)
        [taken] = self.lines("keyed", "a-1")
        self.assertEqual([taken["key"], taken["status"]], ["alice", "200"])
        with open(os.path.join(self.services.folder, "keyed.log"), encoding="utf-8") as f:
            self.assertNotIn("sk-", f.read())


OPENMETRICS = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
PROMTOOL = os.path.join(ROOT, "build", "promtool")


def series(text):
    """The labels of each series, by name."""
    found = collections.defaultdict(set)
    for name, labels in re.findall(r"^([a-z_0-9]+)\{(.*?)\} \S+(?: #.*)?$", text, re.M):
        found[name] |= set(re.findall(r'(\w+)="', labels))
    return found


def instances(text):
    return set(re.findall(r'\binstance="(.*?)"', text))


class Metrics(Observe):
    def setUp(self):
        self.fetch("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True}, traceparent=PARENT)
        self.with_proposers(self.url, 1)

    def promtool(self, *arguments, text=""):
        if not os.path.exists(PROMTOOL):
            self.skipTest("there is no build/promtool")
        run = subprocess.run([PROMTOOL, *arguments], input=text, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def test_the_text_format_is_clean(self):
        text = self.fetch("/metrics")[1]
        self.assertNotIn("# {", text)
        self.assertEqual(self.promtool("check", "metrics", text=text), "")

    def test_openmetrics_is_sent_on_request(self):
        text, plain = self.fetch("/metrics", Accept=OPENMETRICS)[1], self.fetch("/metrics")[1]
        self.assertTrue(text.endswith("\n# EOF\n"))
        self.assertEqual(series(text).keys(), series(plain).keys())
        counters = re.findall(r"^# TYPE (\S+) counter$", text, re.M)
        self.assertGreater(len(counters), 20)
        self.assertFalse([name for name in counters if name.endswith("_total") or f"\n{name}_total{{" not in text])
        for name in ["time_to_first_token", "e2e_request_latency"]:
            self.assertRegex(text, rf'tandem_gateway_{name}_seconds_bucket\{{[^}}]*\}} [0-9.]+ # \{{trace_id="{TRACE}"\}} [0-9.e-]+ 1\d{{9}}\.\d+\n')

    def test_prometheus_reads_openmetrics(self):
        text = self.fetch("/metrics", Accept=OPENMETRICS)[1]
        now = f"{time.time():.3f}"
        stamped = re.sub(r"^([^#\n]\S*\{.*?\} \S+)((?: #.*)?)$", rf"\1 {now}\2", text, flags=re.M)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "metrics.txt")
            with open(path, "w", encoding="utf-8") as f:
                f.write(stamped)
            said = self.promtool("tsdb", "create-blocks-from", "openmetrics", path, os.path.join(folder, "blocks"))
            n_series = int(re.search(r"^\w+ +\d+ +\d+ +\S+ +(\d+)", said.splitlines()[-1] + "\n").group(1)) if said else 0
        self.assertEqual(n_series, stamped.count(now), said)

    def test_documents_and_metrics_list_the_same_series(self):
        with open(os.path.join(ROOT, "docs", "metrics.md"), encoding="utf-8") as f:
            told = set(re.findall(r"^\| `(\w+)` \|", f.read(), re.M))
        there = set(re.findall(r"^# TYPE (\S+) ", self.with_proposers(self.url, 1), re.M))
        self.assertEqual(there - told, set())
        # Services without TLS have no certificates.
        self.assertEqual({name for name in told - there if not name.startswith("tandem_certificate_")}, set())

    def test_no_series_occurs_twice(self):
        """Two verifiers without the setting `instance`, two with one name, and a target that is listed twice.

        Three of them use the same proposer. Another proposer claims the label that a verifier has, so its series are left out."""
        ports = [services.free_port() for _ in range(2)]
        used = ["--proposers", self.services.path("ngram")]
        self.services.start("proposer-svc", "liar", "--listen", self.services.path("liar"), "--instance", self.services.path("w"))
        for name, named in [("w", ["--proposers", self.services.path("liar")]), ("x", ["--instance", "same", *used]),
                            ("y", ["--instance", "same", *used])]:
            self.services.start("verifier-svc", name, "--listen", self.services.path(name), "--model", MODEL, "--threads", "1", *named)
        targets = [arg for name in "vwxyw" for arg in ["--verifiers", self.services.path(name)]]
        for port in ports:
            self.services.start("gateway", f"gateway-{port}", "--listen", f"127.0.0.1:{port}", *targets)
        texts = [self.merged(f"http://127.0.0.1:{port}", 4) for port in ports]
        for url in [f"http://127.0.0.1:{port}" for port in ports]:
            texts.append(self.with_proposers(url, 3))
        for text in texts[2:]:
            self.assertEqual(len(re.findall(r"^tandem_drafter_streams\{", text, re.M)), 1, "one proposer, seen by three verifiers")
            self.assertRegex(text, r'(?m)^tandem_drafter_streams\{instance="[^"]*ngram.sock"\} 3$')
        for text in texts:
            self.assertTrue({"same"}.isdisjoint(instances(text)), "a name that two verifiers have is replaced")
            found = collections.Counter(re.findall(r"^([a-z_0-9]+\{.*?\}) \S+$", text, re.M))
            self.assertEqual([key for key, n in found.items() if n > 1], [])
        gateways = [instances("\n".join(re.findall(r"^tandem_gateway_.*", text, re.M))) for text in texts]
        self.assertEqual([[name.endswith(f":{port}") for name in names] for names, port in zip(gateways, ports * 2)], [[True]] * 4)

    def with_proposers(self, url, n):
        """The metrics, when those of a proposer with n verifiers or more are among them."""
        end = time.monotonic() + LIMIT_S
        while True:
            text = self.fetch("/metrics", url=url)[1]
            streams = re.findall(r"^tandem_drafter_streams\{.*\} (\d+)$", text, re.M)
            if max(map(int, streams), default=0) >= n:
                return text
            self.assertLess(time.monotonic(), end, streams)
            time.sleep(0.05)

    def merged(self, url, n_verifiers):
        """The metrics, when the gateway has reached all of its verifiers."""
        end = time.monotonic() + LIMIT_S
        while True:
            with contextlib.suppress(OSError):
                text = self.fetch("/metrics", url=url)[1]
                if len(re.findall(r"^tandem_gateway_verifier_up\{.*\} 1$", text, re.M)) == n_verifiers:
                    if len(re.findall(r"^tandem_kv_cache_blocks\{", text, re.M)) >= n_verifiers:
                        return text
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_the_dashboard_queries_existing_series(self):
        there = series(self.with_proposers(self.url, 1))
        with open(os.path.join(ROOT, "docs", "grafana-dashboard.json"), encoding="utf-8") as f:
            board = json.load(f)
        targets = [(panel["title"], t["expr"], t["legendFormat"]) for panel in board["panels"] for t in panel.get("targets", [])]
        self.assertGreater(len(targets), 40)
        for title, expr, legend in targets:
            names = re.findall(r"\b(?:tandem|process)_\w+", expr)
            self.assertTrue(names, title)
            for name in names:
                self.assertIn(name, there, title)
            wanted = set(re.findall(r"\{\{(\w+)\}\}", legend)) | {w for by in re.findall(r"by \(([^)]*)\)", expr) for w in by.split(", ")}
            self.assertLessEqual(wanted, set.union(*(there[name] for name in names)), title)
        for variable in board["templating"]["list"]:
            for name in re.findall(r"\b(?:tandem|process)_\w+", str(variable["query"])):
                self.assertIn(name, there)
        rules = [{"record": f"panel:{i}", "expr": re.sub(r"\$__rate_interval", "5m", expr)} for i, (_, expr, _) in enumerate(targets)]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:  # YAML, too
            json.dump({"groups": [{"name": "board", "rules": rules}]}, f)
            f.flush()
            self.assertIn(f"{len(rules)} rules found", self.promtool("check", "rules", "--lint=none", f.name))


if __name__ == "__main__":
    unittest.main()
