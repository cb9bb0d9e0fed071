"""Who may call what: certificates, sockets and TCP against each method; and where services refuse to listen."""
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_systemd import BIN, LIMIT_S, MODEL, Managed, Reader, tcp_listener, unix_listener  # noqa: E402
from test_tls import Folder  # noqa: E402

SETS = "/tandem.v1.Verifier/SetSpeculation"
STATS = "/tandem.v1.Stats/GetStats"
DRAFTS = ["/tandem.v1.Proposer/Describe", "/tandem.v1.Proposer/Draft"]
GENERATES = [f"/tandem.v1.Verifier/{m}" for m in ["Generate", "Verify", "GetModel", "Tokenize", "Detokenize"]]
HEALTH = "/grpc.health.v1.Health/Check"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # of HTTP/2, and empty SETTINGS
# certificate: the methods that it may call besides health
AT_VERIFIER = {"client": GENERATES, "gateway": [*GENERATES, STATS], "verifier": [], "proposer": [],
               "operator": [*GENERATES, STATS, SETS], None: []}
AT_PROPOSER = {"client": [], "gateway": [], "verifier": [*DRAFTS, STATS], "proposer": [], "operator": [STATS], None: []}


class Roles(Folder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.certs = {role: cls.ours.sign(str(role), role=role) for role in AT_VERIFIER}
        cls.certs["mapped"] = cls.ours.sign("mapped", host="DNS:ops.example.org")
        cls.certs["mapped-cn"] = cls.ours.sign("mapped-cn", subject="ops")
        cls.certs["mapped-uri"] = cls.ours.sign("mapped-uri", host="URI:urn:ops")
        cls.certs["dns"] = cls.ours.sign("dns", host="DNS:tandem://operator")
        cls.certs["cn"] = cls.ours.sign("cn", subject=r"tandem:\/\/operator")
        cls.certs["email"] = cls.ours.sign("email", host="email:tandem://operator")

        def tls(role):
            cert, key = cls.certs[role]
            return ["--rpc-tls-cert", cert, "--rpc-tls-key", key, "--rpc-tls-ca", cls.ours.ca]

        cls.tls = tls
        proposer = cls.service("proposer-svc", "--listen", f"127.0.0.1:0,unix:{cls.path('proposer.sock')}",
                               "--admin-listen", f"unix:{cls.path('proposer-admin.sock')}", *tls("proposer"))
        cls.proposer_port = proposer.wait(r"listening .*port=(\d+)").group(1)
        cls.verifier = cls.service("verifier-svc", "--listen", f"127.0.0.1:0,unix:{cls.path('verifier.sock')}", "--model", MODEL,
                                   "--admin-listen", f"unix:{cls.path('verifier-admin.sock')}", "--tls-roles",
                                   "ops.example.org=operator,ops=operator,urn:ops=operator", *tls("verifier"))
        cls.port = cls.verifier.wait(r"listening .*port=(\d+)").group(1)
        cls.verifier.wait("model ready")

    def call(self, target, role, methods):
        """The status and the text of each method, by the certificate of a role; role "": without TLS."""
        tls = [*self.certs[role], self.ours.ca] if role != "" else ["", "", ""]
        tool = subprocess.run([os.path.join(BIN, "tests", "call_tool"), target, *tls, *methods], check=False,
                              capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(tool.returncode, 0, tool.stderr)
        out = tool.stdout
        answers = {line.split(" ")[0]: line.split(" ", 2)[1:] for line in out.splitlines()}
        self.assertEqual(list(answers), methods, out)
        return answers

    def check(self, target, role, methods, allowed, name=None):
        for method, (status, text) in self.call(target, role, methods).items():
            if method == HEALTH:
                self.assertEqual(status, "OK", text)
            elif method in allowed:
                self.assertNotIn(status, ["PERMISSION_DENIED", "UNIMPLEMENTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"],
                                 (role, method, text))
            else:
                self.assertEqual(status, "PERMISSION_DENIED", (role, method, text))
                self.assertRegex(text, f"^the role of this client is {name or role or 'none'}; {method} is for the role [a-z ]+; "
                                       "connect with a certificate of that role \\(SAN tandem://ROLE, or tls_roles of this service\\), or over "
                                       + ("the socket of admin_listen$" if method == SETS else "a unix socket as the user of this service$"))

    def test_certificates_call_what_their_role_may(self):
        for role, allowed in AT_VERIFIER.items():
            self.check(f"127.0.0.1:{self.port}", role, [*GENERATES, STATS, SETS, HEALTH], allowed)
        for role, allowed in AT_PROPOSER.items():
            self.check(f"127.0.0.1:{self.proposer_port}", role, [*DRAFTS, STATS, HEALTH], allowed)
        self.verifier.wait(f"call refused method={SETS} role=proposer from=ipv4:127.0.0.1:")

    def connect(self, role, port):
        """A TLS connection to a verifier that sends its own frames."""
        context = ssl.create_default_context(cafile=self.ours.ca)
        context.check_hostname = False
        context.load_cert_chain(*self.certs[role])
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", int(port)), LIMIT_S) as plain:
            return context.wrap_socket(plain)

    def test_calls_of_a_certificate_have_a_rate(self):
        """8,192 at a time, and 8,000 per second; of a service more. The other side reads frames far faster."""
        verifier = self.service("verifier-svc", "--listen", "127.0.0.1:0", "--model", MODEL, "--tls-roles", "urn:ops=operator",
                                *type(self).tls("verifier"))
        port = verifier.wait(r"listening .*port=(\d+)").group(1)
        frames = [bytes([0, 0, 1, 1, 5]) + stream.to_bytes(4, "big") + b"\x83" for stream in range(1, 800001, 2)]
        ping, pong = [bytes([0, 0, 8, 6, ack, 0, 0, 0, 0]) + b"tandem 1" for ack in [0, 1]]
        for role in ["gateway", "mapped-uri"]:
            with self.connect(role, port) as c:
                c.sendall(PREFACE + b"".join(frames[:20000]) + ping)
                got = b""
                while pong not in got:
                    part = c.recv(65536)
                    self.assertTrue(part, role)
                    got = got[-len(pong):] + part
        with self.connect("client", port) as c, self.assertRaises((ConnectionError, ssl.SSLError)):
            c.sendall(PREFACE)
            for i in range(0, len(frames), 1000):
                c.sendall(b"".join(frames[i:i + 1000]))

    def test_an_endless_header_ends_a_tls_connection(self):
        field = b"\0\x01a\x7f\x80\x80\x80\x04"  # its value has 8 MiB
        header = bytes([0, 0, len(field), 1, 0, 0, 0, 0, 1]) + field
        part = bytes([0, 0, 1, 9, 0, 0, 0, 0, 1]) + b"a"
        with self.connect("client", self.port) as c:
            c.sendall(PREFACE + header + 9 * part)
            try:
                while c.recv(65536):
                    pass
            except (ConnectionError, ssl.SSLError):
                pass  # the server does not end the TLS session first
        self.verifier.wait("connection ended, its peer sends an endless header.*from=TLS reason=frames")
        self.check(f"127.0.0.1:{self.port}", "client", [*GENERATES, HEALTH], GENERATES)

    def test_only_a_uri_san_states_a_role(self):
        """Some authorities sign any DNS name or CN that the owner of the key wants."""
        shown = [subprocess.run(["openssl", "x509", "-in", self.certs[name][0], "-noout", "-text"], check=True, capture_output=True,
                                text=True).stdout for name in ["dns", "cn", "email"]]
        for text, part in zip(shown, ["DNS:tandem://operator", "CN = tandem://operator", "email:tandem://operator"]):
            self.assertIn(part, text)
        for name in ["dns", "cn", "email"]:
            self.check(f"127.0.0.1:{self.port}", name, [*GENERATES, STATS, SETS, HEALTH], [], "none")

    def test_tls_roles_gives_a_role_to_another_name(self):
        for name in ["mapped", "mapped-cn", "mapped-uri"]:
            self.check(f"127.0.0.1:{self.port}", name, [STATS, SETS], [STATS, SETS])
        self.check(f"127.0.0.1:{self.proposer_port}", "mapped", [STATS], [], "none")

    def test_unix_sockets_give_the_role_of_the_socket(self):
        verifier, proposer = f"unix:{self.path('verifier')}", f"unix:{self.path('proposer')}"
        self.check(verifier + ".sock", "", [*GENERATES, STATS, SETS, HEALTH], AT_VERIFIER["gateway"], "gateway")
        self.check(verifier + "-admin.sock", "", [*GENERATES, STATS, SETS, HEALTH], AT_VERIFIER["operator"])
        self.check(proposer + ".sock", "", [*DRAFTS, STATS, HEALTH], AT_PROPOSER["verifier"])
        self.check(proposer + "-admin.sock", "", [*DRAFTS, STATS, HEALTH], AT_PROPOSER["operator"], "operator")
        self.assertEqual(stat.S_IMODE(os.stat(self.path("verifier-admin.sock")).st_mode), 0o600)

    def test_another_user_at_the_socket_is_a_client(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        os.chmod(self.path("verifier.sock"), 0o666)
        self.addCleanup(os.chmod, self.path("verifier.sock"), 0o600)
        mode = stat.S_IMODE(os.stat(self.folder).st_mode)
        os.chmod(self.folder, 0o711)
        self.addCleanup(os.chmod, self.folder, mode)
        tool = self.path("call_tool")
        subprocess.run(["cp", os.path.join(BIN, "tests", "call_tool"), tool], check=True)
        os.chmod(tool, 0o755)
        out = subprocess.run([tool, f"unix:{self.path('verifier.sock')}", "", "", "", STATS, HEALTH], check=True, capture_output=True,
                             text=True, timeout=LIMIT_S, user=12345, group=12345, extra_groups=[]).stdout
        self.assertIn(f"{STATS} PERMISSION_DENIED the role of this client is client", out)
        self.assertIn(f"{HEALTH} OK", out)

    def passed(self, name, listeners, names, *args):
        """Starts a service with passed sockets. Returns it and the reader of its log."""
        read, write = os.pipe()
        service = Managed(self.folder, name, listeners, *args, stderr=write, names=names)
        os.close(write)
        log_text = Reader(os.fdopen(read, encoding="utf-8"))
        self.addCleanup(log_text.close)
        self.addCleanup(service.close)
        return service, log_text

    def test_a_passed_socket_named_admin_is_for_operators(self):
        paths = [self.path("passed.sock"), self.path("passed-admin.sock")]
        _, log_text = self.passed("verifier-svc", [unix_listener(p) for p in paths], "tandem-verifier@x.socket:admin", "--model", MODEL,
                              "--admin-listen", f"unix:{self.path('unused-admin.sock')}")
        log_text.wait("model ready")
        self.assertFalse(os.path.exists(self.path("unused-admin.sock")))
        self.check(f"unix:{paths[0]}", "", [SETS, STATS], [STATS], "gateway")
        self.check(f"unix:{paths[1]}", "", [SETS, STATS], [SETS, STATS])

    def test_a_plain_tcp_address_that_others_can_reach_is_refused(self):
        sentence = "cannot listen on 0.0.0.0:0: other machines can reach it, and there is no TLS; set rpc_tls_cert"
        self.assertIn(sentence, self.refused("verifier-svc", "--model", MODEL, "--listen", "0.0.0.0:0"))
        self.assertIn(sentence, self.refused("proposer-svc", "--listen", "0.0.0.0:0"))
        self.assertIn("other machines can reach it", self.refused("verifier-svc", "--model", MODEL, "--listen", "127.a.example:0"))

    def test_a_passed_tcp_socket_that_others_can_reach_is_refused(self):
        for name, args in [("verifier-svc", ["--model", MODEL]), ("proposer-svc", [])]:
            service, log_text = self.passed(name, [tcp_listener("0.0.0.0")], "", *args)
            log_text.wait("other machines can reach it, and there is no TLS")
            self.assertEqual(service.process.wait(LIMIT_S), 1)

    def test_insecure_listen_permits_it_and_gives_no_operator(self):
        verifier = self.service("verifier-svc", "--model", MODEL, "--listen", "0.0.0.0:0", "--insecure-listen")
        port = verifier.wait(r"listening .*port=(\d+)").group(1)
        self.assertIn("insecure_listen: any client that can connect to 0.0.0.0:0", verifier.log_text())
        self.check(f"127.0.0.1:{port}", "", [SETS, STATS, HEALTH], [STATS], "gateway")

    def test_plain_tcp_on_loopback_gives_the_role_client(self):
        verifier = self.service("verifier-svc", "--model", MODEL, "--listen", "127.0.0.1:0")
        port = verifier.wait(r"listening .*port=(\d+)").group(1)
        self.check(f"127.0.0.1:{port}", "", [*GENERATES, SETS, STATS, HEALTH], GENERATES, "client")

    def test_a_proposer_on_plain_loopback_tcp_would_serve_nobody_so_it_is_refused(self):
        self.assertIn("every user of this machine can reach it", self.refused("proposer-svc", "--listen", "127.0.0.1:0"))
        proposer = self.service("proposer-svc", "--listen", "127.0.0.1:0", "--insecure-listen")
        port = proposer.wait(r"listening .*port=(\d+)").group(1)
        self.check(f"127.0.0.1:{port}", "", [*DRAFTS, STATS], AT_PROPOSER["verifier"])

    def test_bad_settings_are_named(self):
        self.assertIn("tls_roles: g1=boss is not NAME=ROLE", self.refused("proposer-svc", "--tls-roles", "g1=boss"))
        self.assertIn("admin_listen: 127.0.0.1:9 is not unix:/path",
                      self.refused("proposer-svc", "--listen", f"unix:{self.path('x.sock')}", "--admin-listen", "127.0.0.1:9"))

    def test_a_plain_client_off_loopback_warns_once_per_target(self):
        """Each name is one connection. The warning for the last target comes after all others."""
        hosts = ["a=192.0.2.1:7", "b=192.0.2.1:7", "c=unix:/nowhere.sock", "d=127.0.0.1:9", "e=192.0.2.1:7", "f=192.0.2.2:7"]  # RFC 5737
        verifier = self.service("verifier-svc", "--model", MODEL, "--listen", f"unix:{self.path('warns.sock')}",
                                "--proposers", ",".join(hosts))
        verifier.wait("connecting without TLS target=192.0.2.2:7")
        self.assertEqual(re.findall(r"connecting without TLS target=([^:]*:\d*):", verifier.log_text()), ["192.0.2.1:7", "192.0.2.2:7"])


if __name__ == "__main__":
    unittest.main()
