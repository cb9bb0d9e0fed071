"""The list of known findings of -fanalyzer: it names functions that exist, and hides nothing else."""
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import analyzer

# gcc prints relative paths where ccache rewrites them, and quotes by locale.
LOG = f"""[1/2] Building C object a.c.o
../../common/a.c: In function \u2018first\u2019:
../../common/a.c:7:3: warning: leak of \u2018p\u2019 [CWE-401] [-Wanalyzer-malloc-leak]
  \u2018first\u2019: event 1
../../common/a.c:9:3: warning: leak of \u2018p\u2019 [CWE-401] [-Wanalyzer-malloc-leak]
{ROOT}/common/b.c: In function 'second':
{ROOT}/common/b.c:8:3: warning: leak of 'q' [-Wanalyzer-malloc-leak]
{ROOT}/common/b.c:9:3: warning: unused variable 'q' [-Wunused-variable]
"""


class Analyzer(unittest.TestCase):
    def test_a_finding_has_file_function_and_message(self):
        self.assertEqual(analyzer.findings(LOG), ["common/a.c first: leak of 'p'", "common/b.c second: leak of 'q'"])

    def test_every_known_finding_names_an_existing_function(self):
        with open(os.path.join(ROOT, "tests", "lint", "analyzer.txt"), encoding="utf-8") as f:
            lines = analyzer.known(f.read())
        self.assertTrue(lines)
        for line in lines:
            path, function = re.match(r"(\S+) (\w+): \S", line).groups()
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                self.assertRegex(f.read(), rf"\b{function}\(", line)


if __name__ == "__main__":
    unittest.main()
