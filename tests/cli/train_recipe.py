"""Settings of a recipe by name: essh train tiny --recipe paper."""
import json
import os
import tempfile
import unittest

from _command import EXIT_USAGE, essh
from _training import RECIPE, make_data, weights


class TrainRecipe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.data = make_data(cls.place.name)

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def train(self, name, *words):
        return essh("train", "tiny", "--data", self.data, "-o", os.path.join(self.place.name, name), "--device", "cpu", "--threads", "1",
                    *RECIPE, "--set", "run.steps=12", *words)

    def saved(self, name):
        with open(os.path.join(self.place.name, name, "recipe.yaml"), encoding="utf-8") as file:
            return file.read()

    def test_a_run_resumes_with_the_papers_settings(self):
        straight = self.train("straight", "--recipe", "paper")
        self.assertEqual(straight.returncode, 0, straight.stderr)
        plain = self.train("plain")
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertNotEqual(*(weights(os.path.join(self.place.name, name)) for name in ("straight", "plain")))
        self.assertEqual(self.train("pieces", "--recipe", "paper", "--stop-after", "5").returncode, 75)
        for line in ('algorithm: "adamw"', "full_share: 0.75", "warmup_share: 0.0338", "ordering_period: 5\n"):
            self.assertIn(line, self.saved("pieces"))
        refused = self.train("pieces")
        self.assertEqual(refused.returncode, EXIT_USAGE)
        for field in (b"optimizer.algorithm was", b"elastic.full_share was", b"elastic.warmup_share was"):
            self.assertIn(field, refused.stderr)
        rest = self.train("pieces", "--recipe", "paper")
        self.assertEqual(rest.returncode, 0, rest.stderr)
        self.assertIn(b"going on after step 5", rest.stderr)
        self.assertEqual(*(weights(os.path.join(self.place.name, name)) for name in ("straight", "pieces")))
        # The saved recipe is complete: it needs no name.
        path = os.path.join(self.place.name, "pieces", "recipe.yaml")
        self.assertEqual(essh("train", path, "--print-recipe").stdout.decode(), self.saved("pieces"))

    def test_a_dry_run_prints_the_settings(self):
        words = ("--recipe", "paper", "--dry-run", "--set", "elastic.kl=0.25")
        text = self.train("none", *words)
        self.assertEqual(text.returncode, 0, text.stderr)
        for line in (b"recipe       tiny, with the settings of paper\n", b'optimizer.algorithm: "adamw" instead of "muon"\n',
                     b"elastic.kl: 0.25 instead of 0.0\n"):
            self.assertIn(line, text.stdout)
        result = json.loads(self.train("none", *words, "--json").stdout)
        self.assertEqual((result["recipe"], result["named_settings"]), ("tiny", "paper"))
        self.assertEqual(result["changed"]["optimizer.algorithm"], "adamw")
        self.assertEqual(result["changed"]["elastic.kl"], 0.25)
        plain = json.loads(self.train("none", "--dry-run", "--json").stdout)
        self.assertEqual((plain["named_settings"], plain["changed"]), (None, {}))
        self.assertFalse(os.path.exists(os.path.join(self.place.name, "none")))

    def test_unknown_names_list_the_choices(self):
        refused = self.train("none", "--recipe", "papers")
        self.assertEqual(refused.returncode, EXIT_USAGE)
        self.assertIn(b'there are no settings "papers", did you mean "paper"? (there are paper, essh)', refused.stderr)
        refused = essh("train", "mqar", "--recipe", "paper", "--print-recipe")
        self.assertEqual(refused.returncode, EXIT_USAGE)
        self.assertIn(b"is for the models tiny, 370m, 1.5b", refused.stderr)


if __name__ == "__main__":
    unittest.main()
