"""`essh evaluate dna`: bits per base from `essh logits`, Markov chains counted here, and fine-tuning on sequences with classes."""
import collections
import json
import math
import pathlib
import random
import shutil
import tempfile
import unittest

import numpy

from _command import EXIT_USAGE, essh, essh_json

CONTEXT, WINDOWS, ORDER = 60, 7, 3
IDS = {"A": 7, "C": 8, "G": 9, "T": 10, "N": 11}


def drawn(rng, length, likely):
    """Bases of which each repeats the one two before it, with a share of A that tells classes apart."""
    bases = "AC"
    while len(bases) < length:
        bases += bases[-2] if rng.random() < 0.5 else rng.choices("ACGT", [likely, 1, 1, 1])[0]
    return bases[:length]


class EvaluateDna(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        rng = random.Random(8)
        cls.train = [drawn(rng, 700, 2), drawn(rng, 500, 1)]
        cls.held_out = [drawn(rng, 300, 2), "ACGTN" + drawn(rng, 200, 1)]
        records = [("chr1", cls.train[0]), ("chr2", cls.train[1]), ("chr3", cls.held_out[0]), ("chr4", cls.held_out[1])]
        (cls.folder / "genome.fa").write_text("".join(f">{name}\n{bases}\n" for name, bases in records))
        made = essh("prepare", cls.folder / "genome.fa", "-o", cls.folder / "data", "--tokenizer", "nucleotides", "--holdout", "chr3",
                    "--holdout", "chr4")
        assert made.returncode == 0, made.stderr
        cls.run_folder = cls.folder / "run"
        made = essh("train", "dna", "--data", cls.folder / "data", "-o", cls.run_folder, "--set", "run.steps=3", "--set", "data.context=64",
                    "--set", "run.batch=4", "--set", "run.micro_batch=4", "--set", "elastic.warmup_tokens=0", "--set", "refine.batch=4",
                    "--set", "run.validation_windows=2", "--set", "model.num_hidden_layers=2", "--set", "model.spectral_channels=8")
        assert made.returncode == 0, made.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def windows(self):
        """Tokens of the disjoint windows over the held-out records, each followed by its end."""
        tokens = [token for record in self.held_out for token in [*(IDS[base] for base in record), 1]]
        return [tokens[w * (CONTEXT + 1):(w + 1) * (CONTEXT + 1)] for w in range(WINDOWS)]

    def test_bits_per_base_of_tiers_and_chains(self):
        report = essh_json("evaluate", "dna", self.run_folder, "--data", self.folder / "data", "--context", CONTEXT, "--windows", WINDOWS,
                           "--order", ORDER, "--tiers", "T1,T10", "--batch", 3, "--json")
        windows = self.windows()
        count = sum(7 <= token <= 10 for window in windows for token in window[1:])
        self.assertEqual(report["bases"], count)
        self.assertLess(count, CONTEXT * WINDOWS)  # the N and the ends do not count
        self.assertEqual(report["training_bases"], 1200)
        for result in report["results"]:
            bits = 0.0
            for window in windows:
                (self.folder / "tokens.json").write_text(json.dumps(window[:-1]))
                made = essh("logits", self.run_folder / "pretrained", "--tokens", self.folder / "tokens.json", "--out",
                            self.folder / "logits.npy", "--tier", result["tier"])
                self.assertEqual(made.returncode, 0, made.stderr)
                logits = numpy.load(self.folder / "logits.npy").astype(numpy.float64)
                scores = logits - numpy.logaddexp.reduce(logits, axis=1, keepdims=True)
                bits -= sum(scores[i, token] / math.log(2) for i, token in enumerate(window[1:]) if 7 <= token <= 10)
            self.assertAlmostEqual(result["bits_per_base"], bits / count, places=5)
        for chain in report["markov"]:
            self.assertAlmostEqual(chain["bits_per_base"], self.chain_bits(chain["order"], windows) / count, places=10)

    def chain_bits(self, order, windows):
        counts = collections.Counter()
        for record in self.train:
            for end in range(len(record)):
                for known in range(min(order, end) + 1):
                    counts[record[end - known:end], record[end]] += 1
        letters, bits = {token: base for base, token in IDS.items() if base != "N"}, 0.0
        for window in windows:
            past = ""
            for place, token in enumerate(window):
                if token not in letters:
                    past = ""
                    continue
                known = past[max(0, len(past) - order):] if order else ""
                every = sum(counts[known, base] for base in "ACGT")
                if place > 0:
                    bits -= math.log2((counts[known, letters[token]] + 1) / (every + 4))
                past += letters[token]
        return bits

    def sequences(self):
        rng = random.Random(3)
        return [(name, "test" if i % 4 == 0 else "train", drawn(rng, rng.randrange(30, 90), likely))
                for i in range(60) for name, likely in (("poor", 0.3), ("rich", 6))]

    def test_fine_tuning_finds_classes_and_resumes(self):
        table = self.folder / "set.tsv"
        table.write_text("set\tsplit\tclass\tseq\n" + "".join(f"mine\t{split}\t{name}\t{bases}\n" for name, split, bases in self.sequences())
                         + "other\ttrain\tthird\tACGT\n")
        journal = self.folder / "journal.jsonl"
        words = ("evaluate", "dna", self.run_folder, "--classify", table, "--set", "mine", "--tiers", "T10", "--seeds", "0,5", "--epochs", 4,
                 "--rate", "0.003", "--sequences", 8, "--journal", journal, "--json")
        report = essh_json(*words)
        self.assertEqual((report["classes"], report["train"], report["test"], report["majority"]), (["poor", "rich"], 90, 30, 0.5))
        self.assertEqual([(r["tier"], r["pretrained"], len(r["seeds"])) for r in report["results"]],
                         [("T10", True, 2), ("no pretraining", False, 2)])
        for result in report["results"]:
            tests = [seed["test"] for seed in result["seeds"]]
            self.assertAlmostEqual(result["accuracy"], numpy.mean(tests))
            self.assertAlmostEqual(result["deviation"], numpy.std(tests, ddof=1))
            self.assertGreater(result["accuracy"], 0.8)
            for seed in result["seeds"]:
                by_epoch = seed["validation_by_epoch"]
                self.assertEqual(len(by_epoch), 4)
                self.assertEqual(seed["best_epoch"], 1 + by_epoch.index(max(by_epoch)))
                self.assertEqual(seed["validation"], max(by_epoch))
        lines = journal.read_text().splitlines(keepends=True)
        self.assertEqual(len(lines), 4)
        journal.write_text("".join(lines[:2]) + lines[2][:20])
        self.assertEqual(essh_json(*words), report)
        self.assertEqual(journal.read_text().splitlines(keepends=True), lines)

    def test_fasta_files_are_classes(self):
        for name in ("poor", "rich"):
            (self.folder / f"{name}.fa").write_text("".join(f">{i}\n{bases}\n" for i, (own, _, bases) in enumerate(self.sequences()) if own == name))
        words = ("evaluate", "dna", self.run_folder, "--classify", self.folder / "poor.fa", self.folder / "rich.fa", "--tiers", "T1", "--seeds",
                 "1", "--epochs", 1, "--no-control", "--json")
        report = essh_json(*words, "--test-share", "0.25")
        self.assertEqual((report["classes"], report["train"], report["test"]), (["poor", "rich"], 90, 30))
        self.assertEqual(len(report["results"]), 1)
        refused = essh("evaluate", "dna", self.run_folder, "--classify", self.folder / "poor.fa")
        self.assertEqual(refused.returncode, EXIT_USAGE)
        self.assertIn(b"two classes", refused.stderr)


if __name__ == "__main__":
    unittest.main()
