"""A reload of the gateway hands over to a new process. No request is refused and no stream is cut."""
import ctypes
import http.client
import json
import os
import queue
import re
import shutil
import signal
import ssl
import tempfile
import threading
import time
import unittest

from test_systemd import LIMIT_S, MODEL, Managed, Reader, tcp_listener, unix_listener
from test_tls import Certificates

PR_SET_CHILD_SUBREAPER = 36


def request(connection, port, n, stream):
    """One request on the connection (None: a new one). Returns the connection if it stays open, else None."""
    connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    body = {"prompt": "Once upon a time", "max_tokens": n, "ignore_eos": True, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200 or (stream and not text.endswith("data: [DONE]\n\n")) or '"error"' in text:
        raise AssertionError(f"{answer.status} {text[-300:]}")
    if answer.getheader("Connection", "").lower() == "close":
        connection.close()
        return None
    return connection


def parent_of(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return int(re.search(r"^PPid:\t(\d+)$", f.read(), re.M).group(1))


class Traffic:
    """Requests until the end of the test: on new connections, on one kept connection, and streams."""

    def __init__(self, port):
        self.port, self.errors, self.done, self.ended = port, [], [0, 0, 0], False
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(3)]
        for t in self.threads:
            t.start()

    def run(self, kind):
        connection = None
        try:
            while not self.ended:
                connection = request(connection, self.port, 200 if kind == 2 else 3, kind == 2)
                if kind == 0 and connection:
                    connection.close()
                    connection = None
                self.done[kind] += 1
        except Exception as e:  # the test reports any failure
            self.errors.append(f"{kind}: {e!r}")
        if connection:
            connection.close()

    def wait_answers(self, n):
        """Waits until n more requests of each kind were answered."""
        wanted = [d + n for d in self.done]
        while not self.errors and any(d < w for d, w in zip(self.done, wanted)):
            time.sleep(0.01)

    def end(self):
        self.ended = True
        for t in self.threads:
            t.join()


class Handover(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tandem-handover-")
        self.addCleanup(shutil.rmtree, self.folder)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # as a service manager: grandchildren become children
        path = os.path.join(self.folder, "verifier.sock")
        self.verifier = self.managed("verifier-svc", unix_listener(path), "--model", MODEL)
        self.verifier.wait("^READY=1$")
        self.conf = os.path.join(self.folder, "gateway.conf")
        self.configure()
        self.pids = []
        self.addCleanup(self.kill_successors)
        read, write = os.pipe()
        self.gateway = self.managed("gateway", tcp_listener(), "--verifiers", f"unix:{path}", "--config", self.conf,
                                    stderr=write)
        os.close(write)
        self.log = Reader(os.fdopen(read, encoding="utf-8"))
        self.gateway.wait("^READY=1$")
        self.port = self.gateway.listener.getsockname()[1]

    def managed(self, *args, **how):
        service = Managed(self.folder, *args, **how)
        self.addCleanup(service.close)
        return service

    def configure(self, *lines):
        with open(self.conf, "w", encoding="utf-8") as f:
            f.write("\n".join(["idle_timeout = 2", *lines, ""]))

    def kill_successors(self):
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass

    def hand_over(self, pid):
        """Sends SIGHUP. Returns the new main process when it is ready."""
        os.kill(pid, signal.SIGHUP)
        return self.next_main()

    def next_main(self):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            try:
                text = self.gateway.queue.get(timeout=0.1)
            except queue.Empty:
                continue
            if found := re.search(r"^MAINPID=(\d+)\nREADY=1$", text, re.M):
                self.pids.append(int(found.group(1)))
                self.assertEqual(parent_of(self.pids[-1]), os.getpid(), "a manager stops and watches its own children only")
                return self.pids[-1]
            self.assertNotIn("STOPPING", text, "the service continues")
        raise AssertionError("no MAINPID: " + self.log.text)

    def ended(self, pid):
        """Waits for the end of the process. Returns its exit status."""
        if pid == self.gateway.process.pid:
            return self.gateway.process.wait(LIMIT_S)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_under_traffic_no_request_is_refused_and_no_stream_cut(self):
        traffic = Traffic(self.port)
        self.addCleanup(traffic.end)
        pid = self.gateway.process.pid
        for threads in ["2", "3"]:  # settings are read again
            traffic.wait_answers(3)
            self.configure(f"http_threads = {threads}")
            successor = self.hand_over(pid)
            self.assertNotEqual(successor, pid)
            traffic.wait_answers(3)
            self.assertEqual(self.ended(pid), 0)
            with open(f"/proc/{successor}/cmdline", encoding="utf-8") as f:
                self.assertIn(self.conf, f.read())
            pid = successor
        traffic.wait_answers(3)
        traffic.end()
        self.assertEqual(traffic.errors, [])
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(self.ended(pid), 0)

    def test_a_process_that_reaches_no_verifier_yet_does_not_take_over(self):
        path = os.path.join(self.folder, "verifier.sock")
        os.rename(path, path + ".away")  # the connection of the old process stays
        os.kill(self.gateway.process.pid, signal.SIGHUP)
        while f"verifier down target=unix:{path}" not in self.log.text:
            time.sleep(0.01)  # limited by the test's timeout
        for _ in range(20):
            connection = request(None, self.port, 3, False)
            connection.close()
        os.rename(path + ".away", path)
        successor = self.next_main()
        self.assertEqual(self.ended(self.gateway.process.pid), 0)
        request(None, self.port, 3, False).close()
        os.kill(successor, signal.SIGTERM)
        self.assertEqual(self.ended(successor), 0)

    def secure(self, certificates, key):
        """Configures HTTPS with a new certificate, and one known key."""
        cert, private = certificates.sign("gateway")
        with open(os.path.join(self.folder, "keys"), "w", encoding="utf-8") as f:
            f.write(f"somebody {key}\n")
        self.configure(f"tls_cert = {cert}", f"tls_key = {private}", f"api_keys = {f.name}")

    def secure_call(self, certificates, key, path="/v1/models", body=None):
        """Returns a connection that trusts only this authority, and the answer that starts on it."""
        context = ssl.create_default_context(cafile=certificates.ca)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=LIMIT_S)
        connection.request("POST" if body else "GET", path, body and json.dumps(body), {"X-API-Key": key})
        return connection, connection.getresponse()

    def test_certificates_and_keys_change_under_a_running_stream(self):
        old, new = Certificates(self.folder, "old"), Certificates(self.folder, "new")
        self.secure(old, "sk-the-key-of-before")
        pid = self.hand_over(self.gateway.process.pid)
        self.assertEqual(self.ended(self.gateway.process.pid), 0)
        connection, stream = self.secure_call(old, "sk-the-key-of-before", "/v1/completions", {
            "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "stream": True})
        stream.readline()
        self.secure(new, "sk-the-key-from-now-on")
        successor = self.hand_over(pid)
        while self.log.text.count("new process has taken over") < 2:
            time.sleep(0.01)  # until the old process accepts no connections; limited by the test's timeout
        for key, status in [("sk-the-key-from-now-on", 200), ("sk-the-key-of-before", 401)]:
            fresh, answer = self.secure_call(new, key)
            fresh.close()
            self.assertEqual(answer.status, status)
        with self.assertRaises(ssl.SSLCertVerificationError):
            self.secure_call(old, "sk-the-key-from-now-on")
        self.assertTrue(stream.read().endswith(b"data: [DONE]\n\n"))
        connection.close()
        self.assertEqual(self.ended(pid), 0)
        os.kill(successor, signal.SIGTERM)
        self.assertEqual(self.ended(successor), 0)

    def test_a_revoked_key_is_refused_on_a_connection_that_is_kept(self):
        keys = os.path.join(self.folder, "keys")
        with open(self.conf, "w", encoding="utf-8") as f:
            f.write(f"idle_timeout = 60\napi_keys = {keys}\n")
        with open(keys, "w", encoding="utf-8") as f:
            f.write("somebody sk-the-key-of-before\n")
        pid = self.hand_over(self.gateway.process.pid)
        self.assertEqual(self.ended(self.gateway.process.pid), 0)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        self.addCleanup(connection.close)
        with open(keys, "w", encoding="utf-8") as f:
            f.write("somebody sk-the-key-from-now-on\n")
        for status in [200, 401]:
            connection.request("GET", "/v1/models", headers={"X-API-Key": "sk-the-key-of-before"})
            answer = connection.getresponse()
            answer.read()
            self.assertEqual(answer.status, status)
            if status == 200:
                successor = self.hand_over(pid)
                while self.log.text.count("new process has taken over") < 2:
                    time.sleep(0.01)  # until the old process has handed over; limited by the test's timeout
        self.assertEqual(self.ended(pid), 0)
        os.kill(successor, signal.SIGTERM)
        self.assertEqual(self.ended(successor), 0)

    def left(self, max_tokens):
        """The tokens that the key had left for a request, after its reservation if it was served."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        body = json.dumps({"prompt": [1], "max_tokens": max_tokens, "ignore_eos": True})
        connection.request("POST", "/v1/completions", body, {"X-API-Key": "sk-the-key-of-alice"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return int(answer.getheader("x-ratelimit-remaining-tokens"))

    def test_a_reload_keeps_what_a_key_has_used(self):
        self.configure(f"api_keys = {self.folder}/keys", f"usage_file = {self.folder}/usage")
        with open(os.path.join(self.folder, "keys"), "w", encoding="utf-8") as f:
            f.write("alice sk-the-key-of-alice tokens_per_day=1000\n")
        pid = self.hand_over(self.gateway.process.pid)
        self.assertEqual(self.ended(self.gateway.process.pid), 0)
        self.assertEqual(self.left(300), 699)
        successor = self.hand_over(pid)
        self.assertEqual(self.ended(pid), 0)
        while self.left(1001) != 699:  # such a request is always refused
            time.sleep(0.01)  # until the successor has read the file again; limited by the test's timeout
        os.kill(successor, signal.SIGTERM)
        self.assertEqual(self.ended(successor), 0)

    def test_a_reload_while_one_starts_is_not_lost(self):
        self.gateway.process.send_signal(signal.SIGHUP)
        self.log.wait("new process started")  # not ready yet, or the old process forwards the next SIGHUP
        self.gateway.process.send_signal(signal.SIGHUP)
        successor = self.next_main()
        last = self.next_main()
        self.assertEqual(self.ended(self.gateway.process.pid), 0)
        self.assertEqual(self.ended(successor), 0)
        request(None, self.port, 3, True).close()
        os.kill(last, signal.SIGTERM)
        self.assertEqual(self.ended(last), 0)

    def test_a_reload_while_one_fails_is_not_lost(self):
        self.configure("http_threads = many")
        self.gateway.process.send_signal(signal.SIGHUP)
        self.log.wait("http_threads")
        self.configure("http_threads = 2")
        self.gateway.process.send_signal(signal.SIGHUP)
        successor = self.next_main()
        self.assertEqual(self.ended(self.gateway.process.pid), 0)
        os.kill(successor, signal.SIGTERM)
        self.assertEqual(self.ended(successor), 0)

    def stop_while_the_old_one_streams(self):
        """Stops the new process while a stream of the old one is blocked. Returns the stream and the new process."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        self.addCleanup(connection.close)
        body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        stream = connection.getresponse()
        self.assertEqual(stream.status, 200)
        self.verifier.process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.verifier.process.send_signal, signal.SIGCONT)
        successor = self.hand_over(self.gateway.process.pid)
        os.kill(successor, signal.SIGTERM)
        self.log.wait("the previous process finishes its requests")
        self.assertIsNone(self.gateway.process.poll())
        return stream, successor

    def test_a_stop_waits_for_the_streams_of_both(self):
        stream, successor = self.stop_while_the_old_one_streams()
        self.verifier.process.send_signal(signal.SIGCONT)
        self.assertTrue(stream.read().endswith(b"data: [DONE]\n\n"))
        self.assertEqual(self.ended(successor), 0)
        self.assertEqual(self.gateway.process.poll(), 0, "the manager kills processes that are left after its main process")

    def test_a_second_signal_ends_the_streams_of_both(self):
        stream, successor = self.stop_while_the_old_one_streams()
        os.kill(successor, signal.SIGTERM)
        self.assertIn(b'"error"', stream.read())
        self.assertEqual(self.ended(successor), 0)
        self.assertEqual(self.gateway.process.poll(), 0)

    def test_the_new_process_is_watched(self):
        pid = self.hand_over(self.gateway.process.pid)
        self.assertEqual(self.ended(self.gateway.process.pid), 0)
        n_before = len(self.gateway.keep_alives)
        end = time.monotonic() + LIMIT_S
        while len(self.gateway.keep_alives) < n_before + 3 and time.monotonic() < end:
            time.sleep(0.01)
        self.assertGreaterEqual(len(self.gateway.keep_alives), n_before + 3)
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(self.ended(pid), 0)

    def test_a_new_process_that_cannot_start_changes_nothing(self):
        self.configure("http_threads = many")
        self.gateway.process.send_signal(signal.SIGHUP)
        self.log.wait("ended before it was ready")
        self.assertIn("http_threads", self.log.text)
        self.assertIsNone(self.gateway.process.poll())
        connection = request(None, self.port, 3, True)
        connection.close()
        self.configure("http_threads = 2")
        pid = self.hand_over(self.gateway.process.pid)
        self.assertEqual(self.ended(self.gateway.process.pid), 0)
        request(None, self.port, 3, True).close()
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(self.ended(pid), 0)


if __name__ == "__main__":
    unittest.main()
