"""Certificates that change while the services run: by file, by SIGHUP, with faults, and to another authority."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import threading
import time
import unittest

from test_tls import LIMIT_S, MODEL, Certificates, Folder

BODY = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}


def until(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen")
        time.sleep(0.02)


def shown(port, context):
    """The serial number of the certificate that a server shows on a new connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as s:
            return s.getpeercert()["serialNumber"]


class Stream:
    """A streamed answer that is read slowly: its connections stay open until end()."""

    def __init__(self, connection):
        self.connection = connection
        connection.request("POST", "/v1/completions", json.dumps(BODY))
        self.answer = connection.getresponse()
        self.begun = self.answer.read1(64)

    def end(self):
        text = (self.begun + self.answer.read()).decode()
        self.connection.close()
        if not text.endswith("data: [DONE]\n\n") or "error" in text:
            raise AssertionError(text[-300:])
        return "".join(json.loads(e)["choices"][0]["text"] for e in re.findall(r"^data: (\{.*)$", text, re.M))


class Changing(Folder):
    """Files of a service that a test replaces."""

    def replace(self, name, identity):
        """Puts certificate and key into the files of the service `name`, as an operator does: one after the other."""
        for kind, source in zip(["pem", "key"], identity):
            shutil.copyfile(source, self.path(f"{name}.{kind}.new"))
            os.replace(self.path(f"{name}.{kind}.new"), self.path(f"{name}.{kind}"))

    def trust(self, name, *authorities):
        with open(self.path(f"{name}.ca"), "w", encoding="utf-8") as f:
            for a in authorities:
                with open(a.ca, encoding="utf-8") as source:
                    f.write(source.read())

    @staticmethod
    def reloads(service):
        return len(re.findall("certificates reloaded", service.log_text()))

    def after_reload(self, service, change):
        before = self.reloads(service)
        change()
        until(lambda: self.reloads(service) > before, f"a reload of {service.log}")


class Https(Changing):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        target = f"unix:{cls.path('verifier.sock')}"
        cls.service("verifier-svc", "--model", MODEL, "--listen", target, "--proposers", "none")
        cls.replace(cls, "https", cls.ours.sign("first"))
        cls.gateway = cls.service("gateway", "--listen", "127.0.0.1:0", "--verifiers", target,
                                  "--tls-cert", cls.path("https.pem"), "--tls-key", cls.path("https.key"))
        cls.port = int(cls.gateway.wait(r"listening on 127\.0\.0\.1:(\d+)").group(1))
        cls.gateway.wait("verifier ready")
        cls.context = ssl.create_default_context(cafile=cls.ours.ca)

    def stream(self):
        return Stream(http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=LIMIT_S))

    def test_a_changed_file_is_used_and_running_streams_continue(self):
        old = shown(self.port, self.context)
        running = self.stream()
        self.after_reload(self.gateway, lambda: self.replace("https", self.ours.sign("second")))
        self.assertNotEqual(shown(self.port, self.context), old)
        self.assertEqual(running.end(), self.stream().end())

    def test_sighup_reads_the_files(self):
        before = self.gateway.log_text().count("certificates unchanged")
        self.gateway.process.send_signal(signal.SIGHUP)
        until(lambda: self.gateway.log_text().count("certificates unchanged") > before, "a reload without a change")
        old = shown(self.port, self.context)
        self.replace("https", self.ours.sign("third"))
        self.gateway.process.send_signal(signal.SIGHUP)
        until(lambda: shown(self.port, self.context) != old, "the new certificate")

    def test_a_file_with_a_fault_leaves_the_old_certificate_in_use(self):
        good, other = self.ours.sign("fourth"), self.ours.sign("fifth")
        self.after_reload(self.gateway, lambda: self.replace("https", good))
        old = shown(self.port, self.context)
        faults = [(good[0], other[1], "is not the key of"), (good[1], good[1], "holds no certificate"),
                  (good[0], good[0], "holds no key")]
        for cert, key, reason in faults:
            before = self.gateway.log_text().count("not reloaded")
            self.replace("https", (cert, key))
            until(lambda: self.gateway.log_text().count("not reloaded") > before, reason)
            self.gateway.wait(f"the old ones stay in use: tls_.*{reason}")
            self.assertEqual(shown(self.port, self.context), old)
        logged = self.gateway.log_text().count("not reloaded")
        time.sleep(3)  # several looks at unchanged files, which log nothing
        self.assertEqual(self.gateway.log_text().count("not reloaded"), logged)
        self.stream().end()
        self.after_reload(self.gateway, lambda: self.replace("https", other))

    def test_metrics_tell_the_end_of_validity(self):
        c = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=LIMIT_S)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        end = re.search(rf'^tandem_certificate_expiry_timestamp_seconds\{{[^}}]*file="{self.path("https.pem")}"[^}}]*\}} (\S+)',
                        text, re.M)
        self.assertLess(abs(float(end[1]) - time.time() - 2 * 86400), 3600)
        self.assertIn("certificate expires soon file=" + self.path("https.pem"), self.gateway.log_text())


