"""The benchmark of the engine on a tiny model: its measurements, its output and its files."""
import contextlib
import io
import json
import math
import os
import re
import sys
import tempfile
import types
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("TANDEM_BIN", os.path.join(ROOT, "build", "dev"))
sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import engine
import llama_bench
import overlap
import peers
import prefix
import speculation
import speculation_sweep


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

    def run_bench(self, bench, *args):
        """(its standard output, its JSON file)"""
        path, text = os.path.join(self.folder.name, "figures.json"), io.StringIO()
        with contextlib.redirect_stdout(text):
            engine.main([bench, "--shape", "tiny", "--peer", "no", "--reps", "2", "--threads", "2", "--bin", BIN,
                         "--models", self.folder.name, "--json", path, *args])
        with open(path, encoding="utf-8") as f:
            return text.getvalue(), json.load(f)

    def test_each_bench_times_the_requested_rows(self):
        for bench, rows, context in [("decode", "1,3", "600"), ("verify", "1,8,17", "256"), ("prefill", "32", "0")]:
            with self.subTest(bench):
                text, figures = self.run_bench(bench, "--rows", rows, "--vocab", "1024", "--context", context)
                self.assertEqual(list(figures["t_ms"]), rows.split(","))
                for n, ms in figures["t_ms"].items():
                    low, high = figures["spread_ms"][n]
                    self.assertGreater(low, 0)
                    self.assertTrue(low <= ms <= high)
                self.assertGreater(figures["read_limit_gb_per_s"], 0)
                self.assertEqual(re.findall(r"^ *(\d+) \|", text, re.M), rows.split(","))

    def test_an_agreeing_draft_is_accepted_whole_and_another_is_not(self):
        for eps, agrees in [("0", True), ("1", False)]:
            with self.subTest(eps):
                text, figures = self.run_bench("spec", "--rows", "1,4", "--eps", eps)
                self.assertEqual([figures["k"][k]["alpha"] == 1 for k in ("1", "4")], [agrees] * 2)
                self.assertEqual(figures["k"]["4"]["tau"] == 5, agrees)
                self.assertGreater(figures["plain"]["tokens_per_s"], 0)
                self.assertEqual(re.findall(r"^ *(\d+) \|", text, re.M), ["0", "1", "4"])

    def test_every_type_of_the_generator_runs(self):
        for kind in ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q5_k_m", "q6_k", "iq4_nl", "iq4_xs", "f16",
                     "bf16", "f32"]:
            with self.subTest(kind):
                _, figures = self.run_bench("verify", "--rows", "1", "--type", kind, "--vocab", "1024")
                self.assertEqual(figures["model"], f"tiny-1024-{kind}.gguf")

    def test_a_tied_head_counts_once(self):
        _, figures = self.run_bench("verify", "--rows", "1", "--vocab", "8000", "--type", "f32")
        head, layers = 8000 * 256 * 4, 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512) * 4
        self.assertAlmostEqual(figures["weights_bytes"] / (head + layers), 1, delta=0.01)

    def test_an_existing_file_is_used_again(self):
        self.run_bench("verify", "--rows", "1")
        path = os.path.join(self.folder.name, "tiny-q8_0.gguf")
        before = os.stat(path)
        self.run_bench("verify", "--rows", "1")
        self.assertEqual(os.stat(path).st_mtime_ns, before.st_mtime_ns)

    def test_the_fastest_peer_counts(self):
        o = engine.options(["verify", "--rows", "1,8", "--type", "q4_k_m"])
        o.path = "x.gguf"
        passes = {"tandem": {1: [[10.0]], 8: [[20.0]]}, "llama.cpp": {1: [[20.0]], 8: [[40.0]]}, "ik": {1: [[40.0]], 8: [[30.0]]},
                  "ik -rtr 1": {1: [[15.0]], 8: []}}

        class Side:
            def __init__(self, name, *about):
                self.name, self.about = name, about

        r = engine.results(o, [Side("tandem", "c", "1000000", "1000000"), Side("llama.cpp", "x64")], passes, {4: [1.0], 8: [2.0]},
                           llama_bench.benches("."))
        self.assertEqual(r["of_one_row"], {1: 1, 8: 2})
        self.assertEqual(r["of_peer"], {1: 0.5, 8: 0.5})
        self.assertEqual((r["read_limit_gb_per_s"], r["read_limit_streams"]), (1, 4))
        for n, name, ms in [(1, "ik -rtr 1 ?", 15), (8, "ik ?", 30)]:
            title, theirs, (ratio, error) = engine.best_peer(r, n)
            self.assertEqual((title, theirs, error), (name, ms, 0))
            self.assertAlmostEqual(ratio, passes["tandem"][n][0][0] / ms)

    # ik_llama.cpp cannot be installed for a test. These are lines of its llama-bench (commit 8337e4c).
    ANSWERS = [{"build_commit": "8337e4c", "n_prompt": 8, "n_gen": 0, "samples_ns": [16000000, 18000000]},
               {"build_commit": "8337e4c", "n_prompt": 256, "n_gen": 16, "samples_ns": [160000000, 320000000]}]

    def fake_llama_bench(self, text, status):
        folder = tempfile.mkdtemp(dir=self.folder.name)
        path = os.path.join(folder, "llama-bench")
        with open(path, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\necho \"$@\" >>%s/asked\ncat <<'END'\n%s\nEND\nexit %d\n" % (folder, text, status))
        os.chmod(path, 0o755)
        return folder

    def test_llama_bench_runs_in_each_turn(self):
        folder = self.fake_llama_bench(json.dumps(self.ANSWERS), 0)
        text, figures = self.run_bench("verify", "--rows", "1,8", "--ik", folder)
        self.assertIn("ik -rtr 1 8337e4c", text)
        for name in ["ik", "ik -rtr 1"]:
            self.assertEqual(figures["benches"][name]["t_ms"], {"1": 15, "8": 17})
        with open(os.path.join(folder, "asked"), encoding="utf-8") as f:
            asked = f.read().splitlines()
        self.assertEqual(len(asked), 2 * 3)  # with the turn that is not counted
        self.assertIn("-p 8 -n 0 -gp 256,16 -o json", asked[0])

    def test_a_llama_bench_that_fails_ends_the_benchmark(self):
        with self.assertRaisesRegex(SystemExit, "llama-bench ended with status 3"):
            self.run_bench("verify", "--rows", "1,8", "--ik", self.fake_llama_bench("", 3))

    def test_peers_prints_one_table(self):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            peers.main(["--shape", "tiny", "--types", "q8_0,bf16", "--peer", "no", "--reps", "2", "--threads", "2", "--bin", BIN,
                        "--models", self.folder.name])
        self.assertEqual(re.findall(r"^(\w+) +(\d+) \| +[\d.]+$", text.getvalue(), re.M),
                         [(kind, rows) for kind in ("q8_0", "bf16") for rows in ("1", "8", "16", "512")])

    def test_turns_are_compared_in_pairs(self):
        ratio, error = engine.paired([[10.0, 12.0], [40.0]], [[11.0], [10.0]])
        self.assertAlmostEqual(ratio, 2)
        self.assertAlmostEqual(error, math.log(2))

    def test_another_build_takes_the_place_of_the_peer(self):
        text, figures = self.run_bench("decode", "--rows", "1,8", "--reps", "2", "--against", BIN)
        self.assertIn(BIN, text)
        self.assertEqual(figures["peer"]["title"], BIN)
        self.assertEqual(sorted(figures["of_peer_paired"]), ["1", "8"])


