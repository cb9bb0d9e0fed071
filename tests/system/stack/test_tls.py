"""TLS on networks that others may read: HTTPS at the gateway, gRPC between machines. openssl makes the certificates."""
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

from test_systemd import Managed, Reader, tcp_listener, unix_listener

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
CLIENTS = os.environ.get("TANDEM_CLIENTS", os.path.join(ROOT, "build", "clients"))
MODEL = os.path.join(ROOT, "models", "tales-1m-q8_0.gguf")
LIMIT_S = 60 * (5 if re.search("asan|tsan", BIN) else 1)
KEY = "sk-0123456789abcdef"


class Certificates:
    """A certificate authority and its signed certificates."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                     "-subj", f"/CN={name}", "-keyout", self.path("", "key"), "-out", self.path("", "pem"))

    def path(self, name, kind):
        return os.path.join(self.folder, f"{self.name}{name}.{kind}")

    @property
    def ca(self):
        return self.path("", "pem")

    def openssl(self, *args):
        subprocess.run(["openssl", *args], check=True, capture_output=True)

    def sign(self, name, host="DNS:localhost", role=None, subject=None):
        """Certificate and key of a service, on this machine unless another host is named; with this role. subject: its CN."""
        request = self.path(name, "csr")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={subject or name}",
                     "-addext", f"subjectAltName=IP:127.0.0.1,{host}" + (f",URI:tandem://{role}" if role else ""), "-keyout", self.path(name, "key"), "-out", request)
        self.openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.path("", "key"), "-CAcreateserial",
                     "-days", "2", "-copy_extensions", "copy", "-out", self.path(name, "pem"))
        return self.path(name, "pem"), self.path(name, "key")


class Service:
    def __init__(self, folder, name, *args):
        self.log = os.path.join(folder, f"{name}-{time.monotonic_ns()}.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([os.path.join(BIN, name), *args], stdout=log, stderr=log)

    def log_text(self):
        with open(self.log, encoding="utf-8") as f:
            return f.read()

    def wait(self, pattern):
        end = time.monotonic() + LIMIT_S
        while not (found := re.search(pattern, self.log_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no {pattern!r} in {self.log_text()}")
            time.sleep(0.01)
        return found

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not stop: {self.log_text()}") from None


class Folder(unittest.TestCase):
    """A folder, certificates in it, and services that end with the test."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tandem-tls-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.ours = Certificates(cls.folder, "ours")

    @classmethod
    def service(cls, name, *args):
        service = Service(cls.folder, name, *args)
        cls.addClassCleanup(service.stop)
        return service

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name)

    def refused(self, name, *args):
        service = self.service(name, *args)
        self.assertEqual(service.process.wait(LIMIT_S), 1, service.log_text())
        return service.log_text()


