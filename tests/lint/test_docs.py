"""Documents that repeat parts of the code agree with the code."""
import glob
import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
SERVICES = ["proposer-svc", "verifier-svc", "gateway"]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def linked_libraries():
    """The libraries that the services name themselves, such as libcrypto; the dynamic linker belongs to libc."""
    text = "".join(subprocess.run(["readelf", "-dW", os.path.join(BIN, name)], check=True, capture_output=True, text=True,
                                  env={**os.environ, "LC_ALL": "C"}).stdout for name in SERVICES)
    return {name for name in re.findall(r"\(NEEDED\).*\[(.*?)\.so", text) if not name.startswith("ld-")}


class Documents(unittest.TestCase):
    def test_the_licence_lists_exactly_the_linked_libraries(self):
        names = re.findall(r"^((?:lib[\w.-]+(?:, )?)+) +\w[\w -]+? {2,}\S", read("LICENSE"), re.M)
        self.assertEqual(sorted(", ".join(names).split(", ")), sorted(linked_libraries()))

    def test_the_version_is_that_of_the_changelog(self):
        newest = re.search(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", read("CHANGELOG.md"), re.M)[1]
        for name in SERVICES:
            version = subprocess.run([os.path.join(BIN, name), "--version"], check=True, capture_output=True, text=True)
            self.assertEqual(version.stdout, f"{name} {newest}\n")

    def test_the_version_has_one_place(self):
        version = re.search(r"^project\(tandem VERSION (\S+)", read("CMakeLists.txt"), re.M)[1]
        files = subprocess.run(["git", "grep", "-lwF", version, "--", ":!tests/clients/package-lock.json", ":!docs/results", ":!tests/fuzz/corpus"],
                               cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(set(files.stdout.split()) - {"CHANGELOG.md"}, {"CMakeLists.txt"})

    def test_configuration_holds_the_tables_of_the_services(self):
        page = read("docs/configuration.md")
        for name in SERVICES:
            table = subprocess.run([os.path.join(BIN, name), "--print-config"], check=True, capture_output=True, text=True)
            self.assertIn(f"## {name}\n\n{table.stdout}", page, "run: ./tandem fmt")

    def test_models_ends_with_the_table_of_the_verifier(self):
        table = subprocess.run([os.path.join(BIN, "verifier-svc"), "--print-models"], check=True, capture_output=True, text=True)
        self.assertTrue(read("docs/models.md").endswith("\n\n" + table.stdout), "run: ./tandem fmt")

    def test_one_environment_serves_all_services(self):
        """A setting of several services has one range, except listen, and threads, which ./tandem up passes to the verifier."""
        ranges = {}
        for name, line in re.findall(r"^\| `(\w+)` (\|.*)$", read("docs/configuration.md"), re.M):
            ranges.setdefault(name, set()).add(line.split(" | ")[3])
        self.assertIn("drain_timeout", ranges)
        self.assertEqual({n for n, r in ranges.items() if len(r) > 1}, {"listen", "threads"})

    def test_metrics_lists_every_series(self):
        sources = [p for folder in ["gateway", "proposer-svc", "verifier-svc", "common/rpc", "common/base"]
                   for p in glob.glob(os.path.join(ROOT, folder, "**", "*.c"), recursive=True)]
        served = {name for p in sources for name in re.findall(r'"(tandem_[a-z0-9_]+)"', read(p))}
        listed = set(re.findall(r"^\| `(tandem_[a-z0-9_]+)`", read("docs/metrics.md"), re.M))
        self.assertEqual(listed, served)

    def test_the_api_page_names_every_field_that_is_read(self):
        page = read("docs/api.md")
        fields = read("gateway/openai/openai_fields.c")
        names = set(re.findall(r'^    \{"(\w+)", FIELD_', fields, re.M))
        for source in [fields, *(read(f"gateway/openai/{f}.c") for f in ["openai_chat", "openai_request", "responses_request"])]:
            names |= set(re.findall(r'json_read_member\(body, "(\w+)"\)', source))
        self.assertGreater(len(names), 40)
        self.assertEqual([n for n in sorted(names) if not re.search(rf"`[\w.]*{n}[\w.]*`", page)], [])

    def test_no_section_occurs_twice(self):
        for page in glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True):
            heads = re.findall(r"^## .*", read(page), re.M)
            self.assertEqual(len(heads), len(set(heads)), page)

    def test_result_pages_say_when_where_and_how(self):
        pages = glob.glob("docs/results/*.md", root_dir=ROOT)
        self.assertTrue(pages)
        for page in pages:
            text = read(page)
            for line in [r"^- Recorded: \d{4}-\d\d-\d\d", r"^- Machine: ", r"^- Command: ", r"^\| *-", r"\b[0-9a-f]{7}\b"]:
                self.assertRegex(text, re.compile(line, re.M), page)

    def test_links_between_documents_have_a_target(self):
        pages = ["README.md", "CHANGELOG.md", "models/README.md", *glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True)]
        for page in pages:
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", read(page)):
                target = os.path.join(ROOT, os.path.dirname(page), link)
                self.assertTrue(os.path.exists(target), f"{page}: {link}")


if __name__ == "__main__":
    unittest.main()
