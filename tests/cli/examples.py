"""The examples of the help and of the documentation, run in a folder that has what they name."""
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import unittest

from _command import ESSH, HANGS, essh
from _training import RECIPE
from usage import all_verbs, verbs

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"

# What makes an example short. The words go behind it.
SHORTER = {"serve": ["--check"], "bench serve": ["--requests", "2"], "train": ["--print-recipe"], "frontier": ["--depth", "8", "--steps", "2"], "plan": ["--depth", "8", "--steps", "2", "--context", "64", "--windows", "1"], "evaluate ppl": ["--windows", "1"],
           "evaluate recall": ["--samples", "4"], "evaluate niah": ["--pairs", "1", "--depths", "0.5"], "evaluate length": ["--windows", "1"],
           "evaluate tasks": ["--bootstrap", "1000"], "evaluate dna": ["--epochs", "1", "--windows", "2"], "evaluate channels": ["--energy-only"], "verify": ["--length", "16"]}
# Sizes, devices and servers that a test does not have: only the options are checked.
ELSEWHERE = re.compile(r"--device cuda|\b1\.5b\b|http://localhost")


def from_help():
    for words in sorted(map(list, {tuple(words) for words in verbs() + all_verbs()})):
        text = essh(*words, "--help").stdout.decode()
        block = text[text.index("Example"):].split("\n\n")[0]
        for line in block.splitlines():
            line = re.sub(r"^\s*(Examples?:)?\s*", "", line)
            if "essh " in line:
                yield " ".join(words) + " --help", line


def from_docs():
    for page in sorted(DOCS.glob("*.md")):
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                line = re.sub(r"\s+#.*$", "", line)
                # Brackets and bars describe a syntax, capitals stand for something.
                if line.startswith("essh ") and not re.search(r"[\[|]|\.\.\.|\b[A-Z]{3,}\b", line):
                    yield page.name, line


