"""`essh evaluate tasks` on generated questions, against metrics computed here from `essh logits`."""
import json
import math
import pathlib
import random
import shutil
import tempfile
import unittest

import numpy
import pyarrow
import pyarrow.parquet
from tokenizers import Tokenizer

from _command import EXIT_BAD_FILE, EXIT_UNSUPPORTED, EXIT_USAGE, essh, essh_json

WORDS = "the a river stone walks under bright old green café naïve tree house sings 12 because water".split()
TIERS = ("T1", "T10")
CHOICE_YAML = """task: generated
text: "Question: {{question.stem}}\\nAnswer:"
choices: ["{{question.choices.text}}"]
labels: ["{{question.choices.label}}"]
target: "{{answerKey}}"
metrics: [acc, acc_norm, acc_bytes]
main: acc_norm
files: [generated.jsonl]
"""
CLOZE_YAML = """task: last_word
text: "{{text|before_last_word}}"
continuation: " {{text|last_word}}"
files: [cloze.tsv]
"""
PARTIAL_YAML = """task: blank
contexts: ["{{sentence|before:_}}{{option1}}", "{{sentence|before:_}}{{option2}}"]
continuation: "{{sentence|after:_|strip}}"
target: "{{answer}}"
labels: ["1", "2"]
metrics: [acc]
files: [blank.csv]
"""


