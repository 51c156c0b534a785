"""The memory of a training run is what --dry-run said, to a tenth; one that does not fit says what would."""
import os
import re
import resource
import subprocess
import tempfile
import unittest

from _command import ESSH, HANGS, essh, essh_json


class TrainMemory(unittest.TestCase):
    def prepare(self, place):
        text, data = os.path.join(place, "text.txt"), os.path.join(place, "data")
        with open(text, "w", encoding="utf-8") as file:
            for number in range(400):
                file.write(" ".join(str(number * word % 997) for word in range(1500)) + "\n<|endoftext|>\n")
        self.assertEqual(essh("prepare", text, "-o", data, "--tokenizer", "bytes", "--valid-fraction", "0.05").returncode, 0)
        return data

    def test_a_micro_batch_too_large_names_one_that_fits(self):
        with tempfile.TemporaryDirectory() as place:
            data, limit = self.prepare(place), 700 << 20

            def train(micro_batch):
                return subprocess.run(
                    [ESSH, "-q", "train", "tiny", "--data", data, "-o", os.path.join(place, "run"), "--threads", "1",
                     "--set", "run.steps=2", "--set", "run.batch=96", "--set", "refine.batch=96", "--set", "elastic.warmup_tokens=0",
                     "--set", "run.validation_windows=4", "--set", f"run.micro_batch={micro_batch}"],
                    capture_output=True, text=True, timeout=HANGS,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))

            large = train(96)
            self.assertEqual(large.returncode, 5, large.stderr)
            self.assertIn("activations", large.stderr)
            advice = re.search(r"run\.micro_batch=(\d+)", large.stderr)
            self.assertIsNotNone(advice, large.stderr)
            fits = int(advice.group(1))
            print(f"96 sequences do not fit, {fits} do")
            self.assertTrue(1 < fits < 96 and 96 % fits == 0)
            # In the same folder, in which nothing was trained yet.
            self.assertEqual(train(fits).returncode, 0)
            other = train(1)
            self.assertEqual(other.returncode, 2, other.stderr)
            self.assertIn("another recipe", other.stderr)

    def test_peak_follows_the_estimate(self):
        with tempfile.TemporaryDirectory() as place:
            data = self.prepare(place)
            # Checkpoints in the middle: the copy from which they are written counts.
            settings = ["--set", "run.steps=12", "--set", "run.checkpoint_every=4", "--set", "run.validate_every=6",
                        "--set", "elastic.warmup_tokens=0", "--set", "run.validation_windows=4", "--threads", "1"]
            estimate = essh_json("train", "tiny", "--data", data, "--dry-run", "--json", *settings)
            kinds = sum(value for name, value in estimate.items() if name.endswith("_bytes") and name != "total_bytes")
            self.assertAlmostEqual(kinds, estimate["total_bytes"], delta=1)
            # Half of the slots are reserved, and one draw in ten is full capacity again.
            self.assertAlmostEqual(estimate["reduced_share"], 0.45, delta=0.1)
            self.assertEqual(estimate["reduced_share"], estimate["reduced_share_after_warmup"])
            run = subprocess.Popen([ESSH, "train", "tiny", "--data", data, "-o", os.path.join(place, "run"), *settings],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(run.pid, 0)
            self.assertEqual(status, 0)
            run.returncode = 0
            peak = usage.ru_maxrss * 1024
            print(f"estimate {estimate['total_bytes'] / 1e6:.1f} MB, peak {peak / 1e6:.1f} MB")
            self.assertLess(abs(peak / estimate["total_bytes"] - 1), 0.1)


if __name__ == "__main__":
    unittest.main()