class Https(Folder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cert, cls.key = cls.ours.sign("gateway")
        with open(cls.path("keys"), "w", encoding="utf-8") as f:
            f.write(f"alice {KEY}\n")
        os.chmod(cls.path("keys"), 0o600)
        socket_path = f"unix:{cls.path('verifier.sock')}"
        cls.service("verifier-svc", "--model", MODEL, "--listen", socket_path)
        cls.gateway = cls.service("gateway", "--listen", "127.0.0.1:0", "--verifiers", socket_path, "--tls-cert", cls.cert,
                                  "--tls-key", cls.key, "--api-keys", cls.path("keys"), "--request-timeout", "1")
        cls.port = int(cls.gateway.wait(r"listening on 127\.0\.0\.1:(\d+)").group(1))
        cls.gateway.wait("verifier ready")

    def context(self, version=None):
        context = ssl.create_default_context(cafile=self.ours.ca)
        if version:
            context.set_ciphers("DEFAULT@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
        return context

    def connect(self, version=None):
        context = self.context(version)
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=LIMIT_S)

    def stream(self, version=None, n=20):
        c = self.connect(version)
        body = {"prompt": "Once upon a time", "max_tokens": n, "ignore_eos": True, "stream": True, "temperature": 0}
        c.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {KEY}"})
        answer = c.getresponse()
        text = answer.read().decode()
        c.close()
        self.assertEqual(answer.status, 200, text)
        self.assertTrue(text.endswith("data: [DONE]\n\n"), text)
        return "".join(json.loads(e)["choices"][0]["text"] for e in re.findall(r"^data: (\{.*)$", text, re.M))

    def test_a_stream_goes_through_tls_1_2_and_1_3(self):
        texts = [self.stream(v) for v in [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]]
        self.assertGreater(len(texts[0]), 20)
        self.assertEqual(*texts)

    def test_many_streams_go_side_by_side(self):
        texts = []
        threads = [threading.Thread(target=lambda: texts.append(self.stream(n=60))) for _ in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(texts), 16)
        self.assertEqual(len(set(texts)), 1)

    def test_older_versions_are_refused(self):
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.stream(ssl.TLSVersion.TLSv1_1)

    def test_finite_field_groups_are_refused(self):
        """One handshake with them takes the gateway 0.1 s."""
        def shakes_hands(group):
            done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{self.port}", "-tls1_3", "-groups", group, "-CAfile", self.ours.ca],
                                  input=b"", capture_output=True, timeout=LIMIT_S, check=False)
            return b"Cipher is TLS_" in done.stdout
        self.assertEqual([g for g in ["X25519", "P-256", "ffdhe2048", "ffdhe8192"] if shakes_hands(g)], ["X25519", "P-256"])

    def test_a_session_key_is_not_encrypted_by_the_certificates_key(self):
        """Else a thief of the key can read what was recorded before."""
        cert, key = self.path("rsa.pem"), self.path("rsa.key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", cert],
                       check=True, capture_output=True)
        gateway = self.service("gateway", "--listen", "127.0.0.1:0", "--verifiers", "unix:" + self.path("none.sock"), "--tls-cert", cert, "--tls-key", key)
        port = gateway.wait(r"listening on 127.0.0.1:(\d+)").group(1)
        def shakes_hands(cipher):
            done = subprocess.run(["openssl", "s_client", "-connect", "127.0.0.1:" + port, "-tls1_2", "-cipher", cipher, "-CAfile", cert],
                                  input=b"", capture_output=True, timeout=LIMIT_S, check=False)
            return b"Cipher is " + cipher.encode() in done.stdout
        self.assertEqual([c for c in ["ECDHE-RSA-AES128-GCM-SHA256", "AES128-GCM-SHA256", "AES256-SHA"] if shakes_hands(c)], ["ECDHE-RSA-AES128-GCM-SHA256"])

    def test_plain_http_gets_no_answer(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                self.assertNotIn(b"HTTP/1", s.recv(4096))
            except ConnectionResetError:
                pass

    def test_half_a_handshake_takes_no_time(self):
        def ticks():
            with open(f"/proc/{self.gateway.process.pid}/stat", encoding="ascii") as f:
                return sum(map(int, f.read().rpartition(")")[2].split()[11:13]))
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                s = stack.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S))
                s.sendall(b"\x16\x03\x01")
            before = ticks()
            time.sleep(0.5)
            self.assertLess(ticks() - before, 0.3 * os.sysconf("SC_CLK_TCK"))

    def test_half_a_handshake_is_closed(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as s:
            s.sendall(b"\x16\x03\x01\x02\x00\x01")
            self.assertNotIn(b"HTTP/1", s.recv(4096))
        self.stream()

    def test_a_handshake_has_few_bytes_and_a_request_many(self):
        request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: 60000\r\n\r\n" % KEY.encode()
        for version in [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]:
            context = self.context(version)
            context.set_alpn_protocols(20 * ["x" * 250])
            with socket.create_connection(("127.0.0.1", self.port), LIMIT_S) as plain, \
                    context.wrap_socket(plain, server_hostname="127.0.0.1") as s:
                s.sendall(request + b" " * 60000)
                self.assertIn(b"HTTP/1.1 400", s.recv(4096))
            context.set_alpn_protocols(200 * ["x" * 250])
            with socket.create_connection(("127.0.0.1", self.port), LIMIT_S) as plain, self.assertRaises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(plain, server_hostname="127.0.0.1")

    def test_the_openai_client_works_over_tls(self):
        if not os.path.isdir(os.path.join(CLIENTS, "node_modules", "openai")):
            self.skipTest("the npm packages are not there")
        script = """
            const {createRequire} = require('node:module');
            const OpenAI = createRequire(process.argv[1] + '/x.js')('openai').default;
            const client = new OpenAI({baseURL: process.argv[2], apiKey: process.argv[3], maxRetries: 0});
            client.completions.create({model: 'default', prompt: 'Once', max_tokens: 8}).then(
              (a) => console.log('tokens', a.usage.completion_tokens), (e) => console.log(e.status, e.code));"""
        say = lambda key: subprocess.run(
            ["node", "-e", script, CLIENTS, f"https://127.0.0.1:{self.port}/v1", key], capture_output=True, text=True,
            timeout=LIMIT_S, env={**os.environ, "NODE_EXTRA_CA_CERTS": self.ours.ca}).stdout.strip()
        self.assertEqual(say(KEY), "tokens 8")
        self.assertEqual(say("sk-of-somebody-else"), "401 invalid_api_key")

    def test_a_certificate_without_its_key_fails_the_start(self):
        other = self.ours.sign("other")[1]
        args = ["--listen", "127.0.0.1:0", "--verifiers", f"unix:{self.path('verifier.sock')}"]
        self.assertIn("one is missing", self.refused("gateway", *args, "--tls-cert", self.cert))
        self.assertIn("is not the key of", self.refused("gateway", *args, "--tls-cert", self.cert, "--tls-key", other))
        self.assertIn("holds no certificate",
                      self.refused("gateway", *args, "--tls-cert", self.path("keys"), "--tls-key", self.key))
        self.assertIn("cannot read tls_key", self.refused("gateway", *args, "--tls-cert", self.cert, "--tls-key", "/none"))


class Grpc(Folder):
    """Verifier and proposer on TCP, as on different machines. Peers without a certificate of the authority are rejected."""

    @classmethod
    def identity(cls, certificates, name, role="gateway", **host):
        cert, key = certificates.sign(name, role=role, **host)
        return ["--rpc-tls-cert", cert, "--rpc-tls-key", key, "--rpc-tls-ca", cls.ours.ca]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.theirs = Certificates(cls.folder, "theirs")
        proposer = cls.service("proposer-svc", "--listen", "127.0.0.1:0", *cls.identity(cls.ours, "proposer", "proposer"))
        cls.proposer_port = proposer.wait(r"listening .*port=(\d+)").group(1)
        cls.unix = f"unix:{cls.path('verifier.sock')}"
        cls.verifier = cls.service("verifier-svc", "--model", MODEL, "--listen", f"127.0.0.1:0,{cls.unix}", "--proposers",
                                   f"dns:///localhost:{cls.proposer_port}", "--policy", "fixed", "--k", "3",
                                   *cls.identity(cls.ours, "verifier", "verifier"))
        cls.port = cls.verifier.wait(r"listening .*port=(\d+)").group(1)
        cls.identities = cls.identity(cls.ours, "gateway")

    def gateway(self, target, *args):
        gateway = self.service("gateway", "--listen", "127.0.0.1:0", "--verifiers", target, *args)
        return gateway, int(gateway.wait(r"listening on 127\.0\.0\.1:(\d+)").group(1))

    def call(self, port, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        c.request(method, path, body and json.dumps(body))
        answer = c.getresponse()
        text = answer.read().decode()
        c.close()
        return answer.status, json.loads(text)

    def is_served(self, target, *args):
        gateway, port = self.gateway(target, *args)
        gateway.wait("verifier ready")
        status, answer = self.call(port, "POST", "/v1/completions",
                                   {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0})
        self.assertEqual(status, 200, answer)
        return answer["metrics"]["speculative_decoding"]

    def is_not_served(self, target, *args):
        gateway, port = self.gateway(target, *args)
        gateway.wait("verifier down")
        status, answer = self.call(port, "POST", "/v1/completions", {"prompt": "Once"})
        self.assertEqual(status, 503, answer)
        self.is_served(self.unix)  # and other verifiers are served

    def test_services_with_certificates_find_each_other(self):
        self.verifier.wait("proposer connected")
        speculation = self.is_served(f"dns:///localhost:{self.port}", *self.identities)
        self.assertGreater(speculation["num_draft_tokens"], 0, speculation)

    def test_a_unix_socket_stays_plain(self):
        self.is_served(self.unix)
        self.is_served(self.unix, *self.identities)

    def test_a_client_without_a_certificate_is_refused(self):
        self.is_not_served(f"dns:///localhost:{self.port}")

    def test_a_certificate_of_another_authority_is_refused(self):
        self.is_not_served(f"dns:///localhost:{self.port}", *self.identity(self.theirs, "stranger"))

    def test_a_server_of_another_authority_or_name_is_not_trusted(self):
        for identity in [self.identity(self.theirs, "impostor", "verifier"),
                         self.identity(self.ours, "else", "verifier", host="DNS:elsewhere")]:
            other = self.service("verifier-svc", "--model", MODEL, "--listen", "127.0.0.1:0", "--proposers", "none", *identity)
            port = other.wait(r"listening .*port=(\d+)").group(1)
            self.is_not_served(f"dns:///localhost:{port}", *self.identities)

    def test_a_server_needs_the_role_of_its_service(self):
        """Else a proposer could pose as a verifier, and read all prompts."""
        for role, has in [("proposer", "proposer"), ("gateway", "gateway"), (None, "none")]:
            other = self.service("verifier-svc", "--model", MODEL, "--listen", "127.0.0.1:0", "--proposers", "none",
                                 *self.identity(self.ours, f"as-{role}", role))
            port = other.wait(r"listening .*port=(\d+)").group(1)
            self.is_not_served(f"dns:///localhost:{port}", *self.identities)
            gateway, _ = self.gateway(f"dns:///localhost:{port}", *self.identities)
            gateway.wait(f"server refused target=dns:///localhost:{port}: the role of its certificate is {has}, not verifier; ")
        self.is_served(f"dns:///localhost:{port}", *self.identities, "--tls-roles", "as-None=verifier")  # its CN

    def test_a_proposer_needs_its_role(self):
        other = self.service("proposer-svc", "--listen", "127.0.0.1:0", *self.identity(self.ours, "false", "verifier"))
        port = other.wait(r"listening .*port=(\d+)").group(1)
        verifier = self.service("verifier-svc", "--model", MODEL, "--listen", f"unix:{self.path('other.sock')}", "--proposers",
                                f"dns:///localhost:{port}", *self.identity(self.ours, "careful", "verifier"))
        verifier.wait(f"server refused target=dns:///localhost:{port}: the role of its certificate is verifier, not proposer; ")

    def passed(self, listener, name, *args):
        """Starts a service with a passed listening socket. Returns it and the reader of its log."""
        read, write = os.pipe()
        service = Managed(self.folder, name, listener, *args, *self.identity(self.ours, "passed", "verifier"), stderr=write)
        os.close(write)
        log_text = Reader(os.fdopen(read, encoding="utf-8"))
        self.addCleanup(log_text.close)
        self.addCleanup(service.close)
        return service, log_text

    def test_addresses_are_opened_beside_passed_sockets(self):
        path = self.path("passed.sock")
        _, log_text = self.passed(unix_listener(path), "verifier-svc", "--model", MODEL, "--proposers", "none", "--listen",
                              f"127.0.0.1:0,unix:{self.path('unused.sock')}")
        log_text.wait("model ready")
        port = re.search(r"port=(\d+)", log_text.text).group(1)
        self.assertFalse(os.path.exists(self.path("unused.sock")))
        self.is_served(f"unix:{path}")
        self.is_served(f"dns:///localhost:{port}", *self.identities)

    def test_a_passed_tcp_socket_is_not_served_in_plain(self):
        service, log_text = self.passed(tcp_listener(), "proposer-svc")
        log_text.wait("cannot speak TLS")
        self.assertEqual(service.process.wait(LIMIT_S), 1)

    def test_an_incomplete_identity_fails_the_start(self):
        cert, key = self.ours.sign("one")
        other = self.ours.sign("two")[1]
        for name in ["proposer-svc", "gateway"]:
            start = lambda *args: self.refused(name, "--listen", f"unix:{self.path('none.sock')}", *args)
            self.assertIn("one is missing", start("--rpc-tls-cert", cert))
            self.assertIn("is not the key of", start("--rpc-tls-cert", cert, "--rpc-tls-key", other, "--rpc-tls-ca", self.ours.ca))
            self.assertIn("holds no key", start("--rpc-tls-cert", cert, "--rpc-tls-key", cert, "--rpc-tls-ca", self.ours.ca))
            self.assertIn("rpc_tls_ca: ", start("--rpc-tls-cert", cert, "--rpc-tls-key", key, "--rpc-tls-ca", key))


if __name__ == "__main__":
    unittest.main()
