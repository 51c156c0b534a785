"""A run that goes on with more steps, other checkpoints or moved data, and one that may not."""
import os
import signal
import subprocess
import tempfile
import time
import unittest

from _command import ESSH, EXIT_USAGE, HANGS, essh
from _training import RECIPE, make_data, weights


class TrainExtend(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.data = make_data(cls.place.name)

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def train(self, name, *words, data=None):
        # A constant rate: earlier steps do not depend on the number of steps.
        return essh("train", "tiny", "--data", data or self.data, "-o", os.path.join(self.place.name, name), "--device", "cpu",
                    "--threads", "1", *RECIPE, "--set", "optimizer.schedule=constant", "--set", "optimizer.warmup=0",
                    "--set", "elastic.ordering_period=0", *words)

    def test_more_steps_are_the_longer_run(self):
        long = self.train("long", "--set", "run.steps=12")
        self.assertEqual(long.returncode, 0, long.stderr)
        self.assertEqual(self.train("grown", "--set", "run.steps=8").returncode, 0)
        refused = self.train("grown", "--set", "run.steps=12", "--set", "run.keep=5")
        self.assertEqual(refused.returncode, EXIT_USAGE)
        for words in (b"run.steps was 8 and is 12", b"run.keep was", b"--extend"):
            self.assertIn(words, refused.stderr)
        grown = self.train("grown", "--set", "run.steps=12", "--set", "run.keep=5", "--extend")
        self.assertEqual(grown.returncode, 0, grown.stderr)
        self.assertIn(b"going on after step 8", grown.stderr)
        self.assertEqual(*(weights(os.path.join(self.place.name, name)) for name in ("long", "grown")))
        fewer = self.train("grown", "--set", "run.steps=4", "--extend")
        self.assertEqual(fewer.returncode, EXIT_USAGE)
        self.assertIn(b"12 steps have been made", fewer.stderr)

    def test_moved_data_is_the_same_data(self):
        self.assertEqual(self.train("moved", "--set", "run.steps=6", "--stop-after", "3").returncode, 75)
        other = os.path.join(self.place.name, "elsewhere")
        os.symlink(self.data, other)
        gone_on = self.train("moved", "--set", "run.steps=6", data=other)
        self.assertEqual(gone_on.returncode, 0, gone_on.stderr)
        self.assertIn(b"going on after step 3", gone_on.stderr)

    def test_what_was_learnt_with_cannot_change(self):
        self.assertEqual(self.train("fixed", "--set", "run.steps=6", "--stop-after", "3").returncode, 75)
        for words in ([], ["--extend"]):
            refused = self.train("fixed", "--set", "run.steps=6", "--set", "optimizer.rate=0.5", "--set", "data.context=16", *words)
            self.assertEqual(refused.returncode, EXIT_USAGE)
            for field in (b"optimizer.rate was", b"data.context was"):
                self.assertIn(field, refused.stderr)
            self.assertNotIn(b"run.steps was", refused.stderr)

    def test_a_signal_says_what_it_does(self):
        run = os.path.join(self.place.name, "signal")
        process = subprocess.Popen([ESSH, "train", "tiny", "--data", self.data, "-o", run, "--device", "cpu", "--threads", "1", *RECIPE,
                                    "--set", "run.steps=100000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        metrics = os.path.join(run, "metrics.jsonl")
        while process.poll() is None and not (os.path.exists(metrics) and os.path.getsize(metrics) > 0):
            time.sleep(0.01)  # until the first step: the signal handler is installed
        process.send_signal(signal.SIGINT)
        words = process.communicate(timeout=HANGS)[1]
        self.assertEqual(process.returncode, 75, words)
        self.assertIn(b"stopping after this step", words)
        self.assertIn(b"the same command goes on", words)

    def test_a_pipe_gets_a_last_line_with_the_loss(self):
        result = self.train("progress", "--set", "run.steps=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr.decode(), r"(?m)^pretraining 100%.*loss \d")
        self.assertNotIn(b"\x1b", result.stderr)


if __name__ == "__main__":
    unittest.main()