def make_questions(folder):
    """One question for each of the reference tasks, in the form of its usual file."""
    folder.mkdir()
    science = {"question": {"stem": "word1?", "choices": [{"text": "word2", "label": "A"}, {"text": "word3", "label": "B"}]}, "answerKey": "B"}
    files = {"lambada_test.jsonl": json.dumps({"text": "word1 word2 word3"}),
             "hellaswag_val_full.txt": "word1: word2\n1\nword3\nword4\nword5\nword6",
             "piqa_valid.jsonl": json.dumps({"goal": "word1", "sol1": "word2", "sol2": "word3"}), "piqa_valid-labels.lst": "1",
             "ARC-Easy-Dev.jsonl": json.dumps(science), "ARC-Challenge-Dev.jsonl": json.dumps(science),
             "winogrande_dev.jsonl": json.dumps({"sentence": "word1 _ word2", "option1": "word3", "option2": "word4", "answer": "2"}),
             "openbookqa_dev.tsv": "Question Stem\tChoices\tAnswer Key\nword1\t(A) word2 (B) word3 (C) word4 (D) word5\tC"}
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def make_workspace(place):
    def run(*words, stdin=b""):
        result = essh(*words, cwd=place, stdin=stdin)
        assert result.returncode == 0, (words, result.stderr)

    generator = random.Random(5)
    text = "".join(" ".join(f"word{generator.randrange(50)}" for _ in range(12)) + ".\n" for _ in range(1500))
    for name in ("corpus.txt", "heldout.txt", "corpus/a.txt"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    (place / "corpus" / "b.jsonl.zst").write_text(json.dumps({"text": text}) + "\n")
    (place / "GRCh38.fa").write_text(">chr20\n" + "ACGTNacgt" * 500 + "\n>chr21 primary\n" + "TTGCA" * 500 + "\n")
    (place / "promoters.tsv").write_text("class\tseq\n" + "".join(f"{number % 2}\t{'ACGT' * (number + 2)}\n" for number in range(20)))
    (place / "ids.json").write_text("[1, 2, 3]")
    run("tokenizer", "train", "corpus.txt", "-o", "tok/tokenizer.json", "--vocab-size", "512")
    run("prepare", "corpus.txt", "-o", "data/headers", "--tokenizer", "tok/tokenizer.json", "--valid-fraction", "0.2")
    shutil.copytree(place / "data" / "headers", place / "data" / "heldout")
    train = ("train", "tiny", "--data", "data/headers", "--device", "cpu", *RECIPE, "--set", "run.steps=2", "--set", "refine.steps=1",
             "--set", "refine.batch=2", "--set", "data.context=64")
    for name in ("tiny", "elastic", "dense"):
        run(*train, "-o", f"runs/{name}")
    run("train", "mqar", "-o", "runs/mqar", "--device", "cpu", "--set", "data.context=64", "--set", "data.pairs=4", "--set", "data.symbols=128",
        "--set", "model.vocab_size=128", "--set", "model.hidden_size=64", "--set", "run.steps=1", "--set", "run.batch=4",
        "--set", "run.micro_batch=4", "--set", "run.validation_windows=2", "--set", "refine.batch=4")
    run("prepare", "GRCh38.fa", "-o", "data/genome", "--tokenizer", "nucleotides", "--holdout", "chr21")
    run("train", "dna", "--data", "data/genome", "-o", "runs/dna", "--device", "cpu", "--set", "data.context=64", "--set", "run.steps=1",
        "--set", "run.batch=4", "--set", "run.micro_batch=4", "--set", "run.validation_windows=2", "--set", "refine.batch=4",
        "--set", "model.num_hidden_layers=1")
    run("init", "tiny", "-o", "models/tiny", "--tokenizer", "tok/tokenizer.json", "--vocab-size", "8192")
    run("export", "models/tiny", "--tier", "T1,T4", "-o", "exports")
    make_questions(place / "eval")


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.workspace = pathlib.Path(cls.place.name) / "workspace"
        cls.workspace.mkdir()
        make_workspace(cls.workspace)
        tools = pathlib.Path(cls.place.name) / "bin"
        tools.mkdir()
        (tools / "essh").symlink_to(ESSH)
        cls.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def verb_of(self, line):
        words = re.search(r"\bessh ([a-z]+)(?: ([a-z]+))?", line).groups()
        return next((w for w in all_verbs() + verbs() if w == [*words[:len(w)]]), None)

    def check_options(self, line):
        verb = self.verb_of(line)
        self.assertIsNotNone(verb, line)
        known = essh(*verb, "--help").stdout.decode()
        for option in re.findall(r"(?<= )--?[a-z][a-z-]*", line):
            self.assertRegex(known, rf"[ ,]{option}\b")
        for recipe_setting in re.findall(r"--set ([a-z_.]+)=", line):
            self.assertIn(f"  {recipe_setting} ", essh("train", "--help").stdout.decode())
        return " ".join(verb)

    def test_examples_run(self):
        count = 0
        for number, (place, line) in enumerate([*from_help(), *from_docs()]):
            count += 1
            with self.subTest(place=place, example=line):
                verb = self.check_options(line)
                if ELSEWHERE.search(line) or "tokenizer.model" in line:
                    continue
                here = pathlib.Path(self.place.name) / str(number)
                shutil.copytree(self.workspace, here)
                command = " ".join([line, *SHORTER.get(verb, [])])
                # The folder that an example makes is not there before.
                if verb == "init":
                    shutil.rmtree(here / "models")
                if verb == "export":
                    shutil.rmtree(here / "exports")
                if verb != "tokenizer train":
                    shutil.copy(here / "tok" / "tokenizer.json", here)
                result = subprocess.run(["bash", "-c", command], cwd=here, env=self.environment, stdin=subprocess.DEVNULL,
                                        capture_output=True, timeout=HANGS, check=False)
                self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
                shutil.rmtree(here)
        self.assertGreater(count, 30)


if __name__ == "__main__":
    unittest.main()
