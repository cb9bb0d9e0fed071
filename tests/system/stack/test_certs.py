"""./tandem certs, and the three hosts of docs/operating.md: their commands and files, as written, on hosts that are namespaces."""
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import tempfile
import time
import unittest

from test_tls import BIN, LIMIT_S, MODEL, ROOT, Folder

TANDEM = os.path.join(ROOT, "tandem")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
HOSTS = ["gateway", "verifier", "proposer"]


def certs(folder, *args):
    return subprocess.run([TANDEM, "certs", *args], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)


def openssl(*args):
    return subprocess.run(["openssl", *args], check=True, capture_output=True, text=True).stdout


def content(path):
    with open(path, "rb") as f:
        return f.read()


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp(prefix="tandem-certs-")
        self.addCleanup(shutil.rmtree, folder)
        self.top, self.folder = folder, os.path.join(folder, "c")

    def path(self, name):
        return os.path.join(self.folder, name)

    def certs(self, *args):
        run = certs(self.top, "c", *args)
        self.assertEqual(run.returncode, 0, run.stderr)

    def names(self, name):
        text = openssl("x509", "-in", self.path(name + ".pem"), "-noout", "-ext", "subjectAltName")
        return re.findall(r"(?:URI|DNS|IP Address):[^,\s]+", text)

    def check(self, name, purpose):
        openssl("verify", "-x509_strict", "-CAfile", self.path("ca.pem"), "-purpose", purpose, self.path(name + ".pem"))

    def test_each_role_gets_a_certificate_of_the_authority(self):
        self.certs("gateway", "verifier=v.example.org,10.0.0.2,::1", "proposer.a=p.example.org", "operator", "client.app")
        self.assertEqual(self.names("gateway"), ["URI:tandem://gateway"])
        self.assertEqual(self.names("verifier"), ["URI:tandem://verifier", "DNS:v.example.org", "IP Address:10.0.0.2",
                                                  "IP Address:0:0:0:0:0:0:0:1"])
        self.assertEqual(self.names("proposer.a"), ["URI:tandem://proposer", "DNS:p.example.org"])
        self.assertEqual(self.names("operator"), ["URI:tandem://operator"])
        self.assertEqual(self.names("client.app"), ["URI:tandem://client"])
        for name in ["gateway", "verifier", "operator", "client.app"]:
            self.check(name, "sslclient")
        for name in ["verifier", "proposer.a"]:
            self.check(name, "sslserver")
        for name, purpose in [("proposer.a", "sslclient"), ("gateway", "sslserver")]:
            with self.assertRaises(subprocess.CalledProcessError) as refused:
                self.check(name, purpose)
            self.assertRegex(refused.exception.stderr, "(?i)unsuitable certificate purpose|unsupported certificate purpose")
        for file in os.listdir(self.folder):
            mode = stat.S_IMODE(os.stat(self.path(file)).st_mode)
            self.assertEqual(mode, 0o600 if file.endswith(".key") else 0o644, file)
        self.assertEqual(stat.S_IMODE(os.stat(self.folder).st_mode), 0o700)

    def test_a_renewal_keeps_authority_and_hosts(self):
        self.certs("verifier=v.example.org,10.0.0.2", "proposer.a=p.example.org", "client.app")
        before = {f: content(self.path(f)) for f in os.listdir(self.folder)}
        names = self.names("verifier")
        self.certs()
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(
            f"{n}.{kind}" for n in ["ca", "gateway", "verifier", "proposer.a", "operator", "client.app"] for kind in ["key", "pem"]))
        self.assertEqual(self.names("verifier"), names)
        for file, old in before.items():
            self.assertEqual(content(self.path(file)) == old, file.startswith("ca."), file)
        self.check("verifier", "sslserver")
        run = certs(self.top, "--days", "5", "c", "verifier=w.example.org")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.names("verifier"), ["URI:tandem://verifier", "DNS:w.example.org"])
        openssl("x509", "-in", self.path("verifier.pem"), "-noout", "-checkend", str(4 * 86400))
        with self.assertRaises(subprocess.CalledProcessError) as ends:
            openssl("x509", "-in", self.path("verifier.pem"), "-noout", "-checkend", str(6 * 86400))
        self.assertIn("Certificate will expire", ends.exception.stdout)

    def test_wrong_arguments_write_nothing(self):
        for args in [["c", "boss"], ["c", "verifier="], ["c", "verifier=a b"], ["c", "verifier=a,URI:tandem://operator"],
                     ["c", "verifier=v\nURI:x"], ["c", "verifier/../x=v"], ["--days", "0", "c"], ["--color", "c"], []]:
            run = certs(self.top, *args)
            self.assertNotEqual(run.returncode, 0, args)
            self.assertTrue(run.stderr, args)
        self.assertEqual(os.listdir(self.top), [])

    def test_half_an_authority_is_not_replaced(self):
        self.certs("gateway")
        for file in ["ca.key", "ca.pem"]:
            old = content(self.path(file))
            os.remove(self.path(file))
            left = set(os.listdir(self.folder))
            run = certs(self.top, "c", "gateway")
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(file, run.stderr)
            self.assertEqual(set(os.listdir(self.folder)), left)
            with open(self.path(file), "wb") as f:
                f.write(old)


