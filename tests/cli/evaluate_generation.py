"""Generation tasks of `essh evaluate tasks`: greedy texts from `essh logits`, contains-match, left truncation, stops, journal, SQuAD's file."""
import json
import pathlib
import random
import shutil
import tempfile
import unittest

import numpy
from tokenizers import Tokenizer

from _command import EXIT_BAD_FILE, essh, essh_json

MOST_TOKENS, MOST_INPUTS = 6, 12
YAML = """
task: quiz
text: "{{text}}"
answers: ["{{value}}"]
max_tokens: %d
max_inputs: %d
stop: %s
files: [quiz.jsonl]
"""


class EvaluateGeneration(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        rng = random.Random(4)
        text = cls.folder / "text.txt"
        text.write_text("\n".join(" ".join(f"word{rng.randrange(40)}" for _ in range(12)) for _ in range(60)))
        assert essh("tokenizer", "train", text, "-o", cls.folder / "tokenizer.json", "--vocab-size", 300).returncode == 0
        cls.model = cls.folder / "model"
        made = essh("init", "tiny", "-o", cls.model, "--seed", 3, "--vocab-size", 300, "--tokenizer", cls.folder / "tokenizer.json")
        assert made.returncode == 0, made.stderr
        cls.tokenizer = Tokenizer.from_file(str(cls.folder / "tokenizer.json"))
        cls.eos = json.loads((cls.model / "config.json").read_text())["eos_token_id"]
        cls.prompts = [" ".join(f"word{rng.randrange(40)}" for _ in range(count)) for count in (1, 3, 9, 2, 5)]

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def greedy(self, prompt, tier, stop):
        tokens, own = self.tokenizer.encode(prompt, add_special_tokens=False).ids[-MOST_INPUTS:], []
        while len(own) < MOST_TOKENS:
            (self.folder / "tokens.json").write_text(json.dumps(tokens + own))
            made = essh("logits", self.model, "--tokens", self.folder / "tokens.json", "--out", self.folder / "logits.npy", "--tier", tier)
            self.assertEqual(made.returncode, 0, made.stderr)
            token = int(numpy.load(self.folder / "logits.npy")[-1].argmax())
            if token == self.eos:
                break
            own.append(token)
            text = self.tokenizer.decode(own, skip_special_tokens=False)
            if stop in text:
                return text[:text.index(stop)]
        return self.tokenizer.decode(own, skip_special_tokens=False)

    def write(self, values, stop):
        (self.folder / "quiz.yaml").write_text(YAML % (MOST_TOKENS, MOST_INPUTS, json.dumps([stop])))
        (self.folder / "quiz.jsonl").write_text("".join(json.dumps({"text": prompt, "value": value}) + "\n"
                                                        for prompt, value in zip(self.prompts, values)))

    def measure(self, *extra):
        return essh_json("evaluate", "tasks", self.model, "--task", self.folder / "quiz.yaml", "--tiers", "T1,T10", "--json", *extra)

    def test_texts_are_greedy_and_answers_are_contained(self):
        stop = "\n"
        expected = {tier: [self.greedy(prompt, tier, stop) for prompt in self.prompts] for tier in ("T1", "T10")}
        # Half of the answers are part of what T10 writes, in another case; the others cannot be.
        values = [text[1:4].swapcase() if i % 2 == 0 and len(text) > 3 else "never written" for i, text in enumerate(expected["T10"])]
        self.assertTrue(any(value != "never written" for value in values))
        self.write(values, stop)
        journal = self.folder / "journal.jsonl"
        report = self.measure("--journal", journal)
        written = {tier: [] for tier in expected}
        for line in journal.read_text().splitlines():
            line = json.loads(line)
            written[line["tier"]].append(line["generated"])
        self.assertEqual(written, expected)
        for result in report["tasks"][0]["results"]:
            hits = [value.lower() in text.lower() for value, text in zip(values, expected[result["tier"]])]
            self.assertAlmostEqual(result["contains"], sum(hits) / len(hits))
        self.assertGreater(report["tasks"][0]["results"][1]["contains"], 0)
        again = self.measure("--journal", journal)
        self.assertEqual(again["tasks"][0]["resumed"], 2 * len(self.prompts))
        self.assertEqual(again["tasks"][0]["results"], report["tasks"][0]["results"])

    def test_a_stop_ends_the_text(self):
        whole = self.greedy(self.prompts[2], "T10", "\0")
        stop = whole[len(whole) // 2]
        self.write(["x"] * len(self.prompts), stop)
        journal = self.folder / "stopped.jsonl"
        self.measure("--journal", journal)
        written = [json.loads(line) for line in journal.read_text().splitlines()]
        texts = [line["generated"] for line in written if line["tier"] == "T10"]
        self.assertEqual(texts[2], whole[:whole.index(stop)])
        self.assertTrue(all(stop not in text for text in texts))

    def test_squad_and_the_suite(self):
        squad = {"data": [{"title": "T", "paragraphs": [{"context": "word1 word2", "qas": [
            {"id": "1", "question": "word3?", "answers": [{"text": "word4", "answer_start": 0}, {"text": "o", "answer_start": 1}]},
            {"id": "2", "question": "word5?", "answers": [{"text": "never written", "answer_start": 0}]}]}]}]}
        data = self.folder / "sets"
        data.mkdir()
        (data / "squad_dev-v1.1.json").write_text(json.dumps(squad))
        words = ("evaluate", "tasks", self.model, "--data", data, "--tiers", "T10", "--json", "--task")
        report = essh_json(*words, "squad")
        self.assertEqual((report["tasks"][0]["items"], report["tasks"][0]["main"]), (2, "contains"))
        for name in ("swde", "fda"):
            (data / f"{name}.jsonl").write_text(json.dumps({"text": "word1", "value": "w"}) + "\n")
        for name in ("triviaqa", "nq", "drop"):
            (data / f"{name}.jsonl").write_text(json.dumps({"context": "word1", "question": "word2", "answers": ["w", "x"]}) + "\n")
        report = essh_json(*words, "open_book")
        self.assertEqual(sorted(task["task"] for task in report["tasks"]), ["drop", "fda", "nq", "squad", "swde", "triviaqa"])
        (data / "squad_dev-v1.1.json").write_text('{"version": "1.1"}')
        refused = essh(*words, "squad")
        self.assertEqual(refused.returncode, EXIT_BAD_FILE)
        self.assertIn(b"SQuAD's form", refused.stderr)


if __name__ == "__main__":
    unittest.main()
