"""One proposer that learns from past outputs, and verifiers of two models: outputs of one model are no drafts of the other."""
import contextlib
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
TRIES = 20  # drafts that are late three times in a row exclude their proposer for a while
sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import services


def model(name):
    return os.path.join(ROOT, "models", f"{name}-q8_0.gguf")


class Options:
    bin, threads = BIN, 1


class TwoModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        settings = ["--policy", "fixed", "--k", "4"]
        cls.services = s = services.Services(Options, cls.stack, model("tales-1m"), {"suffix": ["--proposer", "suffix"]}, {"small": settings})
        s.start("verifier-svc", "large", "--listen", s.path("large"), "--model", model("tales-11m"), "--proposer-budget-ms", "250",
                "--threads", "1", "--proposers", s.path("suffix"), *settings)
        s.ports["large"] = services.free_port()
        s.start("gateway", "large-gateway", "--listen", f"127.0.0.1:{s.ports['large']}", "--verifiers", s.path("large"))
        s.wait_ready("large", 1)

    def ask(self, name, prompt, n_tokens):
        """(the answer's text, how many draft tokens it had)"""
        answer = self.services.generate(name, prompt, n_tokens, {})
        return answer["choices"][0]["text"], answer["metrics"]["speculative_decoding"]["num_draft_tokens"]

    def words(self, text):
        """Five words in a row that differ, so that none repeats another."""
        words = text.split()
        for i in range(3, len(words) - 10):
            part = words[i:i + 5]
            if len({re.sub(r"\W", "", word).lower() for word in part}) == 5:
                return " " + " ".join(part)
        self.fail(f"no five different words in {text}")
        return ""

    def drafted(self, name, prompt):
        """The most draft tokens that an answer had; it has no time to repeat itself."""
        return max(self.ask(name, prompt, 3)[1] for _ in range(TRIES))

    def test_outputs_of_one_model_are_no_drafts_of_the_other(self):
        prompt = self.words(self.ask("small", "Once upon a time", 60)[0])
        self.assertEqual(self.ask("large", prompt, 3)[1], 0)
        self.assertGreater(self.drafted("small", prompt), 0, "its own model has these words")
        own = self.words(self.ask("large", "Once upon a time", 60)[0])
        self.assertGreater(self.drafted("large", own), 0, "the other model has its own outputs")


if __name__ == "__main__":
    unittest.main()