class Services(Folder):
    """Services with the certificates of the command, on loopback."""

    def test_services_talk_to_each_other_and_a_proposer_cannot_call_a_verifier(self):
        run = certs(self.folder, "certs")
        self.assertEqual(run.returncode, 0, run.stderr)
        file = lambda name, kind: self.path(f"certs/{name}.{kind}")
        identity = lambda name: ["--rpc-tls-cert", file(name, "pem"), "--rpc-tls-key", file(name, "key"), "--rpc-tls-ca",
                                 self.path("certs/ca.pem")]
        proposer = self.service("proposer-svc", "--listen", "127.0.0.1:0", *identity("proposer"))
        port = proposer.wait(r"listening .*port=(\d+)").group(1)
        verifier = self.service("verifier-svc", "--model", MODEL, "--listen", "127.0.0.1:0", "--proposers",
                                f"dns:///localhost:{port}", *identity("verifier"))
        port = int(verifier.wait(r"listening .*port=(\d+)").group(1))
        gateway = lambda name: self.service("gateway", "--listen", "127.0.0.1:0", "--verifiers", f"dns:///127.0.0.1:{port}",
                                            *identity(name))
        verifier.wait("proposer connected")
        gateway("gateway").wait("verifier ready")
        gateway("operator").wait("verifier ready")
        gateway("proposer").wait("verifier down")
        context = ssl.create_default_context(cafile=self.path("certs/ca.pem"))
        context.load_cert_chain(file("gateway", "pem"), file("gateway", "key"))
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as s:
                self.assertIn(("URI", "tandem://verifier"), s.getpeercert()["subjectAltName"])


# ---- three hosts ----

class Host:
    """A host: a network and a mount namespace with a separate /etc, held by a sleeping process."""

    def __init__(self, prefix, flags):
        self.enter = prefix
        self.process = subprocess.Popen([*prefix, "unshare", *flags, "sh", "-c", "echo ready; exec sleep 3600"],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "PATH": PATH})
        if self.process.stdout.readline() != "ready\n":
            raise unittest.SkipTest(f"namespaces are not permitted here: {self.process.communicate()[1].strip()}")
        user = ["-U", "--preserve-credentials"] if "-U" in flags or "-U" in prefix else []
        self.enter = ["nsenter", "-t", str(self.process.pid), "-m", "-n", *user]

    def run(self, *command, **options):
        run = subprocess.run([*self.enter, *command], capture_output=True, text=True, timeout=LIMIT_S, check=False,
                             env={**os.environ, "PATH": PATH}, **options)
        if run.returncode:
            raise AssertionError(f"{command}: {run.stdout}{run.stderr}")
        return run.stdout

    def end(self):
        self.process.kill()
        self.process.communicate()


