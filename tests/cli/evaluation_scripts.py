"""bench/evaluation/hybrid and bench/evaluation/dna at a size for a test: every stage runs, leaves its files, and is not repeated."""
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

from _command import ESSH, HANGS

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "evaluation"


class EvaluationScripts(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)

    def script(self, name, *words):
        made = subprocess.run([sys.executable, SCRIPTS / name, "--essh", ESSH, "--device", "cpu", "--out", self.folder / "out",
                               *map(str, words)], capture_output=True, text=True, timeout=HANGS, check=False)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        return made.stdout

    def stages(self, output):
        return [" ".join(re.findall(r"[a-z]+", line.split(ESSH)[1])[:2]) for line in output.splitlines() if line.startswith("$")]

    def test_hybrid(self):
        rng = random.Random(3)
        for name, count in (("text", 400), ("held", 60)):
            # The words of the needle are there, so that it is few tokens.
            documents = [" ".join(rng.choice(("one", "two", "red", "The secret key is", "19 20")) for _ in range(80)) for _ in range(count)]
            (self.folder / f"{name}.txt").write_text("\n<|endoftext|>\n".join(documents))
        words = ["--text", self.folder / "text.txt", "--held-out", self.folder / "held.txt", "--size", "cpu", "--tiers", "T1"]
        for setting in ("run.steps=2", "refine.steps=1", "run.batch=4", "run.micro_batch=4", "refine.batch=4", "run.validation_windows=2"):
            words += ["--set", setting]
        output = self.script("hybrid", *words)
        self.assertEqual(len(self.stages(output)), 6)
        for name in ("niah.svg", "length.svg", "niah.jsonl"):
            self.assertTrue((self.folder / "out" / name).stat().st_size > 0, name)
        self.assertIn("full key at depth", output)
        mixture = (self.folder / "out" / "mixture.txt").read_text()
        keys = re.findall(r"secret key is (\d+)", mixture)
        self.assertGreater(len(keys), 2 * len(set(keys)) * 0.9)  # each is said again
        self.assertEqual(len(self.stages(self.script("hybrid", *words))), 2)

    def test_dna(self):
        rng = random.Random(4)
        (self.folder / "genome.fa").write_text("".join(f">{name}\n{''.join(rng.choices('ACGT', k=3000))}\n" for name in ("chr20", "chr21:1", "chr21:2")))
        (self.folder / "set.tsv").write_text("".join(f"mine\t{i % 2}\t{''.join(rng.choices('ACGT', k=30))}\n" for i in range(40)))
        words = [self.folder / "genome.fa", "--classify", f"{self.folder / 'set.tsv'}=mine", "--steps", 2, "--tiers", "T1", "--seeds", 0, "--epochs",
                 1, "--windows", 2]
        for setting in ("refine.steps=1", "run.batch=4", "run.micro_batch=4", "refine.batch=4", "run.validation_windows=2", "data.context=64",
                        "model.num_hidden_layers=1"):
            words += ["--set", setting]
        output = self.script("dna", *words)
        self.assertEqual(len(self.stages(output)), 5)
        self.assertIn("Markov, order 5", output)
        self.assertIn("no pretraining", output)
        self.assertEqual(len(self.stages(self.script("dna", *words))), 2)


if __name__ == "__main__":
    unittest.main()
