"""./tandem up from the view of its user, without a terminal: answers, messages, restarts, the end."""
import hashlib
import json
import os
import re
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
LIMIT_S = 60 * (5 if re.search("asan|tsan", BIN) else 1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Up:
    """A running ./tandem up. Its output is read without pause."""

    def __init__(self, *args, cwd=ROOT, **env):
        self.port, self.text, self.changed = free_port(), "", threading.Condition()
        self.process = subprocess.Popen([os.path.join(ROOT, "tandem"), "up", "--port", str(self.port), *args], cwd=cwd,
                                        env={**os.environ, "TANDEM_BIN": BIN, **env}, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.text += line
                self.changed.notify_all()

    def wait(self, pattern):
        with self.changed:
            if not self.changed.wait_for(lambda: re.search(pattern, self.text), LIMIT_S):
                raise AssertionError(f"no {pattern!r} in: {self.text}")
            return re.search(pattern, self.text)

    def pid_of(self, program):
        """The pid of the child with this name. The script is the parent of the services."""
        run = subprocess.run(["pgrep", "-P", str(self.process.pid), "-f", os.path.join(BIN, program)],
                             capture_output=True, text=True, check=True)
        return int(run.stdout.split()[0])

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(LIMIT_S)
        self.reader.join()
        self.process.stdout.close()
        return code


def refusal(*args, prefix=()):
    """Runs ./tandem up with settings that cannot start. Returns the last line and the status."""
    run = subprocess.run([*prefix, os.path.join(ROOT, "tandem"), "up", *args], capture_output=True, text=True, cwd=ROOT,
                         env={**os.environ, "TANDEM_BIN": BIN}, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
    return run.stderr.strip().splitlines()[-1], run.returncode


class UpTest(unittest.TestCase):
    def test_it_answers_restarts_dead_services_and_stops(self):
        # Environment variables of several services, with values that each service must accept.
        env = {"TANDEM_DRAIN_TIMEOUT": "120.5", "TANDEM_LOAD_WAIT": "20.5", "TANDEM_READER_TIMEOUT": "0.5",
               "TANDEM_IDLE_TIMEOUT": "0.5", "TANDEM_THREADS": "0"}
        up = Up("--model", MODEL, **env)
        try:
            up.wait(r"acceptance: \d+ of \d+ draft tokens accepted")
            up.wait(r"curl -N http://127.0.0.1:%d/v1/chat/completions" % up.port)
            up.wait(r"tokens/s \d+  alpha [\d.]+  tau [\d.]+  running 0  waiting 0")
            for name in ["verifier-svc", "gateway", "proposer-svc"]:
                os.kill(up.pid_of(name), signal.SIGKILL)
                up.wait(name + r" ended with status 137: .*; starting it again")
                self.assertTrue(self.wait_answer(up.port), name)
                self.assertTrue(self.wait_drafts(up.port), name)
        finally:
            code = up.stop()
        self.assertEqual(code, 0)
        self.assertRegex(up.text, r"stopping: .*\nstopped\n$")
        self.assertNotIn("\x1b", up.text)  # no terminal: plain lines

    def succeeds_within_limit(self, port, path, body, good):
        """Whether an answer succeeds within the limit. While a service starts, refused connections and 503 are normal."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", body)) as r:
                    if good(json.load(r)):
                        return True
            except OSError:
                pass
            time.sleep(0.1)
        return False

    def wait_acceptance(self, port, good):
        """Whether good(accepted, proposed) becomes true within the limit, for all draft tokens so far. Sends requests until then:
        on a busy machine all drafts of the first request may be late."""
        body = json.dumps({"prompt": "Once upon a time there was a dog", "max_tokens": 100, "temperature": 0, "ignore_eos": True}).encode()

        def is_good(figures):
            if good(figures["total_accepted"], figures["total_proposed"]):
                return True
            with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)):
                return False

        return self.succeeds_within_limit(port, "/v1/spec_decode/metrics", None, is_good)

    def wait_answer(self, port):
        body = json.dumps({"prompt": "Once", "max_tokens": 2}).encode()
        return self.succeeds_within_limit(port, "/v1/completions", body, lambda answer: answer["usage"]["completion_tokens"] == 2)

    def wait_drafts(self, port):
        return self.succeeds_within_limit(port, "/health", None, lambda health: health["verifiers"][0]["proposers"][0]["connected"])

    def test_a_model_path_is_relative_to_the_caller_and_none_means_no_drafts(self):
        folder = os.path.dirname(MODEL)
        with tempfile.NamedTemporaryFile("w") as settings:
            settings.write("name = mine\n")  # a setting that the gateway does not have
            settings.flush()
            up = Up("--model", os.path.basename(MODEL), "--proposer", "none", cwd=folder,
                    TANDEM_CONFIG=os.path.relpath(settings.name, folder), TANDEM_PROPOSERS="unix:/no/such.sock")
            try:
                up.wait(r"model mine, proposer none")
                self.assertEqual(up.wait(r"acceptance: (\d+) of (\d+)").groups(), ("0", "0"))
            finally:
                self.assertEqual(up.stop(), 0)

    def test_a_draft_model_drafts_and_may_be_the_model_itself(self):
        up = Up("--proposer", "draft", "--model", MODEL, "--draft-model", MODEL, "--draft-quantize", "q4_0",
                TANDEM_POLICY="fixed", TANDEM_PROPOSER_BUDGET_MS="250")
        try:
            up.wait(r"all healthy: model .*, proposer draft")
            up.wait(r"acceptance: \d+ of \d+")
            # Four bits reduce the acceptance.
            self.assertTrue(self.wait_acceptance(up.port, lambda accepted, proposed: proposed / 3 < accepted < proposed))
        finally:
            self.assertEqual(up.stop(), 0)

    def test_ngram_and_a_cascade_draft(self):
        for args in [["ngram"], ["cascade", "--draft-model", MODEL]]:
            up = Up("--model", MODEL, "--proposer", *args, TANDEM_POLICY="fixed", TANDEM_PROPOSER_BUDGET_MS="250")
            try:
                up.wait(rf"all healthy: model .*, proposer {args[0]}\n")
                up.wait(r"acceptance: \d+ of \d+")
                self.assertTrue(self.wait_acceptance(up.port, lambda accepted, _: accepted > 0), args[0])
            finally:
                self.assertEqual(up.stop(), 0)

    def test_the_old_name_of_the_cascade_gives_one_warning(self):
        run = subprocess.run([os.path.join(ROOT, "tandem"), "up", "--proposer=chain", "--model", MODEL], capture_output=True, text=True)
        self.assertEqual(run.stderr.splitlines(), ["tandem: --proposer chain is now called cascade; please use the new name",
                         f"tandem: --proposer cascade needs --draft-model: a small model with the vocabulary of {MODEL}"])

    def test_a_failed_start_gives_the_reason_in_one_sentence(self):
        with socket.socket() as taken, tempfile.NamedTemporaryFile() as junk:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assertEqual(refusal("--port", str(port)),
                             (f"tandem: port {port} is taken; choose another with --port", 1))
            self.assertEqual(refusal("--model", "/no/such.gguf"), ("tandem: there is no model file /no/such.gguf", 1))
            self.assertEqual(refusal("--model", junk.name), (f"tandem: {junk.name} is not a GGUF file", 1))
        self.assertEqual(refusal("--proposer", "oracle"), ('tandem: --proposer must be none, ngram, suffix, draft or cascade, not "oracle"', 1))
        self.assertEqual(refusal("--proposer", "draft", "--model", MODEL)[0],
                         f"tandem: --proposer draft needs --draft-model: a small model with the vocabulary of {MODEL}")
        self.assertEqual(refusal("--proposer", "draft", "--draft-quantize", "q2")[0],
                         'tandem: --draft-quantize must be no, q8_0 or q4_0, not "q2"')
        self.assertEqual(refusal("--port", "0"), ('tandem: --port must be 1..65535, not "0"', 1))

    def test_a_key_is_shown_once_and_its_line_holds_the_digest(self):
        run = subprocess.run([os.path.join(ROOT, "tandem"), "key", "alice", "rate=60"], capture_output=True, text=True)
        key = run.stderr.split()[-1]
        self.assertRegex(key, "^sk-[0-9a-f]{48}$")
        self.assertEqual(run.stdout.split(), ["alice", "sha256:" + hashlib.sha256(key.encode()).hexdigest(), "rate=60"])
        for args in [[], ["a b"], ["alice", "rate=x"]]:
            self.assertEqual(subprocess.run([os.path.join(ROOT, "tandem"), "key", *args], capture_output=True).returncode, 1)

    def test_a_model_that_may_not_be_read_is_refused(self):
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []  # root can read every file
        if subprocess.run([*nobody, "test", "-x", os.path.join(ROOT, "tandem")]).returncode:
            self.skipTest("nobody cannot run ./tandem here")
        with tempfile.NamedTemporaryFile() as closed:
            os.chmod(closed.name, 0)
            self.assertEqual(refusal("--model", closed.name, prefix=nobody),
                             (f"tandem: the model file {closed.name} cannot be read", 1))

    def test_a_model_larger_than_the_memory_is_refused(self):
        with tempfile.NamedTemporaryFile() as huge:
            huge.write(b"GGUF")
            huge.truncate(2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))  # sparse
            need_mib = os.path.getsize(huge.name) >> 20
            line, code = refusal("--model", huge.name, "--port", str(free_port()))
            self.assertRegex(line, rf"^tandem: too little memory: the model needs {need_mib} MiB and \d+ MiB are free$")
            self.assertEqual(code, 1)
            line, code = refusal("--proposer", "draft", "--draft-model", huge.name, "--port", str(free_port()))
            self.assertRegex(line, rf"^tandem: too little memory: the model needs 11 MiB, the draft model {need_mib} and \d+ MiB are free$")
            self.assertEqual(code, 1)

    def test_both_models_are_counted_before_the_second_is_loaded(self):
        if os.path.basename(BIN) in ("asan", "tsan"):
            self.skipTest("left out: with a sanitizer a service reserves more than the machine has, which counts for nothing")
        with open("/proc/meminfo") as info:
            free_kib = int(re.search(r"MemAvailable: +(\d+)", info.read()).group(1))
        with tempfile.TemporaryDirectory() as folder:
            up = subprocess.run([os.path.join(ROOT, "tandem"), "up", "--proposer", "draft", "--port", str(free_port())],
                                env={**os.environ, "TANDEM_BIN": BIN, "TANDEM_KV_MIB": str(free_kib * 6 // 10240),
                                     "TANDEM_DRAFT_KV_MIB": str(free_kib * 6 // 10240), "TMPDIR": folder}, cwd=ROOT,
                                capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
        self.assertRegex(up.stderr, r"tandem: proposer-svc did not start: not enough memory: \d+ MiB needed .*, \d+ MiB available "
                                    r"beside \d+ that other services here have reserved; draft.kv_mib=\d+ would fit")
        self.assertEqual(up.returncode, 1)

    def test_a_damaged_model_is_refused_by_the_verifier_and_nothing_is_left_running(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as cut:
            with open(MODEL, "rb") as whole:
                cut.write(whole.read(200000))
            cut.flush()
            line, code = refusal("--model", cut.name, "--port", str(free_port()))
            self.assertRegex(line, r"^tandem: verifier-svc did not start: .*" + re.escape(os.path.basename(cut.name)))
            self.assertEqual(code, 1)
            left = subprocess.run(["pgrep", "-f", cut.name], capture_output=True, text=True)
            self.assertEqual(left.stdout, "")


if __name__ == "__main__":
    unittest.main()
