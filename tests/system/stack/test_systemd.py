"""The services as a service manager sees them: units, passed sockets, notifications, watchdog.

No service manager runs here: the test holds the sockets, passes LISTEN_FDS and reads NOTIFY_SOCKET itself.
"""
import fcntl
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
MODEL = os.path.join(ROOT, "models", "tales-1m-q8_0.gguf")
SLOW_MODEL = os.path.join(ROOT, "models", "tales-11m-q8_0.gguf")
SANITIZED = bool(re.search("asan|tsan", BIN))
LIMIT_S = 60 * (5 if SANITIZED else 1)
UNITS = ["tandem-gateway", "tandem-verifier@", "tandem-proposer@"]
MOST_EXPOSED = 1.5  # of 10, by systemd-analyze; a service without any hardening has 9.6
ADMIN_SOCKETS = ["tandem-verifier-admin@.socket", "tandem-proposer-admin@.socket"]

# The sockets become descriptors 3 and 4. LISTEN_PID and WATCHDOG_PID must hold $$, which only the child knows.
AS_MANAGER = 'exec 3<&$1; [ $1 = $2 ] || exec 4<&$2; shift 2; export LISTEN_PID=$$ WATCHDOG_PID=$$; exec "$@"'

# Runs in a separate mount namespace, where the test provides the journal's socket. Starts a service whose standard error is
# "the journal". Prints the entries up to "listening on", and the text on standard error.
AS_JOURNAL = r'''
import json, os, socket, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
os.makedirs("/run/systemd/journal")
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.bind("/run/systemd/journal/socket")
journal.settimeout(60)
with open("/run/stderr", "w+") as stderr:
    s = os.fstat(stderr.fileno())
    service = subprocess.Popen(sys.argv[1:], stderr=stderr, env={**os.environ, "JOURNAL_STREAM": f"{s.st_dev}:{s.st_ino}"})
    entries = []
    while not entries or not entries[-1]["MESSAGE"].startswith("listening on"):
        entries.append(dict(line.split("=", 1) for line in journal.recv(65536).decode().splitlines()))
    service.terminate()
    service.wait()
    stderr.seek(0)
    print(json.dumps([entries, stderr.read()]))
'''


