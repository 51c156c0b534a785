"""bench/recall makes the paper's recall tables: chooses a rate at seed 0, repeats it, stops in time and goes on, trains nothing twice."""
import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from _command import ESSH, HANGS

RECALL = pathlib.Path(__file__).resolve().parents[2] / "bench" / "recall"
sys.dont_write_bytecode = True
sys.path.insert(0, str(RECALL.parent))
loader = importlib.machinery.SourceFileLoader("recall", str(RECALL))
recall = importlib.util.module_from_spec(importlib.util.spec_from_loader("recall", loader))
loader.exec_module(recall)

SMALL = ["model.vocab_size=96", "data.symbols=64", "run.batch=4", "run.micro_batch=4", "elastic.warmup_tokens=0", "run.validation_windows=1"]


class RecallGrid(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)

    def grid(self, *words):
        sets = [word for setting in SMALL for word in ("--set", setting)]
        made = subprocess.run([sys.executable, RECALL, "--essh", ESSH, "--out", self.folder / "runs", "--samples", "4", "--threads", "1",
                               "--steps", "3", "--json", self.folder / "tables.json", *sets, *words],
                              capture_output=True, text=True, timeout=HANGS, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        return made, json.loads((self.folder / "tables.json").read_text())["cells"]

    def test_rates_are_chosen_and_seeds_repeated(self):
        words = ["--tasks", "mqar", "--lengths", "32", "--pairs", "2", "--models", "hybrid,attention", "--rates", "1e-3,2e-3", "--seeds", "2",
                 "--jobs", "2"]
        made, cells = self.grid(*words)
        self.assertEqual([(cell["model"], cell["tier"], cell["seeds"]) for cell in cells],
                         [("hybrid", "T10", 2), ("hybrid", "T4", 2), ("hybrid", "T1", 2), ("attention", "full", 2)])
        for cell in cells:
            name = f"mqar-32-2-{cell['model']}-rate"
            runs = sorted(path.name for path in (self.folder / "runs").iterdir() if path.name.startswith(name) and path.is_dir())
            self.assertEqual(runs, sorted([f"{name}0.001-seed0", f"{name}0.002-seed0", f"{name}{cell['rate']:g}-seed1"]))
            best = {}
            for rate in ("0.001", "0.002"):
                found = json.loads((self.folder / "runs" / f"{name}{rate}-seed0" / "recall-1.json").read_text())["results"]
                best[float(rate)] = found[0]["accuracy"]
            self.assertEqual(best[cell["rate"]], max(best.values()))
            shown = [json.loads((self.folder / "runs" / f"{name}{cell['rate']:g}-seed{seed}" / "recall-0.json").read_text())["results"]
                     for seed in (0, 1)]
            values = [next(result["accuracy"] for result in results if result["tier"] == cell["tier"]) for results in shown]
            self.assertAlmostEqual(cell["accuracy"], sum(values) / 2)
            self.assertEqual((cell["seed_0"], cell["least"], cell["most"]), (values[0], min(values), max(values)))
            self.assertEqual(cell["parameters"], next(result["parameters"] for result in shown[0] if result["tier"] == cell["tier"]))
        self.assertIn("attention only", made.stdout)
        for title in ("mqar, length 32: accuracy, seed 0 (paper)", "mqar, 2 pairs: accuracy, mean [least, most] of 2 seeds (paper)"):
            self.assertIn(title, made.stdout)
        before = {path: path.stat().st_mtime_ns for path in (self.folder / "runs").rglob("*") if path.is_file()}
        _, again = self.grid(*words)
        self.assertEqual(again, cells)
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in (self.folder / "runs").rglob("*") if path.is_file()})

    def test_stops_in_time_and_goes_on(self):
        words = ["--tasks", "palindrome", "--lengths", "16", "--models", "mixer", "--rates", "1e-3", "--seeds", "1"]
        made, cells = self.grid(*words, "--seconds", "0.001")
        self.assertIn("not complete", made.stdout)
        self.assertEqual(cells, [])
        made, cells = self.grid(*words)
        self.assertNotIn("not complete", made.stdout)
        self.assertEqual(len(cells), 3)

    def test_figures_of_the_paper(self):
        paper = recall.paper_figures()
        self.assertEqual(paper["seed 0", "mqar", 512, 16, "hybrid"], {"T1": 0.65, "T4": 0.631, "T10": 0.874})
        self.assertEqual(paper["seeds", "mqar", 1024, 64, "mixer"]["T10"], (0, 0, 0.001))
        self.assertEqual(paper["seeds", "mqar", 512, 32, "hybrid"]["T10"], (0.668, 0.019, 0.994))
        self.assertEqual(paper["seed 0", "palindrome", 1024, 0, "hybrid"]["T1"], 0.974)
        self.assertEqual(paper["seed 0", "mqar", 256, 32, "attention"], {"full": 0.022})
        for kind, of_table in (("seed 0", (8, 16, 32, 64)), ("seeds", (32, 64))):
            for length in (256, 512, 1024):
                for pairs in of_table:
                    for model in ("hybrid", "mixer", "attention"):
                        for tier in recall.tiers_of(model):
                            figure = paper[kind, "mqar", length, pairs, model][tier]
                            if kind == "seeds":
                                self.assertTrue(figure[1] <= figure[0] <= figure[2], figure)

    def test_the_default_grid_has_every_cell_of_the_paper(self):
        """Also 64 pairs at length 256, which fill it: 64 keys with values, then 64 queries of two tokens."""
        made = subprocess.run([sys.executable, RECALL, "--essh", ESSH, "--out", self.folder / "runs", "--seconds", "0.001"],
                              capture_output=True, text=True, timeout=HANGS, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("not complete", made.stdout)
        for length in (256, 512, 1024):
            self.assertRegex(made.stdout, rf"mqar, length {length}: accuracy, seed 0 \(paper\)\n"
                                          r"model +tier +parameters +8 pairs +16 pairs +32 pairs +64 pairs\n")
        for pairs in (32, 64):
            self.assertRegex(made.stdout, rf"mqar, {pairs} pairs: accuracy, mean \[least, most\] of 3 seeds \(paper\)\n"
                                          r"model +tier +parameters +length 256 +length 512 +length 1024\n")
        self.assertIn("palindrome: accuracy, seed 0 (paper)", made.stdout)
        self.assertEqual(made.stdout.count("attention only"), 7)

    def test_a_length_without_room_is_refused(self):
        made = subprocess.run([sys.executable, RECALL, "--essh", ESSH, "--lengths", "128,256"], capture_output=True, text=True, timeout=HANGS,
                              check=False)
        self.assertEqual(made.returncode, 2)
        self.assertIn("64 pairs need a length of at least 256", made.stderr)


if __name__ == "__main__":
    unittest.main()
