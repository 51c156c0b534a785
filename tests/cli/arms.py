"""Every arm of bench/arms.json trains: bench/mechanism makes each table of the paper at a size for a test, in a few steps an arm."""
import importlib.machinery
import importlib.util
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

from _command import ESSH, HANGS, essh

MECHANISM = pathlib.Path(__file__).resolve().parents[2] / "bench" / "mechanism"
loader = importlib.machinery.SourceFileLoader("mechanism", str(MECHANISM))
mechanism = importlib.util.module_from_spec(importlib.util.spec_from_loader("mechanism", loader))
sys.dont_write_bytecode = True
loader.exec_module(mechanism)

RECIPE = """
model: {preset: tiny, hidden_size: 64, intermediate_size: 192, num_hidden_layers: 3}
data: {context: 32}
elastic: {warmup_tokens: 0, full_share: 0.5, ordering_period: 2}
run: {steps: 4, batch: 4, micro_batch: 2, validation_windows: 2}
refine: {steps: 1, batch: 4}
"""
# For arms with their own recipe.
SMALL = ["model.hidden_size=64", "model.intermediate_size=64", "run.steps=2", "run.batch=2", "run.micro_batch=1", "run.validation_windows=1",
         "elastic.warmup_tokens=0", "refine.steps=1", "refine.batch=1"]
CHANNELS = "model.spectral_channels=8"  # the initial modes of each take time
RECALL = ["data.symbols=256", "model.vocab_size=256", CHANNELS]
OWN = {"syn-mqar": RECALL, "syn-mqar-seeds": RECALL, "palindrome-new": [CHANNELS], "dna-loss": ["data.context=32"],
       "main-tiers": ["data.context=32", "model.num_hidden_layers=3", "model.attention_layers=[2]"]}


# One seed for all rows: an arm in several tables is trained once.
SEED = 7


class Arms(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.place.name)
        generator = random.Random(1)
        (cls.folder / "text.txt").write_text(" ".join(f"word{generator.randrange(12)}" for _ in range(3000)))
        (cls.folder / "genome.fa").write_text("".join(
            f">chr{number}\n{''.join(generator.choice('ACGT') for _ in range(3000))}\n" for number in (20, 21)))
        (cls.folder / "small.yaml").write_text(RECIPE)
        for source, data, *words in (("text.txt", "text", "bytes", "--valid-fraction", "0.2"),
                                     ("genome.fa", "genome", "nucleotides", "--holdout", "chr21")):
            made = essh("prepare", cls.folder / source, "-o", cls.folder / data, "--tokenizer", *words)
            assert made.returncode == 0, made.stderr

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def options(self, table):
        settings = OWN.get(table)
        words = ["--out", self.folder / "runs", "--recipe", self.folder / "small.yaml"]
        if settings is not None:
            words += [word for setting in [*SMALL, *settings] for word in ("--set", setting)]
        return words

    def check_table(self, name):
        table = mechanism.TABLES[name]
        data = [] if table["metric"] == "accuracy" else [self.folder / ("genome" if name == "dna-loss" else "text")]
        words = [sys.executable, MECHANISM, *data, "--table", name, "--essh", ESSH, "--jobs", "2", "--threads", "1", "--samples", "2",
                 "--seeds", str(SEED), *self.options(name)]
        made = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=HANGS, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        lines = made.stdout.splitlines()
        for row in table["rows"]:
            line = next((line for line in lines if line.startswith(f"{row['arm']}, seed {SEED} ")), "")
            cells = [cell.split("/")[0] for cell in re.sub(r"\([^)]*\)", "", line[44:]).split() if cell != "-"]
            self.assertTrue(all(re.fullmatch(r"[0-9.]+|inf|nan", cell) for cell in cells), f"{line!r} of\n{made.stdout}")
            own = [float(cell) for cell in cells]
            self.assertTrue(own, f"{row['arm']} shows nothing:\n{made.stdout}")
            self.assertTrue(all(math.isfinite(value) and value >= 0 for value in own), line)

    def test_every_table_is_made(self):
        for name in mechanism.TABLES:
            with self.subTest(table=name):
                self.check_table(name)
        # The settings of an arm are in the recipe of its run.
        options = type("Options", (), {"essh": ESSH, "out": self.folder / "runs", "set": [], "threads": 1, "device": None, "samples": None,
                                       "data": "", "recipe": str(self.folder / "small.yaml")})
        runs = mechanism.Runs(options)
        checked = 0
        for arm, facts in mechanism.ARMS.items():
            kept = mechanism.fields_of(ESSH, runs.folder(arm, SEED) / "recipe.yaml", [])
            settings = facts["settings"] if "recipe" in facts else dict(runs.scale.settings(arm))
            for field, value in settings.items():
                if value != "{parent}":
                    self.assertEqual(kept[field], value, f"{arm}: {field}")
                else:
                    self.assertTrue(os.path.isdir(kept[field]), f"{arm}: {field}")
                checked += 1
        self.assertGreater(checked, 100)

    def test_settings_are_the_papers_at_its_size(self):
        scale = mechanism.Scale(ESSH, "370m", [])
        for arm, facts in mechanism.ARMS.items():
            with self.subTest(arm=arm):
                settings = dict(scale.settings(arm))
                self.assertEqual(settings, facts["settings"])
                words = [f"{field}={json.dumps(value)}" for field, value in settings.items()]
                kept = mechanism.fields_of(ESSH, facts.get("recipe", "370m"), words)
                for field, value in settings.items():
                    self.assertEqual(kept[field], value)


if __name__ == "__main__":
    unittest.main()
