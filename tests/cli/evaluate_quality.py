"""`essh evaluate ppl` over domains and whole documents, and `essh frontier --quality` with the figures of any evaluation."""
import csv
import json
import pathlib
import random
import shutil
import tempfile
import unittest

from _command import EXIT_BAD_FILE, EXIT_USAGE, essh, essh_json
from _training import RECIPE


class EvaluateQuality(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="essh-cli-"))
        rng = random.Random(6)
        for name in ("train", "news", "code"):
            documents = [" ".join(f"{name}{rng.randrange(20)}" for _ in range(rng.randrange(5, 60))) for _ in range(30)]
            (cls.folder / f"{name}.txt").write_text("\n<|endoftext|>\n".join(documents))
        assert essh("prepare", cls.folder / "train.txt", "-o", cls.folder / "data", "--tokenizer", "bytes", "--valid-fraction", "0.2").returncode == 0
        cls.run_folder = cls.folder / "run"
        made = essh("train", "tiny", "--data", cls.folder / "data", "-o", cls.run_folder, "--device", "cpu", *RECIPE, "--set", "run.steps=2")
        assert made.returncode == 0, made.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def files(self):
        return self.folder / "news.txt", self.folder / "code.txt"

    def ppl(self, *words, context=32):
        return essh_json("evaluate", "ppl", self.run_folder, "--context", context, "--tiers", "T1,T10", "--json", *words)

    def test_domains_are_columns(self):
        both = self.ppl("--domains", "--data", *self.files())
        self.assertEqual([one["domain"] for one in both], ["news", "code"])
        for one, path in zip(both, self.files()):
            self.assertEqual(one["results"], self.ppl("--data", path)["results"])
            self.assertGreaterEqual(one["seconds"], one["forward_seconds"])
        table = essh("evaluate", "ppl", self.run_folder, "--context", 32, "--tiers", "T1,T10", "--domains", "--data", *self.files()).stdout.decode()
        self.assertRegex(table, r"tier +news +code")
        self.assertIn(f"{both[1]['results'][1]['perplexity']:.3f}", table.splitlines()[-1])

    def test_stateful_reads_whole_documents(self):
        path = self.files()[0]
        small, large = (self.ppl("--stateful", "--data", path, context=piece) for piece in (16, 4096))
        self.assertEqual((small["protocol"], small["documents"]), ("stateful", 30))
        for a, b in zip(small["results"], large["results"]):
            self.assertEqual(a["tokens"], b["tokens"])
            self.assertAlmostEqual(a["nll"], b["nll"], places=5)
        self.assertEqual(self.ppl("--stateful", "--data", path, "--windows", 3)["documents"], 3)
        refused = essh("evaluate", "ppl", self.run_folder, "--stateful", "--cross-domain", "--data", path)
        self.assertEqual(refused.returncode, EXIT_USAGE)

    def test_frontier_and_report_show_figures_of_any_evaluation(self):
        results = {
            "ppl": self.ppl("--domains", "--data", *self.files()),
            "length": essh_json("evaluate", "length", self.run_folder, "--data", self.files()[0], "--lengths", "16,32", "--windows", 2, "--tiers",
                                "T1,T10", "--json"),
            "niah": essh_json("evaluate", "niah", self.run_folder, "--lengths", 64, "--pairs", 2, "--depths", "0.5", "--tiers", "T1,T10", "--json"),
            "recall": essh_json("evaluate", "recall", self.run_folder, "--task", "palindrome", "--length", 21, "--symbols", 20, "--samples", 4,
                                "--tiers", "T1,T10", "--json")}
        files = []
        for name, result in results.items():
            files.append(self.folder / f"{name}.json")
            files[-1].write_text(json.dumps(result))
        words = ("frontier", self.run_folder, "--tiers", "T1,T10", "--depth", 4, "--steps", 2, "--csv", self.folder / "frontier.csv", "--quality")
        made = essh(*words, *files)
        self.assertEqual(made.returncode, 0, made.stderr)
        kept = json.loads((self.run_folder / "frontier.json").read_text())
        for number, tier in enumerate(("T1", "T10")):
            quality = kept["points"][number]["quality"]
            self.assertEqual(sorted(quality), ["code", "news", "niah 64", "palindrome 21", "perplexity 16", "perplexity 32"])
            self.assertEqual(kept["points"][number]["tier"], tier)
            self.assertEqual(quality["code"], results["ppl"][1]["results"][number]["perplexity"])
            self.assertEqual(quality["niah 64"], results["niah"]["results"][number]["full_key"])
            self.assertEqual(quality["palindrome 21"], results["recall"]["results"][number]["accuracy"])
            self.assertEqual(quality["perplexity 32"], results["length"]["results"][2 * number + 1]["perplexity"])
            self.assertIn(f"{quality['code']:.4f}", made.stdout.decode())
        with open(self.folder / "frontier.csv", encoding="utf-8") as table:
            rows = list(csv.DictReader(table))
        self.assertAlmostEqual(float(rows[1]["code"]) / kept["points"][1]["quality"]["code"], 1, places=4)
        page = self.folder / "report.html"
        self.assertEqual(essh("report", self.run_folder, "-o", page).returncode, 0)
        self.assertIn("perplexity 32", page.read_text())
        self.assertIn(f"{kept['points'][0]['quality']['news']:.4f}", page.read_text())

    def test_other_files_are_refused(self):
        words = ("frontier", self.run_folder, "--tiers", "T1", "--depth", 4, "--steps", 2, "--quality", self.folder / "other.json")
        (self.folder / "other.json").write_text('{"points": []}')
        refused = essh(*words)
        self.assertEqual(refused.returncode, EXIT_BAD_FILE)
        self.assertIn(b"not a result", refused.stderr)
        foreign = self.ppl("--data", self.files()[0])
        foreign["provenance"]["model_hash"] = "0" * 64
        (self.folder / "other.json").write_text(json.dumps(foreign))
        refused = essh(*words)
        self.assertEqual(refused.returncode, EXIT_USAGE)
        self.assertIn(b"none of its results", refused.stderr)


if __name__ == "__main__":
    unittest.main()
