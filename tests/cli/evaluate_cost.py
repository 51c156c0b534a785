"""`essh evaluate cost`: hours follow from tokens and rates, separate models have the sizes of the tiers."""
import unittest

from _command import EXIT_USAGE, essh, essh_json


class EvaluateCost(unittest.TestCase):
    def test_hours_follow_from_tokens_and_rates(self):
        report = essh_json("evaluate", "cost", "tiny", "--tiers", "T1,T10", "--tokens", "1e9", "--refine-tokens", "1e8", "--micro-batch", 1,
                           "--accumulation", 2, "--context", 32, "--steps", 1, "--device", "cpu", "--json")
        self.assertEqual([line["stage"] for line in report["shared"]], ["shared pretraining", "shared refinement"])
        self.assertEqual([line["tokens"] for line in report["shared"]], [1e9, 1e8])
        tiers = {tier["tier"]: tier["parameters"] for tier in essh_json("info", "tiny", "--json")["tiers"]}
        self.assertEqual([(line["stage"], line["parameters"], line["tokens"]) for line in report["separate"]],
                         [("separate T1", tiers["T1"], 1e9), ("separate T10", tiers["T10"], 1e9)])
        for line in report["shared"] + report["separate"]:
            self.assertGreater(line["tokens_per_second"], 0)
            self.assertAlmostEqual(line["hours"] * line["tokens_per_second"] * 3600 / line["tokens"], 1, places=9)
        sums = [sum(line["hours"] for line in report[kind]) for kind in ("shared", "separate")]
        self.assertAlmostEqual(report["shared_hours"] / sums[0], 1, places=9)
        self.assertAlmostEqual(report["separate_hours"] / sums[1], 1, places=9)
        self.assertAlmostEqual(report["saving"], 1 - sums[0] / sums[1], places=9)

    def test_a_single_model_is_no_family(self):
        refused = essh("evaluate", "cost", "transformer-370m", "--device", "cpu")
        self.assertEqual(refused.returncode, EXIT_USAGE)
        self.assertIn(b"no family", refused.stderr)


if __name__ == "__main__":
    unittest.main()
