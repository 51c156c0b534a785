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

    def test_the_tables_of_the_paper_follow_from_its_rates(self):
        # tab:comp-amort and tab:external-training-cost; refinement is 0.27B tokens in 4.81 hours.
        tiers = ("T1", "T4", "T7", "T10")
        rates = {"pretraining": 41.9e3, "refinement": 0.27e9 / 4.81 / 3600, **dict(zip(tiers, (90.2e3, 62.1e3, 50.2e3, 40.66e3))),
                 **dict(zip((f"transformer-{tier}" for tier in tiers), (141.32e3, 91.98e3, 70.85e3, 57.87e3)))}
        words = ("evaluate", "cost", "370m", "--transformer", "transformer-370m", "--device", "cpu", "--rates",
                 ",".join(f"{name}={rate!r}" for name, rate in rates.items()))
        report = essh_json(*words, "--json")
        hours = {name: (0.27e9 if name == "refinement" else 7.4e9) / rate / 3600 for name, rate in rates.items()}
        for kind, names in (("shared", ("pretraining", "refinement")), ("separate", tiers), ("transformers", [f"transformer-{t}" for t in tiers])):
            for line, name in zip(report[kind], names, strict=True):
                self.assertAlmostEqual(line["hours"], hours[name], places=9)
                self.assertFalse(line["measured"])
        for key, printed in (("shared_hours", 53.9), ("separate_hours", 147.4), ("transformer_hours", 101.43)):
            self.assertAlmostEqual(report[key], printed, delta=0.06)
        self.assertAlmostEqual(report["saving"], 0.634, delta=0.0006)
        self.assertAlmostEqual(report["transformer_saving"], 0.469, delta=0.0006)
        sums = [sum(hours[name] for name in names) for names in (("pretraining", "refinement"), [f"transformer-{t}" for t in tiers])]
        self.assertAlmostEqual(report["transformer_saving"], 1 - sums[0] / sums[1], places=9)
        # Transformers of the paper's sizes to 1 %: embedding, 4 attention and 3 feed-forward matrices and 2 gains a layer, a last gain.
        for line, paper in zip(report["transformers"], (92.7e6, 186.3e6, 273.6e6, 365.6e6), strict=True):
            self.assertAlmostEqual(line["parameters"] / paper, 1, delta=0.015)
        self.assertEqual(report["transformers"][3]["parameters"], 50304 * 896 + 22 * (4 * 896**2 + 3 * 896 * 4224 + 2 * 896) + 896)
        # T1: width 448 and feed-forward 1728 are as near to 4224/896 as a width in steps of 64 allows.
        self.assertEqual(report["transformers"][0]["parameters"], 50304 * 448 + 22 * (4 * 448**2 + 3 * 448 * 1728 + 2 * 448) + 448)
        table = essh(*words).stdout.decode()
        self.assertRegex(table, r"4 Transformers +101\.4\d\n  saved by the family +46\.9%")
        self.assertIn("* rate given", table)

    def test_transformers_are_measured(self):
        report = essh_json("evaluate", "cost", "tiny", "--tiers", "T10", "--transformer", "transformer-370m", "--rates",
                           "pretraining=1000,refinement=1000,T10=1000", "--micro-batch", 1, "--accumulation", 1, "--context", 16,
                           "--steps", 1, "--device", "cpu", "--json")
        line, = report["transformers"]
        self.assertTrue(line["measured"])
        self.assertAlmostEqual(line["parameters"] / report["separate"][0]["parameters"], 1, delta=0.3)
        self.assertGreater(line["tokens_per_second"], 0)
        self.assertAlmostEqual(report["transformer_hours"] * line["tokens_per_second"] * 3600 / 7.4e9, 1, places=9)

    def test_mistakes_are_named(self):
        for words, part in ((["--rates", "T2=5"], "no stage is called"), (["--rates", "T1"], "STAGE=TOKENS"), (["--rates", "T1=-3"], "STAGE=TOKENS"),
                            (["--transformer", "370m"], "no single Transformer"), (["--transformer", "matformer-370m"], "no single Transformer")):
            refused = essh("evaluate", "cost", "370m", "--device", "cpu", *words)  # before anything is measured
            self.assertEqual(refused.returncode, EXIT_USAGE, refused.stderr)
            self.assertIn(part, refused.stderr.decode())

    def test_a_tier_too_small_for_the_depth_is_refused(self):
        refused = essh("evaluate", "cost", "tiny", "--tiers", "T1", "--transformer", "transformer-370m", "--device", "cpu")
        self.assertEqual(refused.returncode, EXIT_USAGE)
        self.assertIn(b"a Transformer of 22 layers", refused.stderr)

    def test_a_single_model_is_no_family(self):
        refused = essh("evaluate", "cost", "transformer-370m", "--device", "cpu")
        self.assertEqual(refused.returncode, EXIT_USAGE)
        self.assertIn(b"no family", refused.stderr)


if __name__ == "__main__":
    unittest.main()