class Speculation(unittest.TestCase):
    @staticmethod
    def run_pair():
        """(the standard output, the figures) of a pair of models that always agree."""
        text = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(text):
            path = os.path.join(folder, "figures.json")
            speculation.main(["pairs", "--shape", "tiny", "--eps", "0", "--k", "3", "--reps", "2", "--tokens", "41", "--threads", "1",
                              "--bin", BIN, "--models", folder, "--json", path])
            with open(path, encoding="utf-8") as f:
                return text.getvalue(), json.load(f)["0.0"]

    def test_a_pair_that_agrees_accepts_every_draft_of_any_length(self):
        for _ in range(20):  # on a busy machine all drafts of a run may be late: it is then repeated
            text, figures = self.run_pair()
            if figures["k"]["3"]["accepted"]:
                break
        self.assertEqual(figures["k"]["3"]["accepted"], 1)
        self.assertEqual(figures["goodput"]["accepted"], figures["goodput"]["k"] > 0)
        self.assertGreater(figures["plain_tokens_per_s"], 0)
        self.assertIn("the controller", text)

    @staticmethod
    def point(drafted, **took):
        """took: ms per token, one number per turn"""
        turns = {k.lstrip("k"): [1000 / ms for ms in each] for k, each in took.items()}
        rates = {k: len(each) / sum(1 / r for r in each) for k, each in turns.items()}
        return {"eps": 0.1, "sequences": 1, "context": 256, "alpha": 0.5, "tokens_per_s": rates, "drafted": drafted, "turns": turns}

    def test_points_of_several_runs_are_shown_between_two_bounds(self):
        runs = [[self.point(2, k0=[60, 60, 60, 60], off=[50, 50, 50, 50], k1=[40, 20, 40, 20], k2=[20, 38, 20, 38], goodput=[28, 30, 30, 28])],
                [self.point(0.01, k0=[25, 26, 24, 25], k4=[40, 40, 40, 40], goodput=[26, 25, 25, 24])]]
        text = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(text):
            paths = [os.path.join(folder, name) for name in ("a.json", "b.json", "both.json")]
            for path, points in zip(paths, runs):
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(points, f)
            speculation.main(["sweep", "--points", *paths[:2], "--json", paths[2]])
            with open(paths[2], encoding="utf-8") as f:
                drafts, none = json.load(f)
        for figure, ms in [("of_best", 40 + 38 + 40 + 38), ("of_best_column", 20 + 38 + 20 + 38), ("of_none", 4 * 50)]:
            self.assertAlmostEqual(drafts[figure][0], ms / (28 + 30 + 30 + 28))
            self.assertAlmostEqual(none[figure][0], 1)
        self.assertEqual((drafts["processes"][0], none["processes"][1]), (1.2, 0))
        self.assertEqual((drafts["best"], none["best"]), (2, 0))
        self.assertRegex(text.getvalue(), r"\| +16.7 +33.3 +34.5 +\| +34.5 +2.00 \| k=2  1.345 .* 1.000 .* 1.724 .* 1.200 ")
        self.assertRegex(text.getvalue(), r"of best column +1.000 \+- .* n = 2\n.*more.* 1.724 .* n = 1\n.*at most.* 1.000 .* n = 1\n")

    def test_overlap_compares_turn_by_turn(self):
        def took(*each):
            return [types.SimpleNamespace(tokens=8, ms=ms, passes=4, pass_ms=1, wait_ms=1, drafted=4, accepted=2, histogram=[1, 1]) for ms in each]
        texts = {(0, "in turns"): took(20, 30), (0, "ahead"): took(10, 30), (5, "in turns"): took(40, 40), (5, "ahead"): took(20, 20)}
        o = types.SimpleNamespace(path="a/m.gguf", draft="d.gguf", k=1, delays=[0, 5])
        at_once, late = overlap.results(o, types.SimpleNamespace(count=lambda *_: 2), texts)["round_trips"]
        self.assertAlmostEqual(at_once["gain"][0], 50 / 40)
        self.assertAlmostEqual(late["gain"][0], 80 / 40)
        self.assertAlmostEqual(late["of_first"][0], 40 / 40)

    def test_a_mean_is_weighted_by_errors(self):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            speculation_sweep.print_mean("of best", [(1, 0.1), (2, 0.2)])
        self.assertRegex(text.getvalue(), r"of best +1.200 \+- 0.089, chi-square 20.0, n = 2\n")


class Prefix(unittest.TestCase):
    def test_shared_prefixes_are_found_and_timed(self):
        text = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(text):
            prefix.main(["--shape", "tiny", "--shared", "70", "--rounds", "2", "--threads", "1", "--bin", BIN, "--models", folder])
        self.assertRegex(text.getvalue(), r"hit: 70 shared and 8 own tokens: [0-9.]+ ms .*\noverhead: 78 tokens")


if __name__ == "__main__":
    unittest.main()
