"""`essh plan`: the chosen capacity keeps within the limits, the next larger one does not, and it can be exported."""
import pathlib
import random
import shutil
import tempfile
import unittest

from _command import EXIT_UNSUPPORTED, EXIT_USAGE, byte_model, essh, essh_json

SHORT = ("--depth", 8, "--steps", 4, "--rounds", 2)


class Plan(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        cls.model = byte_model(cls.folder / "family")
        rng = random.Random(6)
        cls.text = cls.folder / "text.txt"
        cls.text.write_text("".join(rng.choice("abcdef ,.") for _ in range(400)))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def plan(self, *words):
        return essh_json("plan", self.model, *SHORT, "--json", *words)

    def test_a_file_of_at_most(self):
        tiers = {tier["tier"]: tier for tier in essh_json("info", self.model, "--json")["tiers"]}
        size = essh_json("frontier", self.model, "--tiers", "T4", *SHORT, "--json")["points"][0]["file_bytes"]
        found = self.plan("--max-file", size)
        self.assertEqual((found["chosen"]["tier"], found["chosen"]["channels"], found["chosen"]["ffn"]),
                         ("T4", tiers["T4"]["channels"], tiers["T4"]["ffn"]))
        self.assertEqual(found["limits"]["file"], size)
        smaller = self.plan("--max-file", size - 1)
        sizes = [point["parameters"] for point in smaller["points"]]
        self.assertEqual(sizes, sorted(sizes))
        chosen = smaller["chosen"]
        self.assertLess(chosen["ffn"] * 1000 + chosen["channels"], tiers["T4"]["ffn"] * 1000 + tiers["T4"]["channels"])
        for point in smaller["points"]:
            within = point["file_bytes"] < size
            self.assertEqual(within, point["parameters"] <= next(p["parameters"] for p in smaller["points"] if p["tier"] == chosen["tier"]))

    def test_the_command_it_names_exports_the_choice(self):
        parameters = next(tier["parameters"] for tier in essh_json("info", self.model, "--json")["tiers"] if tier["tier"] == "T6")
        text = essh("plan", self.model, *SHORT, "--max-parameters", parameters - 1).stdout.decode()
        words = next(line for line in text.splitlines() if line.startswith("Take it:")).split()[2:]
        self.assertEqual(words[:3], ["essh", "export", str(self.model)])
        self.assertIn("--channels", words, "between two tiers")
        words[words.index("-o") + 1] = str(self.folder / "taken")
        self.assertEqual(essh(*words[1:]).returncode, 0)
        self.assertLess(essh_json("info", self.folder / "taken", "--json")["tiers"][0]["parameters"], parameters)
        # An export has one capacity.
        self.assertEqual(essh_json("plan", self.folder / "taken", *SHORT, "--max-parameters", parameters, "--json")["chosen"]["tier"], "full")
        self.assertIn("one capacity", essh("plan", self.folder / "taken", *SHORT, "--max-parameters", parameters).stdout.decode())

    def test_memory_counts_the_states_of_all_sequences(self):
        one = self.plan("--max-memory", "1GB")
        self.assertEqual(one["chosen"]["tier"], "T10")
        session = one["points"][-1]["session_bytes"]
        many = self.plan("--max-memory", "1GB", "--sequences", 1001)
        self.assertGreaterEqual(many["chosen"]["memory_bytes"], 1000 * session)
        result = essh("plan", self.model, *SHORT, "--max-memory", "1GB", "--sequences", 2**24)
        self.assertEqual(result.returncode, EXIT_UNSUPPORTED, result.stderr)
        self.assertIn("the smallest, 1x64, exceeds them:", result.stderr.decode())

    def test_times(self):
        self.assertEqual(self.plan("--max-latency", "1000s", "--min-prefill", "0.001")["chosen"]["tier"], "T10")
        result = essh("plan", self.model, *SHORT, "--max-latency", "0.001us")
        self.assertEqual(result.returncode, EXIT_UNSUPPORTED, result.stderr)
        self.assertIn(" ms > 1e-06 ms", result.stderr.decode())

    def test_quality_of_the_choice(self):
        words = ("--data", self.text, "--context", 32, "--windows", 3)
        found = self.plan("--max-parameters", 700_000, *words)
        chosen = next(point for point in found["points"] if point["tier"] == found["chosen"]["tier"])
        measured = essh_json("frontier", self.model, *SHORT, *words, "--tiers", f"{chosen['channels']}x{chosen['ffn']},T10", "--json")
        self.assertAlmostEqual(chosen["perplexity"], measured["points"][0]["perplexity"], places=9)
        self.assertAlmostEqual(chosen["nll_difference"], measured["points"][0]["nll_difference"], places=9)
        self.assertEqual(found["provenance"], measured["provenance"])

    def test_limits_that_make_no_sense(self):
        for words in ((), ("--max-latency", "20m"), ("--max-memory", "much"), ("--max-parameters", "0"), ("--max-latency", "0")):
            result = essh("plan", self.model, *words)
            self.assertEqual(result.returncode, EXIT_USAGE, words)


if __name__ == "__main__":
    unittest.main()