class Managed:
    """One service with its listening sockets passed as descriptors 3 and 4, and its notifications to the manager.

    listener: a socket, or a list of one or two. names: theirs, with ":" between them; "": none."""

    def __init__(self, folder, name, listener, *args, watchdog_s=1.0, cpu="", stderr=None, names=""):
        self.listeners = listener if isinstance(listener, list) else [listener]
        self.listener = self.listeners[0]
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = os.path.join(folder, f"notify-{time.monotonic_ns()}")
        self.notify.bind(path)
        self.messages, self.queue = [], queue.Queue()
        self.keep_alives = []  # times of the keep-alives of the watchdog
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        fds = [fcntl.fcntl(s.fileno(), fcntl.F_DUPFD_CLOEXEC, 20) for s in self.listeners]  # neither 3 nor 4
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", AS_MANAGER, "sh", str(fds[0]), str(fds[-1]), os.path.join(BIN, name), *args], pass_fds=fds,
            stderr=stderr, env={**os.environ, **({"LISTEN_FDNAMES": names} if names else {}), "LISTEN_FDS": str(len(fds)), "NOTIFY_SOCKET": path, "TANDEM_CPU": cpu,
                 "WATCHDOG_USEC": str(int(watchdog_s * 1e6))})
        for fd in fds:
            os.close(fd)

    def read(self):
        """Reads without pause, like a manager: a full socket would block the service."""
        while text := self.notify.recv(65536).decode():
            if re.search(r"^WATCHDOG=1$", text, re.M):
                self.keep_alives.append(time.monotonic())
            self.queue.put(text)

    def wait(self, pattern, limit_s=LIMIT_S):
        """Waits for the next message that matches. Keeps all messages."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            try:
                text = self.queue.get(timeout=0.1)
            except queue.Empty:
                if ended:
                    break
                continue
            self.messages.append(text)
            if re.search(pattern, text, re.M):
                return text
        raise AssertionError(f"no {pattern} within {limit_s} s, but {self.messages}")

    def stop(self, limit_s=LIMIT_S):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit_s)
        finally:
            self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.reader.is_alive():
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
                s.sendto(b"", self.notify.getsockname())
            self.reader.join()
        self.notify.close()
        for s in self.listeners:
            s.close()


class Reader:
    """Reads a pipe without pause: a full pipe would block its writer."""

    def __init__(self, pipe):
        self.pipe, self.text, self.changed = pipe, "", threading.Condition()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.pipe:
            with self.changed:
                self.text += line
                self.changed.notify_all()

    def wait(self, text):
        with self.changed:
            if not self.changed.wait_for(lambda: text in self.text, LIMIT_S):
                raise AssertionError(f"no {text!r} in: {self.text}")

    def close(self):
        self.thread.join()
        self.pipe.close()


def unix_listener(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.bind(path)
    s.listen(64)
    return s


def tcp_listener(host="127.0.0.1"):
    s = socket.socket()
    s.bind((host, 0))
    s.listen(64)
    return s


def post(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.load(answer)


class Notifications(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tandem-systemd-")
        self.addCleanup(shutil.rmtree, self.folder)

    def managed(self, *args, **how):
        service = Managed(self.folder, *args, **how)
        self.addCleanup(service.close)
        return service

    def path(self, name):
        return os.path.join(self.folder, name)

    def verifier(self, *args):
        return self.managed("verifier-svc", unix_listener(self.path("verifier.sock")), "--model", MODEL, *args)

    def check_notifications(self, service, reload=True):
        """One READY=1, keep-alives while idle and after a reload, and STOPPING=1 at the end."""
        service.wait(r"^READY=1$")
        if reload:
            service.process.send_signal(signal.SIGHUP)
        for _ in range(3):
            service.wait(r"^WATCHDOG=1$", 5)
        service.process.send_signal(signal.SIGTERM)
        service.wait(r"^STOPPING=1$")
        self.assertEqual(service.process.wait(LIMIT_S), 0)
        self.assertEqual(sum("READY=1" in m for m in service.messages), 1)

    def test_a_proposer_takes_a_passed_socket_and_notifies(self):
        self.check_notifications(self.managed("proposer-svc", unix_listener(self.path("proposer.sock"))))

    def test_a_verifier_takes_a_passed_socket_and_notifies(self):
        self.check_notifications(self.verifier())

    def test_a_gateway_takes_a_passed_socket_and_notifies(self):
        """test_handover tests its reload."""
        self.check_notifications(self.managed("gateway", tcp_listener(), "--verifiers", f"unix:{self.path('none.sock')}"), False)

    def test_a_gateway_refuses_sockets_that_it_cannot_serve(self):
        for sockets, says in [([tcp_listener(), tcp_listener()], "2 sockets were passed; the gateway takes one"),
                              ([socket.socket()], "passed descriptor 3 is not a listening stream socket")]:
            gateway = self.managed("gateway", sockets, stderr=subprocess.PIPE)
            self.assertIn(says, gateway.process.stderr.read().decode())
            gateway.process.stderr.close()
            self.assertEqual(gateway.process.wait(LIMIT_S), 1)

    def test_a_verifier_is_ready_only_after_its_model_is_loaded(self):
        verifier = self.verifier()
        verifier.wait(r"^READY=1$")
        before = "".join(verifier.messages[:-1])
        self.assertRegex(before, r"STATUS=.*load", "the service reports loading before READY=1")
        self.assertRegex(before, "EXTEND_TIMEOUT_USEC=", "the service requests more time while loading")
        self.assertEqual(verifier.stop(), 0)

    def long_prefill(self, watchdog_s):
        """Runs a long prompt on the slowest kernels. Returns its start, its end, and the number of keep-alives meanwhile."""
        model, n_words = (MODEL, 400) if SANITIZED else (SLOW_MODEL, 920)
        path = self.path(f"verifier-{watchdog_s}.sock")
        verifier = self.managed("verifier-svc", unix_listener(path), "--model", model, "--threads", "1",
                                "--prefill-chunk", "4", watchdog_s=watchdog_s, cpu="c")
        gateway = self.managed("gateway", tcp_listener(), "--verifiers", f"unix:{path}")
        verifier.wait(r"^READY=1$")
        gateway.wait(r"^READY=1$")
        begun = time.monotonic()
        post(gateway.listener.getsockname()[1], "/v1/completions",
             {"prompt": "once upon a time " * (n_words // 4), "max_tokens": 1})
        ended = time.monotonic()
        self.assertEqual(gateway.stop(), 0)
        self.assertEqual(verifier.stop(), 0)
        return begun, ended, sum(begun < t < ended for t in verifier.keep_alives)

    def test_the_watchdog_gets_keep_alives_inside_a_long_prefill(self):
        """An idle service sends keep-alives by a timer. Here a prompt lasts several watchdog limits on any machine."""
        begun, ended, _ = self.long_prefill(LIMIT_S)
        for _ in range(5):  # until the speed of the machine is about that of the previous run
            limit_s = (ended - begun) / 4
            begun, ended, n_keep_alives = self.long_prefill(limit_s)
            if ended - begun > 2 * limit_s:
                break
        self.assertGreater(ended - begun, 2 * limit_s, "long enough to prove something")
        self.assertGreater(n_keep_alives, 2 * (ended - begun) / limit_s)  # it sends eight keep-alives per limit

    def test_a_passed_socket_outlives_the_service(self):
        with unix_listener(self.path("verifier.sock")) as listener:
            for _ in range(2):
                verifier = self.managed("verifier-svc", listener.dup(), "--model", MODEL)
                verifier.wait(r"^READY=1$")
                self.assertEqual(verifier.stop(), 0)
                self.assertTrue(os.path.exists(self.path("verifier.sock")), "only the manager removes the socket")

    def test_a_stopped_gateway_finishes_the_open_answer_first(self):
        verifier = self.verifier()
        gateway = self.managed("gateway", tcp_listener(), "--verifiers", f"unix:{self.path('verifier.sock')}")
        verifier.wait(r"^READY=1$")
        gateway.wait(r"^READY=1$")
        port = gateway.listener.getsockname()[1]
        body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            answer.readline()
            gateway.process.send_signal(signal.SIGTERM)
            rest = answer.read().decode()
        self.assertTrue(rest.rstrip().endswith("data: [DONE]"), rest[-300:])
        self.assertGreaterEqual(rest.count('"text"'), 399)
        gateway.wait(r"^STOPPING=1$")
        self.assertEqual(gateway.process.wait(LIMIT_S), 0)

    def models(self, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=LIMIT_S) as answer:
            return [m["id"] for m in json.load(answer)["data"]]

    def test_of_two_models_each_is_found_by_its_name(self):
        """As in docs/operating.md: a second verifier on another socket, and both in the list of the gateway."""
        paths = {name: self.path(name + ".sock") for name in ["small", "big"]}
        verifiers = {name: self.managed("verifier-svc", unix_listener(path), "--model", MODEL, "--name", name)
                     for name, path in paths.items()}
        gateway = self.managed("gateway", tcp_listener(), "--verifiers", ",".join(f"unix:{p}" for p in paths.values()))
        port = gateway.listener.getsockname()[1]
        ask = lambda **model: post(port, "/v1/completions", {"prompt": "Once", "max_tokens": 1, **model})["model"]
        for name in paths:
            self.assertEqual(ask(model=name), name)  # waits while that model loads
        self.assertIn(ask(), paths)
        verifiers["big"].process.kill()
        verifiers["big"].process.wait()
        verifiers["big"].listener.close()
        while len(self.models(port)) > 1:
            time.sleep(0.05)  # until the gateway has noticed; limited by the test's timeout
        for name, status in [("big", 503), ("other", 404)]:
            with self.assertRaises(urllib.error.HTTPError) as refused:
                ask(model=name)
            self.assertEqual(refused.exception.code, status, refused.exception.read())
        self.assertEqual(ask(model="small"), "small")

    def test_the_gateway_runs_under_systemd_socket_activate(self):
        with tcp_listener() as s:
            port = s.getsockname()[1]
        process = subprocess.Popen(
            ["systemd-socket-activate", "-l", f"127.0.0.1:{port}", os.path.join(BIN, "gateway"), "--verifiers",
             f"unix:{self.path('none.sock')}"], stderr=subprocess.PIPE, text=True)
        stderr = Reader(process.stderr)
        self.addCleanup(stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        stderr.wait("Listening on")
        with self.assertRaises(urllib.error.HTTPError) as refused:  # the first connection starts the gateway
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=LIMIT_S)
        self.assertEqual(refused.exception.code, 503)
        self.assertEqual("unavailable", json.load(refused.exception)["status"])
        process.terminate()
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = "still running"
        self.assertEqual(code, 0, stderr.text)


class Units(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="tandem-root-")
        subprocess.run(["cmake", "--install", BIN], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "DESTDIR": cls.root})
        with open(os.path.join(BIN, "CMakeCache.txt"), encoding="utf-8") as f:
            cls.prefix = re.search(r"^CMAKE_INSTALL_PREFIX:PATH=/(.*)$", f.read(), re.M).group(1)
        cls.folder = os.path.join(cls.root, "lib/systemd/system")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def test_everything_is_installed(self):
        for path in [*(f"{self.prefix}/libexec/tandem/{name}" for name in ["gateway", "verifier-svc", "proposer-svc"]),
                     f"{self.prefix}/share/tandem/models/tales-11m-q8_0.gguf", f"{self.prefix}/share/doc/tandem/LICENSE",
                     f"{self.prefix}/share/tandem/proto/tandem/v1/verifier.proto",
                     "usr/lib/sysusers.d/tandem.conf", "usr/lib/tmpfiles.d/tandem.conf",
                     *(f"lib/systemd/system/{u}.{kind}" for u in UNITS for kind in ["service", "socket"]),
                     *(f"lib/systemd/system/{u}" for u in ADMIN_SOCKETS),
                     "lib/systemd/system/tandem.target"]:
            self.assertTrue(os.path.exists(os.path.join(self.root, path)), path)

    def test_systemd_analyze_verify_is_clean(self):
        with tempfile.TemporaryDirectory() as folder:  # with ExecStart and Documentation pointing into the scratch root
            names = []
            for name in os.listdir(self.folder):
                with open(os.path.join(self.folder, name), encoding="utf-8") as f:
                    text = re.sub(r"^(ExecStart=|Documentation=file:)/", rf"\1{self.root}/", f.read(), flags=re.M)
                names.append(os.path.join(folder, name.replace("@.", "@x.")))
                with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                    f.write(text)
            run = subprocess.run(["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True,
                                 env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"})
        about_us = [line for line in run.stderr.splitlines() if "tandem" in line]
        self.assertEqual(about_us, [])
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_services_restart_for_ever(self):
        """By default systemd starts a unit at most five times in ten seconds, and its socket fails with it."""
        for unit in UNITS:
            with open(os.path.join(self.folder, f"{unit}.service"), encoding="utf-8") as f:
                head, body = re.split(r"^\[Service\]$", f.read(), flags=re.M)
            self.assertRegex(head, re.compile("^StartLimitIntervalSec=0$", re.M), unit)
            self.assertRegex(body, re.compile("^Restart=always$", re.M), unit)
            self.assertRegex(body, re.compile("^RestartSec=1$", re.M), unit)

    def test_pauses_grow_where_systemd_can(self):
        """systemd before 254, such as that of Debian 12, would ignore these keys with a warning."""
        shown = subprocess.run(["systemd-analyze", "--version"], check=True, capture_output=True, text=True).stdout
        steps = int(re.search(r"\d+", shown).group()) >= 254
        for unit in UNITS:
            with open(os.path.join(self.folder, f"{unit}.service"), encoding="utf-8") as f:
                self.assertEqual(re.findall(r"^Restart(?:Steps|MaxDelaySec)=\S+$", f.read(), re.M),
                                 ["RestartSteps=8", "RestartMaxDelaySec=30"] if steps else [], unit)

    def exposure(self, unit):
        """The exposure level, from 0 to 10."""
        run = subprocess.run(["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True)
        found = re.search(r"exposure level for \S+: ([0-9.]+)", run.stdout)
        self.assertTrue(found, run.stdout + run.stderr)
        return float(found[1])

    def test_services_are_hardened(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("there is no systemd-analyze")
        for unit in UNITS:
            path = os.path.join(self.folder, f"{unit}.service")
            self.assertLessEqual(self.exposure(path), MOST_EXPOSED, unit)
            with open(path, encoding="utf-8") as f:
                weak = os.path.join(self.root, f"{unit}.service")
                with open(weak, "w", encoding="utf-8") as copy:
                    copy.write(re.sub(r"^(Protect|Private)System=.*\n|^SystemCallFilter=.*\n", "", f.read(), flags=re.M))
            self.assertGreater(self.exposure(weak), MOST_EXPOSED, "the level depends on the unit")

    def test_users_and_folders_are_well_formed(self):
        for tool, conf in [("systemd-sysusers", "usr/lib/sysusers.d/tandem.conf"),
                           ("systemd-tmpfiles", "usr/lib/tmpfiles.d/tandem.conf")]:
            if not shutil.which(tool):
                self.skipTest(f"there is no {tool}")
            args = ["--dry-run"] if tool == "systemd-sysusers" else ["--create"]
            run = subprocess.run([tool, *args, f"--root={self.root}", os.path.join(self.root, conf)],
                                 capture_output=True, text=True)
            self.assertNotRegex(run.stderr, r"(?i)invalid|unknown modifier|syntax|failed to parse", run.stderr)


class Journal(unittest.TestCase):
    def test_lines_are_entries_with_fields(self):
        run = subprocess.run(["unshare", "-rm", "/usr/bin/python3", "-c", AS_JOURNAL, os.path.join(BIN, "gateway"), "--listen", "127.0.0.1:0",
                              "--verifiers", "unix:/run/none"], capture_output=True, text=True, timeout=LIMIT_S)
        if "unshare" in run.stderr or "mount" in run.stderr:
            self.skipTest("namespaces are not permitted here")
        self.assertEqual(run.returncode, 0, run.stderr)
        entries, stderr = json.loads(run.stdout)
        self.assertEqual(stderr, "")
        self.assertRegex(entries[-1]["MESSAGE"], r"^listening on 127.0.0.1:\d+, version=")
        self.assertEqual([entries[-1][k] for k in ["PRIORITY", "SYSLOG_IDENTIFIER", "TANDEM_VERIFIERS"]], ["6", "gateway", "1"])
        self.assertNotIn("CODE_FILE", entries[-1])


if __name__ == "__main__":
    unittest.main()
