"""tools/mutate.py: the faults that it draws from a line of C."""
import os
import sys
import unittest

from test_names import ROOT

sys.path.insert(0, os.path.join(ROOT, "tools"))
import mutate  # noqa: E402


def faults(line):
    return [new.strip() for _, new in mutate.faults_of_line(line, mutate.code_lines(line)[0])]


class Faults(unittest.TestCase):
    def test_operators_constants_and_conditions_change(self):
        self.assertEqual(faults("    if (n < 8)"), ["if (n <= 8)", "if (n < 9)", "if (!(n < 8))"])
        self.assertEqual(faults("    x = a && b;"), ["x = a || b;"])
        self.assertEqual(faults("    ok = true;"), ["ok = false;"])
        self.assertEqual(faults("    ms = 100;"), ["ms = 200;"])

    def test_mutexes_begin_and_end_without_a_call(self):
        self.assertEqual(faults("    pthread_mutex_init(&x->mu, NULL);"), [])
        self.assertEqual(faults("    pthread_cond_destroy(&x->cv);"), [])
        self.assertEqual(faults("    pthread_mutex_unlock(&x->mu);"), ["{}"])

    def test_more_memory_is_no_fault(self):
        self.assertEqual(faults("    p = calloc(1, n);"), [])
        self.assertEqual(faults("    p = calloc(n, 8);"), ["p = calloc(n, 9);"])

    def test_calls_and_refusals_are_removed(self):
        self.assertEqual(faults("    free(p);"), ["{}"])
        self.assertIn("{}", faults('    return fail(-EINVAL, "too many");'))

    def test_texts_comments_and_logs_stay(self):
        self.assertEqual(faults('    f("a < 1 && b"); // n < 2'), ["{}"])
        self.assertEqual(faults('    log_info("%d", n + 1);'), [])
        self.assertEqual(faults("    assert(n < 8);"), [])
        self.assertEqual(faults("#define N 8"), [])
        self.assertEqual(mutate.code_lines("/* a\n8 */ x")[1].strip(), "x")

    def test_a_seed_draws_the_same_faults(self):
        class Options:
            folder, refusals, faults, only = "common/rpc", False, 20, None
        self.assertEqual(mutate.choose(Options, 1), mutate.choose(Options, 1))
        self.assertNotEqual(mutate.choose(Options, 1), mutate.choose(Options, 2))

    def test_refusals_are_drawn_alone(self):
        class Options:
            folder, refusals, faults, only = "gateway/serve", True, 50, None
        for _, fault in mutate.choose(Options, 1):
            self.assertRegex(fault.old, mutate.REFUSAL)

    def test_each_folder_has_its_programs(self):
        for folder, unit, system in (("gateway/keys", "test_auth", "test_gateway_keys"),
                                     ("common/rpc", "test_rpc", "test_verifier"),
                                     ("verifier-svc/engine", "test_admit", "test_verify"),
                                     ("proposer-svc", "fuzz_round", "test_proposer")):
            units, systems = mutate.programs_of(folder)
            self.assertIn(unit, units)
            self.assertIn(system, systems)

    def test_the_nearest_unit_tests_come_first(self):
        stages = mutate.Suite("gateway", 1).stages("gateway/keys/auth.c")
        self.assertEqual(stages[0], ["test_auth"])
        self.assertIn("test_key_budget", stages[1])
        self.assertNotIn("test_sse", stages[1])
        self.assertIn("test_sse", stages[2])
        self.assertNotIn("test_gateway", stages[1] + stages[2])

    def test_some_faults_of_a_seed_can_be_tried_alone(self):
        class Options:
            folder, refusals, faults, only = "common/rpc", False, 20, None
        drawn = mutate.choose(Options, 1)
        Options.only = [3, 8]
        self.assertEqual(mutate.choose(Options, 1), [drawn[2], drawn[7]])

    def test_system_tests_may_be_left_out(self):
        suite = mutate.Suite("gateway", 1, unit_only=True)
        self.assertEqual(suite.system, [])
        self.assertEqual(len(suite.stages("gateway/keys/auth.c")), 3)

    def test_every_listed_fault_can_be_drawn(self):
        for path, old, new in mutate.known_reasons():
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                lines = [line.rstrip("\n") for line in f if line.strip() == old]
            self.assertTrue(lines, "%s lacks the line: %s" % (path, old))
            drawn = [n.strip() for line in lines for _, n in mutate.faults_of_line(line, mutate.code_lines(line)[0])]
            self.assertIn(new, drawn, path)


if __name__ == "__main__":
    unittest.main()
