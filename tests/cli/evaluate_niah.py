"""`essh evaluate niah`: trials from `essh logits`, metrics and intervals from the dumped scores."""
import json
import pathlib
import random
import shutil
import tempfile
import unittest

import numpy
from tokenizers import Tokenizer

from _command import EXIT_USAGE, essh, essh_json

SENTENCES = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
QUESTION = " The secret key is"
DEPTHS = (0.0, 0.4, 1.0)
LENGTHS = (40, 90)
PAIRS, SEED, BOOTSTRAP = 9, 11, 500


class EvaluateNiah(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        rng = random.Random(4)
        text = cls.folder / "text.txt"
        text.write_text((SENTENCES + "".join(f"{QUESTION} {rng.randrange(100000, 1000000)}." for _ in range(40))) * 3)
        assert essh("tokenizer", "train", text, "-o", cls.folder / "tokenizer.json", "--vocab-size", 320).returncode == 0
        cls.model = cls.folder / "model"
        # Few entries, so that a random model is right now and then.
        result = essh("init", "tiny", "-o", cls.model, "--seed", 3, "--vocab-size", 320, "--tokenizer", cls.folder / "tokenizer.json")
        assert result.returncode == 0, result.stderr
        cls.tokenizer = Tokenizer.from_file(str(cls.folder / "tokenizer.json"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def measure(self, *extra):
        dump = self.folder / "dump.jsonl"
        report = essh_json("evaluate", "niah", self.model, "--tiers", "T1,T10", "--lengths", ",".join(map(str, LENGTHS)), "--depths",
                           ",".join(map(str, DEPTHS)), "--pairs", PAIRS, "--seed", SEED, "--bootstrap", BOOTSTRAP, "--dump", dump,
                           "--json", *extra)
        return report, [json.loads(line) for line in dump.read_text().splitlines()]

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def score(self, trial, key, filler):
        """Log-likelihood of a key after the haystack of a trial, and which of its tokens have the largest logit."""
        needle, question = self.encode(f"{QUESTION} {trial['expected']}."), self.encode(QUESTION)
        answer = self.encode(f"{QUESTION} {key}")[len(question):]
        around = trial["length"] - len(needle) - len(question)
        stretch = [filler[(trial["filler"] + i) % len(filler)] for i in range(around)]
        before = int(trial["depth"] * around + 0.5)
        context = stretch[:before] + needle + stretch[before:] + question
        self.assertEqual(len(context), trial["length"])
        tokens, out = self.folder / "tokens.json", self.folder / "logits.npy"
        tokens.write_text(json.dumps((context + answer)[:-1]))
        result = essh("logits", self.model, "--tokens", tokens, "--out", out, "--tier", trial["tier"])
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = numpy.load(out).astype(numpy.float64)[len(context) - 1:]
        top = rows.max(axis=1)
        log_sums = top + numpy.log(numpy.exp(rows - top[:, None]).sum(axis=1))
        return sum(rows[i, t] - log_sums[i] for i, t in enumerate(answer)), rows.argmax(axis=1) == answer

    def test_scores_are_those_of_the_logits(self):
        _, trials = self.measure()
        filler = self.encode(SENTENCES)
        for trial in trials[::7]:
            score, greedy = self.score(trial, trial["expected"], filler)
            self.assertAlmostEqual(trial["expected_score"], score, delta=1e-4)
            self.assertEqual((trial["first_token"], trial["full_key"]), (bool(greedy[0]), bool(greedy.all())))
            self.assertAlmostEqual(trial["rival_score"], self.score(trial, trial["rival"], filler)[0], delta=1e-4)

    def test_metrics_and_intervals_follow_from_the_dump(self):
        report, trials = self.measure()
        self.assertEqual(len(trials), 2 * len(LENGTHS) * PAIRS * len(DEPTHS))
        self.assertEqual([(r["tier"], r["length"]) for r in report["results"]], [(t, n) for t in ("T1", "T10") for n in LENGTHS])
        for result in report["results"]:
            mine = [t for t in trials if (t["tier"], t["length"]) == (result["tier"], result["length"])]
            hits = {"margin_win": [t["expected_score"] > t["rival_score"] for t in mine],
                    "first_token": [t["first_token"] for t in mine], "full_key": [t["full_key"] for t in mine]}
            for name, values in hits.items():
                self.assertAlmostEqual(result[name], sum(values) / len(values), delta=1e-12)
                clusters = [[v for v, t in zip(values, mine) if t["pair"] == pair] for pair in range(PAIRS)]
                rng = random.Random(SEED)
                means = [numpy.mean([v for cluster in rng.choices(clusters, k=PAIRS) for v in cluster]) for _ in range(BOOTSTRAP)]
                low, high = numpy.percentile(means, [2.5, 97.5])
                self.assertAlmostEqual(result[name + "_half_width"], (high - low) / 2, delta=1e-12)
            for depth in result["depths"]:
                there = [t for t in mine if t["depth"] == depth["depth"]]
                self.assertEqual(len(there), PAIRS)
                for name in ("first_token", "full_key"):
                    self.assertAlmostEqual(depth[name], sum(t[name] for t in there) / PAIRS, delta=1e-12)
        self.assertGreater(max(r["margin_win_half_width"] for r in report["results"]), 0)

    def test_the_conditions_swap_the_keys(self):
        _, counterfactual = self.measure()
        report, planted = self.measure("--condition", "planted")
        self.assertEqual(report["protocol"], "niah, planted")
        for a, b in zip(counterfactual, planted):
            self.assertEqual((a["expected"], a["rival"], a["filler"]), (b["rival"], b["expected"], b["filler"]))
            self.assertRegex(a["expected"], r"^[1-9]\d{5}$")
            self.assertNotEqual(a["expected"], a["rival"])
        self.assertEqual(len({t["expected"] for t in planted}), PAIRS)

    def test_goes_on_from_a_journal_and_draws(self):
        journal, svg = self.folder / "journal.jsonl", self.folder / "niah.svg"
        report, trials = self.measure("--journal", journal, "--svg", svg)
        lines = journal.read_text().splitlines(keepends=True)
        self.assertGreaterEqual(len(lines), 2 * len(LENGTHS))
        drawn = svg.read_text()
        for title in ("full key, 40 tokens", "first token, 90 tokens", "T10"):
            self.assertIn(title, drawn)
        # A score that is in the journal is taken as it is; what is missing or cut off is measured again.
        first = json.loads(lines[0])
        first["result"][0][0] = -123.5
        journal.write_text(json.dumps(first) + "\n" + "".join(lines[1:-1]) + lines[-1][:30])
        again, taken = self.measure("--journal", journal)
        self.assertEqual(taken[0]["expected_score"], -123.5)
        self.assertEqual(taken[1:], trials[1:])
        self.assertEqual(again["results"][1:], report["results"][1:])
        self.assertEqual(len(journal.read_text().splitlines()), len(lines))

    def test_other_filler_and_too_short_a_text(self):
        _, trials = self.measure("--filler", self.folder / "text.txt")
        text = self.encode((self.folder / "text.txt").read_text())
        trial = trials[-1]
        self.assertAlmostEqual(trial["expected_score"], self.score(trial, trial["expected"], text)[0], delta=1e-4)
        result = essh("evaluate", "niah", self.model, "--tiers", "T1", "--lengths", 4, "--pairs", 1)
        self.assertEqual(result.returncode, EXIT_USAGE)
        self.assertIn(b"leaves no room", result.stderr)


if __name__ == "__main__":
    unittest.main()
