"""Several models in one `essh evaluate ppl|length|niah|tasks`: the figures of separate commands, to the last bit."""
import json
import pathlib
import random
import shutil
import tempfile
import unittest
import xml.etree.ElementTree

from _command import essh, essh_json

WORDS = "the a river stone walks under bright old green tree house sings 12 because water".split()


def without_times(value):
    """A result without its measured seconds."""
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if "seconds" not in key}
    return [without_times(each) for each in value] if isinstance(value, list) else value


class EvaluateModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        rng = random.Random(9)
        cls.texts = [cls.folder / "one.txt", cls.folder / "two.txt"]
        for text in cls.texts:
            text.write_text("\n<|endoftext|>\n".join(" ".join(rng.choices(WORDS, k=40)) for _ in range(20)))
        (cls.folder / "cloze.jsonl").write_text("\n".join(json.dumps({"text": " ".join(rng.choices(WORDS, k=9))}) for _ in range(12)))
        (cls.folder / "cloze.yaml").write_text('task: cloze\ntext: "{{text|before_last_word}}"\ncontinuation: " {{text|last_word}}"\n'
                                               "files: [cloze.jsonl]\n")
        cls.models = []
        # Two models share a tokenizer; the third has another one, and cuts the text into other tokens.
        for seed, vocabulary in ((1, 300), (2, 300), (3, 280)):
            tokenizer, model = cls.folder / str(vocabulary) / "tokenizer.json", cls.folder / f"model-{seed}"
            if not tokenizer.exists():
                tokenizer.parent.mkdir()
                assert essh("tokenizer", "train", *cls.texts, "-o", tokenizer, "--vocab-size", vocabulary).returncode == 0
            made = essh("init", "tiny", "-o", model, "--seed", seed, "--vocab-size", vocabulary, "--tokenizer", tokenizer)
            assert made.returncode == 0, made.stderr
            cls.models.append(model)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def check(self, verb, *words):
        together = essh_json("evaluate", verb, *self.models, "--tiers", "T1,T10", "--json", *words)
        alone = []
        for model in self.models:
            found = essh_json("evaluate", verb, model, "--tiers", "T1,T10", "--json", *words)
            alone += found if isinstance(found, list) else [found]
        self.assertEqual(without_times(together), without_times(alone))
        return together

    def check_and_differ(self, verb, *words):
        """Equal figures of different models would hide a mistake."""
        figures = [json.dumps(without_times({**each, "model": "", "provenance": ""})) for each in self.check(verb, *words)]
        self.assertEqual(len(set(figures)), len(figures))

    def test_perplexity(self):
        self.check_and_differ("ppl", "--data", *self.texts, "--context", 32)
        self.check_and_differ("ppl", "--data", *self.texts, "--context", 32, "--cross-domain", "--windows", 5)
        self.check_and_differ("ppl", "--data", *self.texts, "--context", 32, "--domains")
        table = essh("evaluate", "ppl", *self.models, "--data", *self.texts, "--context", 32, "--tiers", "T1")
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertIn(b"different tokens", table.stderr)

    def test_length(self):
        svg = self.folder / "length.svg"
        self.check_and_differ("length", "--data", *self.texts, "--lengths", "16,64", "--windows", 4, "--svg", svg)
        drawn = essh("evaluate", "length", *self.models, "--data", *self.texts, "--lengths", "16,64", "--windows", 4, "--tiers", "T1,T10", "--svg", svg)
        for model in self.models:
            self.assertIn(str(model), drawn.stdout.decode())
            self.assertIn(model.name, "".join(xml.etree.ElementTree.parse(svg).getroot().itertext()))

    def test_needle(self):
        # Untrained models find no key: their figures are equal, their scores in the dump are not.
        words = ("--filler", *self.texts, "--lengths", 60, "--pairs", 2, "--bootstrap", 10)
        self.check("niah", *words)
        dumps = []
        for models in (self.models, *([model] for model in self.models)):
            dump = self.folder / "dump.jsonl"
            made = essh("evaluate", "niah", *models, "--tiers", "T1", "--dump", dump, *words)
            self.assertEqual(made.returncode, 0, made.stderr)
            dumps.append(dump.read_text())
        self.assertEqual(dumps[0], "".join(dumps[1:]))
        self.assertEqual(len({json.loads(dump.splitlines()[0])["expected_score"] for dump in dumps[1:]}), len(self.models))

    def test_tasks(self):
        self.check_and_differ("tasks", "--task", self.folder / "cloze.yaml", "--bootstrap", 1000)


if __name__ == "__main__":
    unittest.main()
