"""What a training run survives as a whole command. Labels (T2) are those of the list of faults that essh survives; T1 is
train_kill.py and prepare_restart.py, T5 is in train_ranks.py, T3, T4 and T8 are unit tests in tests/train."""
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from _command import ESSH, EXIT_BAD_FILE, EXIT_USAGE, essh
from _training import RECIPE, make_data, weights

EXIT_INTERRUPTED = 75
LONG = ["--set", "run.steps=1000000"]  # more than a test will wait for


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="essh-faults-")
        cls.data = make_data(cls.folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def setUp(self):
        self.run_folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "run"

    def command(self, *more, data=None):
        return ["train", "tiny", "--data", data or self.data, "-o", self.run_folder, "--device", "cpu", "--threads", "1", *RECIPE, *more]

    def metrics(self):
        try:
            lines = (self.run_folder / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def started(self, *arguments):
        """A process that has made its first steps."""
        metrics = self.run_folder / "metrics.jsonl"

        def lines():
            return metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        before = lines()
        process = subprocess.Popen([ESSH, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while lines() < before + 2:
            if process.poll() is not None:
                raise AssertionError(process.communicate()[1])
            time.sleep(0.01)
        return process

    def test_t2_a_full_disk_costs_checkpoints_and_is_told_at_the_end(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        result = subprocess.run([ESSH, *map(str, self.command("--stop-after", "9"))], capture_output=True, preexec_fn=limit, timeout=120,
                                check=False)
        self.assertEqual(result.returncode, EXIT_BAD_FILE, result.stderr)
        self.assertIn(b"ulimit", result.stderr)
        failed = [entry["step"] for entry in self.metrics() if entry["kind"] == "checkpoint_failed"]
        self.assertEqual(failed, [3, 6, 9])
        self.assertEqual([name for name in os.listdir(self.run_folder / "checkpoints") if ".tmp-" in name], [])
        self.assertEqual(essh(*self.command()).returncode, 0)

    def test_t6_a_signal_saves_and_ends_with_its_own_code(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.started(*self.command(*LONG))
            process.send_signal(number)
            words = process.communicate(timeout=120)[1]
            self.assertEqual(process.returncode, EXIT_INTERRUPTED, words)
            steps = sorted(os.listdir(self.run_folder / "checkpoints"))
            self.assertIn(str(int(steps[-1].split("-")[1])).encode(), words)

    def test_t7_a_shard_that_shrinks_is_named(self):
        data = self.run_folder.parent / "data"
        shutil.copytree(self.data, data)
        process = self.started(*self.command(*LONG, data=data))
        os.truncate(data / "train-00000.bin", 128)
        words = process.communicate(timeout=120)[1]
        self.assertEqual(process.returncode, EXIT_BAD_FILE, words)
        self.assertIn(b"train-00000.bin", words)
        result = essh(*self.command(*LONG, data=data))
        self.assertEqual(result.returncode, EXIT_BAD_FILE)
        self.assertIn(b"train-00000.bin", result.stderr)

    def test_damaged_checkpoints_are_set_aside(self):
        self.assertEqual(essh(*self.command("--stop-after", "9")).returncode, EXIT_INTERRUPTED)
        for checkpoint in (self.run_folder / "checkpoints").iterdir():
            os.truncate(checkpoint / "state.safetensors", 1000)
        before = self.metrics()
        result = essh(*self.command())
        self.assertEqual(result.returncode, EXIT_BAD_FILE, result.stderr)
        self.assertIn(b"restart", result.stderr)
        self.assertEqual(self.metrics(), before)
        self.assertEqual(essh(*self.command("--restart")).returncode, 0)
        whole = self.run_folder
        self.run_folder = self.run_folder.parent / "whole"
        self.assertEqual(essh(*self.command()).returncode, 0)
        self.assertEqual(weights(whole), weights(self.run_folder))

    def test_t8_two_runs_in_one_folder(self):
        process = self.started(*self.command(*LONG))
        result = essh(*self.command(*LONG))
        self.assertEqual(result.returncode, EXIT_USAGE, result.stderr)
        self.assertIn(f"pid {process.pid} on ".encode(), result.stderr)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def test_the_same_data_by_any_name_is_the_same_run(self):
        place = pathlib.Path(self.data).parent
        for name in ("data", "./data/", self.data):
            result = essh(*self.command("--stop-after", "3", data=name), cwd=place)
            self.assertEqual(result.returncode, EXIT_INTERRUPTED, result.stderr)
        self.assertIn(f'path: "{self.data}"', (self.run_folder / "recipe.yaml").read_text())


if __name__ == "__main__":
    unittest.main()
