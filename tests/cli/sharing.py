"""bench/sharing: what it trains and with which settings, costs that follow from its runs, and that a second command trains nothing twice."""
import argparse
import importlib.machinery
import importlib.util
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from _command import ESSH, HANGS, essh

SHARING = pathlib.Path(__file__).resolve().parents[2] / "bench" / "sharing"
RECIPE = """
model: {preset: tiny, hidden_size: 64, intermediate_size: 64, num_hidden_layers: 2, attention_layers: [1]}
data: {context: 32}
optimizer: {rate: 5.0e-3}
run: {batch: 4, micro_batch: 2}
refine: {batch: 4}
"""


class Sharing(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)
        generator = random.Random(1)
        (self.folder / "text.txt").write_text(" ".join(f"word{generator.randrange(12)}" for _ in range(3000)))
        (self.folder / "small.yaml").write_text(RECIPE)
        made = essh("prepare", self.folder / "text.txt", "-o", self.folder / "data", "--tokenizer", "bytes", "--valid-fraction", "0.2")
        self.assertEqual(made.returncode, 0, made.stderr)

    def share(self, *words):
        words = [sys.executable, "-B", SHARING, self.folder / "data", "--recipe", self.folder / "small.yaml", "--essh", ESSH, "--tiers", "T1,T10",
                 "--steps", "16", "--seeds", "2", "--context", "32", "--windows", "8", "--jobs", "2", "--threads", "1",
                 "--out", self.folder / "runs", "--json", self.folder / "facts.json", "--svg", self.folder / "plot.svg", *words]
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=HANGS, check=False)

    def recipe(self, run):
        """The fields of a run's recipe, by "group.name"."""
        found, group = {}, ""
        for line in (self.folder / "runs" / run / "recipe.yaml").read_text().splitlines():
            name, value = line.split(":", 1)
            if line.startswith(" "):
                found[f"{group}.{name.strip()}"] = json.loads(value)
            else:
                group = name
        return found

    def test_families_and_tiers_alone(self):
        steps = ("--essh-steps", "9+2", "--dense-steps", "12")
        made = self.share("--alone", "essh", *steps)
        self.assertEqual(made.returncode, 0, made.stderr)
        facts = {(fact["recipe"], fact["kind"], fact["tier"]): fact for fact in json.loads((self.folder / "facts.json").read_text())}
        self.assertEqual({key[:2] for key in facts}, {("paper", "family"), ("essh", "family"), ("essh", "alone")})
        self.assertEqual({tier for arm, kind, tier in facts if (arm, kind) == ("paper", "family")}, {f"T{i}" for i in range(1, 11)})
        for fact in facts.values():
            self.assertEqual(set(fact["by_seed"]), {"1", "2"})
            self.assertAlmostEqual(fact["perplexity"], math.sqrt(fact["by_seed"]["1"] * fact["by_seed"]["2"]), places=9)
        for tier in ("T1", "T10"):
            self.assertEqual(facts["essh", "alone", tier]["parameters"], facts["essh", "family", tier]["parameters"])
        costs = [facts["essh", "family", tier]["perplexity"] / facts["essh", "alone", tier]["perplexity"] - 1 for tier in ("T1", "T10")]
        self.assertIn("| essh | cost of sharing | " + " | ".join(f"{100 * cost:+.1f} %" for cost in costs) + " |", made.stdout.splitlines())
        self.assertIn("| paper | cost of sharing | - | - |", made.stdout.splitlines())
        self.assertRegex(made.stdout, r"(?m)^essh: \d+ s for a family, \d+ at a time$")
        costs = [json.loads((self.folder / "runs" / f"essh-family-seed{seed}" / "cost.json").read_text()) for seed in (1, 2)]
        self.assertAlmostEqual(facts["essh", "family", "T1"]["seconds"], sum(cost["seconds"] for cost in costs) / 2)
        xml.etree.ElementTree.parse(self.folder / "plot.svg")

        # As many steps alone as in the family altogether, unless told otherwise; the settings of the recipe by name.
        family, alone, dense, paper = (self.recipe(run) for run in ("essh-family-seed1", "essh-T1-seed1", "essh-T10-seed1", "paper-family-seed1"))
        self.assertEqual([run["optimizer.algorithm"] for run in (family, alone, dense, paper)], ["muon", "muon", "muon", "adamw"])
        self.assertEqual([run["optimizer.rate"] for run in (family, alone, dense, paper)], [5e-3, 5e-3, 5e-3, 1e-3])
        self.assertEqual((family["run.steps"], family["refine.steps"], alone["run.steps"], dense["run.steps"]), (9, 2, 11, 12))
        self.assertEqual((paper["run.steps"], paper["refine.steps"]), (16, 1))
        self.assertAlmostEqual(dense["optimizer.decay_share"], 2 / 11)
        self.assertEqual((alone["model.tier"], dense["elastic.sampling"], family["elastic.sampling"]), ("T1", "dense", "fixed"))

        # A later command adds the other tiers alone and repeats nothing.
        before = {path: path.stat().st_mtime_ns for path in (self.folder / "runs").glob("essh-*/pretrained/model.safetensors")}
        made = self.share("--arms", "essh,paper", *steps)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual({path: path.stat().st_mtime_ns for path in before}, before)
        self.assertNotIn("essh-", made.stderr)
        self.assertTrue((self.folder / "runs" / "paper-T1-seed2" / "perplexity.json").exists())

    def test_the_steps_of_a_recipe_follow_from_those_of_the_paper(self):
        loader = importlib.machinery.SourceFileLoader("sharing", str(SHARING))
        spec = importlib.util.spec_from_loader("sharing", loader)
        sharing = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(SHARING.parent))
        loader.exec_module(sharing)
        options = argparse.Namespace(steps=800, essh_steps=None)
        self.assertEqual([sharing.steps_of(arm, options) for arm in ("paper", "essh")], [(800, 40), (740, 190)])

    def test_bad_words_are_named(self):
        made = self.share("--arms", "papers")
        self.assertEqual(made.returncode, 2)
        self.assertIn("'papers' is none of paper, essh", made.stderr)
        for words in ("450", "450+", "0+150", "a+b"):
            made = self.share("--essh-steps", words)
            self.assertEqual(made.returncode, 2)
            self.assertIn(f"'{words}' is not like 450+150", made.stderr)


if __name__ == "__main__":
    unittest.main()