class Grpc(Changing):
    """Gateway, verifier and proposer over TCP."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.theirs = Certificates(cls.folder, "theirs")
        for name in ["gateway", "verifier", "proposer"]:
            cls.replace(cls, name, cls.ours.sign(name + "1", role=name))
            cls.trust(cls, name, cls.ours)
        cls.proposer, cls.proposer_port = cls.start_proposer(0)
        cls.verifier, cls.verifier_port = cls.start_verifier(0)
        cls.gateway = cls.service("gateway", "--listen", "127.0.0.1:0", "--verifiers",
                                  f"dns:///localhost:{cls.verifier_port}", *cls.files("gateway"))
        cls.port = int(cls.gateway.wait(r"listening on 127\.0\.0\.1:(\d+)").group(1))
        cls.gateway.wait("verifier ready")
        cls.verifier.wait("proposer connected")

    @classmethod
    def start_proposer(cls, port):
        proposer = cls.service("proposer-svc", "--listen", f"127.0.0.1:{port}", *cls.files("proposer"))
        return proposer, int(proposer.wait(r"listening .*port=(\d+)").group(1))

    @classmethod
    def start_verifier(cls, port):
        verifier = cls.service("verifier-svc", "--model", MODEL, "--listen", f"127.0.0.1:{port}", "--proposers",
                               f"dns:///localhost:{cls.proposer_port}", "--policy", "fixed", "--k", "3", *cls.files("verifier"))
        return verifier, int(verifier.wait(r"listening .*port=(\d+)").group(1))

    @classmethod
    def files(cls, name):
        return [a for kind, setting in [("pem", "cert"), ("key", "key"), ("ca", "ca")]
                for a in [f"--rpc-tls-{setting}", cls.path(f"{name}.{kind}")]]

    def stream(self):
        return Stream(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S))

    def answers(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        c.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 1}))
        status = c.getresponse().status
        c.close()
        return status == 200

    def test_all_services_change_to_another_authority_without_a_failed_request(self):
        """Then the servers restart: clients that had not changed would find no way to them."""
        services = {"gateway": self.gateway, "verifier": self.verifier, "proposer": self.proposer}
        running, texts, stop = self.stream(), [], threading.Event()

        def ask():
            while not stop.is_set():
                texts.append(self.stream().end())

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            for name, service in services.items():
                self.after_reload(service, lambda n=name: self.trust(n, self.ours, self.theirs))
            for name, service in services.items():
                self.after_reload(service, lambda n=name: self.replace(n, self.theirs.sign(n + "2", role=n)))
            for name, service in services.items():
                self.after_reload(service, lambda n=name: self.trust(n, self.theirs))
        finally:
            stop.set()
            asking.join()
        texts += [running.end(), self.stream().end()]
        self.assertEqual(len(set(texts)), 1)
        n_connected = self.verifier.log_text().count("proposer connected")
        self.proposer.stop()
        Grpc.proposer = self.start_proposer(self.proposer_port)[0]
        until(lambda: self.verifier.log_text().count("proposer connected") > n_connected, "the connection to the proposer")
        self.verifier.stop()
        Grpc.verifier = self.start_verifier(self.verifier_port)[0]
        until(self.answers, "the connection to the verifier")
        self.assertEqual(self.stream().end(), texts[0])
        context = ssl.create_default_context(cafile=self.theirs.ca)
        context.load_cert_chain(*self.theirs.sign("client"))
        self.assertTrue(shown(self.verifier_port, context))
        refused = ssl.create_default_context(cafile=self.theirs.ca)
        refused.load_cert_chain(*self.ours.sign("old"))
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            with socket.create_connection(("127.0.0.1", self.verifier_port), timeout=LIMIT_S) as plain:
                with refused.wrap_socket(plain, server_hostname="localhost") as s:
                    s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                    while s.recv(1024):  # TLS 1.3 refuses a client after its handshake
                        pass
                    raise ConnectionError

    def test_a_faulty_file_is_logged_once_and_changes_nothing(self):
        for service, name in [(self.verifier, "verifier"), (self.proposer, "proposer")]:
            with open(self.path(f"{name}.key"), "rb") as f:
                good = f.read()
            with open(self.path(f"{name}.key"), "wb") as f:
                f.write(good[:60])
            service.wait("certificates not reloaded, the old ones stay in use: rpc_tls_key: .* holds no key")
            with open(self.path(f"{name}.key"), "wb") as f:
                f.write(good)
            service.process.send_signal(signal.SIGHUP)
            service.wait("certificates unchanged")
        self.stream().end()


if __name__ == "__main__":
    unittest.main()