class ThreeHosts(unittest.TestCase):
    """The section of the manual, step by step. Not run: systemctl, whose units are stood in for by their files."""

    @classmethod
    def setUpClass(cls):
        if not shutil.which("ip", path=PATH):
            raise unittest.SkipTest("there is no ip (package iproute2)")
        cls.folder = tempfile.mkdtemp(prefix="tandem-hosts-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        with open(os.path.join(ROOT, "docs", "operating.md"), encoding="utf-8") as f:
            manual = f.read()
        cls.text = re.search(r"^### Three hosts, start to end\n(.*?)^#", manual, re.M | re.S)[1]
        cls.operators = re.search(r"^### Operators of several hosts\n(.*?)^#", manual, re.M | re.S)[1]
        flags = ["-m", "-n"] if os.geteuid() == 0 else ["-U", "-r", "-m", "-n"]
        try:
            cls.lab = cls.host([], flags)
        except unittest.SkipTest:
            cls.lab = cls.host([], ["-U", "-r", "-m", "-n"])
        cls.hosts = {name: cls.host(cls.lab.enter, ["-m", "-n"]) for name in HOSTS}
        cls.wire()
        for name, host in cls.hosts.items():
            cls.furnish(name, host)
        cls.services = {}

    @classmethod
    def host(cls, prefix, flags):
        host = Host(prefix, flags)
        cls.addClassCleanup(host.end)
        return host

    @classmethod
    def wire(cls):
        """Two cables: gateway to verifier, verifier to proposer."""
        try:
            for n, (a, b) in enumerate(zip(HOSTS, HOSTS[1:]), 1):
                cls.lab.run("ip", "link", "add", f"w{n}", "netns", str(cls.hosts[a].process.pid), "type", "veth", "peer", "name",
                            f"w{n}", "netns", str(cls.hosts[b].process.pid))
                for host, last in [(a, 1), (b, 2)]:
                    cls.hosts[host].run("ip", "address", "add", f"10.0.{n}.{last}/24", "dev", f"w{n}")
                    cls.hosts[host].run("ip", "link", "set", f"w{n}", "up")
            for host in cls.hosts.values():
                host.run("ip", "link", "set", "lo", "up")
        except AssertionError as e:
            raise unittest.SkipTest(f"virtual networks are not permitted here: {e}") from e

    @classmethod
    def etc(cls, name, *path):
        return os.path.join(cls.folder, f"etc-{name}", *path)

    @classmethod
    def furnish(cls, name, host):
        """/etc with the names of the hosts, and a group `tandem` that exists in every user namespace."""
        os.makedirs(cls.etc(name, "tandem"))
        for file, text in {"hosts": "127.0.0.1 localhost\n10.0.1.1 gateway.example.org\n10.0.2.2 proposer.example.org\n"
                                    f"{'10.0.2.1' if name == 'proposer' else '10.0.1.2'} verifier.example.org\n",
                           "nsswitch.conf": "hosts: files\npasswd: files\ngroup: files\n", "resolv.conf": "",
                           "passwd": "root:x:0:0::/root:/bin/sh\n", "group": "root:x:0:\ntandem:x:0:\n"}.items():
            with open(cls.etc(name, file), "w", encoding="utf-8") as f:
                f.write(text)
        if os.path.isdir("/etc/alternatives"):
            shutil.copytree("/etc/alternatives", cls.etc(name, "alternatives"), symlinks=True)
        host.run("mount", "--bind", cls.etc(name), "/etc")

    # ---- the commands of the section ----

    @classmethod
    def commands(cls, first_word):
        return [shlex.split(line) for line in re.findall(rf"^ {{8}}({re.escape(first_word)} .*)$", cls.text, re.M)]

    def create(self, words):
        run = subprocess.run([TANDEM, *words[1:]], cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(run.returncode, 0, run.stderr)

    def copy(self):
        """Each scp and each ssh with chgrp, to the folder that the host sees as its /etc."""
        for _, option, *files, to in self.commands("scp"):
            host, folder = re.fullmatch(r"root@(\w+)\.example\.org:/etc/(tandem)/", to).groups()
            self.assertEqual(option, "-p")
            for file in files:
                shutil.copy2(os.path.join(self.folder, file), self.etc(host, folder))
        for _, to, *command in self.commands("ssh"):
            if "chgrp" in command[0]:
                self.hosts[to.split("@")[1].split(".")[0]].run("sh", "-c", command[0])

    def write_settings(self):
        for host, path, block in re.findall(r"On (\w+)\.example\.org, `/etc/(tandem/[\w-]+\.env)`:\n\n((?: {8}\S.*\n)+)", self.text):
            with open(self.etc(host, path), "w", encoding="utf-8") as f:
                f.write(re.sub("^ +", "", block, flags=re.M))

    def unit(self, name):
        """The program of a unit, and its environment: its own settings, then those of its file."""
        template, instance = re.fullmatch(r"(tandem-\w+)@?(\w*)\.service", name).groups()
        with open(os.path.join(ROOT, "systemd", f"{template}{'@' if instance else ''}.service.in"), encoding="utf-8") as f:
            text = f.read().replace("%i", instance)
        program = re.search(r"^ExecStart=.*/(\S+)$", text, re.M)[1]
        own = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.M))
        if program == "verifier-svc":
            own["TANDEM_MODEL"] = MODEL  # the embedded model of the installation
        host = template.split("-")[1]
        with open(self.etc(host, re.search(r"^EnvironmentFile=-/etc/(.*)$", text, re.M)[1]), encoding="utf-8") as f:
            own.update(dict(line.split("=", 1) for line in f.read().splitlines()))
        return host, program, own

    def start(self, unit):
        host, program, settings = self.unit(unit)
        log = os.path.join(self.folder, f"{program}.log")
        with open(log, "wb") as f:
            process = subprocess.Popen([*self.hosts[host].enter, os.path.join(BIN, program)], stdout=f, stderr=f,
                                       env={**os.environ, **settings})
        self.addCleanup(self.stop, process)
        self.services[host] = (process, log)

    def stop(self, process):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)

    def wait(self, host, pattern):
        process, path = self.services[host]
        end = time.monotonic() + LIMIT_S
        while True:
            text = content(path).decode()
            if re.search(pattern, text):
                return
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no {pattern!r} in {text}")
            time.sleep(0.05)

    def ask(self):
        """The request of the section. Drafts may be late on a busy machine, so several answers may be needed."""
        end = time.monotonic() + LIMIT_S
        while True:
            answer = json.loads(self.hosts["gateway"].run(*self.commands("curl")[0]))
            drafted = answer["metrics"]["speculative_decoding"]["num_draft_tokens"]
            if drafted or time.monotonic() > end:
                self.assertGreater(drafted, 0, answer)
                return answer["choices"][0]["text"]

    def check_operators(self):
        """The calls of the next section, from the verifier's host, which reaches all services. call_tool stands in for grpcurl."""
        calls = re.findall(r"^    grpcurl -cacert (\S+) -cert (\S+) -key (\S+) .*?(\S+:\d+) (\S+)$", self.operators, re.M)
        self.assertEqual(len(calls), 3)
        for ca, cert, key, target, method in calls:
            files = [os.path.join(self.folder, file) for file in [cert, key, ca]]
            said = self.hosts["verifier"].run(os.path.join(BIN, "tests", "call_tool"), f"dns:///{target}", *files, f"/{method}")
            self.assertEqual(said.split()[:2], [f"/{method}", "OK"], said)

    def test_the_section_as_written(self):
        first, renewal = self.commands("./tandem")
        self.create(first)
        self.copy()
        self.write_settings()
        for _, _, *command in self.commands("ssh"):
            if command[:2] == ["systemctl", "restart"]:
                self.start(command[2])
        self.assertEqual(list(self.services), ["proposer", "verifier", "gateway"])
        self.wait("verifier", "proposer connected")
        self.wait("gateway", "verifier ready")
        text = self.ask()
        self.check_operators()
        with self.assertRaisesRegex(AssertionError, "(?i)could not connect|failed to connect|couldn't connect|unreachable"):
            # The gateway's host has no way to the proposer's.
            self.hosts["gateway"].run("curl", "-sS", "--max-time", "2", "http://proposer.example.org:50052/")
        self.create(renewal)
        self.copy()
        for host in HOSTS:
            self.wait(host, "certificates reloaded")
        self.assertEqual(self.ask(), text)


if __name__ == "__main__":
    unittest.main()