def phrase(rng, least, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


class Model:
    """Log-likelihoods of continuations by the logits that the binary gives for whole sequences."""

    def __init__(self, folder, model, tier):
        self.folder, self.model, self.tier = folder, model, tier
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def request(self, context, continuation):
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        before = self.encode(context)
        after = self.encode(context + continuation)[len(before):]
        tokens, out = self.folder / "tokens.json", self.folder / "logits.npy"
        tokens.write_text(json.dumps((before + after)[:-1]))
        result = essh("logits", self.model, "--tokens", tokens, "--out", out, "--tier", self.tier)
        assert result.returncode == 0, result.stderr
        rows = numpy.load(out).astype(numpy.float64)[len(before) - 1:]
        top = rows.max(axis=1)
        log_sums = top + numpy.log(numpy.exp(rows - top[:, None]).sum(axis=1))
        likelihood = float(sum(rows[i, token] - log_sums[i] for i, token in enumerate(after)))
        return likelihood, bool((rows.argmax(axis=1) == after).all())


def mean(values):
    return sum(values) / len(values)


def mean_stderr(values):
    centre = mean(values)
    return math.sqrt(sum((x - centre) ** 2 for x in values) / (len(values) - 1)) / math.sqrt(len(values))


class EvaluateTasks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        rng = random.Random(5)
        text = cls.folder / "text.txt"
        text.write_text("\n".join(phrase(rng, 5, 30) for _ in range(400)), encoding="utf-8")
        tokenizer = cls.folder / "tokenizer.json"
        assert essh("tokenizer", "train", text, "-o", tokenizer, "--vocab-size", 300).returncode == 0
        cls.model = cls.folder / "model"
        result = essh("init", "tiny", "-o", cls.model, "--seed", 3, "--vocab-size", 300, "--tokenizer", tokenizer)
        assert result.returncode == 0, result.stderr
        cls.questions = []
        for i in range(12):
            labels = "ABCD"[:rng.choice([3, 4])]
            cls.questions.append({"id": i, "answerKey": rng.choice(labels),
                                  "question": {"stem": phrase(rng, 2, 9),
                                               "choices": [{"label": l, "text": phrase(rng, 1, 6)} for l in labels]}})
        (cls.folder / "generated.jsonl").write_text("\n".join(json.dumps(q) for q in cls.questions), encoding="utf-8")
        cls.passages = [phrase(rng, 3, 12) for _ in range(8)]
        (cls.folder / "cloze.tsv").write_text("text\tother\n" + "".join(f"{p}\tx\n" for p in cls.passages), encoding="utf-8")
        cls.blanks = [(phrase(rng, 1, 5), phrase(rng, 1, 5), *rng.sample(WORDS, 2), rng.choice("12")) for _ in range(6)]
        (cls.folder / "blank.csv").write_text("sentence,option1,option2,answer\r\n" + "".join(
            f'"{a}, ""x"" _ {b}",{c},{d},{answer}\r\n' for a, b, c, d, answer in cls.blanks), encoding="utf-8")
        for name, yaml in (("generated", CHOICE_YAML), ("last_word", CLOZE_YAML), ("blank", PARTIAL_YAML)):
            (cls.folder / f"{name}.yaml").write_text(yaml)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def measure(self, *names, tiers=TIERS, extra=()):
        return essh_json("evaluate", "tasks", self.model, "--task", ",".join(str(self.folder / f"{n}.yaml") for n in names),
                         "--tiers", ",".join(tiers), "--json", *extra)

    def check(self, result, name, values):
        self.assertEqual(result[name], mean(values))
        self.assertEqual(result[name + "_stderr"], mean_stderr(values))

    def test_multiple_choice(self):
        report = self.measure("generated")
        task = report["tasks"][0]
        self.assertEqual(task["items"], len(self.questions))
        for result in task["results"]:
            model = Model(self.folder, self.model, result["tier"])
            hits = {"acc": [], "acc_norm": [], "acc_bytes": []}
            for q in self.questions:
                choices = [c["text"] for c in q["question"]["choices"]]
                gold = [c["label"] for c in q["question"]["choices"]].index(q["answerKey"])
                lls = numpy.array([model.request(f"Question: {q['question']['stem']}\nAnswer:", " " + c)[0] for c in choices])
                for name, length in (("acc", lambda c: 1), ("acc_norm", len), ("acc_bytes", lambda c: len(c.encode()))):
                    hits[name].append(float(numpy.argmax(lls / numpy.array([length(c) for c in choices])) == gold))
            for name, values in hits.items():
                self.check(result, name, values)
        self.assertEqual([m["mean"] for m in report["means"]], [r["acc_norm"] for r in task["results"]])

    def test_cloze(self):
        bootstrap = 2000
        for result in self.measure("last_word", extra=("--bootstrap", bootstrap))["tasks"][0]["results"]:
            model = Model(self.folder, self.model, result["tier"])
            found = [model.request(p[:p.rindex(" ")], p[p.rindex(" "):]) for p in self.passages]
            lls = [ll for ll, _ in found]
            self.check(result, "acc", [float(greedy) for _, greedy in found])
            self.assertAlmostEqual(result["perplexity"] / math.exp(-mean(lls)), 1, delta=1e-12)
            samples = []
            for seed in range(bootstrap // 1000):
                rng = random.Random(seed)
                samples += [math.exp(-mean(rng.choices(lls, k=len(lls)))) for _ in range(1000)]
            centre = mean(samples)
            error = math.sqrt(sum((x - centre) ** 2 for x in samples) / (len(samples) - 1))
            self.assertAlmostEqual(result["perplexity_stderr"] / error, 1, delta=1e-9)

    def test_partial_scoring_from_a_quoted_table(self):
        for result in self.measure("blank")["tasks"][0]["results"]:
            model = Model(self.folder, self.model, result["tier"])
            hits = []
            for before, after, first, second, answer in self.blanks:
                lls = [model.request(f'{before}, "x" {option}', f" {after}")[0] for option in (first, second)]
                hits.append(float(numpy.argmax(lls) == int(answer) - 1))
            self.check(result, "acc", hits)

    def test_race_puts_answered_questions_into_the_text(self):
        articles = [{"article": "the river", "questions": ["The tree is  _  .", "why?", "what sings?"], "answers": ["B", "A", answer],
                     "options": [["old", "green", "a", "b"], ["because", "x", "y", "z"], ["house", "stone", "water", "tree"]]}
                    for answer in "CA"]
        folders = [self.folder / "race_files", self.folder / "race_lines"]
        place = folders[0] / "RACE" / "test" / "high"
        place.mkdir(parents=True)
        folders[1].mkdir()
        for i, article in enumerate(articles):
            (place / f"{i}.txt").write_text(json.dumps(article))
        (folders[1] / "race_high_test.jsonl").write_text("\n".join(map(json.dumps, articles)))
        text = "Article: the river\n\nThe tree is green\nQuestion: why?\nAnswer: because\nwhat sings?"
        model = Model(self.folder, self.model, "T1")
        expected = [model.request(text, " " + option)[0] for option in articles[0]["options"][2]]
        for folder in folders:
            journal = folder / "scores"
            essh_json("evaluate", "tasks", self.model, "--task", "race", "--data", folder, "--tiers", "T1", "--json", "--journal", journal)
            scores = [json.loads(line) for line in journal.read_text().splitlines()]
            self.assertEqual([s["gold"] for s in scores], [2, 0])
            for score in scores:
                numpy.testing.assert_allclose(score["log_likelihood"], expected, rtol=1e-5)

    def sciq(self, place):
        """Scores of SciQ from a folder, in the order of its own choices."""
        journal = self.folder / f"sciq-{place.name}.jsonl"
        report = essh_json("evaluate", "tasks", self.model, "--task", "sciq", "--data", place, "--tiers", "T1", "--json", "--journal", journal)
        return report["tasks"][0], [json.loads(line) for line in journal.read_text().splitlines()]

    def test_sciq_as_published_and_as_json_lines(self):
        questions = [{"question": "What sings?", "distractor3": "stone", "distractor1": "a house", "distractor2": "water",
                      "correct_answer": "the tree", "support": support} for support in ("  the old river walks", "")]
        places = [self.folder / name for name in ("list", "lines", "published")]
        for place in places:
            (place / "SciQ").mkdir(parents=True)
        (places[0] / "sciq_test.json").write_text(json.dumps(questions, indent=4))
        (places[1] / "sciq_test.jsonl").write_text("\n".join(map(json.dumps, questions)))
        (places[2] / "SciQ" / "test.json").write_text(json.dumps(questions))
        model = Model(self.folder, self.model, "T1")
        texts = ("the old river walks\nQuestion: What sings?\nAnswer:", "\nQuestion: What sings?\nAnswer:")
        expected = [[model.request(text, " " + choice)[0] for choice in ("a house", "water", "stone", "the tree")] for text in texts]
        for place in places:
            task, scores = self.sciq(place)
            self.assertEqual([s["gold"] for s in scores], [3, 3])
            numpy.testing.assert_allclose([s["log_likelihood"] for s in scores], expected, rtol=1e-5)
            self.check(task["results"][0], "acc", [float(numpy.argmax(row) == 3) for row in expected])

    def test_parquet_files_have_a_remedy(self):
        place = self.folder / "hub"
        place.mkdir()
        rows = [{"question": "What sings?", "distractor1": "a", "distractor2": "b", "distractor3": "stone", "correct_answer": "tree",
                 "support": ""}] * 2
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place / "test-00000-of-00001.parquet")
        words = ("evaluate", "tasks", self.model, "--task", "sciq", "--data", place, "--tiers", "T1")
        refused = essh(*words)
        self.assertEqual(refused.returncode, EXIT_USAGE, refused.stderr)
        source, goal = place / "test-00000-of-00001.parquet", place / "sciq_test.jsonl"
        self.assertIn(f'pandas.read_parquet("{source}").to_json("{goal}", orient="records", lines=True)', refused.stderr.decode())
        # What the remedy writes is read.
        goal.write_text("".join(json.dumps(row) + "\n" for row in pyarrow.parquet.read_table(source).to_pylist()))
        self.assertEqual(essh_json(*words, "--json")["tasks"][0]["items"], 2)
        goal.unlink()
        source.rename(place / "sciq.parquet")
        result = essh(*words, "--json")
        if result.returncode == 0:  # a build with Arrow
            self.assertEqual(json.loads(result.stdout)["tasks"][0]["items"], 2)
            return
        self.assertEqual(result.returncode, EXIT_UNSUPPORTED, result.stderr)
        self.assertIn(f'pandas.read_parquet("{place / "sciq.parquet"}").to_json("{place / "sciq.jsonl"}"', result.stderr.decode())

    def test_a_stopped_run_goes_on(self):
        whole = self.measure("generated", "last_word")
        journal = self.folder / "scores.jsonl"
        first = self.measure("generated", tiers=("T1",), extra=("--journal", journal))
        self.assertEqual(first["tasks"][0]["resumed"], 0)
        # As a crash leaves it: lines gone, the last one cut off.
        lines = journal.read_bytes().splitlines(keepends=True)
        self.assertEqual(len(lines), len(self.questions))
        journal.write_bytes(b"".join(lines[:5]) + lines[5][:20])
        again = self.measure("generated", "last_word", extra=("--journal", journal))
        self.assertEqual([t["resumed"] for t in again["tasks"]], [5, 0])
        self.assertEqual([t["results"] for t in again["tasks"]], [t["results"] for t in whole["tasks"]])
        last = self.measure("generated", "last_word", extra=("--journal", journal))
        self.assertEqual([t["resumed"] for t in last["tasks"]], [2 * len(self.questions), 2 * len(self.passages)])
        self.assertEqual([t["results"] for t in last["tasks"]], [t["results"] for t in whole["tasks"]])
        # Scores of another task are not taken: the labels are part of it.
        moved = [{**q, "answerKey": "A"} for q in self.questions]
        other = self.folder / "other"
        other.mkdir()
        (other / "generated.jsonl").write_text("\n".join(map(json.dumps, moved)))
        (other / "generated.yaml").write_text(CHOICE_YAML)
        fresh = essh_json("evaluate", "tasks", self.model, "--task", other / "generated.yaml", "--tiers", "T1", "--json",
                          "--journal", journal)
        self.assertEqual(fresh["tasks"][0]["resumed"], 0)

    def test_parquet_with_lists_and_structs(self):
        other = self.folder / "parquet"
        other.mkdir()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self.questions), other / "generated.parquet", row_group_size=5)
        (other / "generated.yaml").write_text(CHOICE_YAML.replace("generated.jsonl", "generated.parquet"))
        result = essh("evaluate", "tasks", self.model, "--task", other / "generated.yaml", "--tiers", "T1", "--json")
        if result.returncode == EXIT_UNSUPPORTED:  # a build without Arrow
            self.assertIn(b"cannot read Parquet", result.stderr)
            return
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["tasks"][0]["results"], self.measure("generated", tiers=("T1",))["tasks"][0]["results"])

    def test_provenance_and_names(self):
        report = self.measure("generated", tiers=("T1",))
        self.assertEqual(len(report["provenance"]["model_hash"]), 64)
        self.assertEqual(len(report["tasks"][0]["data_fingerprint"]), 64)
        self.assertEqual(len(report["tokenizer_hash"]), 64)
        names = essh("evaluate", "tasks", "--list").stdout.decode().split()
        for name in "lambada hellaswag piqa arc_easy arc_challenge winogrande openbookqa boolq siqa sciq copa race logiqa".split():
            self.assertIn(name, names)
            self.assertIn(f"task: {name}\n".encode(), essh("evaluate", "tasks", "--show", name).stdout)

    def test_mistakes_are_named(self):
        def failure(code, *arguments):
            result = essh("evaluate", "tasks", self.model, "--tiers", "T1", *arguments)
            self.assertEqual(result.returncode, code, result.stderr)
            return result.stderr.decode()

        self.assertIn('did you mean "piqa"', failure(EXIT_USAGE, "--task", "piqqa"))
        self.assertIn("piqa_valid.jsonl", failure(EXIT_USAGE, "--task", "piqa", "--data", self.folder))
        bad = self.folder / "bad.yaml"
        for change, words in (("{{answerKey}}|{{answer}}", 'item 1: no field "answer"'), ("acc_bytes|acc_byte", "acc_bytes"),
                              ("[generated.jsonl]|[last_word.yaml]", "last_word.yaml"), ("task:|tusk:", "task is missing"),
                              ("{{answerKey}}|Z", 'the target "Z" is none of')):
            bad.write_text(CHOICE_YAML.replace(*change.split("|")))
            self.assertIn(words, failure(EXIT_BAD_FILE, "--task", bad))


if __name__ == "__main__":
    unittest.main()
